package operator

import (
	"fmt"
	"strings"

	"github.com/sagamill/sagamill/internal/celltext"
	"github.com/sagamill/sagamill/saga"
)

// unrecorded marks the finding about a message that was published, and that no schema here has
// recorded.
const unrecorded = "published"

// unknownPlace lists the places where such a message may be.
const unknownPlace = "it waits in a queue, is being handled, or was lost with its queue"

// traceStep follows the last message of a step from its reply back to its command. It returns the
// first place where one of them is. home is the orchestrator's schema.
func (q *inquiry) traceStep(home *SagaPart, t *Timeline, step *TimelineStep) Finding {
	if f, ok := q.traceReply(home, step); ok {
		return f
	}
	if f, ok := q.traceParked(step); ok {
		return f
	}
	command := q.findCommand(home, step)
	if command != nil && command.Place != PlacePublished {
		f := q.findMessage(home, command)
		f.What, f.Text = "command-"+string(command.Place), "command "+f.Text
		return f
	}
	if f, ok := q.traceRow(step); ok {
		return f
	}
	return q.findUnrecorded(home, t, command, step)
}

// traceReply looks for the reply in the outboxes, and among the messages that the orchestrator parked.
func (q *inquiry) traceReply(home *SagaPart, step *TimelineStep) (f Finding, ok bool) {
	for i := range home.Inbox.Letters {
		l := &home.Inbox.Letters[i]
		if isReply(l.N, step) && strings.HasPrefix(l.Step, "saga-") {
			f = q.findParked(home, l)
			f.What, f.Text = "reply-"+f.What, "its reply is "+f.Text
			return f, true
		}
	}
	for _, s := range q.parts {
		for i := len(s.Outbox.Messages) - 1; i >= 0; i-- {
			m := &s.Outbox.Messages[i]
			if !isReply(m.N, step) || m.Type != saga.TypeReply {
				continue
			}
			if m.Place == PlacePublished {
				if q.isReplyTo(home, step, m) {
					continue
				}
				f = Finding{What: "reply-at-broker", ID: m.ID, Since: celltext.FormatMoment(m.CreatedAt), Text: fmt.Sprintf("handled at %s in schema %s; its reply is published, and no orchestrator of schema %s has recorded it: %s", celltext.FormatTime(m.CreatedAt), s.Name, home.Name, unknownPlace)}
			} else {
				f = q.findMessage(s, m)
				f.What, f.Text = "reply-"+string(m.Place), "handled at "+celltext.FormatTime(m.CreatedAt)+"; its reply "+f.Text
			}
			q.told[m] = true
			return f, true
		}
	}
	return f, false
}

// isReplyTo reports whether the orchestrator has handled the reply m. The step still waits, so the
// reply was late or had no effect.
func (q *inquiry) isReplyTo(home *SagaPart, step *TimelineStep, m *OutboxMessage) bool {
	for i := range home.Inbox.Steps {
		r := &home.Inbox.Steps[i]
		if r.N == m.N && strings.HasPrefix(r.Step, "saga-") && r.State == "done" {
			return true
		}
	}
	return false
}

// traceParked looks for the message of a step among the parked messages of all schemas.
func (q *inquiry) traceParked(step *TimelineStep) (f Finding, ok bool) {
	kind := map[bool]string{false: "action", true: "compensation"}[isUndoing(step) && step.Type != saga.TypeRevoke]
	for _, s := range q.parts {
		for i := range s.Inbox.Letters {
			if l := &s.Inbox.Letters[i]; l.N == step.N && l.Kind == kind && (l.Topic == step.Topic || step.Topic == "") {
				return q.findParked(s, l), true
			}
		}
	}
	return f, false
}

