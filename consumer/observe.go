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

// An Outcome says what became of an arrival of a message. Outcomes are few and
// fixed, so that they can label a metric; keys never should.
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

// An Observer is told what a Consumer does, on the goroutines that do it: what
// it takes, messages wait for. It must be safe for concurrent use. A panic in it is
// logged, and changes nothing for the message. Package telemetry has one that makes traces and metrics.
type Observer interface {
	// Enter is called when a handler is about to be entered, and for each attempt
	// at an Effect before its verify or call, whichever comes first: verify, call
	// and record are in one entry. For each call of Enter, Observe is called later
	// with the Entry, also if the handler panics or ends its goroutine; not if the
	// process dies. in must not be changed.
	Enter(ctx context.Context, in *Delivery) Entry

	// Observe is called when it is known what became of an arrival: after the
	// commit of its effect, its parked copy or its dead letter, or once that
	// cannot happen in this attempt any more.
	Observe(ctx context.Context, e Event)

	// Ended is called after each transaction in which messages were handled. An
	// attempt at an Effect has two, before its call and after it.
	Ended(ctx context.Context, t Transaction)
}

// An Entry is one entry into a handler, as its Observer sees it. A nil Entry is
// one that the Observer has no interest in.
type Entry interface {
	// Context returns ctx with what tells code under it that it belongs to the
	// entry, such as a span: handler and log lines run under it, and so do
	// verify, call and record.
	Context(ctx context.Context) context.Context

	// Trace returns the trace headers of what the handler emits, or "" for the
	// handled message's own.
	Trace() (parent, state string)
}

// An Event is what became of one arrival of a message.
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

// errNoReturn is how an entry ended whose handler neither returned nor
// panicked: it ended its goroutine, as testing's FailNow does.
var errNoReturn = errors.New("consumer: the handler ended its goroutine")

// maxLag is the age from which on a timestamp says nothing.
const maxLag = 30 * 24 * time.Hour

// A watch is what is to be told of a job's arrival once that is decided.
type watch struct {
	came, entered, left time.Time
	inside              bool // a handler was entered, and nobody has been told the end
	delivered           bool // the job came from the broker; by now it is parked
	entry               Entry
	failure             error // of the handler
	outcome             Outcome
	reason              Reason
	batch               int // messages in the transaction; 0: this one
}

// context returns ctx for log lines about the job.
func (w *watch) context(ctx context.Context) context.Context {
	if w.entry == nil {
		return ctx
	}
	within := ctx
	if guard.Call(func() error { within = w.entry.Context(ctx); return nil }) != nil || within == nil {
		return ctx
	}
	return within
}

// observe calls a method of the Observer, or of its Entry, if there is an Observer.
func (c *Consumer) observe(ctx context.Context, method string, call func(o Observer)) {
	if c.opts.Observer != nil {
		guard.Hook(ctx, c.opts.Logger, "consumer: option Observer: "+method, func() { call(c.opts.Observer) })
	}
}

// note says what becomes of j if the present transaction commits.
func (j *job) note(o Outcome, r Reason, err error) {
	j.watch.outcome, j.watch.reason = o, r
	if err != nil {
		j.watch.failure = err
	}
}

// entering tells that j's handler is about to be entered, and returns the
// context under which it is. What an Effect does after its first function goes on
// in the entry of that.
func (c *Consumer) entering(ctx context.Context, j *job) context.Context {
	w := &j.watch
	if !w.inside {
		w.entered, w.inside = time.Now(), true
		c.observe(ctx, "Enter", func(o Observer) { w.entry = o.Enter(ctx, &j.Delivery) })
	}
	w.failure = nil
	ctx = w.context(ctx)
	c.counters.inFlight.Add(1)
	return ctx
}

// leaving tells that it has been left, with err.
func (c *Consumer) leaving(j *job, err error) {
	j.watch.left, j.watch.failure = time.Now(), err
	c.counters.inFlight.Add(-1)
}

// traceHeaders returns the trace headers of what j's handler emits: those of its
// entry, or else of the message.
func (j *job) traceHeaders() (parent, state string) {
	if j.watch.entry != nil {
		err := guard.Call(func() error { parent, state = j.watch.entry.Trace(); return nil })
		if err == nil && parent != "" {
			return parent, state
		}
	}
	return j.Metadata.Get(outbox.HeaderTraceParent), j.Metadata.Get(outbox.HeaderTraceState)
}

// settled tells what became of j, whose transaction has committed if err is nil.
// Call it once for each attempt, in whatever way that ended.
func (c *Consumer) settled(ctx context.Context, j *job, err error) {
	w := &j.watch
	switch {
	case err != nil:
		w.outcome, w.reason, w.failure = OutcomeUndecided, "", err
	case w.outcome != "":
	case !w.inside:
		return // a parked copy that is gone or busy: somebody else has it in hand
	default:
		w.outcome, w.failure = OutcomeUndecided, j.cause
	}
	c.tell(ctx, j)
}

