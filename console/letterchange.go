package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// letterKinds are the changes of letters.
func (c *Console) letterKinds() []*changeKind {
	all := []*changeKind{c.editKind()}
	for kind, verb := range letterChanges {
		all = append(all, &changeKind{name: kind, parse: func(ctx context.Context, params url.Values) (change, error) {
			search, err := parseLetterSearch(params)
			if err != nil {
				return nil, err
			}
			if !search.narrows() {
				return nil, badRequest("The search picks every message of every schema: name a schema, a topic, a step, a reason or another condition first.")
			}
			if search.State != "" && search.state() != verb.of {
				return nil, badRequest(fmt.Sprintf("This change is for messages that are %s.", verb.of))
			}
			if verb.side != "" && search.Side == "" {
				search.Side = string(verb.side)
			}
			if verb.side != "" && search.Side != string(verb.side) {
				return nil, badRequest(fmt.Sprintf("This change is for messages of the %s.", verb.side))
			}
			sides, _, err := c.chooseSides(ctx, search)
			if err != nil {
				return nil, err
			}
			return &letterChange{verb: verb, sides: sides, filter: search.filter(verb.of), of: search.conditions(), query: search.Query(), redact: c.redactLetter, databases: c.pools()}, nil
		}})
	}
	return all
}

// A letterVerbKind is what a change does to letters.
type letterVerbKind struct {
	label       string
	of          operator.State // the letters that it is for
	side        operator.Side  // "": both
	needs       Role
	consequence string
	preview     func(ctx context.Context, l *letterChange, side letterSide, d *operator.DeadLetters, p *preview) error
	apply       func(ctx context.Context, d *operator.DeadLetters, filter operator.Filter, o *applyOptions, progress func(tally)) (tally, error)
	final       bool // it cannot be undone
	force       bool // of a redrive: too old messages too
}

// forcedRedrive is the kind of a redrive that includes messages which are too old.
const forcedRedrive = "redrive-old"

var letterChanges = map[string]letterVerbKind{
	"redrive": {"Redrive", operator.StateDead, "", RoleOperator, "Each message is retried with all its attempts, and actions before compensations. A message whose step is done is removed. " +
		"A message of the outbox is published again, after later messages of its ordering key.", previewRedrive, redrive(false), false, false},
	forcedRedrive: {"Force the redrive of", operator.StateDead, operator.Inbox, RoleAdmin, "Messages that are too old are redriven too: the inbox no longer knows whether their steps have run, so these may run a second time. " +
		"Make sure first that they have not run. Actions of sagas that have ended are redriven too, and nobody undoes them. Each message is retried with all its attempts, and actions before compensations. This cannot be undone.", previewRedrive, redrive(true), true, true},
	"discard": {"Discard", operator.StateDead, "", RoleAdmin, "The messages are removed permanently and never run. The saga of a message waits until its deadline. This cannot be undone.",
		previewLetters, applyDiscard, true, false},
	"retry": {"Retry now", operator.StateRetrying, operator.Inbox, RoleOperator, "Each message is due at once. Its attempts stay counted. A message that runs at this moment is left alone.",
		previewLetters, applyRetry, false, false},
	"bury": {"Bury", operator.StateRetrying, "", RoleOperator, "The messages become dead letters before their attempts are used up. A dead letter of the inbox can be edited, redriven or discarded, and " +
		"its saga waits until its deadline. A dead message of the outbox can be redriven or discarded, and the relay publishes the messages that waited for it.", previewLetters, applyBury, false, false},
}

// A letterChange changes all letters that a filter picks.
type letterChange struct {
	verb   letterVerbKind
	sides  []letterSide
	filter operator.Filter
	of     []condition
	query  url.Values // the search
	redact func(*operator.DeadLetter)

	databases []*pgxpool.Pool // of the console
}

func (l *letterChange) role() Role { return l.verb.needs }

func (l *letterChange) text() changeText {
	t := changeText{Verb: l.verb.label, One: "dead letter", Many: "dead letters", Conditions: l.of, Consequence: l.verb.consequence, Final: l.verb.final}
	if l.verb.of == operator.StateRetrying {
		t.One, t.Many = "retrying message", "retrying messages"
	}
	return t
}

func (l *letterChange) places() (all []*place) {
	for _, side := range l.sides {
		if !slices.Contains(all, side.place) {
			all = append(all, side.place)
		}
	}
	return all
}

