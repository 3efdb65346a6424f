package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

func (d *inboxLetters) redriveLetters(ctx context.Context, filter Filter, o RedriveOptions) (Outcomes, error) {
	r := &pass{
		inboxLetters: d, state: StateDead, verb: "dead redrive", what: filter.describeInbox(),
		rate: rate(o.Rate), progress: o.Progress, counts: Outcomes{},
	}
	if o.Force {
		r.what["force"] = "true"
	}
	sagas, err := findSagas(ctx, d.db.Pool(), o.Databases)
	if err != nil {
		return r.counts, fmt.Errorf("operator: dead letters: %w", sqlschema.Explain(err))
	}
	r.change = func(ctx context.Context, tx pgx.Tx, h *holding) (Outcomes, []int64, error) {
		if err := sagas.learn(ctx, inSavepoint(tx), h.letters); err != nil {
			return nil, nil, err
		}
		return d.redriveHeld(ctx, tx, h, policy{horizon: h.horizon, force: o.Force})
	}
	err = r.changeAll(ctx, filter)
	return r.counts, err
}

// outcomeBuried counts what Bury has done. It is not an outcome of a redrive.
const outcomeBuried Outcome = "buried"

func (d *inboxLetters) buryLetters(ctx context.Context, filter Filter) (int, error) {
	filter.State = StateRetrying
	r := &pass{inboxLetters: d, state: StateRetrying, verb: "dead bury", what: filter.describeInbox(), change: d.buryHeld, counts: Outcomes{}}
	err := r.changeAll(ctx, filter)
	return r.counts[outcomeBuried], err
}

// A pass does one verb to all letters that a filter picks, under the locks of their steps.
type pass struct {
	*inboxLetters
	state    State
	since    time.Time                                                          // letters that have changed since then are left alone; zero: none are
	change   func(context.Context, pgx.Tx, *holding) (Outcomes, []int64, error) // returns the ids of the letters that have changed
	verb     string                                                             // for the journal
	what     map[string]string
	rate     rate
	progress func(Outcomes)
	counts   Outcomes
}

// stages are the kinds of letters in the order in which a pass handles them.
var stages = [][]string{{string(inbox.Action), string(inbox.Unread)}, {string(inbox.Compensation)}}

// lockPatience is how long a pass waits for a locked step, one letter at a time, and a change of the outbox for a message.
const lockPatience = time.Second

func (r *pass) changeAll(ctx context.Context, filter Filter) error {
	r.since = filter.UnchangedSince
	args, err := r.filterArgs(ctx, filter, 0)
	for i := 0; err == nil && i < len(stages); i++ {
		args[afterArg] = 0
		err = r.changeStage(ctx, append(slices.Clip(args), r.rate.batchSize(batchSize), stages[i]))
	}
	if err != nil {
		return fmt.Errorf("operator: dead letters: %w", sqlschema.Explain(err))
	}
	return nil
}

// changeStage handles the letters that args pick, batch by batch, and then those whose steps
// were locked, one by one.
func (r *pass) changeStage(ctx context.Context, args []any) error {
	var busy []int64
	for {
		rows, _ := r.db.Query(ctx, r.sql.pick.forState(r.state), args...)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			break
		}
		later, err := r.changeBatch(ctx, ids)
		if err != nil {
			return err
		}
		busy = append(busy, later...)
		args[afterArg] = largest(ids)
	}
	for _, id := range busy {
		if _, err := r.changeBatch(ctx, []int64{id}); err != nil {
			return err
		}
	}
	return nil
}

// changeBatch changes letters in one transaction and returns those whose steps are locked.
// It waits for a lock only if there is one letter. A transaction that has begun does not end
// with ctx.
func (r *pass) changeBatch(ctx context.Context, ids []int64) (busy []int64, err error) {
	alone := len(ids) == 1
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	var done Outcomes
	err = r.commitBatch(work, r.verb, r.what, func(tx pgx.Tx) (changed []int64, err error) {
		h, err := r.holdLetters(work, tx, ids, alone)
		if err == nil {
			done, changed, err = r.change(work, tx, h)
		}
		if err == nil {
			busy = h.busy
		}
		return changed, err
	})
	switch {
	case err != nil && !isContended(err):
		return nil, err
	case err != nil:
		done, busy = nil, ids
	}
	if alone && len(busy) > 0 {
		done, busy = Outcomes{OutcomeBusy: 1}, nil
	}
	r.counts.addAll(done)
	if r.progress != nil {
		r.progress(maps.Clone(r.counts))
	}
	r.keepRate(ctx, r.rate, len(ids))
	return busy, ctx.Err()
}

