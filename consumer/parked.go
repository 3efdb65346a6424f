package consumer

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

// A parkedRow is a parked message that this instance has taken.
type parkedRow struct {
	ID                        int64
	Kind                      kind
	Scope, Key, Step, N       string
	Topic                     string
	MessageID                 []byte
	HeaderNames, HeaderValues [][]byte
	Payload, Digest           []byte // Digest: of what it said before it was edited; nil: of Payload
	Attempts, Round           int
	Reason                    Reason // of its last failure
}

func (r *parkedRow) message() *message.Message {
	msg := message.NewMessage(string(r.MessageID), r.Payload)
	for i, name := range r.HeaderNames {
		msg.Metadata.Set(string(name), string(r.HeaderValues[i]))
	}
	return msg
}

// delivery is what the row itself says of msg, which cannot be read any more.
func (r *parkedRow) delivery(msg *message.Message) Delivery {
	incarnation, n := stepkey.SplitN(r.N)
	return Delivery{
		ID: msg.UUID, Topic: r.Topic, Type: msg.Metadata.Get(outbox.PropertyType),
		Scope: r.Scope, Key: r.Key, Incarnation: incarnation, N: n, Step: r.Step, Undo: r.Kind == compensation,
		CorrelationID: cmp.Or(msg.Metadata.Get(outbox.PropertyCorrelation), msg.UUID),
		Metadata:      msg.Metadata, Payload: r.Payload,
	}
}

// parkedLease is how long a parked message is kept for the instance that has
// taken it, until it holds the locks of the step and of the message. If the instance dies in
// between, another takes the message after that.
const parkedLease = 10 * time.Second

// A crew is the workers of parked messages, and what they are at.
type crew struct {
	mu      sync.Mutex
	free    int
	running map[string]int // by step
	freed   chan struct{}  // has room for one; told when a worker is free
	working sync.WaitGroup
}

// runParked runs parked messages when they are due, until ctx ends, and
// returns when the last one in hand has finished under work.
func (c *Consumer) runParked(ctx, work context.Context) {
	w := &crew{free: c.opts.ParkedWorkers, running: map[string]int{}, freed: make(chan struct{}, 1)}
	defer w.working.Wait()
	idle, failures := 0, 0
	for ctx.Err() == nil {
		var rows []parkedRow
		err := guard.Call(func() (err error) {
			rows, err = c.takeDue(work, w)
			return err
		})
		switch {
		case err != nil:
			failures++
			c.opts.Logger.ErrorContext(ctx, "consumer: parked messages cannot be taken", "failures", failures, "error", sqlschema.Explain(err))
		case len(rows) > 0:
			idle, failures = 0, 0
		default:
			idle, failures = idle+1, 0
		}
		for _, row := range rows {
			w.start(row.Step, func() { c.runOneParked(work, &row) })
		}
		c.signals.parkedPass.Send(len(rows))
		wait := backoff.Policy{Base: c.opts.ParkedPoll / 4, Cap: c.opts.ParkedPoll}.Ceiling(idle + 1)
		if failures > 0 {
			wait = failurePolicy.Wait(failures)
		}
		pause(ctx, wait, w.freed, w.room("") == 0)
	}
}

// takeDue takes what is due, for as many workers as are free. No step gets the
// last one while another runs its messages too: a step that hangs must not hold
// up the rest. Most of the time nothing is, and of several steps that is one question.
func (c *Consumer) takeDue(ctx context.Context, w *crew) (rows []parkedRow, err error) {
	if len(c.stepNames) > 1 {
		if due, err := c.anyDue(ctx); err != nil || !due {
			return nil, err
		}
	}
	for _, step := range c.stepNames {
		n := w.room("") - len(rows)
		if len(c.stepNames) > 1 {
			n = min(n, w.room(step))
		}
		taken, err := c.takeParked(ctx, n, step)
		if err != nil {
			return rows, err
		}
		rows = append(rows, taken...)
	}
	return rows, nil
}

// anyDue reports whether a parked message of any step is due.
func (c *Consumer) anyDue(ctx context.Context) (due bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	err = c.db.QueryRow(ctx, c.sql.anyDue).Scan(&due)
	return due, err
}

// room returns how many workers are free, for step or, with "", at all.
func (w *crew) room(step string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if step == "" {
		return w.free
	}
	busy := 0
	for _, n := range w.running {
		busy += n
	}
	return max(1, w.free+busy-1) - w.running[step]
}

func (w *crew) start(step string, do func()) {
	w.mu.Lock()
	w.free--
	w.running[step]++
	w.mu.Unlock()
	w.working.Go(func() {
		defer w.end(step)
		do()
	})
}

func (w *crew) end(step string) {
	w.mu.Lock()
	w.free++
	w.running[step]--
	w.mu.Unlock()
	select {
	case w.freed <- struct{}{}:
	default:
	}
}

// pause waits for d, or, where every slot is taken, until one is free.
func pause(ctx context.Context, d time.Duration, freed <-chan struct{}, full bool) {
	if full {
		select {
		case <-ctx.Done():
		case <-freed:
		}
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// takeParked takes up to n parked messages of steps that are due. The commit of
// the one statement counts their attempts: a crash from here on has cost one.
func (c *Consumer) takeParked(ctx context.Context, n int, steps ...string) ([]parkedRow, error) {
	if n <= 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	rows, _ := c.db.Query(ctx, c.sql.takeParked, steps, n, c.lease.Microseconds(), c.ordered, c.topicsOf(steps))
	taken, err := pgx.CollectRows(rows, pgx.RowToStructByPos[parkedRow])
	if err != nil || len(taken) == 0 {
		return nil, err
	}
	return taken, failpoint.Hit("consumer/after-take")
}

// runOneParked takes a parked message one step on. If that fails without a
// trace, its lease runs out and another attempt follows.
func (c *Consumer) runOneParked(ctx context.Context, row *parkedRow) {
	var j *job
	err := guard.Call(func() (err error) {
		j, err = c.identify(ctx, row)
		if j != nil {
			err = c.handle(ctx, j)
		}
		return err
	})
	if j != nil && err == nil {
		err = failpoint.Hit("consumer/after-parked")
	}
	switch {
	case err != nil:
		c.opts.Logger.ErrorContext(ctx, "consumer: parked message is not decided", "step", row.Step, "message_id", string(row.MessageID), "error", sqlschema.Explain(err))
	case j != nil:
		c.committed(j)
	}
	c.signals.ranParked.Send(row.ID)
}

// reread makes a job of a parked message. It is one that only records its
// failure where the attempts have been used up without leaving a trace, or
// where this binary no longer understands what was parked by an older one.
func (c *Consumer) reread(row *parkedRow) *job {
	msg := row.message()
	j, rejected := c.readAgain(row, msg)
	if rejected != nil {
		j = &job{
			Delivery: row.delivery(msg),
			route:    route{step: c.steps[row.Step], kind: row.Kind},
			digest:   row.digest(), exhausted: true, entered: true, cause: rejected,
		}
	}
	j.parked = &parkedCopy{id: row.ID, attempts: row.Attempts, round: row.Round}
	if rejected == nil && row.Attempts > j.step.MaxAttempts && !j.input.asks() {
		j.exhausted, j.entered = true, true
		j.cause = fmt.Errorf("consumer: attempt %d ended without a result, most likely with its process", row.Attempts-1)
	}
	return j
}
