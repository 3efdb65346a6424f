package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/saga"
)

// A Verb is an act of a person on an instance.
type Verb string

// The verbs. A verb acts on one instance. Nested instances continue, are cancelled with it, and
// have addresses of their own.
const (
	// VerbPause stops the instance: no step begins, passes its deadline, or is compensated. Replies
	// are still taken.
	VerbPause Verb = "pause"
	// VerbResume continues a paused instance. Deadlines that would have passed meanwhile pass now.
	VerbResume Verb = "resume"
	// VerbCancel compensates, paused or not, without waiting for running steps. It is refused once
	// the pivot has been sent.
	VerbCancel Verb = "cancel"
	// VerbCompensateTo compensates the steps after Step, which must be done and not in a parallel
	// group, and then pauses. After a resume the saga runs those steps again.
	VerbCompensateTo Verb = "compensate-to"
	// VerbSkip makes Step done, with Result as the result of the participant, if there is one; or
	// undone, if it is being compensated.
	VerbSkip Verb = "skip"
	// VerbReject makes Step a step that has no effect and never will, so that the saga compensates.
	// It is refused behind the pivot.
	VerbReject Verb = "reject"
	// VerbRetry starts the next attempt of Step at once, with all attempts again. If Step runs, or its effect is
	// unknown, VerbRetry sends its last message again. That copy has outbox.HeaderReplayed, which makes a
	// consumer.Effect ask before it calls; the rest is unchanged. An Effect with a
	// Verify that finds nothing calls after twice its Timeout, 5 s and its Settle: a shorter Deadline of the
	// step passes before.
	//
	// A participant that has the message as a dead letter must redrive that instead: it ignores the copy as a
	// duplicate, sends no reply, and the instance waits. (A copy of a message that it could not read is no duplicate.)
	// The dead letter of a compensation is redriven with that of its action. So VerbRetry sends no copy of a dead
	// letter, unless Step and one instance are named. Without a Step, it applies to all other steps that are stuck or
	// wait, and to an instance that no orchestrator could continue. It is refused if there are only dead letters.
	VerbRetry Verb = "retry"
)

// A Decision is a verb with its arguments.
type Decision struct {
	Verb   Verb
	Step   string
	Result json.RawMessage // of VerbSkip; nil: the state stays unchanged
	By     string          // the person; required, default: [Options].By
	Why    string          // the reason, which others can read; required, default: [Options].Why

	ofMany bool // it is about all instances that a filter picks, and no person has looked at each
}

// ErrRefused reports a [Decision] that would break the saga, or has no effect; the error says
// why. Nothing has changed.
var ErrRefused = machine.ErrRefused

// validate returns an error unless d is valid for some instance.
func (d *Decision) validate() error {
	named := map[Verb]bool{
		VerbPause: false, VerbResume: false, VerbCancel: false,
		VerbCompensateTo: true, VerbSkip: true, VerbReject: true, VerbRetry: true,
	}
	takes, known := named[d.Verb]
	switch {
	case !known:
		return fmt.Errorf("there is no verb %.40q", d.Verb)
	case strings.TrimSpace(d.By) == "" || strings.TrimSpace(d.Why) == "":
		return errors.New("fields By and Why are required: who decides, and why")
	case d.Step != "" && !takes:
		return errors.New("it is about the instance as a whole, not about a step")
	case d.Step == "" && takes && d.Verb != VerbRetry:
		return errors.New("it needs the name of a step")
	case d.Result == nil:
		return nil
	case d.Verb != VerbSkip:
		return errors.New("only a step that is skipped has a result")
	case !json.Valid(d.Result) || !utf8.Valid(d.Result):
		return errors.New("the result is not JSON")
	case len(d.Result) > flow.MaxState:
		return fmt.Errorf("the result has %d bytes, more than %d", len(d.Result), flow.MaxState)
	}
	return nil
}

