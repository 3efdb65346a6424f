package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A session plans a statement once, for whatever arguments, and perhaps while the table is empty. PostgreSQL keeps this
// plan until it analyzes the table. A scan of an empty table is the cheapest plan for it, and the worst one for the table
// when it is full. PlanAnew and PlanByIndex are statements that prevent this, each for the rest of the transaction.
const (
	// PlanAnew makes the server plan each execution of a statement, for the tables as they are. That takes it about
	// 0.1 ms for each. It is for statements that are rare, in a transaction that a handler shares: the handler's own
	// statements return the same as without it.
	PlanAnew = `SELECT set_config('plan_cache_mode', 'force_custom_plan', true)`

	// SetPlanAnew is PlanAnew in a statement that begins a transaction, behind a semicolon.
	SetPlanAnew = "SET LOCAL plan_cache_mode = force_custom_plan"

	// PlanByIndex is PlanAnew with [ReadByIndex], for a transaction that is shared with no handler. (A statement that must
	// scan a table of one row all the same looks expensive, and would be compiled.)
	PlanByIndex = ReadByIndex + `, set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true)`
)

// SendByIndex is [Own.Send] with [PlanByIndex].
func (o Own) SendByIndex(ctx context.Context, b *pgx.Batch) error {
	behind := &pgx.Batch{}
	behind.Queue(PlanByIndex)
	behind.QueuedQueries = append(behind.QueuedQueries, b.QueuedQueries...)
	return o.Send(ctx, behind)
}

// ExecByIndex is [Own.Exec] with [PlanByIndex].
func (o Own) ExecByIndex(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	b := &pgx.Batch{}
	b.Queue(sql, args...).Exec(func(done pgconn.CommandTag) error {
		tag = done
		return nil
	})
	err = o.SendByIndex(ctx, b)
	return tag, err
}

// CollectByIndex is [Collect] with [PlanByIndex].
func CollectByIndex[T any](ctx context.Context, o Own, read pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	b := &pgx.Batch{}
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, read)
		return err
	})
	if err = o.SendByIndex(ctx, b); err != nil {
		return nil, err
	}
	return all, nil
}

// ScanByIndex scans the one row of a query into dest, with [PlanByIndex]. Without a row it fails with [pgx.ErrNoRows].
func (o Own) ScanByIndex(ctx context.Context, dest []any, sql string, args ...any) error {
	b := &pgx.Batch{}
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
	return o.SendByIndex(ctx, b)
}
