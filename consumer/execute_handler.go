package consumer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/traceheader"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// enter calls the handler with tx, which is on conn.
func (c *Consumer) enter(ctx context.Context, conn *pgx.Conn, tx pgx.Tx, j *job, found cell) (err error) {
	if err := failpoint.Hit("consumer/before-handler"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, j.step.Timeout)
	defer cancel()
	j.Attempt = j.attempts(found)
	j.entered = true
	j.out = &collector{job: j, log: c.opts.Logger}
	defer j.out.close()
	ctx = c.entering(ctx, j)
	err = errNoReturn
	defer func() { c.leaving(j, err) }()
	if j.traffic != nil {
		defer func(begun time.Time) { j.traffic.note(time.Since(begun)) }(time.Now())
	}
	err = guarded(func() error { return j.input.run(ctx, txguard.Wrap(tx), j.Delivery, j.body, j.out.emit) })
	if err == nil {
		err = stateAfter(conn)
	} else if conn.IsClosed() {
		err = errors.Join(errConnLost, err)
	} else if txguard.StatusOf(conn) == txguard.Ended {
		err = errors.Join(Terminal(errTxEnded), err)
	}
	return err
}

// stateAfter returns what is wrong with a transaction that a handler has
// returned as if nothing were.
func stateAfter(conn *pgx.Conn) error {
	switch {
	case conn.IsClosed():
		return errConnLost
	case conn.PgConn().IsBusy():
		return errTxBusy
	case txguard.StatusOf(conn) == txguard.Ended:
		return Terminal(errTxEnded)
	case txguard.StatusOf(conn) == txguard.Aborted:
		return errTxAborted
	}
	return nil
}

// A collector keeps what a handler emits and queues until the handler returns.
type collector struct {
	job *job
	log *slog.Logger

	mu         sync.Mutex
	msgs       []outbox.Message
	statements []statement
	nothing    bool // the action has done nothing
	closed     bool
}

// A statement is SQL with its arguments.
type statement struct {
	sql  string
	args []any
}

func (o *collector) emit(msgs ...outbox.Message) {
	o.keep(func() {
		for _, m := range msgs {
			o.msgs = append(o.msgs, o.job.follows(m))
		}
	})
}

func (o *collector) queue(s statement) {
	o.keep(func() { o.statements = append(o.statements, s) })
}

func (o *collector) keep(add func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		o.log.ErrorContext(context.Background(), "consumer: a handler emitted or queued something after it had returned; that is lost", "step", o.job.Step)
		return
	}
	add()
}

func (o *collector) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

// queueInto adds the statements to last and returns how many they are.
func (o *collector) queueInto(last *pgx.Batch) int {
	for _, s := range o.statements {
		last.Queue(s.sql, s.args...)
	}
	return len(o.statements)
}

// Queue adds a statement to the handler's transaction that travels with the
// transaction's last round trip, COMMIT included: it costs none of its own. It
// runs after the handler has returned nil, after all that the handler has queued
// before it, before what is emitted, and before any other handler of the saga: where
// one of the same transaction follows, it is sent ahead of that. Its result cannot be looked at. If it fails, that is a failure of
// the handler, so that what must not happen has to be a constraint of the table.
//
// It has the limits of [pgx.Batch]: one statement, without options. It may be
// called only while the handler runs, and panics with a statement that would end
// the transaction.
func (d *Delivery) Queue(sql string, args ...any) {
	if d.out == nil {
		panic("consumer: Queue of a Delivery that no handler was given")
	}
	if txguard.Ends(sql) {
		panic(ErrTxManaged)
	}
	d.out.queue(statement{sql, args})
}

// DidNothing says that the action has done nothing, by its own decision, and that there
// is nothing to undo: should its compensation come, no handler is entered for that, as
// if it had come first. Of a compensation it says nothing. It may be called only
// while the handler runs.
func (d *Delivery) DidNothing() {
	if d.out == nil {
		panic("consumer: DidNothing of a Delivery that no handler was given")
	}
	d.out.keep(func() { d.out.nothing = true })
}

// follows fills in m what it has in common with the message that led to it.
func (j *job) follows(m outbox.Message) outbox.Message {
	m.Scope = cmp.Or(m.Scope, j.Scope)
	m.Key = cmp.Or(m.Key, j.Key)
	if m.Scope == j.Scope && m.Key == j.Key {
		m.Incarnation = cmp.Or(m.Incarnation, j.Incarnation)
	}
	m.CorrelationID = cmp.Or(m.CorrelationID, usable(j.CorrelationID))
	m.CausationID = cmp.Or(m.CausationID, usable(j.ID))
	parent, state := j.traceHeaders()
	m.Headers = traceheader.Add(m.Headers, traceLimits, parent, state)
	return m
}

var traceLimits = traceheader.Limits{Count: outbox.MaxHeaders, Bytes: outbox.MaxHeaderBytes}

// usable returns id if the outbox would take it: an id of foreign origin may
// be anything, and must not make a step fail.
func usable(id string) string {
	if len(id) > outbox.MaxHeaderName || !cleantext.Printable(id) {
		return ""
	}
	return id
}

// queueEmitted adds emitted messages to last, in their order.
func (c *Consumer) queueEmitted(last *pgx.Batch, msgs []outbox.Message) error {
	return terminalIfInvalid(c.outbox.Queue(context.Background(), last, msgs...)) // they have their saga and their trace
}

// checkEmitted returns the error that queueEmitted would.
func checkEmitted(msgs []outbox.Message) error {
	return terminalIfInvalid(outbox.Validate(msgs...))
}

func terminalIfInvalid(err error) error {
	if errors.Is(err, outbox.ErrInvalid) {
		return Terminal(err)
	}
	return err
}