// settledBatch tells what became of jobs, whose common transaction has committed.
func (c *Consumer) settledBatch(ctx context.Context, jobs []*job) {
	for _, j := range jobs {
		j.watch.batch = len(jobs)
		c.settled(ctx, j, nil)
	}
}

// undone tells that b was rolled back, those of its jobs that are to run again.
// The one that made it fail, and those that can only be recorded, still have
// their entries: what becomes of them is told then.
func (b *batch) undone(ctx context.Context) {
	for _, j := range b.jobs {
		if j.cause != nil {
			continue
		}
		if !j.watch.inside {
			j.watch.outcome = ""
			continue
		}
		j.watch.batch = len(b.jobs)
		j.note(OutcomeUndone, "", nil)
		b.c.tell(ctx, j)
	}
}

// deserted tells of those of jobs that have been entered and not settled: a
// handler has ended the goroutine.
func (c *Consumer) deserted(ctx context.Context, jobs []*job) {
	for _, j := range jobs {
		if j.watch.inside {
			c.settled(ctx, j, errNoReturn)
		}
	}
}

func (c *Consumer) tell(ctx context.Context, j *job) {
	w := &j.watch
	e := Event{
		Delivery: &j.Delivery, Outcome: w.outcome, Reason: w.reason, Err: w.failure,
		Entry: w.entry, Entered: w.inside, Began: w.came, Lag: -1,
		Parked: j.parked != nil && !w.delivered, Redelivered: j.redelivered, Batch: max(w.batch, 1),
	}
	if e.Entered {
		e.Began, e.Ended = w.entered, w.left
		if !e.Parked {
			e.Lag = lag(j.Metadata, w.entered)
		}
	} else {
		e.Ended = time.Now()
	}
	j.watch = watch{came: w.came}
	c.counters.count(&e)
	c.observe(ctx, "Observe", func(o Observer) { o.Observe(ctx, e) })
}

// buried tells what became of msg, which belongs to no step.
func (c *Consumer) buried(ctx context.Context, topic string, msg *message.Message, began time.Time, r *rejection, err error) {
	e := Event{
		Delivery: &Delivery{ID: msg.UUID, Topic: topic, Metadata: msg.Metadata, Payload: msg.Payload},
		Outcome:  OutcomeDead, Reason: r.reason, Err: r.err,
		Began: began, Ended: time.Now(), Lag: -1, Batch: 1,
		Redelivered: msg.Metadata.Get(outbox.PropertyRedelivered) == "true",
	}
	if err != nil {
		e.Outcome, e.Reason, e.Err = OutcomeUndecided, "", err
	}
	c.counters.count(&e)
	c.observe(ctx, "Observe", func(o Observer) { o.Observe(ctx, e) })
}

// timed tells of the transaction that do makes, of as many messages as n then is.
func (c *Consumer) timed(ctx context.Context, n *int, do func() error) error {
	began, err := time.Now(), errNoReturn
	defer func() {
		t := Transaction{Messages: max(*n, 1), Time: time.Since(began), Err: err}
		c.counters.ended(&t)
		c.observe(ctx, "Ended", func(o Observer) { o.Ended(ctx, t) })
	}()
	err = do()
	return err
}

// lag returns how old a message was at the time at, or a negative duration if
// its timestamp does not tell. Clocks that disagree make none.
func lag(metadata message.Metadata, at time.Time) time.Duration {
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

// logJob writes a line about j. Every such line names the message in the same
// words; the key, which is the caller's, and the payload are in none.
func (c *Consumer) logJob(ctx context.Context, level slog.Level, text string, j *job, more ...slog.Attr) {
	ctx = j.watch.context(ctx)
	if !c.opts.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("step", j.Step), slog.String("kind", string(j.kind)), slog.String("topic", j.Topic),
		slog.String("message_id", j.ID), slog.String("correlation_id", j.CorrelationID),
	}
	if j.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", j.Attempt))
	}
	c.opts.Logger.LogAttrs(ctx, level, text, append(attrs, more...)...)
}

func (c *Consumer) logFailure(ctx context.Context, j *job, err error) {
	c.logJob(ctx, slog.LevelWarn, "consumer: handler failed", j, slog.Any("error", err))
}

func (c *Consumer) logTombstone(ctx context.Context, j *job) {
	c.logJob(ctx, slog.LevelInfo, "consumer: compensation before its action, which will not run any more", j)
}

// logDead writes a line about a dead letter of a step.
func (c *Consumer) logDead(ctx context.Context, j *job, f failure) {
	c.logJob(ctx, slog.LevelError, "consumer: dead letter", j,
		slog.String("reason", string(f.reason)), slog.Int("attempts", f.attempts), slog.Any("error", f.err))
}

// logRejected writes a line about one of no step.
func (c *Consumer) logRejected(ctx context.Context, topic, messageID string, f failure) {
	c.opts.Logger.LogAttrs(ctx, slog.LevelError, "consumer: dead letter", slog.String("topic", topic),
		slog.String("message_id", messageID), slog.String("reason", string(f.reason)), slog.Any("error", f.err))
}
