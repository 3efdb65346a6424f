package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// maxBatchBytes is how many bytes of payload a pass takes into memory, give or
// take a message.
const maxBatchBytes = 64 << 20

// runTable publishes pass by pass until ctx ends.
func (r *Relay) runTable(ctx, work context.Context) {
	r.topics.setPressure(pressed) // a pass waits for each of its calls
	defer r.counters.leads.Store(false)
	var probing sync.WaitGroup
	defer probing.Wait()
	probes, stop := context.WithCancel(work)
	defer stop()
	idle, failures := 0, 0
	for ctx.Err() == nil {
		r.sendProbes(probes, &probing, func(string) bool { return false }, r.wakeSelf) // a pass settles what it reads
		n, err := r.pass(work)
		switch {
		case err != nil:
			if failures++; n > 0 {
				failures, idle = 0, 0 // others get through: they must not wait
			}
			r.opts.Logger.ErrorContext(ctx, "outbox: pass failed", "schema", r.opts.Schema, "failures", failures, "error", err)
			r.signals.rested.Send(err)
		case n > 0:
			idle, failures = 0, 0
		default:
			idle, failures = idle+1, 0
			r.signals.rested.Send(nil)
		}
		r.signals.passed.Send(n)
		r.pause(ctx, n, idle, failures)
	}
}

// limit is how long a pass may take, and how long the database waits for a
// relay that hangs.
func (r *Relay) limit() time.Duration { return r.opts.PublishTimeout + databaseTimeout }

// pass publishes one batch in one transaction, whose lock on the row of who
// publishes keeps other relays out. It returns how many messages are dealt with:
// published, or refused and held; none while another relay is active. The error may come with n > 0: then what the
// broker took has been committed, and the rest met a broker that was away.
func (r *Relay) pass(ctx context.Context) (n int, err error) {
	err = guard.Call(func() error { // of the pool's hooks
		n, err = r.tryPass(ctx)
		if errors.Is(err, errAppendLog) {
			if err = r.intoTable(ctx); err == nil {
				n, err = r.tryPass(ctx)
			}
		}
		return err
	})
	if errors.Is(err, errStandby) {
		r.signals.standby.Send(true)
		return 0, nil
	}
	return n, err
}

// errAppendLog reports that the rows are not what a table log takes them for.
var errAppendLog = errors.New("outbox: the log is an append-only one")

func (r *Relay) tryPass(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.limit())
	defer cancel()
	if err := r.resumeTable(ctx); err != nil {
		return 0, err
	}
	var unavailable error
	err = r.begin(ctx, func(tx pgx.Tx) error {
		batch, err := r.take(ctx, tx)
		if err != nil || len(batch) == 0 {
			return err
		}
		results := r.publish(ctx, batch)
		if err := failpoint.Hit("outbox/table-after-publish"); err != nil {
			return err
		}
		n, unavailable, err = r.settle(ctx, tx, batch, results)
		if err != nil {
			return err
		}
		return failpoint.Hit("outbox/table-before-commit")
	})
	r.counters.leads.Store(err == nil)
	if err != nil {
		return 0, fmt.Errorf("outbox: pass: %w", sqlschema.Explain(err))
	}
	if err := failpoint.Hit("outbox/table-after-commit"); err != nil {
		return n, err
	}
	if unavailable != nil {
		return n, fmt.Errorf("outbox: publish: %w", unavailable)
	}
	return n, nil
}