// isContended reports whether err means that another transaction works on one of the steps:
// a lock timeout, a deadlock, or another copy of a message that became retrying first.
func isContended(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && slices.Contains([]string{lockNotAvailable, "40P01", "23505"}, e.Code)
}

// A holding is what a transaction has locked: letters in the order of their ids, and their
// steps.
type holding struct {
	letters []candidate
	steps   map[inbox.Identity]*stepStanding
	busy    []int64
	horizon *time.Time
}

// holdLetters locks the steps of letters and then the letters. It skips a step that another
// transaction has locked, or waits for it if there is one letter. It leaves out letters that have changed since r.since:
// they may have died again after they were picked.
func (r *pass) holdLetters(ctx context.Context, tx pgx.Tx, ids []int64, alone bool) (*holding, error) {
	lock := r.sql.tryHoldSteps
	if alone {
		lock = r.sql.holdSteps
	}
	if _, err := tx.Exec(ctx, r.sql.limitLocks, strconv.FormatInt(lockPatience.Milliseconds(), 10)); err != nil {
		return nil, err
	}
	seen, err := readCandidates(ctx, tx, r.sql.seeLetters.forState(r.state), ids, r.since)
	if err != nil {
		return nil, err
	}
	names := identitiesOf(seen)
	locked, err := readSteps(ctx, tx, lock, names)
	if err != nil {
		return nil, err
	}
	letters, err := readCandidates(ctx, tx, r.sql.holdLetters.forState(r.state), ids, r.since)
	if err != nil {
		return nil, err
	}
	// A step that exists and is not locked here is locked by another transaction, or was
	// inserted since.
	existing, err := readSteps(ctx, tx, r.sql.readSteps, names)
	if err != nil {
		return nil, err
	}
	h := &holding{steps: locked}
	for _, l := range letters {
		if existing[l.Identity] != nil && locked[l.Identity] == nil {
			h.busy = append(h.busy, l.id)
		} else {
			h.letters = append(h.letters, l)
		}
	}
	h.horizon, err = r.completeSteps(ctx, tx, names, h.steps)
	return h, err
}

// completeSteps adds the steps of names that have no row, and the retrying messages of each.
// It returns the horizon of the inbox.
func (d *inboxLetters) completeSteps(ctx context.Context, tx pgx.Tx, names []inbox.Identity, steps map[inbox.Identity]*stepStanding) (horizon *time.Time, err error) {
	for _, id := range names {
		if steps[id] == nil {
			steps[id] = &stepStanding{copies: map[inbox.Kind][]byte{}}
		}
	}
	rows, _ := tx.Query(ctx, d.sql.readCopies, identityColumns(names)...)
	var id inbox.Identity
	var k inbox.Kind
	var digest []byte
	_, err = pgx.ForEachRow(rows, []any{&id.Scope, &id.Key, &id.Step, &id.N, &k, &digest}, func() error {
		steps[id].copies[k] = slices.Clone(digest)
		return nil
	})
	if err == nil {
		err = tx.QueryRow(ctx, d.sql.readHorizon).Scan(&horizon)
	}
	return horizon, err
}

// identitiesOf returns the steps of letters, each once, in the order in which rows of the
// inbox are locked.
func identitiesOf(letters []candidate) []inbox.Identity {
	var names []inbox.Identity
	for _, l := range letters {
		if l.Key != "" {
			names = append(names, l.Identity)
		}
	}
	slices.SortFunc(names, inbox.Identity.Compare)
	return slices.Compact(names)
}

// identityColumns returns names as one array for each column, for unnest.
func identityColumns(names []inbox.Identity) []any {
	scopes, keys, steps, ns := make([]string, len(names)), make([]string, len(names)), make([]string, len(names)), make([]string, len(names))
	for i, id := range names {
		scopes[i], keys[i], steps[i], ns[i] = id.Scope, id.Key, id.Step, id.N
	}
	return []any{scopes, keys, steps, ns}
}

// readSteps reads the rows of names that exist.
func readSteps(ctx context.Context, tx pgx.Tx, statement string, names []inbox.Identity) (map[inbox.Identity]*stepStanding, error) {
	rows, _ := tx.Query(ctx, statement, identityColumns(names)...)
	defer rows.Close()
	all := map[inbox.Identity]*stepStanding{}
	for rows.Next() {
		var id inbox.Identity
		var undoAttempts int
		s := &stepStanding{copies: map[inbox.Kind][]byte{}}
		if err := rows.Scan(&id.Scope, &id.Key, &id.Step, &id.N, &s.State, &s.Attempts, &undoAttempts, &s.Digest, &s.UndoDigest); err != nil {
			return nil, err
		}
		all[id] = s
	}
	return all, rows.Err()
}

