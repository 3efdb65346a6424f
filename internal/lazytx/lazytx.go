// Package lazytx is a transaction that is begun together with its holder's
// first statement: the opening statements and the holder's make one round
// trip, and so do the last statement and COMMIT.
//
// Before the first statement the server does not know the transaction. If the process
// dies, the server rolls back, unless COMMIT had reached it.
package lazytx

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/txguard"
)

// A Tx belongs to its maker. Only its own methods can end it; the transaction that
// [Tx.Holder] hands out cannot. Its own methods may be called at the same time as the
// holder's, which are for one goroutine at a time, like any transaction.
type Tx struct {
	conn    *pgx.Conn // nil: that of outer
	options pgx.TxOptions
	opening func(*pgx.Batch) // nil: of a part without a savepoint
	outer   pgx.Tx           // of which it is a part; nil: it is one itself

	mu    sync.Mutex // held while it opens or ends
	real  pgx.Tx     // nil until it has begun
	err   error      // why it cannot be used any more
	id    string     // see Identify
	calls int        // calls of the holder that have not returned, and results that it has not closed
	loose bool       // the holder has large objects, whose calls are not seen
	over  bool       // the holder may not call any more: see Freeze
	lost  error      // of a part: why it has not opened
}

// New returns a transaction on conn that has not begun. The statements that
// opening queues follow BEGIN, before the holder's. If one of them fails, or its
// callback returns an error, all calls of the holder return that error.
func New(conn *pgx.Conn, options pgx.TxOptions, opening func(*pgx.Batch)) *Tx {
	return &Tx{conn: conn, options: options, opening: opening}
}

// Nested returns a part of outer, a transaction that has begun, which opens with what before queues, if it is not nil,
// and a savepoint of that name; Began tells whether it has been set. Its owner ends it by
// [Tx.End], before there is another part, so that only its holder's statements
// follow the savepoint. The savepoint has a round trip to itself unless the connection has executed the holder's first
// statement in a part before. If it does not open, outer cannot be used any more. Outer may be a transaction of this
// package. The part's first statement then begins it too.
func Nested(outer pgx.Tx, savepoint string, before func(*pgx.Batch)) *Tx {
	return &Tx{outer: outer, opening: func(b *pgx.Batch) {
		if before != nil {
			before(b)
		}
		b.Queue("SAVEPOINT " + savepoint)
	}}
}

// Part returns a part of outer, a transaction that has begun, without a savepoint: its holder's statements go straight
// to outer. Began tells whether the holder has used it.
func Part(outer pgx.Tx) *Tx { return &Tx{outer: outer} }

// Began reports whether the transaction has begun on the server. It may be over.
func (t *Tx) Began() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.real != nil
}

// Err returns why the transaction cannot be used, or nil.
func (t *Tx) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Open begins the transaction without a statement of the holder, unless it has begun.
func (t *Tx) Open(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := t.openLocked(ctx)
	return err
}

// Identify stores id, the text of pg_current_xact_id(), which no other transaction has. A callback of the
// opening that has read it calls Identify. By this id [Tx.Rollback] finds out whether the holder has ended
// the transaction.
func (t *Tx) Identify(id string) { t.id = id }

// ID returns the id that Identify was given. It is empty before Identify, and so before the transaction has begun.
func (t *Tx) ID() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id
}

// Commit sends the statements that last queues, and COMMIT with them. If one of those
// statements fails, COMMIT is not executed and the transaction remains, to be rolled back.
// After an error that is not the server's own, the outcome is unknown. A transaction
// that never began is not an error: last is sent alone, as a transaction.
//
// Last gets the transaction's ID. One of its statements must fail if it is not in that
// transaction: the holder may have ended it and begun another.
func (t *Tx) Commit(ctx context.Context, last func(b *pgx.Batch, id string)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return t.err
	}
	t.err = pgx.ErrTxClosed
	b := &pgx.Batch{}
	last(b, t.id)
	if t.real == nil {
		if b.Len() == 0 {
			return nil
		}
		return t.conn.SendBatch(ctx, b).Close()
	}
	tag := ""
	b.Queue(commit).Query(func(rows pgx.Rows) error {
		rows.Close()
		tag = rows.CommandTag().String()
		return rows.Err()
	})
	err := t.conn.SendBatch(ctx, b).Close()
	if err == nil && tag != "COMMIT" {
		err = pgx.ErrTxCommitRollback
	}
	return err
}

