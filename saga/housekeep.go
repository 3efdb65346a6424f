package saga

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/machine"
)

const (
	// housekeepBatch is how many instances are removed at once.
	housekeepBatch = 500

	// silentBatch is how many silent instances are read at once, of some hundred bytes each. For each
	// batch all of them are sorted.
	silentBatch = 5000
)

// housekeep looks, now and then, for instances that nobody answers, and for those
// that have ended long ago.
func (o *Orchestrator) housekeep(ctx context.Context) {
	for ctx.Err() == nil {
		silent, removed := 0, 0
		err := guard.Call(func() (err error) { // of the pool's hooks
			if silent, err = o.checkSilent(ctx); err == nil {
				removed, err = o.removeEnded(ctx)
			}
			return err
		})
		if err != nil && ctx.Err() == nil {
			o.opts.Logger.ErrorContext(ctx, "saga: housekeeping failed", "error", err)
		}
		o.signals.housekeept.Send(silent + removed)
		select {
		case <-ctx.Done():
		case <-time.After(o.opts.HousekeepPoll):
		}
	}
}

// checkSilent has steps stuck that nobody has answered for Patience, and returns
// in how many instances.
func (o *Orchestrator) checkSilent(ctx context.Context) (stuck int, err error) {
	var last silent
	for {
		found, err := o.listSilent(ctx, last)
		if err != nil {
			return stuck, err
		}
		for i := range found {
			err := o.checkOne(ctx, &found[i])
			switch {
			case err == nil:
				stuck++
			case errors.Is(err, ErrNoInstance), errors.Is(err, errNotSilent):
			case ctx.Err() != nil:
				return stuck, err
			default: // the others are not to wait for it
				d := found[i].due
				o.opts.Logger.ErrorContext(ctx, "saga: a silent instance cannot be looked after", "scope", d.scope, "key", d.key, "path", d.path, "error", err)
			}
		}
		if len(found) < silentBatch {
			return stuck, nil
		}
		last = found[len(found)-1]
	}
}

// A silent instance is one that nothing has happened to for Patience. It may have
// a deadline that is longer, or wait for one that is nested in it.
type silent struct {
	due
	version  versionKey
	progress string // "": it is too large to be read with others
	now      machine.Millis
}

func (o *Orchestrator) listSilent(ctx context.Context, after silent) ([]silent, error) {
	ctx, cancel := context.WithTimeout(ctx, timerTime)
	defer cancel()
	rows, err := o.db.Query(ctx, o.sql.listSilent, o.known.names, o.known.versions, o.opts.Patience.Microseconds(),
		after.scope, after.key, after.path, silentBatch, o.known.hashes)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (s silent, err error) {
		s.revision = anyRevision
		return s, r.Scan(&s.scope, &s.key, &s.path, &s.version.name, &s.version.version, &s.progress, &s.now)
	})
}

// checkOne has the steps of s stuck for which there is nothing else to be waited for. Most
// instances that are silent are so by right, and are not locked to see that.
func (o *Orchestrator) checkOne(ctx context.Context, s *silent) error {
	var p machine.Progress
	f, ok := o.flows[s.version]
	if ok && json.Unmarshal([]byte(s.progress), &p) == nil && f.Machine.Fits(&p) {
		i := flow.Instance{Scope: s.scope, Key: s.key, Path: s.path, Progress: p}
		steps, err := o.unanswered(ctx, o.db, f.Machine, &i, s.now)
		if err == nil && len(steps) == 0 {
			err = errNotSilent
		}
		if err != nil {
			return err
		}
	}
	return o.inTx(ctx, s.due, o.giveUp)
}

// giveUp waits no longer for steps that have been silent for Patience.
func (o *Orchestrator) giveUp(ctx context.Context, r *flow.Run) error {
	steps, err := o.unanswered(ctx, r.Out.(*session).tx, r.Flow.Machine, r.Instance, r.Now)
	if err == nil && len(steps) == 0 {
		err = errNotSilent
	}
	for _, id := range steps {
		s := r.Instance.Progress.Steps[id-1]
		e := machine.Event{
			Kind: machine.Overdue, Step: id, Undo: s.State == machine.Undoing, Attempt: s.Attempt,
			Reason: "no reply for " + o.opts.Patience.String(),
		}
		err = errors.Join(err, r.Apply(ctx, e))
	}
	return err
}

// unanswered returns the steps that have been silent for Patience.
func (o *Orchestrator) unanswered(ctx context.Context, db querier, m *machine.Machine, i *flow.Instance, now machine.Millis) (steps []int, err error) {
	for id := 1; id <= m.Steps(); id++ {
		s := &i.Progress.Steps[id-1]
		undo := s.State == machine.Undoing
		if s.State != machine.InFlight && !undo || s.Due > 0 || now-s.Sent < machine.MillisOf(o.opts.Patience) {
			continue
		}
		waits := false
		if m.Step(id).Kind == machine.Nested {
			waits, err = o.nestedGoesOn(ctx, db, address{i.Scope, i.Key, flow.N(i.Path, id, s.Attempt)}, undo)
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

// A querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// nestedGoesOn reports whether the instance at an address is going to answer. One that runs has
// a patience of its own; but its answer, or the order to undo it, may have been lost to a dead letter.
func (o *Orchestrator) nestedGoesOn(ctx context.Context, db querier, at address, undo bool) (bool, error) {
	var (
		text       string
		p          machine.Progress
		ended, old bool
	)
	err := db.QueryRow(ctx, o.sql.readNested, at.scope, at.key, at.path, o.opts.Patience.Microseconds()).Scan(&text, &ended, &old)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &p)
	}
	return !old || !ended && (!undo || p.Revoke), err
}

// errNotSilent ends a transaction in which there was nothing to do.
var errNotSilent = errors.New("saga: not silent")

// removeEnded removes instances that ended before Retention, with what was decided about them.
func (o *Orchestrator) removeEnded(ctx context.Context) (removed int, err error) {
	for {
		n, err := o.removeSome(ctx)
		removed += n
		if err != nil || n < housekeepBatch {
			return removed, err
		}
	}
}

func (o *Orchestrator) removeSome(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timerTime)
	defer cancel()
	err = pgx.BeginFunc(ctx, o.db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, o.sql.deleteEnded, o.opts.Retention.Microseconds(), housekeepBatch)
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
		_, err = tx.Exec(ctx, o.sql.deleteJournal, scopes, keys, paths)
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}
