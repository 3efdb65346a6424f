package operator

import (
	"context"
	"fmt"
	"slices"

	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A Choice is a verb that a person can think of for an instance, at a moment.
type Choice struct {
	Verb    Verb
	Step    string // of a verb about a step
	Refusal string // why it would be refused; "": it would not
}

// Choices returns the verbs about the instance at an address as a whole, those that it would refuse too, and for each
// step in the order of the plan the verbs about it that it would not refuse. It takes no lock and changes nothing. Its
// errors are those of [Instances.Get].
func (n *Instances) Choices(ctx context.Context, at Address) (all []Choice, err error) {
	fail := func(err error) ([]Choice, error) {
		return nil, fmt.Errorf("operator: choices of %s: %w", at, sqlschema.Explain(err))
	}
	err = n.readLimited(ctx, func(db querier) error {
		found, err := n.findAddress(ctx, db, at)
		if err != nil {
			return err
		}
		i, err := n.rows.ReadRow(ctx, db, sagarow.Address(found))
		if err != nil {
			return err
		}
		all, err = n.tryVerbs(ctx, db, i)
		return err
	})
	if err != nil {
		return fail(err)
	}
	return all, nil
}

// tryVerbs tries each verb on a copy of i.
func (n *Instances) tryVerbs(ctx context.Context, db sagarow.Querier, i *sagarow.Row) (all []Choice, err error) {
	plans := n.newPlanReader()
	try := func(c Choice, listed bool) error {
		copied := *i
		copied.Progress.Steps = slices.Clone(i.Progress.Steps)
		_, err := n.moveRow(ctx, db, plans, &copied, &Decision{Verb: c.Verb, Step: c.Step})
		switch {
		case err == nil:
			all = append(all, c)
		case !isRefusal(err):
			return err
		case listed:
			c.Refusal = formatRefusal(err)
			all = append(all, c)
		}
		return nil
	}
	for _, verb := range []Verb{VerbRetry, VerbPause, VerbResume, VerbCancel} {
		if err := try(Choice{Verb: verb}, true); err != nil {
			return nil, err
		}
	}
	m, err := plans.machineOf(ctx, db, i)
	if err != nil || i.Progress.Phase.Ended() || !m.Fits(&i.Progress) {
		return all, nil //nolint:nilerr // the verbs above are refused for this reason
	}
	for id := range m.Steps() {
		if err := tryStep(m.Step(id+1), try); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// tryStep tries the verbs about a step.
func tryStep(step *machine.Node, try func(Choice, bool) error) error {
	for _, verb := range []Verb{VerbRetry, VerbSkip, VerbReject, VerbCompensateTo} {
		if err := try(Choice{Verb: verb, Step: step.Name}, false); err != nil {
			return err
		}
	}
	return nil
}
