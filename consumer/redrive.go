package consumer

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

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// RedriveOptions are what most callers leave alone. The zero value is usable.
type RedriveOptions struct {
	// Rate is how many letters are sent round in a second; default: as many as go.
	Rate float64

	// Force sends those round, too, whose step may have run already: it has no row,
	// and they are older than the rows that were removed. Their actions run as if
	// they never had, and their compensations as if the action had.
	Force bool

	// Progress is called after each batch has committed, with the counts so far;
	// default: nobody is told.
	Progress func(Prospects)
}

// Redrive sends the dead letters of those ids round again and counts what becomes
// of them: an id that is no dead letter, or no longer, is left out. Each keeps its
// identity, its message id and, in a header, the trace of its edits, has all its
// attempts again and is due at once. What it then does the consumer decides, as
// for any parked message: see [Prospect].
//
// A compensation that is a dead letter because its action was one has to be redriven
// too, with its action or after it. It is all that is left of the compensation: one
// that is sent again may be a duplicate, which nobody answers.
//
// A consumer that runs may at the same time decide about a duplicate: the locks
// are those that it takes. Of two redrives one finds each letter.
func (d *DeadLetters) Redrive(ctx context.Context, ids ...int64) (Prospects, error) {
	sum := Prospects{}
	for chunk := range slices.Chunk(ids, letterBatch) {
		done, err := d.RedriveAll(ctx, DeadFilter{IDs: chunk}, nil)
		sum.add(done)
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// RedriveAll does what [DeadLetters.Redrive] does, with the dead letters that
// filter picks: actions before compensations, since a compensation of an action
// that is a dead letter would be one again. A nil opts means the defaults.
//
// It leaves alone those that die, or die again, after it has begun. When ctx ends
// it ends between two batches; said again, it goes on with what is still dead.
func (d *DeadLetters) RedriveAll(ctx context.Context, filter DeadFilter, opts *RedriveOptions) (Prospects, error) {
	o := RedriveOptions{}
	if opts != nil {
		o = *opts
	}
	if filter.State == LetterRetrying {
		return Prospects{}, errors.New("consumer: the message is retrying: RetryNow runs it")
	}
	if o.Rate < 0 {
		return Prospects{}, errors.New("consumer: RedriveOptions.Rate is negative")
	}
	r := &round{DeadLetters: d, rate: o.Rate, progress: o.Progress, counts: Prospects{}, state: LetterDead}
	r.verb, r.what = "dead redrive", filter.what()
	if o.Force {
		r.what["force"] = "true"
	}
	r.change = func(ctx context.Context, tx pgx.Tx, h *held) (Prospects, []int64, error) {
		return d.redrive(ctx, tx, h, policy{horizon: h.horizon, force: o.Force})
	}
	err := r.all(ctx, filter)
	return r.counts, err
}

// Bury makes retrying messages dead letters before their attempts are used up, so
// that they can be edited or discarded. It returns how many: an id that is not
// retrying, or no longer, is left out, and so is one whose step is locked, such as
// by its own handler, or whose call is under way.
//
// It tells nobody: [Step.Unhandled] is not called. An orchestrated saga whose command is
// buried goes on waiting for the answer: until the step's deadline or, if it has none, until
// saga.Options.Patience is over. Till then it is running, not stuck, also behind the pivot.
func (d *DeadLetters) Bury(ctx context.Context, ids ...int64) (n int, err error) {
	for chunk := range slices.Chunk(ids, letterBatch) {
		r := &round{DeadLetters: d, counts: Prospects{}, state: LetterRetrying, verb: "dead bury", what: map[string]string{}, change: d.bury}
		err := r.all(ctx, DeadFilter{IDs: chunk, State: LetterRetrying})
		n += r.counts[buried]
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// buried is what Bury counts under.
const buried Prospect = "buried"

// A round does one thing to all that a filter picks.
type round struct {
	*DeadLetters
	state    LetterState
	change   func(context.Context, pgx.Tx, *held) (Prospects, []int64, error) // returns which have changed
	verb     string                                                           // for the journal
	what     map[string]string
	rate     float64
	progress func(Prospects)
	counts   Prospects
}

// stages are the kinds in the order in which they are dealt with.
var stages = [][]string{{string(action), string(unread)}, {string(compensation)}}

// busyPatience is how long a letter whose step is locked is waited for, alone.
const busyPatience = time.Second

func (r *round) all(ctx context.Context, filter DeadFilter) error {
	args, err := r.args(ctx, filter, 0)
	for i := 0; err == nil && i < len(stages); i++ {
		args[afterArg] = 0
		err = r.stage(ctx, append(slices.Clip(args), r.size(), stages[i]))
	}
	if err != nil {
		return fmt.Errorf("consumer: dead letters: %w", sqlschema.Explain(err))
	}
	return nil
}

// size is how many letters a batch has: at a limited rate, those of a second.
func (r *round) size() int {
	if r.rate == 0 {
		return letterBatch
	}
	return min(letterBatch, max(1, int(r.rate)))
}

// stage works off what args pick, batch by batch, and then what was busy, one by
// one.
func (r *round) stage(ctx context.Context, args []any) error {
	var busy []int64
	for {
		rows, _ := r.db.Query(ctx, r.sql.pick.of(r.state), args...)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			break
		}
		later, err := r.batch(ctx, ids)
		if err != nil {
			return err
		}
		busy = append(busy, later...)
		args[afterArg] = last(ids)
	}
	for _, id := range busy {
		if _, err := r.batch(ctx, []int64{id}); err != nil {
			return err
		}
	}
	return nil
}

// batch changes letters in one transaction, and returns those whose steps are
// busy. For more than one letter it waits for none of them.
func (r *round) batch(ctx context.Context, ids []int64) (busy []int64, err error) {
	alone := len(ids) == 1
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), letterTimeout)
	defer cancel()
	var done Prospects
	err = r.inTx(work, func(tx pgx.Tx) error {
		h, err := r.hold(work, tx, ids, r.state, alone)
		var changed []int64
		if err == nil {
			done, changed, err = r.change(work, tx, h)
		}
		if err == nil {
			busy = h.busy
			err = r.note(work, tx, r.verb, r.what, changed)
		}
		return err
	})
	switch {
	case err != nil && !contended(err):
		return nil, err
	case err != nil:
		done, busy = nil, ids
	}
	if alone && len(busy) > 0 {
		done, busy = Prospects{ProspectBusy: 1}, nil
	}
	r.counts.add(done)
	if r.progress != nil {
		r.progress(maps.Clone(r.counts))
	}
	if r.rate > 0 {
		r.pause(ctx, time.Duration(float64(len(ids))/r.rate*float64(time.Second)))
	}
	return busy, ctx.Err()
}

// contended reports whether err says that somebody else is at work on one of the
// steps: a lock was not given in time, two waited for each other, or another copy
// of a message went round first.
func contended(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && slices.Contains([]string{"55P03", "40P01", "23505"}, e.Code)
}

// held is what a transaction has locked, in the order of the letters' ids.
type held struct {
	letters []heldLetter
	steps   map[identity]*standing
	busy    []int64
	horizon *time.Time
}

// hold locks the steps of letters and then the letters. A step that is locked by
// somebody else it passes over, or, for one letter alone, waits for.
func (d *DeadLetters) hold(ctx context.Context, tx pgx.Tx, ids []int64, state LetterState, alone bool) (*held, error) {
	lock := d.sql.tryHoldSteps
	if alone {
		lock = d.sql.holdSteps
	}
	if _, err := tx.Exec(ctx, d.sql.limitLocks, strconv.FormatInt(busyPatience.Milliseconds(), 10)); err != nil {
		return nil, err
	}
	seen, err := heldLetters(ctx, tx, d.sql.seeLetters.of(state), ids)
	if err != nil {
		return nil, err
	}
	names := namesOf(seen)
	locked, err := readSteps(ctx, tx, lock, names)
	if err != nil {
		return nil, err
	}
	letters, err := heldLetters(ctx, tx, d.sql.holdLetters.of(state), ids)
	if err != nil {
		return nil, err
	}
	// A step that exists and is not locked here is locked by somebody else, or has
	// come into being since.
	existing, err := readSteps(ctx, tx, d.sql.readSteps, names)
	if err != nil {
		return nil, err
	}
	h := &held{steps: locked}
	for _, l := range letters {
		if existing[l.identity] != nil && locked[l.identity] == nil {
			h.busy = append(h.busy, l.id)
		} else {
			h.letters = append(h.letters, l)
		}
	}
	h.horizon, err = d.complete(ctx, tx, names, h.steps)
	return h, err
}

// complete adds to steps those of names that have no row, and what goes round of
// each. It returns the horizon of the inbox.
func (d *DeadLetters) complete(ctx context.Context, tx pgx.Tx, names []identity, steps map[identity]*standing) (horizon *time.Time, err error) {
	for _, id := range names {
		if steps[id] == nil {
			steps[id] = &standing{cell: cell{state: absent}, copies: map[kind][]byte{}}
		}
	}
	rows, _ := tx.Query(ctx, d.sql.readCopies, columnsOf(names)...)
	var id identity
	var k kind
	var digest []byte
	_, err = pgx.ForEachRow(rows, []any{&id.scope, &id.key, &id.step, &id.n, &k, &digest}, func() error {
		steps[id].copies[k] = slices.Clone(digest)
		return nil
	})
	if err == nil {
		err = tx.QueryRow(ctx, d.sql.readHorizon).Scan(&horizon)
	}
	return horizon, err
}

// namesOf returns the steps of letters, each once, in the order in which rows of
// the inbox are locked.
func namesOf(letters []heldLetter) []identity {
	var names []identity
	for _, l := range letters {
		if l.key != "" {
			names = append(names, l.identity)
		}
	}
	slices.SortFunc(names, identity.compare)
	return slices.Compact(names)
}

// columnsOf turns names on their side, for unnest.
func columnsOf(names []identity) []any {
	scopes, keys, steps, ns := make([]string, len(names)), make([]string, len(names)), make([]string, len(names)), make([]string, len(names))
	for i, id := range names {
		scopes[i], keys[i], steps[i], ns[i] = id.scope, id.key, id.step, id.n
	}
	return []any{scopes, keys, steps, ns}
}

// readSteps reads those rows of the inbox that there are.
func readSteps(ctx context.Context, tx pgx.Tx, statement string, names []identity) (map[identity]*standing, error) {
	rows, _ := tx.Query(ctx, statement, columnsOf(names)...)
	defer rows.Close()
	all := map[identity]*standing{}
	for rows.Next() {
		var id identity
		s := &standing{copies: map[kind][]byte{}}
		if err := rows.Scan(&id.scope, &id.key, &id.step, &id.n, &s.state, &s.attempts, &s.undoAttempts, &s.digest, &s.undoDigest); err != nil {
			return nil, err
		}
		all[id] = s
	}
	return all, rows.Err()
}

func heldLetters(ctx context.Context, tx pgx.Tx, statement string, ids []int64) ([]heldLetter, error) {
	rows, _ := tx.Query(ctx, statement, ids)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l heldLetter, err error) {
		var stamp []byte
		err = row.Scan(&l.id, &l.kind, &l.scope, &l.key, &l.step, &l.n, &l.digest, &stamp, &l.written)
		l.written = writtenAt(string(stamp), l.written)
		return l, err
	})
}

