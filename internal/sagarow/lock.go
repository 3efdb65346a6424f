package sagarow

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// ErrNoInstance reports that there is no instance with that scope, key and path. Package saga exports it.
var ErrNoInstance = errors.New("saga: no such instance")

// sqlLockInstance locks an instance. Replies, timers and people take turns here.
const sqlLockInstance = `
SELECT {columns} FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3 FOR UPDATE`

// sqlTryLockInstance is sqlLockInstance, but returns no row while another transaction holds the lock.
const sqlTryLockInstance = sqlLockInstance + ` SKIP LOCKED`

// sqlLockRoot locks the outermost instance before one that is nested in it. A transaction may lock several
// instances of one saga. Two such transactions take turns at the outermost, so they cannot deadlock.
const sqlLockRoot = `
SELECT FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3 FOR UPDATE`

// sqlTryLockRoot is sqlLockRoot, but returns no row while another transaction holds the lock.
const sqlTryLockRoot = sqlLockRoot + ` SKIP LOCKED`

// sqlReadInstance reads an instance without a lock.
const sqlReadInstance = `
SELECT {columns} FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3`

// Statements lock and read rows of one schema.
type Statements struct {
	LockInstance, LockRoot, TryLockInstance, TryLockRoot, ReadInstance, FindHidden string
}

// NewStatements returns those of a schema.
func NewStatements(schema string) Statements {
	return Statements{
		LockInstance: BindColumns(schema, sqlLockInstance), LockRoot: BindColumns(schema, sqlLockRoot),
		TryLockInstance: BindColumns(schema, sqlTryLockInstance), TryLockRoot: BindColumns(schema, sqlTryLockRoot),
		ReadInstance: BindColumns(schema, sqlReadInstance),
		FindHidden:   sqlschema.Bind(schema, pg.SQLFindHidden("saga")),
	}
}

// BindColumns sets {schema} in a statement, and {columns} to what [ScanRow] reads.
func BindColumns(schema, sql string) string {
	return sqlschema.Bind(schema, strings.ReplaceAll(sql, "{columns}", columns))
}

// An Address names an instance within a schema.
type Address struct{ Scope, Key, Path string }

// LockRow waits for the lock of an instance and reads it. Its error is an [ErrNoInstance] if there is none, and a
// [pg.HiddenError] if row-level security hides it.
func (s *Statements) LockRow(ctx context.Context, tx pgx.Tx, at Address) (*Row, error) {
	if root := flow.Root(at.Path); at.Path != root {
		if _, err := tx.Exec(ctx, s.LockRoot, at.Scope, at.Key, root); err != nil {
			return nil, explainRoot(err)
		}
	}
	r, err := scanOne(tx.QueryRow(ctx, s.LockInstance, at.Scope, at.Key, at.Path))
	return r, s.hiddenOr(ctx, tx, err)
}

// hiddenOr returns err, or a [pg.HiddenError] if err is an [ErrNoInstance] because the row is hidden.
func (s *Statements) hiddenOr(ctx context.Context, db Querier, err error) error {
	if !errors.Is(err, ErrNoInstance) {
		return err
	}
	if hidden := pg.CheckHidden(ctx, db, s.FindHidden); hidden != nil {
		return fmt.Errorf("saga: read instance: %w", hidden)
	}
	return err
}

// TryLockRow is [Statements.LockRow] that does not wait: its error is an [ErrNoInstance] also while another transaction
// holds the lock.
func (s *Statements) TryLockRow(ctx context.Context, tx pgx.Tx, at Address) (*Row, error) {
	if root := flow.Root(at.Path); at.Path != root {
		tag, err := tx.Exec(ctx, s.TryLockRoot, at.Scope, at.Key, root)
		if err != nil {
			return nil, explainRoot(err)
		}
		if tag.RowsAffected() == 0 {
			return nil, ErrNoInstance
		}
	}
	return scanOne(tx.QueryRow(ctx, s.TryLockInstance, at.Scope, at.Key, at.Path))
}

func explainRoot(err error) error {
	return fmt.Errorf("saga: lock the outermost instance: %w", sqlschema.Explain(err))
}

// A Querier is a pool or a transaction.
type Querier = pg.Querier

// ReadRow reads an instance without a lock. Its error is an [ErrNoInstance] if there is none.
func (s *Statements) ReadRow(ctx context.Context, db Querier, at Address) (*Row, error) {
	r, err := scanOne(db.QueryRow(ctx, s.ReadInstance, at.Scope, at.Key, at.Path))
	return r, s.hiddenOr(ctx, db, err)
}

func scanOne(from pgx.Row) (*Row, error) {
	r, err := ScanRow(from)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrNoInstance
	case err != nil:
		return nil, fmt.Errorf("saga: read instance: %w", sqlschema.Explain(err))
	}
	return r, nil
}
