package pg

import (
	"cmp"
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Own runs statements that are sagamill's alone, on connections of a service's pool. It has no method that would run
// one in another way:
//
//   - With row_security = off PostgreSQL answers with an error (42501) where row-level security would hide rows from the
//     statement. Without it a relay that may not see the log takes it for empty. The setting ends with the statement or
//     the transaction, since the pool's sessions serve handlers as well, whose policies must work.
//   - After an error that may have its cause in the session ([IsOfSession]) the connection is closed, and the next
//     statement gets another one.
//   - If an id was taken, its sequence is raised behind its rows ([IDSequence]), so that the caller can repeat the
//     statement.
//
// The setting travels in the batch of the statement, or with BEGIN, and costs no round trip.
type Own struct{ pool *pgxpool.Pool }

// NewOwn returns an Own on pool. It does no I/O.
func NewOwn(pool *pgxpool.Pool) Own { return Own{pool} }

// Pool returns the pool, for transactions that are shared with a handler, and for connections that live long.
func (o Own) Pool() *pgxpool.Pool { return o.pool }

// SQLShowAll is the setting of [Own] as a statement, for a transaction that is begun in another way.
const SQLShowAll = `SELECT set_config('row_security', 'off', true)`

// ShowAll is the setting of [Own] in a statement that begins a transaction, behind a semicolon.
const ShowAll = "SET LOCAL row_security = off"

// Send sends b, which is one transaction, and reads all its results.
func (o Own) Send(ctx context.Context, b *pgx.Batch) error {
	conn, err := o.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return sendOwn(ctx, conn.Conn(), b)
}

// sendOwn sends b behind the setting, on conn.
func sendOwn(ctx context.Context, conn *pgx.Conn, b *pgx.Batch) error {
	own := &pgx.Batch{}
	own.Queue(SQLShowAll)
	for _, q := range b.QueuedQueries { // copies: sending changes them, and b may be sent again
		queued := *q
		own.QueuedQueries = append(own.QueuedQueries, &queued)
	}
	err := conn.SendBatch(ctx, own).Close()
	closeIfOfSession(ctx, conn, err)
	return RaiseIfTaken(ctx, conn, err)
}

// Exec executes one statement in a transaction of its own.
func (o Own) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	b := &pgx.Batch{}
	b.Queue(sql, args...).Exec(func(done pgconn.CommandTag) error {
		tag = done
		return nil
	})
	err = o.Send(ctx, b)
	return tag, err
}

// QueryRow is like the method of a pool. The statement is sent by Scan.
func (o Own) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return ownRow{own: o, ctx: ctx, sql: sql, args: args}
}

type ownRow struct {
	own  Own
	ctx  context.Context
	sql  string
	args []any
}

func (r ownRow) Scan(dest ...any) error {
	if len(r.args) > 0 {
		if _, ok := r.args[0].(pgx.QueryExecMode); ok { // which a batch cannot have
			return r.scanQuery(dest)
		}
	}
	b := &pgx.Batch{}
	b.Queue(r.sql, r.args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
	return r.own.Send(r.ctx, b)
}

func (r ownRow) scanQuery(dest []any) error {
	rows, err := r.own.Query(r.ctx, r.sql, r.args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		return cmp.Or(rows.Err(), pgx.ErrNoRows)
	}
	if err := rows.Scan(dest...); err != nil {
		return err
	}
	rows.Close()
	return rows.Err()
}

// Query is like the method of a pool, with its options for a statement. The rows hold a connection until they are closed
// or read to their end.
func (o Own) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := o.pool.Acquire(ctx)
	if err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{QueuedQueries: []*pgx.QueuedQuery{{}}}, err).Query()
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: beginOwn(pgx.TxOptions{AccessMode: pgx.ReadOnly})})
	if err != nil {
		conn.Release()
		return pgx.FailedBatchResults(&pgx.Batch{QueuedQueries: []*pgx.QueuedQuery{{}}}, err).Query()
	}
	rows, err := tx.Query(ctx, sql, args...)
	own := &ownRows{Rows: rows, ctx: ctx, tx: tx, conn: conn}
	if err != nil {
		own.Close()
	}
	return own, err
}

// ownRows end their transaction and give their connection back when they are closed.
type ownRows struct {
	pgx.Rows
	ctx  context.Context
	tx   pgx.Tx
	conn *pgxpool.Conn
}

func (r *ownRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.Close()
	}
	return more
}

func (r *ownRows) Close() {
	r.Rows.Close()
	if r.conn == nil {
		return
	}
	ctx := context.WithoutCancel(r.ctx)
	if r.tx.Rollback(ctx) != nil { // nothing was written
		_ = r.conn.Conn().Close(ctx)
	}
	closeIfOfSession(ctx, r.conn.Conn(), r.Rows.Err())
	r.conn.Release()
	r.conn = nil
}

// Collect returns what read makes of each row of one statement, in a transaction of its own.
func Collect[T any](ctx context.Context, o Own, read pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	b := &pgx.Batch{}
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, read)
		return err
	})
	if err = o.Send(ctx, b); err != nil {
		return nil, err
	}
	return all, nil
}

// InTx runs do in a transaction, which commits if do returns nil.
func (o Own) InTx(ctx context.Context, options pgx.TxOptions, do func(pgx.Tx) error) error {
	options.BeginQuery = beginOwn(options)
	return o.inTx(ctx, options, do)
}

// InPlainTx is InTx with the default options.
func (o Own) InPlainTx(ctx context.Context, do func(pgx.Tx) error) error {
	return o.InTx(ctx, pgx.TxOptions{}, do)
}

// InSharedTx is InTx for a transaction in which functions of the user run as well: rows may be hidden in it.
func (o Own) InSharedTx(ctx context.Context, options pgx.TxOptions, do func(pgx.Tx) error) error {
	return o.inTx(ctx, options, do)
}

func (o Own) inTx(ctx context.Context, options pgx.TxOptions, do func(pgx.Tx) error) error {
	return o.OnConn(ctx, func(conn *pgx.Conn) error { return pgx.BeginTxFunc(ctx, conn, options, do) })
}

// OnConn runs do, whose transaction is its own affair, on a connection of the pool, and looks at its error as InTx does.
func (o Own) OnConn(ctx context.Context, do func(conn *pgx.Conn) error) error {
	conn, err := o.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	err = do(conn.Conn())
	closeIfOfSession(ctx, conn.Conn(), err)
	return RaiseIfTaken(ctx, conn.Conn(), err)
}

// beginOwn returns the statement that begins a transaction with options and the setting.
func beginOwn(options pgx.TxOptions) string {
	begin := options.BeginQuery
	if begin == "" {
		words := []string{"BEGIN"}
		if options.IsoLevel != "" {
			words = append(words, "ISOLATION LEVEL", string(options.IsoLevel))
		}
		words = append(words, string(options.AccessMode), string(options.DeferrableMode))
		begin = strings.TrimSpace(strings.Join(words, " "))
	}
	if strings.Contains(begin, ShowAll) { // a limited read
		return begin
	}
	return begin + "; " + ShowAll
}