// eachSide calls do for each side with what open returns, and skips sides that the schema does not have.
func (l *letterChange) eachSide(open func(letterSide) (*operator.DeadLetters, error), do func(letterSide, *operator.DeadLetters) error) error {
	missing := 0
	for _, side := range l.sides {
		d, err := open(side)
		if err == nil {
			err = do(side, d)
		}
		switch {
		case isWithoutTable(err) && missing < len(l.sides)-1:
			missing++
		case err != nil:
			return err
		}
	}
	return nil
}

func (l *letterChange) preview(ctx context.Context) (p preview, err error) {
	err = l.eachSide(letterSide.read, func(side letterSide, d *operator.DeadLetters) error {
		return l.verb.preview(ctx, l, side, d, &p)
	})
	if l.filter.Fingerprint == "" {
		p.Error = ""
	}
	return p, err
}

// previewLetters counts the letters and lists the first.
func previewLetters(ctx context.Context, l *letterChange, side letterSide, d *operator.DeadLetters, p *preview) error {
	count, err := d.Count(ctx, l.filter)
	if err != nil {
		return err
	}
	p.Count += count
	first, err := d.List(ctx, l.filter, 0, maxSamples)
	for i := 0; err == nil && i < len(first) && len(p.Samples) < maxSamples; i++ {
		p.Samples = append(p.Samples, l.sampleLetter(side, &first[i]))
		p.Error = cmp.Or(p.Error, clipText(first[i].Error, maxNote))
	}
	return err
}

func (c *letterChange) sampleLetter(side letterSide, l *operator.DeadLetter) sample {
	c.redact(l)
	return sampleLetter(side, l)
}

// sampleLetter returns the sample of a letter that is redacted.
func sampleLetter(side letterSide, l *operator.DeadLetter) sample {
	name := fmt.Sprintf("%s %d", side.Side, l.ID)
	if l.Key != "" {
		name += fmt.Sprintf(": %s/%s %s", l.Scope, l.Key, l.Step)
	}
	return sample{side.Label, name, strings.TrimSpace(string(l.Reason) + " " + clipText(l.Error, maxNote)), "letter" + letterQuery(side.place, side.Side, l.ID)}
}

const maxNote = 160 // characters

// clipBytes cuts text to at most n bytes, between two characters.
func clipBytes(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}

// maxPredicted is how many letters of a side a preview of a redrive predicts the outcomes of: it reads their payloads.
const maxPredicted = 2000

// errPredicted ends a preview after maxPredicted letters.
var errPredicted = errors.New("console: enough letters are previewed")

