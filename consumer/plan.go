package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// PlanOptions are what most callers leave alone. The zero value is usable.
type PlanOptions struct {
	// Steps are whose consumer will get the letters: what it can read is read by its
	// own decoders. Default: none. Then a letter is taken for undecodable if its
	// headers or its JSON are, or if it was when it came and has not been edited
	// since, whatever newer binaries understand; and what becomes of one whose type
	// was edited is left open.
	Steps *Consumer

	// Force is [RedriveOptions.Force].
	Force bool
}

// A Planned is a dead letter, and what a redrive would make of it.
type Planned struct {
	DeadLetter
	Prospect Prospect
	Why      string
}

// Plan tells what [DeadLetters.RedriveAll] would make of the dead letters that
// filter picks: each gets them one by one, with their payloads, in the order in
// which they would be redriven, and may be nil; its error ends the plan. It asks
// the consumer's own state machine, takes no lock and changes nothing: what
// happens between plan and redrive is not in it.
func (d *DeadLetters) Plan(ctx context.Context, filter DeadFilter, opts *PlanOptions, each func(Planned) error) (Prospects, error) {
	p := &planner{DeadLetters: d, counts: Prospects{}, each: each, known: map[identity]*standing{}}
	if opts != nil {
		p.PlanOptions = *opts
	}
	if filter.State == LetterRetrying {
		return p.counts, errors.New("consumer: only dead letters are redriven")
	}
	args, err := d.args(ctx, filter, 0)
	for i := 0; err == nil && i < len(stages); i++ {
		args[afterArg] = 0
		err = p.stage(ctx, append(slices.Clip(args), letterBatch, stages[i], pageBytes))
	}
	if err != nil {
		return p.counts, fmt.Errorf("consumer: plan: %w", sqlschema.Explain(err))
	}
	return p.counts, nil
}

// A planner redrives in its head.
type planner struct {
	*DeadLetters
	PlanOptions
	each    func(Planned) error
	counts  Prospects
	known   map[identity]*standing // the steps of the letters so far, as those leave them
	horizon *time.Time
}

func (p *planner) stage(ctx context.Context, args []any) error {
	for {
		rows, _ := p.db.Query(ctx, p.sql.page, args...)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := p.page(ctx, ids); err != nil {
			return err
		}
		args[afterArg] = last(ids)
	}
}

// page plans letters from one snapshot.
func (p *planner) page(ctx context.Context, ids []int64) error {
	var letters []DeadLetter
	var read []heldLetter
	var why []error
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, p.db, options, func(tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, p.sql.readLetters, ids)
		if letters, err = pgx.CollectRows(rows, scanLetter); err != nil {
			return err
		}
		for _, l := range letters {
			held, err := p.read(l)
			read, why = append(read, held), append(why, err)
		}
		return p.learn(ctx, tx, namesOf(read))
	})
	for i := 0; err == nil && i < len(letters); i++ {
		err = p.judge(letters[i], &read[i], why[i])
	}
	return err
}

// learn reads where the steps of names stand, but for those that letters have
// moved in this plan already.
func (p *planner) learn(ctx context.Context, tx pgx.Tx, names []identity) error {
	names = slices.DeleteFunc(names, func(id identity) bool { return p.known[id] != nil })
	steps, err := readSteps(ctx, tx, p.sql.readSteps, names)
	if err != nil {
		return err
	}
	p.horizon, err = p.complete(ctx, tx, names, steps)
	for id, s := range steps {
		p.known[id] = s
	}
	return err
}

// judge plans one letter. unreadable says why it cannot be read, if so.
func (p *planner) judge(l DeadLetter, held *heldLetter, unreadable error) error {
	planned := Planned{DeadLetter: l, Prospect: ProspectUnread}
	step := p.known[held.identity]
	switch {
	case step != nil:
		planned.Prospect = step.redrive(held, policy{horizon: p.horizon, force: p.Force})
	case unreadable != nil:
		planned.Prospect = ProspectUndecodable
	}
	retyped := planned.Prospect == ProspectRun && held.retyped
	if retyped {
		planned.Prospect = ProspectUnread
	}
	planned.Why = aboutProspect[planned.Prospect]
	switch {
	case retyped:
		planned.Why = aboutRetyped
	case planned.Prospect == ProspectUndecodable:
		planned.Why = unreadable.Error()
	case planned.Prospect == ProspectRun && held.kind == action && step.undoDigest != nil && step.copies[compensation] == nil:
		planned.Why = aboutUndone
	}
	p.counts[planned.Prospect]++
	if p.each == nil {
		return nil
	}
	return p.each(planned)
}

