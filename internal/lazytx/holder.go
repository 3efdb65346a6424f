package lazytx

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/txguard"
)

// Holder returns the transaction without the power to end it, as
// [txguard.Wrap] does.
func (t *Tx) Holder() pgx.Tx { return &holder{t} }

type holder struct{ t *Tx }

func (*holder) Commit(context.Context) error   { return txguard.ErrManaged }
func (*holder) Rollback(context.Context) error { return txguard.ErrManaged }

// Exec sends SQL without arguments alone: it may hold several statements, which a batch cannot take.
func (h *holder) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := h.t.beginCall(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer h.t.endCall()
	together := len(args) > 0 && queueable(args) && h.t.mayFollowOpening(sql)
	br, tx, err := h.t.startWith(ctx, together, func(b *pgx.Batch) { b.Queue(sql, args...) })
	switch {
	case err != nil:
		return pgconn.CommandTag{}, err
	case br == nil:
		tag, err := tx.Exec(ctx, sql, args...)
		h.t.noteExecuted(sql, err)
		return tag, err
	}
	tag, err := br.Exec()
	if closeErr := br.Close(); err == nil {
		err = closeErr
	}
	return tag, err
}

func (h *holder) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := h.t.beginCall(); err != nil {
		return failedRows(err)
	}
	together := sql != "" && queueable(args) && h.t.mayFollowOpening(sql)
	br, tx, err := h.t.startWith(ctx, together, func(b *pgx.Batch) { b.Queue(sql, args...) })
	if err != nil {
		h.t.endCall()
		return failedRows(err)
	}
	var result *rows
	if br == nil {
		r, failed := tx.Query(ctx, sql, args...)
		h.t.noteExecuted(sql, failed)
		result, err = &rows{Rows: r, t: h.t}, failed
	} else {
		r, failed := br.Query()
		result, err = &rows{Rows: r, t: h.t, br: br}, failed
	}
	if err != nil {
		result.Close() // callers do not, after an error
	}
	return result, err
}

func (h *holder) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	r, err := h.Query(ctx, sql, args...)
	return row{r, err}
}

func (h *holder) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := h.t.beginCall(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	together := b.Len() > 0 && !beginsTransaction(b)
	for _, q := range b.QueuedQueries {
		together = together && h.t.mayFollowOpening(q.SQL)
	}
	br, tx, err := h.t.startWith(ctx, together, func(own *pgx.Batch) {
		for _, q := range b.QueuedQueries { // copies: sending changes them, and b may have to be sent again
			queued := *q
			own.QueuedQueries = append(own.QueuedQueries, &queued)
		}
	})
	switch {
	case err != nil:
		h.t.endCall()
		return pgx.FailedBatchResults(b, err)
	case br == nil:
		br = tx.SendBatch(ctx, b)
	}
	return &batchResults{BatchResults: br, t: h.t}
}

func (h *holder) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := h.t.beginCall(); err != nil {
		return nil, err
	}
	defer h.t.endCall()
	tx, err := h.openTx(ctx)
	if err == nil {
		tx, err = tx.Begin(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &savepoint{tx, h.t}, nil
}

func (h *holder) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := h.t.beginCall(); err != nil {
		return nil, err
	}
	defer h.t.endCall()
	tx, err := h.openTx(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Prepare(ctx, name, sql)
}

func (h *holder) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := h.t.beginCall(); err != nil {
		return 0, err
	}
	defer h.t.endCall()
	tx, err := h.openTx(ctx)
	if err != nil {
		return 0, err
	}
	return tx.CopyFrom(ctx, table, columns, src)
}

// LargeObjects returns a value whose calls all fail if the transaction does not open. Its calls bypass the holder: nothing
// tells when one is in flight.
func (h *holder) LargeObjects() pgx.LargeObjects {
	tx, err := h.openLoose()
	if err != nil {
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		tx = pgx.FailedBatchResults(b, err).Tx()
	}
	return tx.LargeObjects()
}

func (h *holder) openLoose() (pgx.Tx, error) {
	if err := h.t.beginCall(); err != nil {
		return nil, err
	}
	defer h.t.endCall()
	h.t.mu.Lock()
	h.t.loose = true
	h.t.mu.Unlock()
	return h.openTx(context.Background())
}

// Conn cannot return an error. If the transaction does not open, Conn closes the connection, so that all
// calls on it fail: no connection outside of the transaction must be handed out.
func (h *holder) Conn() *pgx.Conn {
	if _, err := h.openTx(context.Background()); err != nil {
		_ = h.t.txConn().Close(context.Background())
	}
	return h.t.txConn()
}

func (h *holder) openTx(ctx context.Context) (pgx.Tx, error) {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	return h.t.openLocked(ctx)
}

// queueable reports whether args can be queued: of pgx's options a batch takes only a rewriter.
func queueable(args []any) bool {
	if len(args) == 0 {
		return true
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return false
	}
	return true
}

// beginsTransaction reports whether b begins with BEGIN, which pgx refuses.
func beginsTransaction(b *pgx.Batch) bool {
	const begin = "begin"
	sql := strings.TrimSpace(b.QueuedQueries[0].SQL)
	return len(sql) >= len(begin) && strings.EqualFold(sql[:len(begin)], begin)
}