// The same spelling as pgx's.
const commit, rollback = "commit", "rollback"

// Rollback ends the transaction and undoes it. If that fails, the connection is
// closed, and the server rolls back as soon as it notices. If the transaction
// is over already, or never began, it does nothing.
//
// It reports whether the holder has ended the transaction before, so that not all of the
// holder's work is undone. That needs an ID. If a statement has failed, it reports only whether
// the transaction with that ID was committed.
func (t *Tx) Rollback(ctx context.Context) (ended bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ours := t.err != nil // it may have been ended by its owner
	t.err = pgx.ErrTxClosed
	if t.real == nil || t.conn.IsClosed() {
		return false, nil
	}
	status := txguard.StatusOf(t.conn)
	if status == txguard.Ended {
		return !ours, nil
	}
	results, err := t.conn.PgConn().Exec(ctx, rollbackStatement(t.id, status)).ReadAll()
	if err != nil {
		_ = t.conn.Close(ctx)
		return false, err
	}
	for _, r := range results {
		ended = ended || len(r.Rows) == 1 && string(r.Rows[0][0]) == "t"
	}
	return ended, nil
}

// rollbackStatement returns ROLLBACK with a question in the same round trip: is the current transaction
// another one than id? If a statement has failed, the question is: was id committed? An id is digits.
func rollbackStatement(id string, status txguard.Status) string {
	switch {
	case id == "":
		return rollback
	case status == txguard.Aborted:
		return rollback + "; SELECT pg_xact_status('" + id + "') <> 'aborted'"
	}
	return "SELECT pg_current_xact_id_if_assigned() IS DISTINCT FROM '" + id + "'::xid8; " + rollback
}

// Freeze ends the holder's part, and leaves the owner's: further calls of the holder return [pgx.ErrTxClosed]. It reports
// whether the connection is quiet. If not, a call of the holder on another goroutine, or a result that it has not closed,
// still uses the connection. Nothing of it may be touched then but its socket, not even to look at its state: see [Cut].
func (t *Tx) Freeze() (quiet bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	return t.calls == 0
}

// End is Freeze for the owner as well: the transaction cannot be used any more. It sends nothing to the server. A
// connection whose holder has large objects is not quiet, since their calls go on working.
func (t *Tx) End() (quiet bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over, t.err = true, pgx.ErrTxClosed
	return t.calls == 0 && !t.loose
}

// ErrInUse reports that the holder of a transaction has returned while a call on another goroutine, or a result that was
// not closed, was still using it.
var ErrInUse = errors.New("the transaction was still in use, by a call on another goroutine or by rows that were not closed")

// Cut closes the socket of a connection that is not quiet. The call that still uses it fails, and the server rolls back.
// The owner of the connection must drop it, as by Hijack of a pool's, without a look at its state: that would be a data
// race with the call.
func Cut(conn *pgx.Conn) { _ = conn.PgConn().Conn().Close() }

// Lost returns why a part could not be opened, if the holder has tried. The
// transaction around the part cannot be used any more then.
func (t *Tx) Lost() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost
}

// EndedByHolder reports that the holder has ended the transaction by SQL that it sent,
// and has begun no other. The server's view of the connection decides.
func (t *Tx) EndedByHolder() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.real == nil || t.err != nil {
		return false
	}
	conn := t.txConn()
	return !conn.IsClosed() && txguard.StatusOf(conn) == txguard.Ended
}

// beginCall begins a call of the holder, which endCall ends.
func (t *Tx) beginCall() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.err != nil:
		return t.err
	case t.over:
		return pgx.ErrTxClosed
	}
	t.calls++
	return nil
}

func (t *Tx) endCall() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls--
}

// openLocked is called with mu held.
func (t *Tx) openLocked(ctx context.Context) (pgx.Tx, error) {
	if t.passThrough() || t.real != nil || t.err != nil {
		return t.real, t.err
	}
	br, err := t.sendOpening(ctx, func(*pgx.Batch) {})
	if err == nil {
		err = br.Close()
	}
	if err != nil && t.err == nil && ctx.Err() == nil {
		t.err = err
	}
	return t.real, err
}

