package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/lazytx"
	"github.com/sagamill/sagamill/internal/traceheader"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// handlers enters handlers and reports each entry.
type handlers struct{ reporter *reporter }

// enterAlone calls the handler of an attempt that has tx to itself, and notes whether the handler has used tx. From
// then on the handler cannot use it any more, unless it has the bare connection.
func (h *handlers) enterAlone(ctx context.Context, tx pgx.Tx, a *attempt) error {
	part := lazytx.Part(tx)
	err := h.enterHandler(ctx, tx.Conn(), part, a)
	a.direct = part.Began()
	return err
}

// enterHandler calls the handler with the holder of part, whose transaction is on conn, and ends part. After an
// errTxInUse nothing of conn may be touched: a call of the handler still uses it.
func (h *handlers) enterHandler(ctx context.Context, conn *pgx.Conn, part *lazytx.Tx, a *attempt) (err error) {
	if err := failpoint.Hit("consumer/before-handler"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.step.Timeout)
	defer cancel()
	a.Attempt = a.countEntries()
	a.phase = phaseEntered
	a.out = &collector{job: a, log: h.reporter.log}
	defer a.out.closeCollector()
	ctx = h.reporter.reportEntry(ctx, a)
	err = errNoReturn
	defer func() { h.reporter.reportExit(a, err) }()
	if a.load != nil {
		defer func(begun time.Time) { a.load.observePace(time.Since(begun)) }(time.Now())
	}
	err = callGuarded(func() error {
		body, err := a.takeBody()
		if err != nil {
			return err
		}
		return a.input.run(ctx, txguard.Wrap(part.Holder()), a.Delivery, body, a.out.emitMessages)
	})
	err = explainBusy(err)
	switch {
	case !part.End():
		err = errors.Join(errTxInUse, err)
	case err == nil:
		err = checkAfterHandler(conn)
	case conn.IsClosed():
		err = errors.Join(errConnLost, err)
	case txguard.StatusOf(conn) == txguard.Ended:
		err = errors.Join(Terminal(errTxEnded), err)
	}
	return err
}

// explainBusy says what pgx's error means that a statement was sent while the result of another one was still open.
func explainBusy(err error) error {
	if err == nil || !strings.Contains(err.Error(), "conn busy") {
		return err
	}
	return fmt.Errorf("%w (the rows of an earlier query are still open: read them to the end, or close them, before the next statement)", err)
}

// enterAndCommit enters the handler of a, which has tx to itself, and commits what it has done.
func (x *executor) enterAndCommit(ctx context.Context, tx pgx.Tx, a *attempt) error {
	err := x.handlers.enterAlone(ctx, tx, a)
	if err == nil {
		err = x.settler.commitSuccess(ctx, tx, a)
	}
	return err
}

// repeatContested rolls back what the handler of a has done if err is a deadlock or a serialization failure, and waits.
// The row of the step stays locked, so that nobody else decides about the step meanwhile. It reports whether the handler
// is to be entered again: at most maxRepeats times, and never in a Single step, whose handler may have effects outside of
// its transaction.
func (x *executor) repeatContested(ctx context.Context, tx pgx.Tx, a *attempt, begun time.Time, repeats int, err error) bool {
	if !isContested(tx.Conn(), err) || a.step.Single || repeats > maxRepeats || time.Since(begun) > repeatLimit {
		return false
	}
	if _, lost := tx.Conn().Exec(ctx, "ROLLBACK TO SAVEPOINT "+stepSavepoint); lost != nil {
		return false // runHandler finds the same, and says why
	}
	x.reporter.logAttempt(ctx, slog.LevelDebug, "consumer: deadlock or serialization failure, entering the handler again", a, slog.Any("error", err))
	a.noteOutcome("", "", nil)
	a.setEmitted(nil)
	a.phase = phasePending
	return backoff.Sleep(ctx, repeatPolicy.Wait(repeats)) == nil
}

// takeBody returns the body, decoded anew for each further entry: an earlier one may have changed what it points to.
func (a *attempt) takeBody() (any, error) {
	if !a.bodyTaken {
		a.bodyTaken = true
		return a.body, nil
	}
	return decodeBody(a.input, a.Metadata, a.Payload)
}

// checkAfterHandler returns an error if a handler has returned nil but left its transaction unusable.
func checkAfterHandler(conn *pgx.Conn) error {
	switch {
	case conn.IsClosed():
		return errConnLost
	case conn.PgConn().IsBusy(): // by the bare connection
		return errTxInUse
	case txguard.StatusOf(conn) == txguard.Ended:
		return Terminal(errTxEnded)
	case txguard.StatusOf(conn) == txguard.Aborted:
		return errTxAborted
	}
	return nil
}