// machineEvent returns d as an event for an instance of m.
func (d *Decision) machineEvent(m *machine.Machine, i *sagarow.Row) (machine.Event, error) {
	e := machine.Event{Kind: machine.EventKind(d.Verb), At: i.Now, Reason: flow.ClipReason(d.Why), Result: d.Result}
	if d.Verb == VerbCompensateTo {
		e.Name = d.Step
		return e, nil
	}
	if d.Step == "" {
		return e, nil
	}
	if e.Step = m.FindStep(d.Step); e.Step == 0 {
		names := make([]string, m.Steps())
		for id := range names {
			names[id] = m.Step(id + 1).Name
		}
		return e, &stepUnknownError{d.Step, i.Name, i.Version, names}
	}
	return e, nil
}

// A stepUnknownError reports a Decision about a step that the saga does not have.
type stepUnknownError struct {
	step, saga string
	version    int
	names      []string // of the steps that it has
}

func (e *stepUnknownError) Error() string {
	return fmt.Sprintf("there is no step %.70q in %s, version %d: its steps are %s", e.step, e.saga, e.version, strings.Join(e.names, ", "))
}

// completeDecision adds the person and the reason of the Options to d, and returns an error unless d is valid then.
func (n *Instances) completeDecision(d *Decision) error {
	d.By, d.Why = cmp.Or(d.By, n.by), cmp.Or(d.Why, n.why)
	if err := d.validate(); err != nil {
		return fmt.Errorf("operator: %s: %w", d.Verb, err)
	}
	return nil
}

// Decide applies d to the instance at an address and returns the instance after it. Once Decide
// returns nil, the instance has moved and its journal has an entry. An orchestrator then carries
// out what follows, such as commands. A reply at the same time is taken before or after.
//
// After an error nothing has changed, unless it is PostgreSQL's error of COMMIT. Other errors are
// [saga.ErrNoInstance], [ErrAmbiguous], [ErrPlanUnknown], [ErrRefused], or name what is invalid in d.
func (n *Instances) Decide(ctx context.Context, at saga.Address, d Decision) (is Instance, err error) {
	if err := n.completeDecision(&d); err != nil {
		return is, err
	}
	err = n.commitChange(ctx, func(tx pgx.Tx) error {
		found, err := n.resolveAddress(ctx, tx, at)
		if err != nil {
			return err
		}
		i, err := n.rows.LockRow(ctx, tx, sagarow.Address(found))
		if err != nil {
			return err
		}
		if err := n.applyDecision(ctx, tx, n.newPlanReader(), i, &d); err != nil {
			return err
		}
		is, _, err = n.readFamily(ctx, tx, found)
		return err
	})
	if err != nil {
		return Instance{}, fmt.Errorf("operator: %s %s: %w", d.Verb, at, sqlschema.Explain(err))
	}
	return is, nil
}

// applyDecision moves the locked i by d, and stores it.
func (n *Instances) applyDecision(ctx context.Context, tx pgx.Tx, plans *planReader, i *sagarow.Row, d *Decision) error {
	m, err := n.moveRow(ctx, tx, plans, i, d)
	if err != nil {
		return err
	}
	return n.storeDecision(ctx, tx, i, m, d)
}

// moveRow moves the progress of i by d and stores nothing. It returns the machine of i.
func (n *Instances) moveRow(ctx context.Context, db sagarow.Querier, plans *planReader, i *sagarow.Row, d *Decision) (*machine.Machine, error) {
	m, err := plans.machineOf(ctx, db, i)
	if err != nil {
		return nil, err
	}
	if !m.Fits(&i.Progress) {
		return nil, fmt.Errorf("%w: the instance has %d steps, %s, version %d, has %d", flow.ErrUnfit, len(i.Progress.Steps), i.Name, i.Version, m.Steps())
	}
	e, err := d.machineEvent(m, i)
	if err != nil {
		return nil, err
	}
	if err := n.checkNested(ctx, db, i, m, e); err != nil {
		return nil, err
	}
	if d.Verb == VerbRetry && (d.Step == "" || d.ofMany) {
		err = retrySteps(m, &i.Progress, e)
	} else {
		err = m.Apply(&i.Progress, e)
	}
	if err != nil && !(errors.Is(err, ErrRefused) && d.Verb == VerbRetry && d.Step == "" && faultOf(i, m) != "") {
		return nil, err
	}
	return m, nil
}

