// Package saga holds the plan of a saga as data: which steps a business
// transaction has, what sets each of them off and what undoes it.
//
// A definition can be printed, hashed, and checked at start-up against the
// steps that a service registers, so that a step without a handler is found
// before the first message and not by it. In a choreographed saga, such as the
// order example, the definition runs nothing: the steps follow each other's
// messages, and package consumer makes each happen once.
package saga

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/stepkey"
)

// ErrInvalid reports a definition that cannot work.
var ErrInvalid = errors.New("saga: invalid definition")

// MaxSteps is how many steps a definition may have.
const MaxSteps = 100

// A Step is one local transaction of a saga.
type Step struct {
	Name         string // of the consumer.Step that does it
	Command      string // the message type that sets it off
	Compensation string // the message type that undoes it; default: it cannot be undone

	// Pivot marks the step after which the saga only goes forward: neither it
	// nor a later step has a compensation, since one could never be sent.
	Pivot bool
}

// A Definition is the plan of a saga. It never changes once it is defined.
type Definition struct {
	name    string
	version int
	steps   []Step
}

// Define returns the definition of a saga. The version is raised whenever the
// steps change, and instances keep the one that they began with. An error is
// an [ErrInvalid] that names the step and the rule.
func Define(name string, version int, steps ...Step) (*Definition, error) {
	d := &Definition{name: name, version: version, steps: slices.Clone(steps)}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, name, err)
	}
	return d, nil
}

// Must returns d, for a definition in a package variable. It panics if err is
// not nil.
func Must(d *Definition, err error) *Definition {
	if err != nil {
		panic(err)
	}
	return d
}

func (d *Definition) check() error {
	if err := stepkey.CheckStep(d.name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	if d.version < 1 {
		return fmt.Errorf("version %d is not positive", d.version)
	}
	if len(d.steps) == 0 || len(d.steps) > MaxSteps {
		return fmt.Errorf("%d steps; there must be 1 to %d", len(d.steps), MaxSteps)
	}
	names, pivot := map[string]bool{}, ""
	for _, s := range d.steps {
		if err := stepkey.CheckStep(s.Name); err != nil {
			return fmt.Errorf("step %q: %w", s.Name, err)
		}
		switch {
		case names[s.Name]:
			return fmt.Errorf("step %q is given twice", s.Name)
		case s.Command == "":
			return fmt.Errorf("step %q has no Command", s.Name)
		case s.Command == s.Compensation:
			return fmt.Errorf("step %q is set off and undone by the same message", s.Name)
		case s.Pivot && pivot != "":
			return fmt.Errorf("steps %q and %q are both the pivot", pivot, s.Name)
		}
		if s.Pivot {
			pivot = s.Name
		}
		if pivot != "" && s.Compensation != "" {
			return fmt.Errorf("step %q has a Compensation, but after the pivot, %q, nothing is undone", s.Name, pivot)
		}
		names[s.Name] = true
	}
	return nil
}

// Name returns the saga's name.
func (d *Definition) Name() string { return d.name }

// Version returns the version of the plan.
func (d *Definition) Version() int { return d.version }

// Steps returns the steps in order.
func (d *Definition) Steps() []Step { return slices.Clone(d.steps) }

// Undo returns the compensations that undo a saga of which the first completed
// steps are done: in reverse order, and without the steps that have none. Once
// the pivot is among them there is nothing to undo, and Undo returns nil.
func (d *Definition) Undo(completed int) []string {
	var undo []string
	for _, s := range slices.Backward(d.steps[:max(0, min(completed, len(d.steps)))]) {
		if s.Pivot {
			return nil
		}
		if s.Compensation != "" {
			undo = append(undo, s.Compensation)
		}
	}
	return undo
}

// String returns the plan for people, a step a line.
func (d *Definition) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "saga %s, version %d\n", d.name, d.version)
	for i, step := range d.steps {
		fmt.Fprintf(&s, "%3d. %s on %s", i+1, step.Name, step.Command)
		if step.Compensation != "" {
			fmt.Fprintf(&s, ", undone on %s", step.Compensation)
		}
		if step.Pivot {
			s.WriteString(", pivot")
		}
		s.WriteByte('\n')
	}
	return s.String()
}

// Hash returns a digest of the plan: two definitions with the same name,
// version and steps have the same, in any process.
func (d *Definition) Hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %d", d.name, d.version)
	for _, s := range d.steps {
		fmt.Fprintf(h, " %q %q %q %t", s.Name, s.Command, s.Compensation, s.Pivot)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Check returns an error for each step of d that none of steps does, and for
// each that listens to other messages than the plan says. Further steps, such
// as those that only record what happened, are fine.
func (d *Definition) Check(steps ...consumer.Step) error {
	var problems []error
	for _, want := range d.steps {
		i := slices.IndexFunc(steps, func(s consumer.Step) bool { return s.Name == want.Name })
		switch {
		case i < 0:
			problems = append(problems, fmt.Errorf("saga: %s: step %q has no handler", d.name, want.Name))
		case steps[i].Action.Type != want.Command || steps[i].Compensation.Type != want.Compensation:
			problems = append(problems, fmt.Errorf("saga: %s: step %q listens to %q and %q, the definition says %q and %q",
				d.name, want.Name, steps[i].Action.Type, steps[i].Compensation.Type, want.Command, want.Compensation))
		}
	}
	return errors.Join(problems...)
}