// aboutProspect says why.
var aboutProspect = map[Prospect]string{
	ProspectRun:        "its handler is entered again",
	ProspectNothing:    "its action has not run and will not run any more",
	ProspectWaits:      "it runs once its action has, which goes round too",
	ProspectActionDead: "its action is a dead letter: redrive that too, or first",
	ProspectUnread:     "a consumer of its topic reads it again; only that one knows",
	ProspectDuplicate:  "its step is done, or another copy will do it",
	ProspectSuperseded: "its compensation came first",
	ProspectKeyReused:  "its identity was used for another payload",
	ProspectTooOld:     "its step may have run: it is older than what is known of steps",
}

// aboutRetyped says why of a letter whose type leads who knows where.
const aboutRetyped = "its type was edited: only its consumer knows whether that is still one of its step's"

// aboutUndone says it of an action whose compensation has waited for it, and does not
// go round any more.
const aboutUndone = "its handler is entered again; its compensation died with it: redrive that too"

// read returns what a redrive has to know of l, and why its consumer will not
// understand it, if it will not.
func (p *planner) read(l DeadLetter) (heldLetter, error) {
	row := parkedRow{
		ID: l.ID, Kind: kind(l.Kind), Scope: l.Scope, Key: l.Key, Step: l.Step, N: l.N, Topic: l.Topic, MessageID: []byte(l.MessageID),
		Payload: l.Payload, Digest: l.digest, Reason: l.Reason,
	}
	row.HeaderNames, row.HeaderValues = headers(l.Headers)
	held := heldLetter{
		id: l.ID, kind: row.Kind, identity: identity{l.Scope, l.Key, l.Step, l.N}, digest: row.digest(),
		written: writtenAt(l.Headers.Get(outbox.PropertyTimestamp), l.FirstAt),
	}
	if p.Steps == nil || !p.Steps.takes(&row) {
		err := unreadableAt(l, &row)
		held.unreadable, held.retyped = err != nil, typeWas(l) != l.Headers.Get(outbox.PropertyType)
		return held, err
	}
	j, rejected := p.Steps.readAgain(&row, row.message())
	if rejected != nil {
		held.unreadable = true
		held.cancelParked = row.Kind != unread && p.Steps.steps[l.Step].CancelParked
		return held, fmt.Errorf("%s: %w", rejected.reason, rejected.err)
	}
	held.cancelParked = j.step.CancelParked
	if row.Kind == unread {
		// What its consumer goes by is what the message says of itself.
		held.kind, held.identity, held.nameless = j.kind, identity{j.Scope, j.Key, j.Step, j.joinedN()}, true
		held.written = writtenAt(l.Headers.Get(outbox.PropertyTimestamp), time.Unix(math.MaxInt32, 0))
	}
	return held, nil
}

// takes reports whether row, if it is retrying, is one for c.
func (c *Consumer) takes(row *parkedRow) bool {
	if row.Kind == unread {
		return slices.Contains(c.topics, row.Topic)
	}
	return c.steps[row.Step] != nil
}

// reader is a consumer of no steps: it reads headers, and knows no type.
var reader = &Consumer{opts: Options{MaxPayload: math.MaxInt}, formats: knownFormats}

// unreadableAt says why l cannot be read, as far as that can be told without its
// steps.
func unreadableAt(l DeadLetter, row *parkedRow) error {
	unreadThen := l.Key == "" || l.Reason == ReasonUndecodable || l.Reason == ReasonTypeUnknown
	if !unreadThen && !l.Edited || l.Reason.unbelieved() {
		return nil // only its consumer knows which keys and formats it knows by now
	}
	if _, rejected := reader.read(l.Topic, row.message()); rejected.reason != ReasonTypeUnknown {
		return fmt.Errorf("%s: %w", rejected.reason, rejected.err)
	}
	if !l.Edited {
		return fmt.Errorf("%s: it could not be read when it came, and was not edited since", l.Reason)
	}
	if !json.Valid(l.Payload) {
		return fmt.Errorf("%s: payload is not JSON", ReasonUndecodable)
	}
	return nil
}
