package consumer

import (
	"bytes"
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

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/pg"
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
	Payload, Digest           []byte // Digest is that of the payload before its first edit; nil: of Payload
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

// delivery returns what the row itself says about msg, which can no longer be read.
func (r *parkedRow) delivery(msg *message.Message) Delivery {
	incarnation, n := stepkey.SplitN(r.N)
	return Delivery{
		ID: msg.UUID, Topic: r.Topic, Type: msg.Metadata.Get(outbox.PropertyType),
		Scope: r.Scope, Key: r.Key, Incarnation: incarnation, N: n, Step: r.Step, Undo: r.Kind == compensation,
		CorrelationID: cmp.Or(msg.Metadata.Get(outbox.PropertyCorrelation), msg.UUID),
		Metadata:      msg.Metadata, Payload: r.Payload,
	}
}

// parkedLease is how long a taken message belongs to this instance before the instance has locked the row of the step
// and that of the message. If the instance dies earlier, another one takes the message after that time.
const parkedLease = 10 * time.Second

// A workerPool counts the workers of parked messages by step.
type workerPool struct {
	mu      sync.Mutex
	free    int
	running map[string]int // by step
	freed   chan struct{}  // has room for one value, which says that a worker is free
	working sync.WaitGroup
}

// A retrier takes parked messages when they are due and executes them.
type retrier struct {
	steps     map[string]*Step
	stepNames []string
	ordered   []string // those of them that are Ordered
	sql       queries
	lease     time.Duration // parkedLease
	workers   int
	poll      time.Duration
	retries   <-chan struct{} // a message may be due soon
	signals   *signals

	receiver *receiver
	executor *executor
	settler  *settler
	database *database
	reporter *reporter
}

// runLoop executes parked messages when they are due, until ctx ends. It returns after the last one in hand has
// ended under work.
func (t *retrier) runLoop(ctx, work context.Context) {
	w := &workerPool{free: t.workers, running: map[string]int{}, freed: make(chan struct{}, 1)}
	defer w.working.Wait()
	failures := 0
	for ctx.Err() == nil {
		var rows []parkedRow
		var wait time.Duration
		err := guard.Call(func() (err error) {
			rows, wait, err = t.takeDueMessages(work, w)
			return err
		})
		switch {
		case err != nil:
			failures++
			t.reporter.log.ErrorContext(ctx, "consumer: messages that are due for a retry could not be taken, trying again", "failures", failures, "error", sqlschema.Explain(err))
			wait = failurePolicy.Wait(failures)
		default:
			failures = 0
		}
		for _, row := range rows {
			w.startWorker(row.Step, func() { t.runParkedMessage(work, &row) })
		}
		t.signals.parkedPass.Send(len(rows))
		if w.freeWorkers("") > 0 {
			t.awaitRetry(ctx, wait, failures > 0)
		} else {
			w.awaitFreeWorker(ctx)
		}
	}
}

// awaitRetry waits for wait, or less if a message may be due earlier. After a failure only time ends the wait.
func (t *retrier) awaitRetry(ctx context.Context, wait time.Duration, failed bool) {
	retries := t.retries
	if failed {
		retries = nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-retries:
	case <-ctx.Done():
	}
}

// takeDueMessages takes due messages for as many workers as are free, and returns how long to wait until the next look.
// While several steps have messages, no step gets the last worker: a step that hangs must not hold up the others.
// Usually nothing is due, and one query for all steps finds that out.
func (t *retrier) takeDueMessages(ctx context.Context, w *workerPool) (rows []parkedRow, wait time.Duration, err error) {
	if wait, err = t.nextDue(ctx); err != nil || wait > 0 {
		return nil, wait, err
	}
	for _, step := range t.stepNames {
		n := w.freeWorkers("") - len(rows)
		if len(t.stepNames) > 1 {
			n = min(n, w.freeWorkers(step))
		}
		taken, err := t.takeParked(ctx, n, step)
		if err != nil {
			return rows, t.poll, err
		}
		rows = append(rows, taken...)
	}
	if len(rows) == 0 { // due messages belong to other consumers, or wait for a message of their key
		return nil, min(t.poll, foreignPoll), nil
	}
	return rows, 0, nil
}

// foreignPoll is the longest pause while messages are due that this consumer cannot take.
const foreignPoll = 250 * time.Millisecond

// nextDue returns how long it takes until the next parked message of any step is due, at most the option ParkedPoll:
// another process may park a message and end.
func (t *retrier) nextDue(ctx context.Context) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var seconds *float64
	if err := t.database.db.ScanByIndex(ctx, []any{&seconds}, t.sql.nextDue); err != nil || seconds == nil {
		return t.poll, err
	}
	if *seconds >= t.poll.Seconds() { // it may be more than a Duration holds
		return t.poll, nil
	}
	return max(0, time.Duration(*seconds*float64(time.Second))), nil
}

