package lazytx

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A savepoint cannot be used once its transaction is over: the connection may
// belong to another request by then.
type savepoint struct {
	pgx.Tx
	t *Tx
}

func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := s.t.beginCall(); err != nil {
		return nil, err
	}
	defer s.t.endCall()
	inner, err := s.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &savepoint{inner, s.t}, nil
}

func (s *savepoint) Commit(ctx context.Context) error {
	if err := s.t.beginCall(); err != nil {
		return err
	}
	defer s.t.endCall()
	return s.Tx.Commit(ctx)
}

func (s *savepoint) Rollback(ctx context.Context) error {
	if err := s.t.beginCall(); err != nil {
		return err
	}
	defer s.t.endCall()
	return s.Tx.Rollback(ctx)
}

func (s *savepoint) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := s.t.beginCall(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer s.t.endCall()
	return s.Tx.Exec(ctx, sql, args...)
}

func (s *savepoint) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := s.t.beginCall(); err != nil {
		return failedRows(err)
	}
	r, err := s.Tx.Query(ctx, sql, args...)
	result := &rows{Rows: r, t: s.t}
	if err != nil {
		result.Close()
	}
	return result, err
}

func (s *savepoint) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	r, err := s.Query(ctx, sql, args...)
	return row{r, err}
}

func (s *savepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := s.t.beginCall(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return &batchResults{BatchResults: s.Tx.SendBatch(ctx, b), t: s.t}
}

func (s *savepoint) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := s.t.beginCall(); err != nil {
		return 0, err
	}
	defer s.t.endCall()
	return s.Tx.CopyFrom(ctx, table, columns, src)
}

func (s *savepoint) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := s.t.beginCall(); err != nil {
		return nil, err
	}
	defer s.t.endCall()
	return s.Tx.Prepare(ctx, name, sql)
}
