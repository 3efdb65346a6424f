package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/operator"
)

// decideKind is the change that applies a verb to the sagas that a search of the list picks. The parameters are those of
// the list, with verb and to, the step of a verb about a step, and result, that of a step that is skipped.
func (c *Console) decideKind() *changeKind {
	return &changeKind{name: "decide", parse: func(ctx context.Context, params url.Values) (change, error) {
		verb, known := decisionVerbs[operator.Verb(params.Get("verb"))]
		if !known {
			return nil, badRequest(fmt.Sprintf("There is no verb %.40q.", params.Get("verb")))
		}
		search, err := parseSagaSearch(params)
		if err != nil {
			return nil, err
		}
		if !search.narrows() {
			return nil, badRequest("The search picks every saga of every schema: name a schema, a saga, a state, a key or another condition first.")
		}
		if search.ended() {
			return nil, badRequest("A saga that has ended takes no decision.")
		}
		decision := operator.Decision{Verb: verb.Verb, Step: params.Get("to")}
		if decision.Step == "" && decision.Verb == operator.VerbRetry {
			decision.Step = search.Step // if it runs, its last message is sent again
		}
		if result := strings.TrimSpace(params.Get("result")); result != "" {
			decision.Result = json.RawMessage(result)
		}
		if err := checkDecision(&decision, search); err != nil {
			return nil, err
		}
		chosen, _, err := c.choosePlaces(ctx, search.In)
		if err != nil {
			return nil, err
		}
		return &decideChange{decisionVerb: verb, chosen: chosen, filter: search.filter(), of: search.conditions(), one: search.ID != "", decision: decision}, nil
	}}
}

// checkDecision returns an error if no saga could take d, or if it is for one saga and the search may pick many.
func checkDecision(d *operator.Decision, search *sagaSearch) error {
	needsStep := slices.Contains([]operator.Verb{operator.VerbSkip, operator.VerbReject, operator.VerbCompensateTo}, d.Verb)
	switch {
	case needsStep && d.Step == "":
		return badRequest(fmt.Sprintf("The verb %s needs a step.", d.Verb))
	case needsStep && search.ID == "":
		return badRequest(fmt.Sprintf("The verb %s is for one saga: open its page.", d.Verb))
	case d.Step != "" && !needsStep && d.Verb != operator.VerbRetry:
		return badRequest(fmt.Sprintf("The verb %s is about the saga as a whole, not about a step.", d.Verb))
	case d.Result != nil && d.Verb != operator.VerbSkip:
		return badRequest("Only a step that is skipped has a result.")
	case d.Result != nil && !json.Valid(d.Result):
		return badRequest("The result is not JSON.")
	}
	return nil
}

// A decisionVerb is a verb of package operator, as the console shows it.
type decisionVerb struct {
	Verb        operator.Verb
	Label       string
	needs       Role
	consequence string
}

// decisionVerbs are all verbs.
var decisionVerbs = map[operator.Verb]decisionVerb{
	operator.VerbRetry: {operator.VerbRetry, "Retry", RoleOperator, "Each step that is stuck or waits starts its next attempt now, with all attempts again, except a step whose message is a dead letter at its participant: redrive that. " +
		"The last message of a step that runs is sent again; its participant treats it as a duplicate if it has handled it."},
	operator.VerbPause:  {operator.VerbPause, "Pause", RoleOperator, "No step begins, passes its deadline or is compensated until somebody resumes the saga. Replies are still taken."},
	operator.VerbResume: {operator.VerbResume, "Resume", RoleOperator, "Paused sagas continue. Deadlines that would have passed meanwhile pass now."},
	operator.VerbCancel: {operator.VerbCancel, "Cancel", RoleOperator, "The steps that are done are compensated, without waiting for running ones. This cannot be undone. It is refused once the pivot has been sent."},
	operator.VerbSkip: {operator.VerbSkip, "Skip", RoleAdmin, "The step counts as done, with the result that you give, or as undone if it is being compensated. " +
		"The participant does nothing: make sure that what the step is for has happened."},
	operator.VerbReject: {operator.VerbReject, "Reject", RoleAdmin, "The step counts as one that had no effect and never will, so the saga compensates. " +
		"Make sure that the participant has done nothing."},
	operator.VerbCompensateTo: {operator.VerbCompensateTo, "Go back to", RoleOperator, "The steps after this one are compensated, and then the saga pauses. After a resume it runs them again."},
}