// findCommand returns the last command of a step, or its last compensation, from the outbox. It is nil
// if the outbox does not have it any more.
func (q *inquiry) findCommand(home *SagaPart, step *TimelineStep) *OutboxMessage {
	for i := len(home.Outbox.Messages) - 1; i >= 0; i-- {
		m := &home.Outbox.Messages[i]
		if m.N == step.N && (m.Topic == step.Topic && m.Type == step.Type || step.Topic == "") { // "": the plan is not known
			q.told[m] = true
			return m
		}
	}
	return nil
}

// traceRow looks for an inbox row of a step's message.
func (q *inquiry) traceRow(step *TimelineStep) (f Finding, ok bool) {
	undo := isUndoing(step) && step.Type != saga.TypeRevoke
	for _, s := range q.parts {
		for i := range s.Inbox.Steps {
			r := &s.Inbox.Steps[i]
			if r.N != step.N || strings.HasPrefix(r.Step, "revoke-") != (step.Type == saga.TypeRevoke) {
				continue
			}
			what, text := formatRow(r, undo)
			if n := step.Nested; n != nil && n.EndedAt.IsZero() && r.State == "done" && step.Type == saga.TypeRevoke {
				what, text = "nested", fmt.Sprintf("the saga %s, nested at %s, compensates", celltext.FormatCell(n.Saga), n.Path)
			}
			if text == "" {
				continue // the row records the action, and its compensation has not arrived
			}
			q.told[r] = true
			return Finding{What: what, Since: celltext.FormatMoment(r.UpdatedAt), Text: fmt.Sprintf("participant %s in schema %s: %s", celltext.FormatCell(r.Step), s.Name, text)}, true
		}
	}
	return f, false
}

// formatRow interprets a participant's row of a message that is not parked. It returns no text if the
// row says nothing of the message.
func formatRow(r *StepRow, undo bool) (what, text string) {
	at := celltext.FormatTime(r.UpdatedAt)
	switch {
	case r.State == "open" && !undo:
		return "handling", fmt.Sprintf("attempt %d was begun at %s and has left no trace: it runs, or its process has died and the broker delivers it again", r.Attempts, at)
	case r.State == "dead" && !undo, r.State == "undo-dead" && undo:
		return "discarded", "its dead letter of " + at + " was discarded, so nothing of it will be heard"
	case r.State == "void" && !undo:
		return "void", "its compensation came first, at " + at + ", so it never runs"
	case r.State == "done" && !undo, r.State == "refused" && !undo, r.State == "compensated" && undo, r.State == "void" && undo, r.State == "compensated":
		return "handled", "handled at " + at + "; its reply is in no outbox any more: " + unknownPlace + "; or the step does not reply (see saga.Participant)"
	}
	return "", ""
}

// findUnrecorded returns the finding about a message that was published, and that no schema here has
// recorded.
func (q *inquiry) findUnrecorded(home *SagaPart, t *Timeline, command *OutboxMessage, step *TimelineStep) Finding {
	at, text := step.Sent, "published, sent at "
	if command != nil {
		at, text = command.CreatedAt, "published, written at "
	}
	text += celltext.FormatTime(at)
	if step.Topic != "" {
		text += ", topic " + celltext.FormatCell(step.Topic)
	}
	text += "; no schema in " + q.here + " has recorded it: " + unknownPlace
	if t.PlanProblem == "" && (step.State != StepRunning || !t.Compensating) { // otherwise retry is refused
		text += "; " + q.formatVerb(home, t, "retry", step) + " sends it again under the same key, which is harmless"
	}
	return Finding{What: unrecorded, Since: celltext.FormatMoment(at), Text: text}
}

