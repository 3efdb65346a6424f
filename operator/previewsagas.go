package operator

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/saga"
)

// sqlReadEnded reads which of the instances at $1, $2, $3 have ended, and how.
const sqlReadEnded = `
SELECT scope, key, path, root::text, status FROM {schema}.saga
WHERE ended_at IS NOT NULL AND (scope, key, path) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))`

// A sagaSchema is a schema in which a preview looks for the instances of its letters.
type sagaSchema struct {
	db   *pgxpool.Pool
	read string
}

// findSagaSchemas returns the schemas with instances that the role may read, in the database of the letters and in the
// others of the options. Another database that cannot be read is left out.
func (p *previewer) findSagaSchemas(ctx context.Context) (all []sagaSchema, err error) {
	for _, db := range append([]*pgxpool.Pool{p.db}, slices.DeleteFunc(slices.Clone(p.Databases), func(db *pgxpool.Pool) bool { return db == p.db })...) {
		schemas, err := migrations.Schemas(ctx, db)
		if err != nil && db == p.db {
			return nil, err
		}
		for _, s := range schemas {
			if s.Sagas && len(s.SagasDenied) == 0 {
				all = append(all, sagaSchema{db, newInstanceQueries(s.Name).readEnded})
			}
		}
	}
	return all, nil
}

// A markedAddress is the address of an instance, with the mark of its saga: another service may use the same address.
type markedAddress struct {
	Address
	mark string
}

// instanceOf returns the address of the instance that waits for the action of l, if its n says that there is one.
func instanceOf(l *DeadLetter) (at markedAddress, ok bool) {
	mark, to, err := parseSagaN(l.N)
	return markedAddress{Address{Scope: l.Scope, Key: l.Key, Path: to.Path}, mark}, err == nil && l.Kind == string(inbox.Action)
}

// learnEnded reads which of the instances that letters belong to have ended.
func (p *previewer) learnEnded(ctx context.Context, letters []DeadLetter) error {
	var scopes, keys, paths []string
	for i := range letters {
		if at, ok := instanceOf(&letters[i]); ok {
			scopes, keys, paths = append(scopes, at.Scope), append(keys, at.Key), append(paths, at.Path)
		}
	}
	if len(scopes) == 0 {
		return nil
	}
	if p.ended == nil {
		var err error
		if p.sagas, err = p.findSagaSchemas(ctx); err != nil {
			return err
		}
		p.ended = map[markedAddress]saga.Status{}
	}
	for _, s := range p.sagas {
		rows, _ := s.db.Query(ctx, s.read, scopes, keys, paths)
		var at markedAddress
		var root string
		var status saga.Status
		_, err := pgx.ForEachRow(rows, []any{&at.Scope, &at.Key, &at.Path, &root, &status}, func() error {
			at.mark = flow.MarkOf(root)
			p.ended[at] = status
			return nil
		})
		if err != nil && s.db == p.db && !sqlschema.Missing(err) { // or the schema has been dropped meanwhile
			return err
		}
	}
	return nil
}
