package consumer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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

// unread is the kind of a message that no step could read. It has no identity.
const unread kind = "unknown"

// An identity names a row of the inbox.
type identity struct{ scope, key, step, n string }

// reusedText is the error of a message whose identity is another one's.
const reusedText = "consumer: scope, key and step were used before with another payload"

// unreadTries is how often a message without an identity is read again in one
// redrive: after more, reading it is what ended the process.
const unreadTries = 3

// topicsOf returns the topics of steps.
func (c *Consumer) topicsOf(steps []string) (topics []string) {
	for _, name := range steps {
		s := c.steps[name]
		for _, in := range []Input{s.Action, s.Compensation} {
			if in.decode != nil && !slices.Contains(topics, in.Topic) {
				topics = append(topics, in.Topic)
			}
		}
	}
	return topics
}

// identify makes a job of a parked message. One that could not be read when it
// came is given its identity first, in a statement of its own: from there on it is
// like any other. No job and no error means that it could not, or need not, and
// that this is recorded.
func (c *Consumer) identify(ctx context.Context, row *parkedRow) (*job, error) {
	if row.Kind != unread {
		return c.reread(row), nil
	}
	if row.Attempts > unreadTries {
		return nil, c.refuseDeadly(ctx, row)
	}
	j, rejected := c.readAgain(row, row.message())
	if rejected != nil {
		return nil, c.refuse(ctx, row, rejected.of, failure{reason: rejected.reason, dead: true, err: rejected.err})
	}
	named, err := c.name(ctx, row, j)
	if err != nil || !named {
		return nil, err
	}
	row.Kind, row.Scope, row.Key, row.Step, row.N = j.kind, j.Scope, j.Key, j.Step, j.joinedN()
	return c.reread(row), nil
}

// refuseDeadly refuses a row whose reading has ended the process. What is not
// believed keeps the reason that says so: another would let its next redrive pass.
func (c *Consumer) refuseDeadly(ctx context.Context, row *parkedRow) error {
	f := failure{reason: row.Reason, dead: true, attempts: row.Attempts - 1,
		err: fmt.Errorf("consumer: reading the message ended the process %d times", row.Attempts-1)}
	if row.Reason.unbelieved() {
		return c.refuse(ctx, row, nil, f)
	}
	f.reason = ReasonExhausted
	of, _ := c.address(row.Topic, row.message())
	return c.refuse(ctx, row, of, f)
}

// readAgain is read for a message that was kept: its digest is that of what it
// said when it came, whatever somebody has made of it since. It belongs to the
// step that it was parked by. One that has never been believed arrives anew.
func (c *Consumer) readAgain(row *parkedRow, msg *message.Message) (*job, *rejection) {
	read := c.read
	if row.Kind == unread && row.Reason.unbelieved() {
		read = c.acceptNow
	}
	j, rejected := read(row.Topic, msg)
	if rejected != nil {
		return nil, rejected
	}
	j.digest = row.digest()
	was := identity{row.Scope, row.Key, row.Step, row.N}
	if is := (identity{j.Scope, j.Key, j.Step, j.joinedN()}); row.Kind != unread && (is != was || j.kind != row.Kind) {
		return nil, &rejection{reason: ReasonTypeUnknown, err: fmt.Errorf("it was parked by %s of step %s, and its type is now that of %s of step %s", row.Kind, row.Step, j.kind, j.Step)}
	}
	return j, nil
}

func (r *parkedRow) digest() []byte {
	if r.Digest != nil {
		return r.Digest
	}
	sum := sha256.Sum256(r.Payload)
	return sum[:]
}

