package saga

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sagarow"
)

const (
	// removeBatch is how many instances are removed in one transaction.
	removeBatch = 500

	// silentBatch is how many silent instances are read at once, of some hundred bytes each. The statement sorts all
	// silent instances for each batch.
	silentBatch = 5000
)

// errNotSilent rolls back a transaction that found no silent step.
var errNotSilent = errors.New("saga: not silent")

// A housekeeper marks steps without an answer as stuck, and removes instances that ended long ago.
type housekeeper struct {
	db        pg.Own
	sql       *statements
	plans     *planSet
	mover     *mover
	log       *slog.Logger
	poll      time.Duration // Options.HousekeepPoll
	patience  time.Duration // Options.Patience
	retention time.Duration // Options.Retention
}

// runHousekeeping works every poll until ctx ends.
func (h *housekeeper) runHousekeeping(ctx context.Context) {
	for ctx.Err() == nil {
		err := guard.Call(func() error { // of the pool's hooks
			if err := h.giveUpSilent(ctx); err != nil {
				return err
			}
			return h.removeEnded(ctx)
		})
		if err != nil && ctx.Err() == nil {
			h.log.ErrorContext(ctx, "saga: housekeeping failed", "error", err)
		}
		_ = backoff.Sleep(ctx, h.poll)
	}
}

// A silentInstance has not moved for Patience. It may have a longer deadline, or wait for a nested instance.
type silentInstance struct {
	sagarow.Address
	version  versionKey
	progress string // "": it is too large to read with others
	now      machine.Millis
}

// giveUpSilent makes the steps stuck that have been without a reply for Patience.
func (h *housekeeper) giveUpSilent(ctx context.Context) error {
	var last silentInstance
	for {
		found, err := h.listSilentInstances(ctx, last)
		if err != nil {
			return err
		}
		for i := range found {
			err := h.giveUpInstance(ctx, &found[i])
			switch {
			case err == nil, errors.Is(err, ErrNoInstance), errors.Is(err, errNotSilent):
			case ctx.Err() != nil:
				return err
			default: // an error of one instance holds up no other
				at := found[i].Address
				h.log.ErrorContext(ctx, "saga: a silent instance cannot be moved", "scope", at.Scope, "key", at.Key, "path", at.Path, "error", err)
			}
		}
		if len(found) < silentBatch {
			return nil
		}
		last = found[len(found)-1]
	}
}

// listSilentInstances returns the silent instances behind one, in the order of their addresses.
func (h *housekeeper) listSilentInstances(ctx context.Context, after silentInstance) ([]silentInstance, error) {
	ctx, cancel := context.WithTimeout(ctx, timerTimeout)
	defer cancel()
	read := func(r pgx.CollectableRow) (s silentInstance, err error) {
		return s, r.Scan(&s.Scope, &s.Key, &s.Path, &s.version.name, &s.version.version, &s.progress, &s.now)
	}
	return pg.CollectByIndex(ctx, h.db, read, h.sql.listSilent, h.plans.names, h.plans.versions, h.patience.Microseconds(),
		after.Scope, after.Key, after.Path, silentBatch, h.plans.hashes)
}

// giveUpInstance makes the unanswered steps of one instance stuck. Most silent instances wait for good reason; a look
// at the progress that was listed tells, without a lock.
func (h *housekeeper) giveUpInstance(ctx context.Context, s *silentInstance) error {
	var p machine.Progress
	f, ok := h.plans.flows[s.version]
	if ok && json.Unmarshal([]byte(s.progress), &p) == nil && f.Machine.Fits(&p) {
		i := flow.Instance{Scope: s.Scope, Key: s.Key, Path: s.Path, Progress: p}
		steps, err := h.findUnanswered(ctx, h.db, f.Machine, &i, s.now)
		if err == nil && len(steps) == 0 {
			err = errNotSilent
		}
		if err != nil {
			return err
		}
	}
	return h.mover.moveInOwnTransaction(ctx, s.Address, anyRevision, h.overdueEvents)
}

// overdueEvents returns an event for each unanswered step of a locked instance, or an errNotSilent.
func (h *housekeeper) overdueEvents(ctx context.Context, t *transition) ([]flow.Event, error) {
	steps, err := h.findUnanswered(ctx, t.tx, t.run.Flow.Machine, t.run.Instance, t.run.Now)
	if err == nil && len(steps) == 0 {
		err = errNotSilent
	}
	var events []flow.Event
	for _, id := range steps {
		s := t.run.Instance.Progress.Steps[id-1]
		events = append(events, flow.Event{Event: machine.Event{
			Kind: machine.Overdue, Step: id, Undo: s.State == machine.Undoing, Attempt: s.Attempt,
			Reason: "no reply for " + h.patience.String(),
		}})
	}
	return events, err
}

// findUnanswered returns the steps that were sent at least Patience ago, have no deadline, and wait for no nested
// instance that will answer. A held step has an answer: its dead letter waits at the participant.
func (h *housekeeper) findUnanswered(ctx context.Context, db sagarow.Querier, m *machine.Machine, i *flow.Instance, now machine.Millis) (steps []int, err error) {
	for id := 1; id <= m.Steps(); id++ {
		s := &i.Progress.Steps[id-1]
		undo := s.State == machine.Undoing
		if s.State != machine.InFlight && !undo || s.Held || s.Due > 0 || now-s.Sent < machine.MillisOf(h.patience) {
			continue
		}
		waits := false
		if m.Step(id).Kind == machine.Nested {
			waits, err = h.awaitsNested(ctx, db, sagarow.Address{Scope: i.Scope, Key: i.Key, Path: flow.N(i.Path, id, s.Attempt)}, undo)
		}
		if err != nil {
			return nil, err
		}
		if !waits {
			steps = append(steps, id)
		}
	}
	return steps, nil
}

// awaitsNested reports whether a nested instance will answer. A live one has its own patience. But its answer, or the
// order to undo it, may have become a dead letter.
func (h *housekeeper) awaitsNested(ctx context.Context, db sagarow.Querier, at sagarow.Address, undo bool) (bool, error) {
	var (
		text       string
		p          machine.Progress
		ended, old bool
	)
	err := db.QueryRow(ctx, h.sql.readNested, at.Scope, at.Key, at.Path, h.patience.Microseconds()).Scan(&text, &ended, &old)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &p)
	}
	return !old || !ended && (!undo || p.Revoke), err
}

// removeEnded removes instances that ended longer ago than Retention, with the decisions about them.
func (h *housekeeper) removeEnded(ctx context.Context) error {
	for {
		n, err := h.removeOneBatch(ctx)
		if err != nil || n < removeBatch {
			return err
		}
	}
}

func (h *housekeeper) removeOneBatch(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timerTimeout)
	defer cancel()
	err = h.db.InTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, pg.PlanByIndex); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, h.sql.deleteEnded, h.retention.Microseconds(), removeBatch)
		if err != nil {
			return err
		}
		var scopes, keys, paths []string
		_, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (struct{}, error) {
			var scope, key, path string
			err := r.Scan(&scope, &key, &path)
			scopes, keys, paths = append(scopes, scope), append(keys, key), append(paths, path)
			return struct{}{}, err
		})
		if err != nil || len(keys) == 0 {
			return err
		}
		n = len(keys)
		_, err = tx.Exec(ctx, h.sql.deleteJournal, scopes, keys, paths)
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}
