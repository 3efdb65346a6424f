package sagatest

import (
	"encoding/json"
	"errors"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
)

// An Operator is a person who decides about an instance.
type Operator struct {
	core    *core
	path    string
	refused bool
}

// Operator returns the person who decides. A verb that the instance refuses ends the test.
func (r *Run[S]) Operator() Operator { return Operator{core: r.core, path: r.path} }

// Refuses returns a person whose next decision must be refused.
func (r *Run[S]) Refuses() Operator { return Operator{core: r.core, path: r.path, refused: true} }

// Pause keeps the instance from beginning a step until it is resumed. No deadline passes meanwhile.
func (o Operator) Pause() {
	o.core.t.Helper()
	o.decideAs(machine.Event{Kind: machine.Pause}, "")
}

// Resume ends a pause.
func (o Operator) Resume() {
	o.core.t.Helper()
	o.decideAs(machine.Event{Kind: machine.Resume}, "")
}

// Cancel makes the instance compensate.
func (o Operator) Cancel(reason string) {
	o.core.t.Helper()
	o.decideAs(machine.Event{Kind: machine.Cancel, Reason: reason}, "")
}

// CompensateTo makes the instance undo the steps after step, and then pause.
func (o Operator) CompensateTo(step, reason string) {
	o.core.t.Helper()
	o.decideAs(machine.Event{Kind: machine.GoBack, Name: step, Reason: reason}, "")
}

// Skip makes step count as done, with a result if it is not nil, or as undone if it is being undone.
func (o Operator) Skip(step string, result any, reason string) {
	o.core.t.Helper()
	var data json.RawMessage
	if result != nil {
		data = encodeJSON(result)
	}
	o.decideAs(machine.Event{Kind: machine.Skip, Result: data, Reason: reason}, step)
}

// Reject makes step count as one that did nothing, for good.
func (o Operator) Reject(step, reason string) {
	o.core.t.Helper()
	o.decideAs(machine.Event{Kind: machine.Reject, Reason: reason}, step)
}

// Retry tries step again at once, with all its attempts. With "" it retries every step that is stuck or waits.
func (o Operator) Retry(step string) {
	o.core.t.Helper()
	o.decideAs(machine.Event{Kind: machine.RetryNow}, step)
}

func (o Operator) decideAs(e machine.Event, step string) {
	c := o.core
	c.t.Helper()
	if step != "" {
		if e.Step = c.host.rows[o.path].flow.Machine.FindStep(step); e.Step == 0 {
			c.failTest("there is no step %q", step)
		}
	}
	c.noteLine("operator", "%s %s%s %s", e.Kind, step, e.Name, e.Reason)
	err := c.moveInstance(o.path, flow.Event{Event: e})
	switch {
	case err == nil && o.refused:
		c.failTest("%s was not refused", e.Kind)
	case errors.Is(err, machine.ErrRefused) && o.refused:
		c.noteLine("", "%v", err)
	case err != nil:
		c.failTest("%s: %s", e.Kind, c.explainForRun(err))
	}
}