// take makes this relay the active one and locks the next batch.
func (r *Relay) take(ctx context.Context, tx pgx.Tx) ([]row, error) {
	if _, err := tx.Exec(ctx, r.sql.limitIdle, strconv.FormatInt(r.limit().Milliseconds(), 10)); err != nil {
		return nil, fmt.Errorf("limit idle time: %w", err)
	}
	s, err := r.lock(ctx, tx)
	if err != nil {
		return nil, err
	}
	if s.Log == appendLog {
		return nil, errAppendLog
	}
	// Held messages get half of the batch at the most: a topic that refuses
	// everything must not hold up the others. Nor are more moved than that.
	half := max(1, r.opts.Batch/2)
	if err := r.moveUnlocked(ctx, tx, half); err != nil {
		return nil, fmt.Errorf("move delayed messages: %w", err)
	}
	batch, err := lockRows(ctx, tx, true, r.sql.lockHeld, half, maxBatchBytes/2, r.topics.stalledNames())
	if err != nil {
		return nil, err
	}
	stored, err := lockRows(ctx, tx, false, r.sql.lockStored, max(1, r.opts.Batch-len(batch)), maxBatchBytes/2)
	if err != nil {
		return nil, err
	}
	batch = append(batch, stored...)
	slices.SortFunc(batch, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
	return batch, nil
}

// moveUnlocked makes up to n delayed messages that are due part of the table. If that fails, it
// holds nothing else up.
func (r *Relay) moveUnlocked(ctx context.Context, tx pgx.Tx, n int) error {
	move := &pgx.Batch{}
	move.Queue(r.sql.planByIndex)
	move.Queue("SAVEPOINT sagamill_move")
	move.Queue(r.sql.moveUnlocked, n, maxBatchBytes/2)
	move.Queue("RELEASE sagamill_move")
	failure := tx.SendBatch(ctx, move).Close()
	if failure == nil {
		return nil
	}
	if _, err := tx.Exec(ctx, "ROLLBACK TO sagamill_move"); err != nil {
		return failure // the connection's
	}
	r.opts.Logger.WarnContext(ctx, "outbox: delayed messages that are due cannot be moved into the table", "schema", r.opts.Schema, "error", sqlschema.Explain(failure))
	return nil
}

// intoTable makes an append-only log one whose rows are not published: what is
// published is deleted.
func (r *Relay) intoTable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, convertTimeout)
	defer cancel()
	err := r.begin(ctx, func(tx pgx.Tx) error {
		s, err := r.lock(ctx, tx)
		if err != nil || s.Log != appendLog {
			return err
		}
		at, _, err := r.readCursor(ctx, tx)
		if err != nil {
			return err
		}
		batch := &pgx.Batch{}
		batch.Queue(r.sql.unlimited)
		batch.Queue(r.sql.deletePublished, at.from.text, at.toText(), at.last)
		batch.Queue(r.sql.unholdWaiting)
		batch.Queue(r.sql.takeLease, s.Epoch+1, "", 0, tableLog)
		batch.Queue(r.sql.beginTenure, s.Epoch+1) // or the relay before would read on
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return failpoint.Hit("outbox/table-before-convert")
	})
	if err != nil {
		return fmt.Errorf("outbox: turn the log into a table: %w", err)
	}
	return nil
}

// resumeTable notes what probes have published, and makes the messages of a topic due that
// has answered.
func (r *Relay) resumeTable(ctx context.Context) error {
	name, published := r.topics.reachedName()
	if name == "" {
		return nil
	}
	if published != nil {
		err := r.begin(ctx, func(tx pgx.Tx) error {
			if _, err := r.lock(ctx, tx); err != nil {
				return err
			}
			_, err := r.forgetProbe(ctx, tx, published)
			return err
		})
		if err == nil {
			r.topics.settledProbe(name)
		}
		return err
	}
	n, err := r.makeTopicDue(ctx, name)
	if err == nil && n < r.limits.resume {
		r.resumeTopic(ctx, name)
	}
	return err
}

func lockRows(ctx context.Context, tx pgx.Tx, held bool, statement string, args ...any) ([]row, error) {
	found, err := tx.Query(ctx, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("lock messages: %w", err)
	}
	var rows []row
	if err := collect(&rows, scanHeld)(found); err != nil {
		return nil, fmt.Errorf("lock messages: %w", err)
	}
	for i := range rows {
		rows[i].held = held
	}
	return rows, nil
}

// errHeldBack is the result of a message that was not published because an
// earlier one of its ordering key was not.
var errHeldBack = errors.New("outbox: an earlier message of the ordering key is not published")