// name gives row the identity that j has read. If another copy of that message
// goes round already, that one wins: the same is then a duplicate, and another one
// under the same identity a dead letter.
func (c *Consumer) name(ctx context.Context, row *parkedRow, j *job) (named bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	args := append([]any{row.ID, row.Attempts, j.kind}, j.identity()...)
	tag, err := c.db.Exec(ctx, c.sql.nameParked, args...)
	var e *pgconn.PgError
	switch {
	case errors.As(err, &e) && e.ConstraintName == "parked_retrying":
		return false, c.yield(ctx, row, j)
	case err != nil:
		return false, fmt.Errorf("consumer: name parked message: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return false, nil
	}
	return true, failpoint.Hit("consumer/after-name")
}

// yield ends row for the sake of another copy. If that is gone meanwhile, nothing
// happens: the lease of row runs out, and it is read once more.
func (c *Consumer) yield(ctx context.Context, row *parkedRow, j *job) error {
	args := append([]any{row.ID, row.Attempts, j.kind, j.digest, ReasonKeyReused, reusedText}, j.identity()...)
	f := failure{reason: ReasonKeyReused, dead: true, err: errors.New(reusedText)}
	if _, err := c.rebury(ctx, j, f, c.sql.yieldParked, args); err != nil {
		return fmt.Errorf("consumer: drop parked copy: %w", err)
	}
	return nil
}

// refuse makes row a dead letter again. of is what could be read of it.
func (c *Consumer) refuse(ctx context.Context, row *parkedRow, of *job, f failure) error {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	text, stack := f.text()
	died, err := c.rebury(ctx, of, f, c.sql.refuseParked, []any{row.ID, row.Attempts, f.reason, text, stack, f.attempts})
	if err != nil {
		return fmt.Errorf("consumer: store dead letter: %w", err)
	}
	if died {
		c.logRejected(ctx, row.Topic, string(row.MessageID), f)
	}
	return nil
}

// rebury executes what makes of a dead letter again, and reports whether it has.
func (c *Consumer) rebury(ctx context.Context, of *job, f failure, statement string, args []any) (died bool, err error) {
	err = c.inTx(ctx, func(tx pgx.Tx, last *pgx.Batch) error {
		tag, err := tx.Exec(ctx, statement, args...)
		if died = tag.RowsAffected() == 1; err != nil || !died {
			return err
		}
		if err := failpoint.Hit("consumer/after-dead-letter"); err != nil {
			return err
		}
		return c.leaveRejected(ctx, last, of, f)
	})
	if err == nil {
		c.committed(of)
	}
	return died && err == nil, err
}

// sqlNameParked gives a message that could not be read when it came its identity.
// attempts is the fence, as in sqlLockParked. The index parked_retrying refuses it
// where another copy goes round; it waits for a transaction that is parking one.
const sqlNameParked = `
UPDATE {schema}.parked SET kind = $3, scope = $4, key = $5, step = $6, n = $7
WHERE id = $1 AND attempts = $2 AND state = 'retrying' AND kind = 'unknown'`

// sqlRefuseParked makes such a message a dead letter again.
const sqlRefuseParked = `
UPDATE {schema}.parked
SET state = 'dead', reason = $3, error = $4, stack = $5, attempts = $6, last_at = clock_timestamp()
WHERE id = $1 AND attempts = $2 AND state = 'retrying' AND kind = 'unknown'`

// sqlYieldParked removes such a message in favor of a copy that goes round, or, if
// that copy says something else, makes it a dead letter under their identity.
const sqlYieldParked = `
WITH other AS (SELECT coalesce(digest, sha256(payload)) = $4 AS same FROM {schema}.parked
	WHERE state = 'retrying' AND kind = $3 AND scope = $7 AND key = $8 AND step = $9 AND n = $10),
dropped AS (DELETE FROM {schema}.parked p USING other
	WHERE other.same AND p.id = $1 AND p.attempts = $2 AND p.state = 'retrying' AND p.kind = 'unknown')
UPDATE {schema}.parked p
SET state = 'dead', kind = $3, scope = $7, key = $8, step = $9, n = $10, reason = $5, error = $6, stack = '', attempts = 0, last_at = clock_timestamp()
FROM other WHERE NOT other.same AND p.id = $1 AND p.attempts = $2 AND p.state = 'retrying' AND p.kind = 'unknown'`
