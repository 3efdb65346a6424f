package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sagamill/sagamill/operator"
)

// OpenDeadLetters returns the letters of one side of t, for the person who.
func (t *Target) OpenDeadLetters(side operator.Side, who operator.Options) (*operator.DeadLetters, error) {
	return operator.NewDeadLetters(t.DB, side, &operator.Options{Schema: t.Schema, By: who.By, Why: who.Why})
}

// AssignIDs returns the targets of a command about letters, each with its own ids. An id that several targets have, or
// none of several, is an error. Without ids all targets are returned.
func (t *Targets) AssignIDs(ctx context.Context, side operator.Side, ids []int64) (of []*Target, own map[*Target][]int64, err error) {
	own = map[*Target][]int64{}
	if !t.Several() || len(ids) == 0 {
		for _, target := range t.All {
			own[target] = ids
		}
		return t.All, own, nil
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	with := map[int64][]*Target{}
	for _, target := range t.All {
		d, err := target.OpenDeadLetters(side, operator.Options{})
		if err != nil {
			return nil, nil, err
		}
		found, err := findIDs(ctx, d, ids)
		if err != nil {
			return nil, nil, t.nameTarget(target, err)
		}
		for _, id := range found {
			with[id] = append(with[id], target)
		}
	}
	for _, id := range ids {
		switch targets := with[id]; len(targets) {
		case 0:
			return nil, nil, fmt.Errorf("%d: %w in any of %s", id, operator.ErrNoDeadLetter, JoinNames(t.All))
		case 1:
			own[targets[0]] = append(own[targets[0]], id)
		default:
			return nil, nil, fmt.Errorf("%d is a letter of several schemas: say which with -schema: %s", id, JoinNames(targets))
		}
	}
	of = slices.DeleteFunc(slices.Clone(t.All), func(target *Target) bool { return len(own[target]) == 0 })
	return of, own, nil
}

// findIDs returns those of ids that are letters, in whichever state.
func findIDs(ctx context.Context, d *operator.DeadLetters, ids []int64) (found []int64, err error) {
	for chunk := range slices.Chunk(ids, operator.MaxList) {
		for _, state := range []operator.State{operator.StateDead, operator.StateRetrying} {
			letters, err := d.List(ctx, operator.Filter{IDs: chunk, State: state}, 0, operator.MaxList)
			if err != nil {
				return nil, err
			}
			for i := range letters {
				found = append(found, letters[i].ID)
			}
		}
	}
	return found, nil
}

// ForEachLetters calls do for each schema that the command line names, with the letters of one side and those of ids
// that are in it. A schema without one of the ids is passed over.
func (c *Call) ForEachLetters(ctx context.Context, side operator.Side, who operator.Options, ids []int64, asJSON bool, do func(ctx context.Context, t *Target, d *operator.DeadLetters, ids []int64) error) error {
	targets, err := c.OpenTargets(ctx, DefaultSchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	of, own, err := targets.AssignIDs(ctx, side, ids)
	if err != nil {
		return err
	}
	return c.forSomeTargets(ctx, targets, of, asJSON, func(ctx context.Context, t *Target) error {
		d, err := t.OpenDeadLetters(side, who)
		if err != nil {
			return err
		}
		return do(ctx, t, d, own[t])
	})
}

// ShowDeadLetters runs the command that prints the letters with -id. They have a payload if -payload is given.
func (c *Call) ShowDeadLetters(ctx context.Context, side operator.Side, printLetter func(c *Call, t *Target, l operator.DeadLetter, asJSON bool) error) error {
	c.TakeSeveral(DefaultSchema)
	var ids []int64
	c.Flags.Var((*IDList)(&ids), "id", "ids of the dead letters, separated by commas")
	payload := c.Flags.Bool("payload", false, "print the payloads too")
	asJSON := c.Flags.Bool("json", false, "print JSON, one object per line")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if len(ids) == 0 {
		return errors.New("say which with -id")
	}
	return c.ForEachLetters(ctx, side, operator.Options{}, ids, *asJSON, func(ctx context.Context, t *Target, d *operator.DeadLetters, ids []int64) error {
		ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
		defer cancel()
		for _, id := range ids {
			l, err := d.Get(ctx, id)
			if err != nil {
				return fmt.Errorf("%d: %w", id, err)
			}
			if !*payload {
				l.Payload = nil
			}
			if err := printLetter(c, t, l, *asJSON); err != nil {
				return err
			}
		}
		return nil
	})
}