// writtenAt is when a message was written: as it says itself, but not later than
// it was parked.
func writtenAt(stamp string, parked time.Time) time.Time {
	if t, err := time.Parse(time.RFC3339, stamp); err == nil && t.Before(parked) {
		return t
	}
	return parked
}

// redrive decides about the letters of h and does it, under the locks of their
// steps. It returns those that are not what they were.
func (d *DeadLetters) redrive(ctx context.Context, tx pgx.Tx, h *held, p policy) (Prospects, []int64, error) {
	var sent, dropped, reused, rejected []int64
	done := Prospects{}
	for i := range h.letters {
		l := &h.letters[i]
		outcome := ProspectUnread
		if s := h.steps[l.identity]; s != nil {
			outcome = s.redrive(l, p)
		}
		done[outcome]++
		switch {
		case outcome.sent():
			sent = append(sent, l.id)
		case outcome == ProspectKeyReused:
			reused = append(reused, l.id)
		case outcome != ProspectTooOld:
			dropped = append(dropped, l.id)
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(d.sql.send, sent)
	batch.Queue(d.sql.drop, dropped)
	batch.Queue(d.sql.reject, reused, ReasonKeyReused, reusedText).Query(func(rows pgx.Rows) (err error) {
		rejected, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	d.queueMoves(batch, h.steps)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, nil, err
	}
	return done, slices.Concat(sent, dropped, rejected), d.forceSteps(ctx, tx, h.steps)
}

// queueMoves queues the moves of the steps that have one.
func (d *DeadLetters) queueMoves(batch *pgx.Batch, steps map[identity]*standing) {
	var names []identity
	var states []string
	for id, s := range steps {
		if s.moved && !s.forced {
			names, states = append(names, id), append(states, string(s.state))
		}
	}
	if len(states) > 0 {
		batch.Queue(d.sql.moveSteps, append(columnsOf(names), states)...)
	}
}

// forceSteps stores the rows that a forced redrive gives steps without one. One
// that has got a row meanwhile is decided about again, alone.
func (d *DeadLetters) forceSteps(ctx context.Context, tx pgx.Tx, steps map[identity]*standing) error {
	for id, s := range steps {
		if !s.forced {
			continue
		}
		tag, err := tx.Exec(ctx, d.sql.forceStep, id.scope, id.key, id.step, id.n, s.state, s.digest, s.undoDigest)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errTakenMeanwhile
		}
	}
	return nil
}

// errTakenMeanwhile is a [contended] one.
var errTakenMeanwhile = fmt.Errorf("consumer: the step has a row meanwhile: %w", &pgconn.PgError{Code: "23505"})

// bury makes the retrying messages of h dead letters, and their steps dead where
// they go round for them.
func (d *DeadLetters) bury(ctx context.Context, tx pgx.Tx, h *held) (Prospects, []int64, error) {
	ids := make([]int64, len(h.letters))
	for i, l := range h.letters {
		ids[i] = l.id
		s := h.steps[l.identity]
		switch {
		case s == nil:
		case l.kind == action && s.state == retrying:
			s.state, s.moved = dead, true
		case l.kind == compensation && s.state == undoing:
			s.state, s.moved = undoDead, true
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(d.sql.bury, ids)
	d.queueMoves(batch, h.steps)
	return Prospects{buried: len(ids)}, ids, tx.SendBatch(ctx, batch).Close()
}