// findMessage returns the state of a message in an outbox.
func (q *inquiry) findMessage(s *SagaPart, m *OutboxMessage) Finding {
	q.told[m] = true
	f := Finding{ID: m.ID, Step: m.Step, N: m.N, Schema: s.Name, Since: celltext.FormatMoment(m.CreatedAt), What: "message-" + string(m.Place)}
	name := celltext.FormatCell(m.Type) + " "
	in := fmt.Sprintf("(outbox of schema %s, stored %s)", s.Name, celltext.FormatTime(m.CreatedAt))
	switch m.Place {
	case PlaceStored:
		f.Text = fmt.Sprintf("%sis not published yet %s; %s", name, in, formatRelay(s))
	case PlaceDelayed:
		f.Until = celltext.FormatMoment(m.DueAt)
		f.Text = fmt.Sprintf("%sis not published before %s %s", name, celltext.FormatTime(m.DueAt), in)
	case PlaceWaiting:
		if m.Behind == nil && m.Reason != "" {
			f.Text = fmt.Sprintf("%swaits for its topic, %s, of which the broker takes no messages: %s; the relay tries again by itself %s", name, celltext.FormatCell(m.Topic), m.Reason, in)
			break
		}
		f.Text = fmt.Sprintf("%swaits behind another of its ordering key %s", name, in)
		if b := m.Behind; b != nil {
			f.Text += fmt.Sprintf(": message %d of %s/%s to %s, %s: %s; again at %s", b.ID, celltext.FormatCell(b.Scope), celltext.FormatCell(b.Key), celltext.FormatCell(b.Topic), formatBlocker(b), b.Reason, celltext.FormatTime(b.RetryAt))
		}
	case PlaceRefused:
		f.Until = celltext.FormatMoment(m.DueAt)
		f.Text = fmt.Sprintf("%swas refused by the broker %s: %s; again at %s %s", name, formatAttempts(m.Attempts), m.Reason, celltext.FormatTime(m.DueAt), in)
	case PlaceDead:
		f.Text = fmt.Sprintf("%sis dead letter %d of the outbox of schema %s, refused by the broker %s: %s", name, m.ID, s.Name, formatAttempts(m.Attempts), m.Reason)
		f.Text += q.giveCommand(fmt.Sprintf("; sagamill outbox dead show%s -id %d", s.Flags, m.ID), "")
	default:
		f.Text = fmt.Sprintf("%sis published %s", name, in)
	}
	return f
}

// formatRelay names the active relay of a schema.
func formatRelay(s *SagaPart) string {
	if s.Outbox.Holder == "" {
		return "no relay is active"
	}
	return "the active relay is " + celltext.FormatCell(s.Outbox.Holder)
}

// formatBlocker returns why the broker has not taken a message that others wait behind.
func formatBlocker(b *Blocker) string {
	if b.Attempts == 0 {
		return "whose topic takes no messages"
	}
	return "refused by the broker " + formatAttempts(b.Attempts)
}