// previewRedrive counts all letters, and predicts the outcomes of the first.
func previewRedrive(ctx context.Context, l *letterChange, side letterSide, d *operator.DeadLetters, p *preview) error {
	count, err := d.Count(ctx, l.filter)
	if err != nil || count == 0 {
		return err
	}
	predicted := 0
	stays := operator.Outcomes{}
	effects := map[string]int{}
	var opts *operator.PreviewOptions // the outbox has none
	if side.Side == operator.Inbox {
		opts = &operator.PreviewOptions{Force: l.verb.force, Databases: l.databases}
	}
	_, err = d.Preview(ctx, l.filter, opts, func(seen operator.Preview) error {
		if predicted >= maxPredicted {
			return errPredicted
		}
		predicted++
		says := describePreview(side.Side, &seen)
		stays[seen.Outcome]++
		if stays.Left() > 0 && isLeft(seen.Outcome) {
			addReason(&p.Refused, says, 1)
			if seen.Outcome == operator.OutcomeTooOld {
				p.Include = "change/" + forcedRedrive + "?" + l.query.Encode()
			}
			return nil
		}
		effects[says]++
		if len(p.Samples) < maxSamples {
			one := l.sampleLetter(side, &seen.DeadLetter)
			one.Note = says
			p.Error = cmp.Or(p.Error, clipText(seen.Error, maxNote))
			p.Samples = append(p.Samples, one)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errPredicted) {
		return err
	}
	for says, n := range effects {
		addReason(&p.Effects, says, n)
	}
	if count > predicted {
		addReason(&p.Effects, fmt.Sprintf("Their outcomes are not predicted: a preview reads %d messages of a side.", maxPredicted), count-predicted)
	}
	p.Count += max(count, predicted) - stays.Left()
	return nil
}

// isLeft reports whether a letter with this outcome stays a dead letter.
func isLeft(outcome operator.Outcome) bool { return operator.Outcomes{outcome: 1}.Left() > 0 }

func addReason(counts *map[string]int, reason string, n int) {
	if *counts == nil {
		*counts = map[string]int{}
	}
	(*counts)[reason] += n
}

func (l *letterChange) apply(ctx context.Context, o *applyOptions, progress func(tally)) (total tally, err error) {
	o.databases = l.databases
	err = l.eachSide(func(side letterSide) (*operator.DeadLetters, error) { return side.change(o.Actor, o.Why) }, func(side letterSide, d *operator.DeadLetters) error {
		filter := l.filter
		if filter.UnchangedSince, err = o.momentOf(side.place); err != nil {
			return errLateSchema
		}
		sum := func(of tally) tally {
			t := tally{}
			t.add(total)
			t.add(of)
			return t
		}
		made, err := l.verb.apply(ctx, d, filter, o, func(of tally) { progress(sum(of)) })
		total = sum(made)
		if err == nil {
			err = ctx.Err()
		}
		return err
	})
	return total, err
}

// redrive returns how letters are redriven, with force or without.
func redrive(force bool) func(context.Context, *operator.DeadLetters, operator.Filter, *applyOptions, func(tally)) (tally, error) {
	return func(ctx context.Context, d *operator.DeadLetters, filter operator.Filter, o *applyOptions, progress func(tally)) (tally, error) {
		made, err := d.Redrive(ctx, filter, &operator.RedriveOptions{Rate: o.Rate, Force: force, Databases: o.databases, Progress: func(soFar operator.Outcomes) { progress(tallyOf(soFar)) }})
		return tallyOf(made), err
	}
}

// tallyOf counts the outcomes of a redrive.
func tallyOf(made operator.Outcomes) tally {
	t := tally{Done: made.Sent() + made.Removed(), Busy: made[operator.OutcomeBusy]}
	for _, outcome := range []operator.Outcome{operator.OutcomeKeyReused, operator.OutcomeTooOld, operator.OutcomeSagaEnded} {
		if made[outcome] > 0 {
			addReason(&t.Refused, outcomeTexts[outcome], made[outcome])
		}
	}
	return t
}

func applyDiscard(ctx context.Context, d *operator.DeadLetters, filter operator.Filter, o *applyOptions, progress func(tally)) (tally, error) {
	return applyPages(ctx, d, filter, o, progress, func(filter operator.Filter) (int, error) { return d.Discard(ctx, filter, nil) })
}

func applyRetry(ctx context.Context, d *operator.DeadLetters, filter operator.Filter, o *applyOptions, progress func(tally)) (tally, error) {
	return applyPages(ctx, d, filter, o, progress, func(filter operator.Filter) (int, error) { return d.RetryNow(ctx, filter) })
}

func applyBury(ctx context.Context, d *operator.DeadLetters, filter operator.Filter, o *applyOptions, progress func(tally)) (tally, error) {
	return applyPages(ctx, d, filter, o, progress, func(filter operator.Filter) (int, error) { return d.Bury(ctx, filter) })
}

// lettersOfBatch is how many letters a discard or a burial changes at once.
const lettersOfBatch = 500

// applyPages calls do with the filter of one page of letters after another, at the rate of o. It ends between two pages
// when ctx ends.
func applyPages(ctx context.Context, d *operator.DeadLetters, filter operator.Filter, o *applyOptions, progress func(tally), do func(operator.Filter) (int, error)) (t tally, err error) {
	size := lettersOfBatch
	if o.Rate > 0 {
		size = min(size, max(1, int(o.Rate)))
	}
	for after := int64(0); ; {
		page, err := d.List(ctx, filter, after, size)
		if err != nil || len(page) == 0 {
			return t, err
		}
		one := filter
		one.IDs = nil
		for i := range page {
			one.IDs = append(one.IDs, page[i].ID)
		}
		n, err := do(one)
		t.Done, t.Changed = t.Done+n, t.Changed+len(page)-n
		if err != nil {
			return t, err
		}
		progress(t)
		if len(page) < size {
			return t, nil
		}
		after = page[len(page)-1].ID
		if o.Rate > 0 {
			pause := time.NewTimer(time.Duration(float64(len(page)) / o.Rate * float64(time.Second)))
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
			pause.Stop()
		}
		if err := ctx.Err(); err != nil {
			return t, err
		}
	}
}
