package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/outbox"
)

// An Outcome says how an arrival of a message ended. Outcomes are few and fixed, so that they can label a metric;
// keys never should.
type Outcome string

// The outcomes. After all but the last two, the arrival is over and a delivery
// is acked.
const (
	OutcomeDone       Outcome = "done"       // its handler's work has committed
	OutcomeDuplicate  Outcome = "duplicate"  // that had committed before (its answer may have been lost), or a parked copy or another attempt will do it
	OutcomeSuperseded Outcome = "superseded" // the compensation came first
	OutcomeTombstone  Outcome = "tombstone"  // a compensation with nothing to undo: its action will not run any more
	OutcomeRetry      Outcome = "retry"      // parked: it will run again
	OutcomeDead       Outcome = "dead"       // a dead letter
	OutcomeUndone     Outcome = "undone"     // rolled back because of another message of its transaction; it runs again at once
	OutcomeUndecided  Outcome = "undecided"  // nothing is known to have committed: it is tried again, or delivered again
)

// outcomes are all of them.
var outcomes = [...]Outcome{
	OutcomeDone, OutcomeDuplicate, OutcomeSuperseded, OutcomeTombstone, OutcomeRetry, OutcomeDead, OutcomeUndone, OutcomeUndecided,
}

// An Observer sees what a Consumer does. Its methods run on the goroutines of the lanes and workers: messages wait
// while they run. It must be safe for concurrent use. A panic in it is logged and changes nothing for the message.
// Package telemetry has one that makes traces and metrics.
type Observer interface {
	// Enter is called when a handler is about to be entered. An attempt at an Effect is one entry, which begins before
	// its verify or its call. For each call of Enter, Observe is called later with the Entry, also if the handler
	// panics or ends its goroutine, unless the process dies. in must not be changed.
	Enter(ctx context.Context, in *Delivery) Entry

	// Observe is called when the outcome of an arrival is known: after the commit of its effect, its parked copy or
	// its dead letter, or once that cannot happen in this attempt any more.
	Observe(ctx context.Context, e Event)

	// Ended is called after each transaction in which messages were handled. An
	// attempt at an Effect has two, before its call and after it.
	Ended(ctx context.Context, t Transaction)
}

// An Entry is one entry into a handler, as its Observer sees it. An Observer that is not interested in an entry
// returns a nil Entry.
type Entry interface {
	// Context returns ctx with a value that marks the entry, such as a span. The handler, verify, call, record and log
	// lines run under it.
	Context(ctx context.Context) context.Context

	// Trace returns the trace headers of what the handler emits, or "" for the
	// handled message's own.
	Trace() (parent, state string)
}

// An Event says how one arrival of a message ended.
type Event struct {
	// Delivery is the message, not to be changed. If it could not be read, only
	// ID, Topic, Metadata and Payload are set, and may hold anything.
	Delivery *Delivery

	Outcome Outcome
	Reason  Reason // why it was parked or became a dead letter
	Err     error  // of the handler, or why nothing was decided; its text may be the handler's own

	Entry       Entry         // from Enter; nil also if no handler was entered
	Entered     bool          // a handler was
	Began       time.Time     // when it was, or else when the message was looked at
	Ended       time.Time     // when it returned, an Effect's record if it came to that; or else when the outcome was known
	Lag         time.Duration // from the message's timestamp to Began, for a delivery that entered its handler; negative: not known
	Parked      bool          // it was run from the database, not from the broker
	Redelivered bool          // the broker says that it may have delivered it before
	Batch       int           // messages in its transaction
}

// A Transaction is one in which messages were handled.
type Transaction struct {
	Messages int           // that were dealt with in it, or at least one
	Time     time.Duration // from its begin to the answer to its COMMIT or ROLLBACK
	Err      error         // nil: it has committed
}

// errNoReturn is the result of a handler that neither returned nor panicked: it ended its goroutine, as FailNow of
// package testing does.
var errNoReturn = errors.New("consumer: the handler ended its goroutine")

// maxLag is the age from which on a timestamp is not believed.
const maxLag = 30 * 24 * time.Hour

// A watch holds what the Observer will see of an attempt once its outcome is decided.
type watch struct {
	entered, left time.Time
	inside        bool // a handler was entered, and its end is not reported yet
	delivered     bool // the attempt came from the broker; by now it is parked
	entry         Entry
	failure       error // of the handler
	outcome       Outcome
	reason        Reason
	batch         int // messages in the transaction; 0: this one
}