// freeWorkers returns how many workers are free for step, or in total for "".
func (w *workerPool) freeWorkers(step string) int {
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

func (w *workerPool) startWorker(step string, do func()) {
	w.mu.Lock()
	w.free--
	w.running[step]++
	w.mu.Unlock()
	w.working.Go(func() {
		defer w.endWorker(step)
		do()
	})
}

func (w *workerPool) endWorker(step string) {
	w.mu.Lock()
	w.free++
	w.running[step]--
	w.mu.Unlock()
	select {
	case w.freed <- struct{}{}:
	default:
	}
}

// awaitFreeWorker waits until a worker has ended, or until ctx ends.
func (w *workerPool) awaitFreeWorker(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-w.freed:
	}
}

// takeParked takes up to n due messages of steps. The commit of its one statement counts their attempts: a crash
// after it costs an attempt.
func (t *retrier) takeParked(ctx context.Context, n int, steps ...string) ([]parkedRow, error) {
	if n <= 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	taken, err := pg.CollectByIndex(ctx, t.database.db, pgx.RowToStructByPos[parkedRow], t.sql.takeParked, steps, n, t.lease.Microseconds(), t.ordered, t.topicsOf(steps))
	if err != nil || len(taken) == 0 {
		return nil, err
	}
	return taken, failpoint.Hit("consumer/after-take")
}

// runParkedMessage executes one attempt at a parked message. If it fails without a trace, the lease ends and another
// attempt follows.
func (t *retrier) runParkedMessage(ctx context.Context, row *parkedRow) {
	var a *attempt
	err := guard.Call(func() (err error) {
		a, err = t.identifyParked(ctx, row)
		if a != nil {
			err = t.executor.executeAttempt(ctx, a)
		}
		return err
	})
	if a != nil && err == nil {
		err = failpoint.Hit("consumer/after-parked")
	}
	switch {
	case err != nil:
		t.reporter.log.ErrorContext(ctx, "consumer: the outcome of a retry could not be recorded, the message runs again after its lease", "step", row.Step, "message_id", string(row.MessageID), "error", sqlschema.Explain(err))
	case a != nil:
		t.settler.wakeAfterCommit(a)
	}
	t.settler.wakeRetrier(nil)
	t.signals.ranParked.Send(row.ID)
}

// readParked returns an attempt at a parked message. Its failure is all that is left to be recorded in two cases:
// its attempts were used up without a trace, or this binary no longer understands a message that an older one has
// parked.
func (t *retrier) readParked(row *parkedRow) *attempt {
	msg := row.message()
	m, rejected := t.readAgain(row, msg)
	a := newAttempt(m)
	if rejected != nil {
		a = &attempt{received: received{
			Delivery: row.delivery(msg),
			route:    route{step: t.steps[row.Step], kind: row.Kind},
			digest:   row.digest(),
		}, barred: true}
		a.lose(rejected)
	}
	a.parked = &parkedCopy{id: row.ID, attempts: row.Attempts, round: row.Round}
	if rejected == nil && row.Attempts > a.step.MaxAttempts && !a.input.hasVerify() {
		a.barred = true
		a.lose(fmt.Errorf("consumer: attempt %d ended without a result, most likely with its process", row.Attempts-1))
	}
	return a
}

// unreadTries is how often a message without an identity is read in one redrive. After more tries, reading it is
// what ended the process.
const unreadTries = 3

// topicsOf returns the topics of steps.
func (t *retrier) topicsOf(steps []string) (topics []string) {
	for _, name := range steps {
		s := t.steps[name]
		for _, in := range []Input{s.Action, s.Compensation} {
			if in.decode != nil && !slices.Contains(topics, in.Topic) {
				topics = append(topics, in.Topic)
			}
		}
	}
	return topics
}