// describe returns what the verb does to one saga or to many, about a step or, without one, about the saga as a whole.
func (d *decisionVerb) describe(step string, one bool) string {
	if d.Verb != operator.VerbRetry || step == "" {
		return d.consequence
	}
	says := "The next attempt of the step starts now, with all attempts again. If its outcome is not known, its last message is sent again: "
	if one {
		return says + "its participant treats it as a duplicate if it has handled it, or has it as a dead letter."
	}
	return says + "its participant treats it as a duplicate if it has handled it. A step whose message is a dead letter at its participant is left alone: redrive that."
}

// verbOrder are the verbs for many sagas, in the order in which a page shows them.
var verbOrder = []operator.Verb{operator.VerbRetry, operator.VerbPause, operator.VerbResume, operator.VerbCancel}

// A decideChange decides about all sagas that a filter picks.
type decideChange struct {
	decisionVerb
	chosen   []*place
	filter   operator.InstanceFilter
	decision operator.Decision
	of       []condition
	one      bool // it names one saga
}

func (d *decideChange) role() Role { return d.needs }

func (d *decideChange) text() changeText {
	t := changeText{Verb: d.Label, One: "saga", Many: "sagas", Conditions: d.of, Consequence: d.describe(d.decision.Step, d.one),
		Final: slices.Contains([]operator.Verb{operator.VerbCancel, operator.VerbSkip, operator.VerbReject}, d.Verb)}
	if d.decision.Step != "" {
		t.Verb += " step " + d.decision.Step + " of"
	}
	if d.one {
		t.Object = "saga " + d.filter.Key
	}
	return t
}

func (d *decideChange) places() []*place { return d.chosen }

// undecided stands for the person and the reason in a preview, which the operator's decisions need.
const undecided = "preview"

func (d *decideChange) preview(ctx context.Context) (p preview, err error) {
	for _, at := range d.chosen {
		n, err := at.instances()
		if err != nil {
			return p, err
		}
		var address *operator.Address // of the one that it would decide about
		seen, err := n.PreviewAll(ctx, d.filter, d.decision, func(one operator.DecisionPreview) error {
			if one.Refusal != "" {
				return nil
			}
			if len(p.Samples) < maxSamples {
				p.Samples = append(p.Samples, sampleSaga(at, &one.Instance))
			}
			if d.one {
				address = &one.Address
			} else {
				addReason(&p.Steps, cmp.Or(one.Step, "(between two steps)"), 1)
			}
			return nil
		})
		if err == nil && address != nil {
			p.Undo, err = d.describeUndo(ctx, n, *address)
		}
		if err != nil {
			return p, err
		}
		p.Count += seen.Decided
		for reason, n := range seen.Refused {
			if p.Refused == nil {
				p.Refused = map[string]int{}
			}
			p.Refused[reason] += n
		}
	}
	return p, nil
}

// describeUndo says which steps of a saga the decision would undo, "" if it undoes none.
func (d *decideChange) describeUndo(ctx context.Context, n *operator.Instances, at operator.Address) (string, error) {
	if d.Verb != operator.VerbCancel && d.Verb != operator.VerbCompensateTo {
		return "", nil
	}
	t, err := n.Get(ctx, at)
	if err != nil {
		return "", err
	}
	return describeUndo(&t, d.decision.Step), nil
}

func sampleSaga(at *place, i *operator.Instance) sample {
	address := sagaAddress{at.Database, at.Schema, i.Scope, i.Key, i.Path, ""}
	return sample{at.Label, i.Address.String(), noteOf(i), "saga" + address.Query()}
}

// noteOf says in a few words where an instance is.
func noteOf(i *operator.Instance) string {
	note := fmt.Sprintf("%s v%d, %s", i.Saga, i.Version, i.Status)
	if i.Step != "" {
		note += ", at " + i.Step
	}
	return note
}

func (d *decideChange) apply(ctx context.Context, o *applyOptions, progress func(tally)) (total tally, err error) {
	decision := d.decision
	decision.By, decision.Why = string(o.Actor), o.Why
	for _, at := range d.chosen {
		filter := d.filter
		if filter.UnchangedSince, err = o.momentOf(at); err != nil {
			return total, errLateSchema
		}
		n, err := at.changedInstances(o.Actor, o.Why)
		if err != nil {
			return total, err
		}
		sum := func(made operator.Decisions) tally {
			t := tally{}
			t.add(total)
			t.add(tally{Done: made.Decided, Refused: made.Refused, Changed: made.Changed, Busy: made.Busy})
			return t
		}
		made, err := n.DecideAll(ctx, filter, decision, &operator.DecideOptions{Rate: o.Rate, Progress: func(so operator.Decisions) { progress(sum(so)) }})
		total = sum(made)
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return total, err
		}
	}
	return total, nil
}