// logContext returns ctx for log lines about the attempt.
func (w *watch) logContext(ctx context.Context) context.Context {
	if w.entry == nil {
		return ctx
	}
	within := ctx
	if guard.Call(func() error { within = w.entry.Context(ctx); return nil }) != nil || within == nil {
		return ctx
	}
	return within
}

// A reporter reports to the Observer, the counters and the log.
type reporter struct {
	observer Observer
	log      *slog.Logger
	counters *counters
}

// callObserver calls a method of the Observer, or of its Entry, if there is an Observer.
func (rep *reporter) callObserver(ctx context.Context, method string, call func(o Observer)) {
	if rep.observer != nil {
		guard.Hook(ctx, rep.log, "consumer: option Observer: "+method, func() { call(rep.observer) })
	}
}

// noteOutcome sets the outcome that a has if the present transaction commits.
func (a *attempt) noteOutcome(o Outcome, r Reason, err error) {
	a.watch.outcome, a.watch.reason = o, r
	if err != nil {
		a.watch.failure = err
	}
}

// reportEntry reports that a's handler is about to be entered, and returns the context for it. All functions of an
// Effect run in the entry of the first.
func (rep *reporter) reportEntry(ctx context.Context, a *attempt) context.Context {
	w := &a.watch
	if !w.inside {
		w.entered, w.inside = time.Now(), true
		rep.callObserver(ctx, "Enter", func(o Observer) { w.entry = o.Enter(ctx, &a.Delivery) })
	}
	w.failure = nil
	ctx = w.logContext(ctx)
	rep.counters.inFlight.Add(1)
	return ctx
}

// reportExit reports that the handler has been left, with err.
func (rep *reporter) reportExit(a *attempt, err error) {
	a.watch.left, a.watch.failure = time.Now(), err
	rep.counters.inFlight.Add(-1)
}

// traceHeaders returns the trace headers for what a's handler emits: those of its entry, or else those of the
// message.
func (a *attempt) traceHeaders() (parent, state string) {
	if a.watch.entry != nil {
		err := guard.Call(func() error { parent, state = a.watch.entry.Trace(); return nil })
		if err == nil && parent != "" {
			return parent, state
		}
	}
	return a.Metadata.Get(outbox.HeaderTraceParent), a.Metadata.Get(outbox.HeaderTraceState)
}

// reportOutcome runs do, which executes a, and reports how that ended.
func (rep *reporter) reportOutcome(ctx context.Context, a *attempt, do func() error) error {
	err := errNoReturn
	defer func() { rep.reportSettled(ctx, a, err) }()
	err = do()
	return err
}

// reportSettled reports the outcome of a, whose transaction has committed if err is nil. Call it once for each
// attempt, however that ended.
func (rep *reporter) reportSettled(ctx context.Context, a *attempt, err error) {
	w := &a.watch
	switch {
	case err != nil:
		w.outcome, w.reason, w.failure = OutcomeUndecided, "", err
	case w.outcome != "":
	case !w.inside:
		return // the parked copy is gone or busy: another instance has it
	default:
		w.outcome, w.failure = OutcomeUndecided, a.cause
	}
	rep.sendEvent(ctx, a)
}

// reportBatch reports the outcomes of attempts whose common transaction has committed.
func (rep *reporter) reportBatch(ctx context.Context, attempts []*attempt) {
	for _, a := range attempts {
		a.watch.batch = len(attempts)
		rep.reportSettled(ctx, a, nil)
	}
}

// reportUndone reports that a batch was rolled back, for those of its attempts that run again. The attempt that made
// it fail still has its entry, and so has one that can only be recorded: their outcomes are reported later.
func (rep *reporter) reportUndone(ctx context.Context, attempts []*attempt) {
	for _, a := range attempts {
		if a.phase == phaseLost {
			continue
		}
		if !a.watch.inside {
			a.watch.outcome = ""
			continue
		}
		a.watch.batch = len(attempts)
		a.noteOutcome(OutcomeUndone, "", nil)
		rep.sendEvent(ctx, a)
	}
}

// reportDeserted reports attempts that were entered and not settled, because a handler has ended the goroutine.
func (rep *reporter) reportDeserted(ctx context.Context, attempts []*attempt) {
	for _, a := range attempts {
		if a.watch.inside {
			rep.reportSettled(ctx, a, errNoReturn)
		}
	}
}