// passThrough begins a part without a savepoint, which needs no statement. It is called with mu held.
func (t *Tx) passThrough() bool {
	if t.outer == nil || t.opening != nil || t.err != nil {
		return false
	}
	t.real = t.outer
	return true
}

// sendOpening sends the opening statements and those that add queues, and reads the
// results of the former. If the transaction has not begun after an error, the
// server has executed nothing at all.
func (t *Tx) sendOpening(ctx context.Context, add func(*pgx.Batch)) (pgx.BatchResults, error) {
	b := &pgx.Batch{}
	if t.outer == nil {
		b.BeginTx(t.options)
	}
	t.opening(b)
	mine := b.Len()
	add(b)
	br := t.openingSender().SendBatch(ctx, b)
	for i := range mine {
		var err error
		if read := b.QueuedQueries[i].Fn; read != nil {
			err = read(br)
		} else {
			_, err = br.Exec()
		}
		if err != nil {
			b.QueuedQueries = b.QueuedQueries[:i+1] // the holder's callbacks get nothing
			_ = br.Close()
			switch {
			case t.outer != nil: // there is no savepoint
				t.err, t.lost = err, err
			case t.conn.IsClosed() || txguard.StatusOf(t.conn) != txguard.Ended:
				t.real, t.err = br.Tx(), err
			}
			return nil, err
		}
	}
	if t.real = t.outer; t.real == nil {
		t.real = br.Tx()
	}
	return br, nil
}

// openingSender returns the receiver of the first batch. A part sends through its outer transaction, which may
// not have begun itself.
func (t *Tx) openingSender() interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
} {
	if t.outer != nil {
		return t.outer
	}
	return t.conn
}

// txConn returns the connection of the transaction.
func (t *Tx) txConn() *pgx.Conn {
	if t.outer != nil {
		return t.outer.Conn()
	}
	return t.conn
}

// executed are statements that a connection has executed. pgx prepares a statement before the batch that it is in, so a
// statement that cannot be prepared would end the outer transaction before the savepoint of a part is set.
type executed map[string]struct{}

// executedKey finds them among the data of a connection. maxExecuted bounds them, as pgx bounds its prepared statements.
const (
	executedKey = "sagamill/lazytx"
	maxExecuted = 512
)

// mayFollowOpening reports whether sql may share the round trip of the opening statements. In a part it may if the
// connection has executed it before.
func (t *Tx) mayFollowOpening(sql string) bool {
	if t.outer == nil {
		return true
	}
	before, _ := t.ownConn().PgConn().CustomData()[executedKey].(executed)
	_, found := before[sql]
	return found
}

// noteExecuted notes that sql has been executed in a part, unless err says that it failed.
func (t *Tx) noteExecuted(sql string, err error) {
	if t.outer == nil || t.opening == nil || err != nil {
		return
	}
	data := t.ownConn().PgConn().CustomData()
	before, _ := data[executedKey].(executed)
	if before == nil || len(before) == maxExecuted {
		before = executed{}
		data[executedKey] = before
	}
	before[sql] = struct{}{}
}

// ownConn is txConn, but begins no transaction.
func (t *Tx) ownConn() *pgx.Conn {
	if outer, ok := txguard.Unwrap(t.outer).(*holder); ok {
		return outer.t.ownConn()
	}
	return t.txConn()
}

// startWith sends the statements that add queues together with the opening statements,
// if that is possible and the transaction has not begun. Otherwise it returns the
// open transaction.
func (t *Tx) startWith(ctx context.Context, together bool, add func(*pgx.Batch)) (pgx.BatchResults, pgx.Tx, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.passThrough() || t.real != nil || t.err != nil {
		return nil, t.real, t.err
	}
	if together {
		br, err := t.sendOpening(ctx, add)
		switch {
		case err == nil:
			return br, t.real, nil
		case t.err != nil:
			return nil, nil, err
		}
		// Nothing was executed: the statement could not be prepared. It must fail
		// inside of the transaction, like any other.
	}
	tx, err := t.openLocked(ctx)
	return nil, tx, err
}