func readCandidates(ctx context.Context, tx pgx.Tx, statement string, ids []int64, since time.Time) ([]candidate, error) {
	rows, _ := tx.Query(ctx, statement, ids, timeOrNil(since))
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l candidate, err error) {
		var stamp []byte
		var reason consumer.Reason
		err = row.Scan(&l.id, &l.Kind, &l.Scope, &l.Key, &l.Step, &l.N, &l.digest, &stamp, &l.written, &reason)
		l.written, l.reread = timeWritten(string(stamp), l.written), slices.Contains(unreadReasons, reason)
		return l, err
	})
}

// timeWritten is when a message was written: its own timestamp, but not later than stored.
func timeWritten(stamp string, stored time.Time) time.Time {
	if t, err := time.Parse(time.RFC3339, stamp); err == nil && t.Before(stored) {
		return t
	}
	return stored
}

// redriveHeld decides about the letters of h and carries it out, under the locks of their
// steps. It returns the ids of the letters that have changed.
func (d *inboxLetters) redriveHeld(ctx context.Context, tx pgx.Tx, h *holding, p policy) (Outcomes, []int64, error) {
	var sent, dropped, reused, rejected []int64
	done := Outcomes{}
	for i := range h.letters {
		l := &h.letters[i]
		outcome := OutcomeUnread
		if s := h.steps[l.Identity]; s != nil {
			outcome = s.decideOutcome(l, p)
		}
		done[outcome]++
		switch {
		case outcome.isSent():
			sent = append(sent, l.id)
		case outcome == OutcomeKeyReused:
			reused = append(reused, l.id)
		case outcome != OutcomeTooOld && outcome != OutcomeSagaEnded:
			dropped = append(dropped, l.id)
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(d.sql.send, sent)
	batch.Queue(d.sql.drop, dropped)
	batch.Queue(d.sql.reject, reused, consumer.ReasonKeyReused, inbox.ReusedText).Query(func(rows pgx.Rows) (err error) {
		rejected, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	d.queueMoves(batch, h.steps)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, nil, err
	}
	return done, slices.Concat(sent, dropped, rejected), d.insertForced(ctx, tx, h.steps)
}

// queueMoves queues the new states of existing rows.
func (d *inboxLetters) queueMoves(batch *pgx.Batch, steps map[inbox.Identity]*stepStanding) {
	var names []inbox.Identity
	var states []string
	for id, s := range steps {
		if s.moved && !s.forced {
			names, states = append(names, id), append(states, string(s.State))
		}
	}
	if len(states) > 0 {
		batch.Queue(d.sql.moveSteps, append(identityColumns(names), states)...)
	}
}

// insertForced inserts the rows of a forced redrive. If a step has a row by now, its letter
// is decided about again, alone.
func (d *inboxLetters) insertForced(ctx context.Context, tx pgx.Tx, steps map[inbox.Identity]*stepStanding) error {
	for id, s := range steps {
		if !s.forced {
			continue
		}
		tag, err := tx.Exec(ctx, d.sql.forceStep, id.Scope, id.Key, id.Step, id.N, s.State, s.Digest, s.UndoDigest)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errRowMeanwhile
		}
	}
	return nil
}

// errRowMeanwhile is a contended error: see isContended.
var errRowMeanwhile = fmt.Errorf("operator: the step has a row meanwhile: %w", &pgconn.PgError{Code: "23505"})

// buryHeld makes the retrying messages of h dead letters. It moves a step that is retrying
// for one of them to its dead state.
func (d *inboxLetters) buryHeld(ctx context.Context, tx pgx.Tx, h *holding) (Outcomes, []int64, error) {
	ids := make([]int64, len(h.letters))
	for i, l := range h.letters {
		ids[i] = l.id
		s := h.steps[l.Identity]
		switch {
		case s == nil:
		case l.Kind == inbox.Action && s.State == inbox.Retrying:
			s.State, s.moved = inbox.Dead, true
		case l.Kind == inbox.Compensation && s.State == inbox.Undoing:
			s.State, s.moved = inbox.UndoDead, true
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(d.sql.bury, ids)
	d.queueMoves(batch, h.steps)
	return Outcomes{outcomeBuried: len(ids)}, ids, tx.SendBatch(ctx, batch).Close()
}