// publish hands batch to the broker in waves, one message of each ordering key
// in each.
func (r *Relay) publish(ctx context.Context, batch []row) []error {
	results := make([]error, len(batch))
	blocked := map[string]bool{}
	left := make([]int, len(batch))
	for i := range left {
		left[i] = i
	}
	for len(left) > 0 {
		var later []int
		wave := map[string][]int{} // by topic
		inFlight := map[string]bool{}
		for _, i := range left {
			switch key := batch[i].OrderingKey; {
			case blocked[key]:
				results[i] = errHeldBack
			case inFlight[key]:
				later = append(later, i)
			case r.topics.isStalled(batch[i].Topic):
				results[i], blocked[key] = errStalled, true
			default:
				inFlight[key] = true
				wave[batch[i].Topic] = append(wave[batch[i].Topic], i)
			}
		}
		r.publishTopics(ctx, batch, wave, results)
		for _, indexes := range wave {
			for _, i := range indexes {
				blocked[batch[i].OrderingKey] = results[i] != nil
			}
		}
		left = later
	}
	return results
}

// publishTopics hands the messages of batch in wave to the broker, those of different
// topics at the same time, and sets their results.
func (r *Relay) publishTopics(ctx context.Context, batch []row, wave map[string][]int, results []error) {
	var calls sync.WaitGroup
	for topic, indexes := range wave {
		calls.Go(func() {
			items := make([]*item, len(indexes))
			for j, i := range indexes {
				items[j] = &item{row: batch[i]}
			}
			for j, err := range r.publishTopic(ctx, topic, items) {
				results[indexes[j]] = err
			}
		})
	}
	calls.Wait()
}

// settle records what the broker answered. n counts the messages that were
// published, refused or deferred; unavailable is an error of the rest, if any, which
// stay where they are. Refused ones alone spend an attempt.
func (r *Relay) settle(ctx context.Context, tx pgx.Tx, batch []row, results []error) (n int, unavailable, err error) {
	var stored, held []int64
	for i := range batch {
		switch err := results[i]; {
		case err == nil && batch[i].held:
			held = append(held, batch[i].ID)
		case err == nil:
			stored = append(stored, batch[i].ID)
		case errors.Is(err, ErrRefused):
			if err := r.hold(ctx, tx, &batch[i], err); err != nil {
				return 0, nil, err
			}
		case errors.Is(err, errHeldBack):
			continue
		case errors.Is(err, ErrDeferred), r.topics.isStalled(batch[i].Topic):
			if err := r.deferRow(ctx, tx, &batch[i], err); err != nil {
				return 0, nil, err
			}
		default:
			unavailable = err
			continue
		}
		n++
	}
	r.counters.published.Add(uint64(len(stored) + len(held)))
	if err := forget(ctx, tx, r.sql.deleteStored, stored); err != nil {
		return 0, nil, err
	}
	return n, unavailable, forget(ctx, tx, r.sql.deleteHeld, held)
}

func forget(ctx context.Context, tx pgx.Tx, statement string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, statement, ids); err != nil {
		return fmt.Errorf("forget published messages: %w", err)
	}
	return nil
}

// hold keeps a refused message aside until it is due again, or, with its
// attempts used up, as a dead letter.
func (r *Relay) hold(ctx context.Context, tx pgx.Tx, m *row, refusal error) error {
	attempts := m.Attempts + 1
	state, wait := "refused", r.retry.Wait(attempts)
	if attempts >= r.opts.MaxAttempts {
		state, wait = "dead", 0
	}
	r.logRefusal(ctx, m, state, refusal)
	statement := r.sql.holdStored
	if m.held {
		statement = r.sql.holdAgain
	}
	if _, err := tx.Exec(ctx, statement, m.ID, state, wait.Microseconds(), cleantext.Clip(refusal.Error(), maxReason)); err != nil {
		return fmt.Errorf("hold refused message: %w", err)
	}
	return nil
}

// deferRow keeps a message aside whose topic takes none at present.
func (r *Relay) deferRow(ctx context.Context, tx pgx.Tx, m *row, cause error) (err error) {
	wait, reason := r.deferral(m.Topic).Microseconds(), cleantext.Clip(cause.Error(), maxReason)
	if m.held {
		_, err = tx.Exec(ctx, r.sql.deferHeld, []int64{m.ID}, []int64{wait}, []string{reason})
	} else {
		_, err = tx.Exec(ctx, r.sql.deferStored, m.ID, wait, reason)
	}
	if err != nil {
		return fmt.Errorf("keep a deferred message aside: %w", err)
	}
	r.counters.deferred.Add(1)
	return nil
}