// sendEvent counts the outcome of a and calls Observe.
func (rep *reporter) sendEvent(ctx context.Context, a *attempt) {
	w := &a.watch
	e := Event{
		Delivery: &a.Delivery, Outcome: w.outcome, Reason: w.reason, Err: w.failure,
		Entry: w.entry, Entered: w.inside, Began: a.receivedAt, Lag: -1,
		Parked: a.parked != nil && !w.delivered, Redelivered: a.redelivered, Batch: max(w.batch, 1),
	}
	if e.Entered {
		e.Began, e.Ended = w.entered, w.left
		if !e.Parked {
			e.Lag = messageLag(a.Metadata, w.entered)
		}
	} else {
		e.Ended = time.Now()
	}
	a.watch, a.reported = watch{}, e.Outcome
	rep.counters.countEvent(&e)
	rep.callObserver(ctx, "Observe", func(o Observer) { o.Observe(ctx, e) })
}

// reportRejected reports the outcome of msg, which was rejected.
func (rep *reporter) reportRejected(ctx context.Context, topic string, msg *message.Message, began time.Time, r *rejection, err error) {
	e := Event{
		Delivery: &Delivery{ID: msg.UUID, Topic: topic, Metadata: msg.Metadata, Payload: msg.Payload},
		Outcome:  OutcomeDead, Reason: r.reason, Err: r.err,
		Began: began, Ended: time.Now(), Lag: -1, Batch: 1,
		Redelivered: msg.Metadata.Get(outbox.PropertyRedelivered) == "true",
	}
	if err != nil {
		e.Outcome, e.Reason, e.Err = OutcomeUndecided, "", err
	}
	rep.counters.countEvent(&e)
	rep.callObserver(ctx, "Observe", func(o Observer) { o.Observe(ctx, e) })
}

// reportTransaction runs do, which makes a transaction of n messages, and reports it.
func (rep *reporter) reportTransaction(ctx context.Context, n *int, do func() error) error {
	began, err := time.Now(), errNoReturn
	defer func() {
		t := Transaction{Messages: max(*n, 1), Time: time.Since(began), Err: err}
		rep.counters.countTransaction(&t)
		rep.callObserver(ctx, "Ended", func(o Observer) { o.Ended(ctx, t) })
	}()
	err = do()
	return err
}

// messageLag returns the age of a message at the time at, or a negative duration if its timestamp does not tell.
// Clocks that disagree give 0.
func messageLag(metadata message.Metadata, at time.Time) time.Duration {
	sent, err := time.Parse(time.RFC3339, metadata.Get(outbox.PropertyTimestamp))
	if err != nil {
		return -1
	}
	age := at.Sub(sent)
	if age > maxLag {
		return -1
	}
	return max(age, 0)
}

// logAttempt writes a line about a. Every such line names the message in the same attributes. No line holds the
// payload or the key, which is the caller's.
func (rep *reporter) logAttempt(ctx context.Context, level slog.Level, text string, a *attempt, more ...slog.Attr) {
	ctx = a.watch.logContext(ctx)
	if !rep.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("step", a.Step), slog.String("kind", string(a.kind)), slog.String("topic", a.Topic),
		slog.String("message_id", a.ID), slog.String("correlation_id", a.CorrelationID),
	}
	if a.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", a.Attempt))
	}
	rep.log.LogAttrs(ctx, level, text, append(attrs, more...)...)
}

func (rep *reporter) logFailure(ctx context.Context, a *attempt, err error) {
	rep.logAttempt(ctx, slog.LevelWarn, "consumer: handler failed", a, slog.Any("error", err))
}

func (rep *reporter) logTombstone(ctx context.Context, a *attempt) {
	rep.logAttempt(ctx, slog.LevelInfo, "consumer: compensation before its action, which will not run any more", a)
}

// logDeadLetter writes a line about a dead letter of a step.
func (rep *reporter) logDeadLetter(ctx context.Context, a *attempt, f failure) {
	rep.logAttempt(ctx, slog.LevelError, "consumer: dead letter", a,
		slog.String("reason", string(f.reason)), slog.Int("attempts", f.attempts), slog.Any("error", f.err))
}

// logRejected writes a line about a dead letter of no step.
func (rep *reporter) logRejected(ctx context.Context, topic, messageID string, f failure) {
	rep.log.LogAttrs(ctx, slog.LevelError, "consumer: dead letter", slog.String("topic", topic),
		slog.String("message_id", messageID), slog.String("reason", string(f.reason)), slog.Any("error", f.err))
}
