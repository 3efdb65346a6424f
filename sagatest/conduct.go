package sagatest

import (
	"errors"
	"strings"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// runOrchestrator handles a message as an orchestrator does.
func (h *handling) runOrchestrator() {
	c := h.s.cells[h.cellKeyOf()]
	h.verdict = h.askInbox(c, h.e, h.parked)
	if h.bug == foldTwice {
		h.verdict = inbox.Run
	}
	h.said = string(h.verdict)
	if h.verdict != inbox.Run {
		if h.verdict == inbox.Reused {
			h.s.noteBroken("the orchestrator gets %s twice, with different bodies", h.e.Type)
		}
		return
	}
	h.recordDigest(&c)
	c.state = inbox.Done
	h.s.cells[h.cellKeyOf()] = c
	path, event, err := h.parseEvent()
	if err == nil {
		err = h.moveByMessage(path, event)
	}
	switch {
	case errors.Is(err, machine.ErrLate):
		h.said = "late, and not looked at"
	case err != nil:
		h.s.noteBroken("a reply is a dead letter of the orchestrator's: %s", explainError(err, h.tx != nil, "Model.Tx"))
	}
}

// parseEvent returns the event of the message, and the path of its instance.
func (h *handling) parseEvent() (path string, e flow.Event, err error) {
	path, e, err = parseMessage(h.e.Message)
	if err == nil && h.bug == forwardOrder && e.Undo {
		e.Step = mirrorStep(h.s.host.rows[path], e.Step)
	}
	return path, e, err
}

// moveByMessage moves an instance, and collects its messages.
func (h *handling) moveByMessage(path string, e flow.Event) error {
	if h.how == handlerFails {
		h.s.host.fail = errInjected
	}
	h.s.host.takeLate = h.takeLateReply
	sent, said, err := h.moveInstance(h.s, path, e)
	h.s.host.fail, h.s.host.takeLate = nil, nil
	h.sent = append(h.sent, sent...)
	if err == nil {
		h.said = said
	}
	return err
}

// moveInstance moves an instance. A local step that fails loses its changes of the world.
func (sys *system) moveInstance(s *modelState, path string, events ...flow.Event) (sent []outbox.Message, said string, err error) {
	sys.watchSavepoints(s)
	work, err := s.host.moveRow(sys.ctx, sys.tx, path, events...)
	if err != nil {
		return nil, "", err
	}
	return sys.commitSession(s, work), sys.describeInstance(s, path), nil
}

// watchSavepoints makes a local step of s that fails roll back its own changes of the world, and no others.
func (sys *system) watchSavepoints(s *modelState) {
	s.host.savepoint = func() func() {
		before := sys.box.keep()
		sys.box.touch()
		return func() { sys.box.lose(before) }
	}
}

// commitSession commits a session, and returns its messages.
func (sys *system) commitSession(s *modelState, work *session) (sent []outbox.Message) {
	s.host.commitRows(work)
	for _, p := range work.sent {
		if p.ran != nil {
			sys.judgeLocal(s, p.by, p.ran)
			continue
		}
		if p.cmd != nil && p.cmd.Undo {
			p.Message = sys.tamperWithUndo(s, p)
		}
		sent = append(sent, p.Message)
	}
	return sent
}

// describeInstance returns the status of an instance, for people.
func (sys *system) describeInstance(s *modelState, path string) string {
	p := &s.host.rows[path].Progress
	text := string(statusOf(p))
	if reason := s.host.rows[path].flow.Machine.Why(p); reason != "" {
		text += " (" + reason + ")"
	}
	return text
}

// takeLateReply lets a planted bug take a result for which no step waits.
func (h *handling) takeLateReply(r *flow.Run, a flow.Event) error {
	if a.Kind != machine.Replied || a.Undo {
		return machine.ErrLate
	}
	s := &r.Instance.Progress.Steps[a.Step-1]
	switch {
	case h.bug == foldTwice && s.State == machine.Done:
	case h.bug == lateIsDone && s.Attempt == a.Attempt && r.Instance.Progress.Phase == machine.Compensating:
		s.State, s.Due, s.Reason = machine.Done, 0, ""
		r.Instance.Progress.Phase, r.Instance.Progress.Reason = machine.Running, ""
	default:
		return machine.ErrLate
	}
	state, err := r.Flow.State.Decode(r.Instance.State)
	if fold := r.Flow.Steps[a.Step-1].Do.Result; err == nil && fold != nil {
		err = fold(state, a.Data)
	}
	if err == nil {
		r.Instance.State, err = r.Flow.State.Encode(state)
	}
	return errors.Join(err, r.OpenState())
}

// tamperWithUndo lets a planted bug change a compensation.
func (sys *system) tamperWithUndo(s *modelState, p posting) outbox.Message {
	row := s.host.rows[p.by]
	id := row.flow.Machine.FindStep(p.cmd.Step)
	switch {
	case sys.bug == forwardOrder:
		other := mirrorStep(row, id)
		n := row.flow.Machine.Step(other)
		p.Topic, p.Type, p.Step = n.UndoTopic, n.UndoType, n.Name
		p.N = flow.N(p.by, other, row.Progress.Steps[other-1].Attempt)
	case sys.bug == forgetTimedOut && strings.Contains(row.Progress.Steps[id-1].Reason, "no reply"):
		return row.completeMessage(outbox.Message{
			Topic: saga.Topic(row.flow.Name()), Type: saga.TypeReply, Step: p.Step, N: flow.ReplyN(p.N, true, ""),
			Payload: encodeJSON(flow.ReplyBody{Outcome: flow.OutcomeUndone}),
		})
	}
	return p.Message
}

// mirrorStep returns the step that a compensation in forward order would undo in the place of id.
func mirrorStep(row *instance, id int) int {
	begun := 0
	for i := range row.Progress.Steps {
		if s := &row.Progress.Steps[i]; s.Attempt > 0 && s.State != machine.Rejected {
			begun = i + 1
		}
	}
	return begun + 1 - id
}