func formatAttempts(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// findParked returns the finding about a parked message, which covers its step's row too.
func (q *inquiry) findParked(s *SagaPart, l *DeadLetter) Finding {
	q.told[l] = true
	for i := range s.Inbox.Steps {
		if r := &s.Inbox.Steps[i]; r.Step == l.Step && r.N == l.N {
			q.told[r] = true
		}
	}
	f := Finding{ID: l.ID, Step: l.Step, N: l.N, Schema: s.Name, Since: celltext.FormatMoment(l.LastAt)}
	of := fmt.Sprintf("of step %s in schema %s: %s: %s", celltext.FormatCell(celltext.FormatStep(l.Step, l.N)), s.Name, l.Reason, l.Error)
	switch {
	case l.State == StateDead:
		f.What = "dead-letter"
		f.Text = fmt.Sprintf("dead letter %d %s", l.ID, of)
		f.Text += q.giveCommand(fmt.Sprintf("; sagamill dead show%s -id %d", s.Flags, l.ID), "")
	case l.DueAt.IsZero():
		f.What = "parked"
		f.Text = fmt.Sprintf("parked %s", of)
	default:
		f.What, f.Until = "parked", celltext.FormatMoment(l.DueAt)
		f.Text = fmt.Sprintf("parked until %s after %s %s", celltext.FormatTime(l.DueAt), celltext.FormatCount(l.Attempts, "attempts"), of)
	}
	return f
}

// findOtherMessages collects the findings about messages that no finding about an instance mentions.
// A choreographed saga has only such messages.
func (q *inquiry) findOtherMessages(s *SagaPart) {
	for i := range s.Inbox.Letters {
		l := &s.Inbox.Letters[i]
		if q.told[l] {
			continue
		}
		f := q.findParked(s, l)
		if text, ok := q.explainObsolete(s, l); ok {
			f.Text += "; " + text
		} else if l.State == StateDead && isChoreographed(l) && !q.isOrchestrated() {
			f.Text += "; " + q.formatRedrive(findStepLetters(s, l))
		}
		q.addFinding(f)
	}
	for i := range s.Outbox.Messages {
		m := &s.Outbox.Messages[i]
		switch {
		case q.told[m]:
		case m.Place != PlacePublished:
			f := q.findMessage(s, m)
			f.Text = "message " + f.Text
			q.addFinding(f)
		case !q.isToOrchestrator(m) && !q.isHandled(m) && !q.isParked(m):
			q.found = append(q.found, Finding{
				What: unrecorded, Schema: s.Name, ID: m.ID, Step: m.Step, N: m.N, Since: celltext.FormatMoment(m.CreatedAt),
				Text: fmt.Sprintf("message %s for step %s, written at %s in schema %s, is published, topic %s; no schema in %s has recorded it under that name: %s", celltext.FormatCell(m.Type), celltext.FormatCell(m.Step), celltext.FormatTime(m.CreatedAt), s.Name, celltext.FormatCell(m.Topic), q.here, unknownPlace),
			})
		}
	}
	if s.Outbox.More || s.Inbox.More {
		q.found = append(q.found, Finding{What: "more", Schema: s.Name, Text: "schema " + s.Name + " knows more of it than is looked at here"})
	}
}

// isToOrchestrator reports whether m is a command or a reply of an instance that was found.
func (q *inquiry) isToOrchestrator(m *OutboxMessage) bool {
	if !q.isOrchestrated() {
		return false
	}
	_, _, err := parseSagaN(m.N)
	return err == nil || m.Type == saga.TypeReply
}

// isHandled reports whether the step that m is for has moved since m was written.
func (q *inquiry) isHandled(m *OutboxMessage) bool {
	for _, s := range q.parts {
		for i := range s.Inbox.Steps {
			if r := &s.Inbox.Steps[i]; r.N == m.N && r.Step == m.Step && r.UpdatedAt.After(m.CreatedAt) {
				return true
			}
		}
	}
	return false
}

// isParked reports whether m is a dead letter or a retrying message, which has a finding of its own.
func (q *inquiry) isParked(m *OutboxMessage) bool {
	for _, s := range q.parts {
		for i := range s.Inbox.Letters {
			if s.Inbox.Letters[i].MessageID == m.MessageID {
				return true
			}
		}
	}
	return false
}

// findRows collects the findings about rows of an inbox. If the saga has an instance, it leaves out
// the rows of completed steps.
func (q *inquiry) findRows(s *SagaPart) {
	for i := range s.Inbox.Steps {
		r := &s.Inbox.Steps[i]
		over := r.State == "done" || r.State == "refused" || r.State == "void" || r.State == "compensated"
		if q.told[r] || over && q.isOrchestrated() {
			continue
		}
		step := celltext.FormatCell(r.Step)
		if r.N != "" {
			step += "#" + r.N
		}
		q.found = append(q.found, Finding{
			What: "row", Schema: s.Name, Step: r.Step, N: r.N, Since: celltext.FormatMoment(r.UpdatedAt),
			Text: fmt.Sprintf("known: step %s in schema %s is %s since %s", step, s.Name, r.State, celltext.FormatTime(r.UpdatedAt)),
		})
	}
}