// identifyParked returns an attempt at a parked message. A message that was unreadable on arrival is first given its
// identity, in a separate statement. From there on it is like any other message. A nil attempt without an error
// means that row was settled here.
func (t *retrier) identifyParked(ctx context.Context, row *parkedRow) (*attempt, error) {
	if row.Kind != unread {
		return t.readParked(row), nil
	}
	if row.Attempts > unreadTries {
		return nil, t.refuseDeadly(ctx, row)
	}
	m, rejected := t.readAgain(row, row.message())
	if rejected != nil {
		return nil, t.refuseUnread(ctx, row, rejected.of, failure{reason: rejected.reason, dead: true, err: rejected.err})
	}
	row.takeIdentity(m)
	named, err := t.storeIdentity(ctx, row, m)
	if err != nil || !named {
		return nil, err
	}
	return t.readParked(row), nil
}

// takeIdentity makes r the message that m was read from: with the identity and the headers that it got then, and without
// its envelope.
func (r *parkedRow) takeIdentity(m *received) {
	if r.Digest != nil {
		r.Digest = m.digest
	}
	r.Kind, r.Scope, r.Key, r.Step, r.N = m.kind, m.Scope, m.Key, m.Step, m.joinedN()
	r.MessageID, r.Payload = []byte(m.ID), nonNilBytes(m.Payload)
	r.HeaderNames, r.HeaderValues = headerColumns(m.Metadata)
}

// refuseDeadly makes row, whose reading has ended the process, a dead letter. A message that was not verified keeps
// its reason: another reason would let its next redrive skip Options.Verify.
func (t *retrier) refuseDeadly(ctx context.Context, row *parkedRow) error {
	f := failure{reason: row.Reason, dead: true, attempts: row.Attempts - 1,
		err: fmt.Errorf("consumer: reading the message ended the process %d times", row.Attempts-1)}
	if row.Reason.unbelieved() {
		return t.refuseUnread(ctx, row, nil, f)
	}
	f.reason = ReasonExhausted
	of, _ := t.receiver.readAddress(row.Topic, row.message())
	return t.refuseUnread(ctx, row, of, f)
}

// readAgain reads a stored message. Its digest is that of the payload on arrival, regardless of later edits, unless it
// has just been taken out of its envelope. It must belong to the step that parked it. A message that was never verified
// is received anew, and so is one that may have arrived before this consumer had an Options.Open.
func (t *retrier) readAgain(row *parkedRow, msg *message.Message) (*received, *rejection) {
	read := t.receiver.readMessage
	if row.Kind == unread && (row.Reason.unbelieved() || t.receiver.verifier == nil && row.Reason.mayBeInEnvelope()) {
		read = t.receiver.receiveAgain
	}
	m, rejected := read(row.Topic, msg)
	if rejected != nil {
		return nil, rejected
	}
	if bytes.Equal(m.Payload, row.Payload) {
		m.digest = row.digest()
	}
	was := identity{Scope: row.Scope, Key: row.Key, Step: row.Step, N: row.N}
	if is := (identity{Scope: m.Scope, Key: m.Key, Step: m.Step, N: m.joinedN()}); row.Kind != unread && (is != was || m.kind != row.Kind) {
		return nil, &rejection{reason: ReasonTypeUnknown, err: fmt.Errorf("it was parked by %s of step %s, and its type is now that of %s of step %s", row.Kind, row.Step, m.kind, m.Step)}
	}
	return m, nil
}

func (r *parkedRow) digest() []byte {
	if r.Digest != nil {
		return r.Digest
	}
	sum := sha256.Sum256(r.Payload)
	return sum[:]
}