// retrySteps applies a retry of the step of e, or of all steps that are stuck or wait. It leaves a step alone whose
// message is a dead letter at the participant, which ignores copies, unless the participant could not read the message.
func retrySteps(m *machine.Machine, p *machine.Progress, e machine.Event) error {
	var others []int
	dead, unread := "", false
	for id := 1; id <= len(p.Steps); id++ {
		s := &p.Steps[id-1]
		switch {
		case e.Step != 0 && e.Step != id:
		case (s.Held || s.State == machine.Stuck && s.Doubt || s.State == machine.UndoStuck && m.Step(id).Undo != machine.Local) && isDeadLetter(s.Reason) && !isUnread(s.Reason):
			dead = m.Step(id).Name
		case s.Held && isUnread(s.Reason):
			unread, others = true, append(others, id)
		case slices.Contains([]machine.State{machine.Stuck, machine.UndoStuck, machine.Waiting, machine.UndoWaiting}, s.State):
			others = append(others, id)
		}
	}
	switch {
	case dead == "" && !unread:
		return m.Apply(p, e)
	case len(others) == 0:
		return fmt.Errorf("%w: the message of step %s is a dead letter at the participant, which must be redriven there; if the participant has lost it, retry this step of this saga alone", ErrRefused, dead)
	}
	for _, id := range others {
		e.Step = id
		if err := m.Apply(p, e); err != nil {
			return err
		}
	}
	return nil
}

// checkNested returns an [ErrRefused] if e would settle a step while the saga nested in it
// still runs: the nested saga would never be compensated.
func (n *Instances) checkNested(ctx context.Context, db sagarow.Querier, i *sagarow.Row, m *machine.Machine, e machine.Event) error {
	if e.Kind != machine.Skip && e.Kind != machine.Reject || m.Step(e.Step).Kind != machine.Nested {
		return nil
	}
	path := flow.N(i.Path, e.Step, i.Progress.Steps[e.Step-1].Attempt)
	child, err := n.rows.ReadRow(ctx, db, sagarow.Address{Scope: i.Scope, Key: i.Key, Path: path})
	switch {
	case errors.Is(err, saga.ErrNoInstance):
		return nil
	case err != nil:
		return err
	case !child.Progress.Phase.Ended():
		return fmt.Errorf("%w: step %s is the saga %s, which has not ended: decide about that, at the path %s", ErrRefused, m.Step(e.Step).Name, child.Name, path)
	}
	return nil
}

// storeDecision stores i after d, the messages that follow, and the entry of the journal.
func (n *Instances) storeDecision(ctx context.Context, tx pgx.Tx, i *sagarow.Row, m *machine.Machine, d *Decision) error {
	sent := sagarow.NewMessages(i)
	sent.AnswerParent()
	if len(sent.AllUntraced()) > 0 {
		if err := n.writer.Write(ctx, tx, sent.AllTraced()...); err != nil {
			return err
		}
	}
	progress, err := i.EncodeProgress(m)
	if err != nil {
		return err
	}
	ended := i.Progress.Phase.Ended()
	_, err = tx.Exec(ctx, n.sql.decide, i.Scope, i.Key, i.Path, i.Status, i.Reason, progress, !ended && !i.Progress.Paused, ended, i.Revision)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, n.sql.insertJournal, i.Scope, i.Key, i.Path, d.Verb, d.Step, flow.ClipReason(d.By), flow.ClipReason(d.Why))
	return err
}

// faultOf returns the error that keeps orchestrators from continuing i, or "". It is the reason in
// the row if the progress gives another status or reason.
func faultOf(i *sagarow.Row, m *machine.Machine) string {
	if status, reason := sagarow.StatusOf(m, &i.Progress); status == i.Status && reason == i.Reason {
		return ""
	}
	return i.Reason
}
