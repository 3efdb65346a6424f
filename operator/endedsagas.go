package operator

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/saga"
)

// sqlReadEnded reads which of the instances at $1, $2, $3 have ended, and how.
const sqlReadEnded = `
SELECT scope, key, path, root::text, status FROM {schema}.saga
WHERE ended_at IS NOT NULL AND (scope, key, path) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))`

// An endedSagas finds out which of the orchestrated sagas that letters belong to have ended. An ended instance never goes
// on, so no lock is needed.
type endedSagas struct {
	db      *pgxpool.Pool // of the letters
	schemas []sagaSchema
}

// A sagaSchema is a schema with instances.
type sagaSchema struct {
	db           *pgxpool.Pool
	sqlReadEnded string
}

// A markedAddress is the address of an instance, with the mark of its saga: another service may use the same address.
type markedAddress struct {
	Address
	mark string
}

// findSagas returns the schemas with instances that the role may read, in db and in others. Another database that cannot
// be read is left out.
func findSagas(ctx context.Context, db *pgxpool.Pool, others []*pgxpool.Pool) (*endedSagas, error) {
	e := &endedSagas{db: db}
	all := append([]*pgxpool.Pool{db}, slices.DeleteFunc(slices.Clone(others), func(other *pgxpool.Pool) bool { return other == db })...)
	for _, at := range all {
		schemas, err := migrations.Schemas(ctx, at)
		if err != nil && at == db {
			return nil, err
		}
		for _, s := range schemas {
			if s.Sagas && len(s.SagasDenied) == 0 {
				e.schemas = append(e.schemas, sagaSchema{at, newInstanceQueries(s.Name).readEnded})
			}
		}
	}
	return e, nil
}

// instanceOf returns the address of the instance that waits for the action l, if its n says that there is one.
func instanceOf(l *candidate) (at markedAddress, ok bool) {
	if l.Kind != inbox.Action {
		return at, false
	}
	mark, to, err := parseSagaN(l.N)
	return markedAddress{Address{Scope: l.Scope, Key: l.Key, Path: to.Path}, mark}, err == nil
}

// A runner runs a function in a transaction, or in a savepoint of one.
type runner func(ctx context.Context, do func(pgx.Tx) error) error

// inSavepoint returns the runner of a transaction.
func inSavepoint(tx pgx.Tx) runner {
	return func(ctx context.Context, do func(pgx.Tx) error) error { return pgx.BeginFunc(ctx, tx, do) }
}

// learn finds out which of the sagas of letters have ended, and sets that in each. It reads the database of the letters
// by run. A schema that was dropped meanwhile, or has other tables, is left out. If a
// schema is locked for longer than lockPatience, that is an error, and the letters stay.
func (e *endedSagas) learn(ctx context.Context, run runner, letters []candidate) error {
	var scopes, keys, paths []string
	for i := range letters {
		if at, ok := instanceOf(&letters[i]); ok {
			scopes, keys, paths = append(scopes, at.Scope), append(keys, at.Key), append(paths, at.Path)
		}
	}
	if len(scopes) == 0 {
		return nil
	}
	ended := map[markedAddress]saga.Status{}
	for _, s := range e.schemas {
		runHere := run
		if s.db != e.db {
			runHere = pg.NewOwn(s.db).InPlainTx
		}
		err := runHere(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sqlLimitLocks, strconv.FormatInt(lockPatience.Milliseconds(), 10)); err != nil {
				return err
			}
			rows, _ := tx.Query(ctx, s.sqlReadEnded, scopes, keys, paths)
			var at markedAddress
			var root string
			var status saga.Status
			_, err := pgx.ForEachRow(rows, []any{&at.Scope, &at.Key, &at.Path, &root, &status}, func() error {
				at.mark = flow.MarkOf(root)
				ended[at] = status
				return nil
			})
			return err
		})
		if err != nil && s.db == e.db && !sqlschema.Missing(err) && !isForeign(err) {
			return err
		}
	}
	for i := range letters {
		if at, ok := instanceOf(&letters[i]); ok {
			letters[i].ended = ended[at]
		}
	}
	return nil
}

// isForeign reports whether err means that the tables of a schema are not those of this binary, or not for this role.
func isForeign(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && slices.Contains([]string{"42703", "42501"}, e.Code)
}