// storeIdentity stores row, which has the identity of m by now. If another copy of m is retrying already, that copy
// wins: row is a duplicate if the payload is the same, and else a dead letter.
func (t *retrier) storeIdentity(ctx context.Context, row *parkedRow, m *received) (named bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	args := append([]any{row.ID, row.Attempts, m.kind}, m.identity()...)
	args = append(args, row.MessageID, row.HeaderNames, row.HeaderValues, row.Payload, row.Digest)
	tag, err := t.database.db.ExecByIndex(ctx, t.sql.nameParked, args...)
	var e *pgconn.PgError
	switch {
	case errors.As(err, &e) && e.ConstraintName == "parked_retrying":
		return false, t.yieldToCopy(ctx, row, m)
	case err != nil:
		return false, fmt.Errorf("consumer: name parked message: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return false, nil
	}
	return true, failpoint.Hit("consumer/after-name")
}

// yieldToCopy ends row in favour of another copy. If that copy is gone meanwhile, nothing happens: the lease of row
// ends, and row is read again.
func (t *retrier) yieldToCopy(ctx context.Context, row *parkedRow, m *received) error {
	args := append([]any{row.ID, row.Attempts, m.kind, m.digest, ReasonKeyReused, inbox.ReusedText}, m.identity()...)
	f := failure{reason: ReasonKeyReused, dead: true, err: errors.New(inbox.ReusedText)}
	if _, err := t.storeDeadAgain(ctx, m, f, t.sql.yieldParked, args); err != nil {
		return fmt.Errorf("consumer: drop parked copy: %w", err)
	}
	return nil
}

// refuseUnread makes row a dead letter again. of is its readable part, or nil.
func (t *retrier) refuseUnread(ctx context.Context, row *parkedRow, of *received, f failure) error {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	text, stack := f.errorText()
	died, err := t.storeDeadAgain(ctx, of, f, t.sql.refuseParked, []any{row.ID, row.Attempts, f.reason, text, stack, f.attempts})
	if err != nil {
		return fmt.Errorf("consumer: store dead letter: %w", err)
	}
	if died {
		t.reporter.logRejected(ctx, row.Topic, string(row.MessageID), f)
	}
	return nil
}

// storeDeadAgain executes a statement that makes a message a dead letter again, and reports whether it did.
func (t *retrier) storeDeadAgain(ctx context.Context, of *received, f failure, statement string, args []any) (died bool, err error) {
	a := newAttempt(of)
	err = t.database.inTransaction(ctx, func(tx pgx.Tx, last *pgx.Batch) error {
		tag, err := tx.Exec(ctx, statement, args...)
		if died = tag.RowsAffected() == 1; err != nil || !died {
			return err
		}
		if err := failpoint.Hit("consumer/after-dead-letter"); err != nil {
			return err
		}
		return t.settler.emitForRejected(ctx, last, a, f)
	})
	if err == nil {
		t.settler.wakeAfterCommit(a)
	}
	return died && err == nil, err
}

// sqlNameParked gives its identity to a message that was unreadable on arrival, and stores the message as it was read
// now: Options.Identity names it once, and Options.Open opens it once. attempts is the fence, as in
// sqlLockParked. The index parked_retrying refuses the update if another copy is retrying, and waits for a
// transaction that is parking one.
const sqlNameParked = `
UPDATE {schema}.parked
SET kind = $3, scope = $4, key = $5, step = $6, n = $7, message_id = $8, header_names = $9, header_values = $10, payload = $11, digest = $12
WHERE id = $1 AND attempts = $2 AND state = 'retrying' AND kind = 'unknown'`

// sqlRefuseParked makes such a message a dead letter again.
const sqlRefuseParked = `
UPDATE {schema}.parked
SET state = 'dead', reason = $3, error = $4, stack = $5, attempts = $6, last_at = clock_timestamp(), ` + inbox.SQLKeepFailure + `
WHERE id = $1 AND attempts = $2 AND state = 'retrying' AND kind = 'unknown'`

// sqlYieldParked removes such a message in favour of a copy that is retrying. If that copy has another payload, the
// message becomes a dead letter under their identity.
const sqlYieldParked = `
WITH other AS (SELECT coalesce(digest, sha256(payload)) = $4 AS same FROM {schema}.parked
	WHERE state = 'retrying' AND kind = $3 AND scope = $7 AND key = $8 AND step = $9 AND n = $10),
dropped AS (DELETE FROM {schema}.parked p USING other
	WHERE other.same AND p.id = $1 AND p.attempts = $2 AND p.state = 'retrying' AND p.kind = 'unknown')
UPDATE {schema}.parked
SET state = 'dead', kind = $3, scope = $7, key = $8, step = $9, n = $10, reason = $5, error = $6, stack = '', attempts = 0,
	last_at = clock_timestamp(), ` + inbox.SQLKeepFailure + `
FROM other WHERE NOT other.same AND id = $1 AND attempts = $2 AND state = 'retrying' AND kind = 'unknown'`