// A collector holds what a handler emits and queues until the handler returns.
type collector struct {
	job *attempt
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

func (o *collector) emitMessages(msgs ...outbox.Message) {
	o.addWhileOpen(func() {
		for _, m := range msgs {
			o.msgs = append(o.msgs, o.job.follows(m))
			o.reportUndeclared(&m)
		}
	})
}

// A declaration is the list of what a step emits.
type declaration struct {
	outputs  map[routeKey]bool
	reported sync.Map // routeKeys that are missing and have been logged
}

// newDeclaration returns the declaration of a step's Emits, nil if there are none.
func newDeclaration(emits []outbox.Output) *declaration {
	if len(emits) == 0 {
		return nil
	}
	d := &declaration{outputs: map[routeKey]bool{}}
	for _, out := range emits {
		d.outputs[routeKey{out.Topic, cmp.Or(out.Type, out.Topic)}] = true
	}
	return d
}

// reportUndeclared logs the first message of a topic and type that is missing in the step's Emits. It is no error: a
// gap in a description must not hold up a refund.
func (o *collector) reportUndeclared(m *outbox.Message) {
	if o.job.step == nil || o.job.step.declared == nil || m.Topic == o.job.Metadata[flow.HeaderReplyTo] {
		return
	}
	d, key := o.job.step.declared, routeKey{m.Topic, cmp.Or(m.Type, m.Topic)}
	if d.outputs[key] {
		return
	}
	if _, again := d.reported.LoadOrStore(key, true); !again {
		o.log.WarnContext(context.Background(), "consumer: a step emits a message that its Emits does not list, so the description of the service lacks it",
			"step", o.job.step.Name, "topic", key.topic, "type", key.typ)
	}
}

func (o *collector) queueStatement(s statement) {
	o.addWhileOpen(func() { o.statements = append(o.statements, s) })
}

func (o *collector) addWhileOpen(add func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		o.log.ErrorContext(context.Background(), "consumer: a handler emitted or queued something after it had returned; that is lost", "step", o.job.Step)
		return
	}
	add()
}

func (o *collector) closeCollector() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

// queueInto adds the queued statements to last and returns their number.
func (o *collector) queueInto(last *pgx.Batch) int {
	for _, s := range o.statements {
		last.Queue(s.sql, s.args...)
	}
	return len(o.statements)
}

// Queue adds a statement to the handler's transaction. The statement travels with COMMIT in one round trip. It runs
// after the handler has returned nil, in the order of the calls, and before the emitted messages are stored. If
// another handler of the same saga follows in the transaction, the statement runs before that handler. Its result
// cannot be read. If it fails, the handler has failed: make a constraint of the table refuse what must not happen.
//
// The limits of [pgx.Batch] apply: one statement, without options. Queue may be called only while the handler runs.
// It panics with a statement that would end the transaction, or change a setting of the session.
func (d *Delivery) Queue(sql string, args ...any) {
	if d.out == nil {
		panic("consumer: Queue of a Delivery that no handler was given")
	}
	switch {
	case txguard.Ends(sql):
		panic(ErrTxManaged)
	case txguard.ChangesSession(sql):
		panic(ErrSessionSetting)
	}
	d.out.queueStatement(statement{sql, args})
}

// DidNothing says that the action has decided to do nothing, so that there is nothing to undo. A later compensation
// enters no handler, as if it had come first. Called in a compensation it has no effect. It may be called only while
// the handler runs. It reports false, and does nothing, for a Delivery that no handler was given, such as one that was
// rebuilt from stored fields: a later compensation then enters the handler.
func (d *Delivery) DidNothing() bool {
	if d.out == nil {
		return false
	}
	d.out.addWhileOpen(func() { d.out.nothing = true })
	return true
}

// follows completes m with what it shares with the message that led to it.
func (a *attempt) follows(m outbox.Message) outbox.Message {
	m.Scope = cmp.Or(m.Scope, a.Scope)
	m.Key = cmp.Or(m.Key, a.Key)
	if m.Scope == a.Scope && m.Key == a.Key {
		m.Incarnation = cmp.Or(m.Incarnation, a.Incarnation)
	}
	m.CorrelationID = cmp.Or(m.CorrelationID, usableID(a.CorrelationID))
	m.CausationID = cmp.Or(m.CausationID, usableID(a.ID))
	parent, state := a.traceHeaders()
	m.Headers = traceheader.Add(m.Headers, traceLimits, parent, state)
	return m
}

var traceLimits = traceheader.Limits{Count: outbox.MaxHeaders, Bytes: outbox.MaxHeaderBytes}

// usableID returns id if the outbox accepts it. An id of foreign origin can hold anything, and must not make a step
// fail.
func usableID(id string) string {
	if len(id) > outbox.MaxHeaderName || !cleantext.Printable(id) {
		return ""
	}
	return id
}

// queueEmitted adds emitted messages to last, in their order.
func (s *settler) queueEmitted(last *pgx.Batch, msgs []outbox.Message) error {
	return terminalIfInvalid(s.outbox.Queue(context.Background(), last, msgs...)) // they have their saga and their trace
}

// checkEmitted returns the error that queueEmitted would return.
func checkEmitted(msgs []outbox.Message) error {
	return terminalIfInvalid(outbox.Validate(msgs...))
}

func terminalIfInvalid(err error) error {
	if errors.Is(err, outbox.ErrInvalid) {
		return Terminal(err)
	}
	return err
}
