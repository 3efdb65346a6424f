package why

import (
	"fmt"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// unrecorded marks the finding about a message that was published, and that no schema here has
// recorded.
const unrecorded = "published"

// unknownPlace lists the places where such a message may be.
const unknownPlace = "it waits in a queue, is being handled, or was lost with its queue"

// traceStep follows the last message of a step from its reply back to its command. It returns the
// first place where one of them is. home is the orchestrator's schema.
func (q *inquiry) traceStep(home *site, t *operator.Timeline, step *operator.TimelineStep) Finding {
	if f, ok := q.traceReply(home, step); ok {
		return f
	}
	if f, ok := q.traceParked(step); ok {
		return f
	}
	command := q.findCommand(home, step)
	if command != nil && command.Place != operator.PlacePublished {
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
func (q *inquiry) traceReply(home *site, step *operator.TimelineStep) (f Finding, ok bool) {
	for i := range home.in.Letters {
		l := &home.in.Letters[i]
		if isReply(l.N, step) && strings.HasPrefix(l.Step, "saga-") {
			f = q.findParked(home, l)
			f.What, f.Text = "reply-"+f.What, "its reply is "+f.Text
			return f, true
		}
	}
	for _, s := range q.sites {
		for i := len(s.out.Messages) - 1; i >= 0; i-- {
			m := &s.out.Messages[i]
			if !isReply(m.N, step) || m.Type != saga.TypeReply {
				continue
			}
			if m.Place == operator.PlacePublished {
				if q.isReplyTo(home, step, m) {
					continue
				}
				f = Finding{What: "reply-at-broker", ID: m.ID, Since: cli.FormatMoment(m.CreatedAt), Text: fmt.Sprintf("handled at %s in schema %s; its reply is published, and no orchestrator of schema %s has recorded it: %s", cli.FormatTime(m.CreatedAt), s.name, home.name, unknownPlace)}
			} else {
				f = q.findMessage(s, m)
				f.What, f.Text = "reply-"+string(m.Place), "handled at "+cli.FormatTime(m.CreatedAt)+"; its reply "+f.Text
			}
			q.told[m] = true
			return f, true
		}
	}
	return f, false
}

// isReplyTo reports whether the orchestrator has handled the reply m. The step still waits, so the
// reply was late or had no effect.
func (q *inquiry) isReplyTo(home *site, step *operator.TimelineStep, m *operator.OutboxMessage) bool {
	for i := range home.in.Steps {
		r := &home.in.Steps[i]
		if r.N == m.N && strings.HasPrefix(r.Step, "saga-") && r.State == "done" {
			return true
		}
	}
	return false
}

// traceParked looks for the message of a step among the parked messages of all schemas.
func (q *inquiry) traceParked(step *operator.TimelineStep) (f Finding, ok bool) {
	kind := map[bool]string{false: "action", true: "compensation"}[isUndoing(step) && step.Type != saga.TypeRevoke]
	for _, s := range q.sites {
		for i := range s.in.Letters {
			if l := &s.in.Letters[i]; l.N == step.N && l.Kind == kind && (l.Topic == step.Topic || step.Topic == "") {
				return q.findParked(s, l), true
			}
		}
	}
	return f, false
}

// findCommand returns the last command of a step, or its last compensation, from the outbox. It is nil
// if the outbox does not have it any more.
func (q *inquiry) findCommand(home *site, step *operator.TimelineStep) *operator.OutboxMessage {
	for i := len(home.out.Messages) - 1; i >= 0; i-- {
		m := &home.out.Messages[i]
		if m.N == step.N && (m.Topic == step.Topic && m.Type == step.Type || step.Topic == "") { // "": the plan is not known
			q.told[m] = true
			return m
		}
	}
	return nil
}

// traceRow looks for an inbox row of a step's message.
func (q *inquiry) traceRow(step *operator.TimelineStep) (f Finding, ok bool) {
	undo := isUndoing(step) && step.Type != saga.TypeRevoke
	for _, s := range q.sites {
		for i := range s.in.Steps {
			r := &s.in.Steps[i]
			if r.N != step.N || strings.HasPrefix(r.Step, "revoke-") != (step.Type == saga.TypeRevoke) {
				continue
			}
			what, text := formatRow(r, undo)
			if n := step.Nested; n != nil && n.EndedAt.IsZero() && r.State == "done" && step.Type == saga.TypeRevoke {
				what, text = "nested", fmt.Sprintf("the saga %s, nested at %s, compensates", cli.FormatCell(n.Saga), n.Path)
			}
			if text == "" {
				continue // the row records the action, and its compensation has not arrived
			}
			q.told[r] = true
			return Finding{What: what, Since: cli.FormatMoment(r.UpdatedAt), Text: fmt.Sprintf("participant %s in schema %s: %s", cli.FormatCell(r.Step), s.name, text)}, true
		}
	}
	return f, false
}

// formatRow interprets a participant's row of a message that is not parked. It returns no text if the
// row says nothing of the message.
func formatRow(r *operator.StepRow, undo bool) (what, text string) {
	at := cli.FormatTime(r.UpdatedAt)
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
func (q *inquiry) findUnrecorded(home *site, t *operator.Timeline, command *operator.OutboxMessage, step *operator.TimelineStep) Finding {
	at, text := step.Sent, "published, sent at "
	if command != nil {
		at, text = command.CreatedAt, "published, written at "
	}
	text += cli.FormatTime(at)
	if step.Topic != "" {
		text += ", topic " + cli.FormatCell(step.Topic)
	}
	text += "; no schema in " + q.here + " has recorded it: " + unknownPlace
	if t.PlanProblem == "" && (step.State != operator.StepRunning || !t.Compensating) { // otherwise retry is refused
		text += "; " + q.formatVerb(home, t, "retry", step) + " sends it again under the same key, which is harmless"
	}
	return Finding{What: unrecorded, Since: cli.FormatMoment(at), Text: text}
}

// findMessage returns the state of a message in an outbox.
func (q *inquiry) findMessage(s *site, m *operator.OutboxMessage) Finding {
	q.told[m] = true
	f := Finding{ID: m.ID, Step: m.Step, N: m.N, Schema: s.name, Since: cli.FormatMoment(m.CreatedAt), What: "message-" + string(m.Place)}
	name := cli.FormatCell(m.Type) + " "
	in := fmt.Sprintf("(outbox of schema %s, stored %s)", s.name, cli.FormatTime(m.CreatedAt))
	switch m.Place {
	case operator.PlaceStored:
		f.Text = fmt.Sprintf("%sis not published yet %s; %s", name, in, formatRelay(s))
	case operator.PlaceDelayed:
		f.Until = cli.FormatMoment(m.DueAt)
		f.Text = fmt.Sprintf("%sis not published before %s %s", name, cli.FormatTime(m.DueAt), in)
	case operator.PlaceWaiting:
		if m.Behind == nil && m.Reason != "" {
			f.Text = fmt.Sprintf("%swaits for its topic, %s, of which the broker takes no messages: %s; the relay tries again by itself %s", name, cli.FormatCell(m.Topic), m.Reason, in)
			break
		}
		f.Text = fmt.Sprintf("%swaits behind another of its ordering key %s", name, in)
		if b := m.Behind; b != nil {
			f.Text += fmt.Sprintf(": message %d of %s/%s to %s, %s: %s; again at %s", b.ID, cli.FormatCell(b.Scope), cli.FormatCell(b.Key), cli.FormatCell(b.Topic), formatBlocker(b), b.Reason, cli.FormatTime(b.RetryAt))
		}
	case operator.PlaceRefused:
		f.Until = cli.FormatMoment(m.DueAt)
		f.Text = fmt.Sprintf("%swas refused by the broker %s: %s; again at %s %s", name, formatAttempts(m.Attempts), m.Reason, cli.FormatTime(m.DueAt), in)
	case operator.PlaceDead:
		f.Text = fmt.Sprintf("%sis dead letter %d of the outbox of schema %s, refused by the broker %s: %s; sagamill outbox dead show%s -id %d", name, m.ID, s.name, formatAttempts(m.Attempts), m.Reason, s.flags, m.ID)
	default:
		f.Text = fmt.Sprintf("%sis published %s", name, in)
	}
	return f
}

// formatRelay names the active relay of a schema.
func formatRelay(s *site) string {
	if s.out.Holder == "" {
		return "no relay is active"
	}
	return "the active relay is " + cli.FormatCell(s.out.Holder)
}

// formatBlocker returns why the broker has not taken a message that others wait behind.
func formatBlocker(b *operator.Blocker) string {
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
func (q *inquiry) findParked(s *site, l *operator.DeadLetter) Finding {
	q.told[l] = true
	for i := range s.in.Steps {
		if r := &s.in.Steps[i]; r.Step == l.Step && r.N == l.N {
			q.told[r] = true
		}
	}
	f := Finding{ID: l.ID, Step: l.Step, N: l.N, Schema: s.name, Since: cli.FormatMoment(l.LastAt)}
	of := fmt.Sprintf("of step %s in schema %s: %s: %s", cli.FormatCell(cli.FormatStep(*l)), s.name, l.Reason, l.Error)
	switch {
	case l.State == operator.StateDead:
		f.What = "dead-letter"
		f.Text = fmt.Sprintf("dead letter %d %s; sagamill dead show%s -id %d", l.ID, of, s.flags, l.ID)
	case l.DueAt.IsZero():
		f.What = "parked"
		f.Text = fmt.Sprintf("parked %s", of)
	default:
		f.What, f.Until = "parked", cli.FormatMoment(l.DueAt)
		f.Text = fmt.Sprintf("parked until %s after %s %s", cli.FormatTime(l.DueAt), cli.FormatCount(l.Attempts, "attempts"), of)
	}
	return f
}

// findOtherMessages collects the findings about messages that no finding about an instance mentions.
// A choreographed saga has only such messages.
func (q *inquiry) findOtherMessages(s *site) {
	for i := range s.in.Letters {
		l := &s.in.Letters[i]
		if q.told[l] {
			continue
		}
		f := q.findParked(s, l)
		if text, ok := q.explainObsolete(s, l); ok {
			f.Text += "; " + text
		}
		q.found = append(q.found, f)
	}
	for i := range s.out.Messages {
		m := &s.out.Messages[i]
		switch {
		case q.told[m]:
		case m.Place != operator.PlacePublished:
			f := q.findMessage(s, m)
			f.Text = "message " + f.Text
			q.found = append(q.found, f)
		case !q.isToOrchestrator(m) && !q.isHandled(m):
			q.found = append(q.found, Finding{
				What: unrecorded, Schema: s.name, ID: m.ID, Step: m.Step, N: m.N, Since: cli.FormatMoment(m.CreatedAt),
				Text: fmt.Sprintf("message %s for step %s, written at %s in schema %s, is published, topic %s; no schema in %s has recorded it under that name: %s", cli.FormatCell(m.Type), cli.FormatCell(m.Step), cli.FormatTime(m.CreatedAt), s.name, cli.FormatCell(m.Topic), q.here, unknownPlace),
			})
		}
	}
	if s.out.More || s.in.More {
		q.found = append(q.found, Finding{What: "more", Schema: s.name, Text: "schema " + s.name + " knows more of it than is looked at here"})
	}
}

// isToOrchestrator reports whether m is a command or a reply of an instance that was found.
func (q *inquiry) isToOrchestrator(m *operator.OutboxMessage) bool {
	if !q.isOrchestrated() {
		return false
	}
	_, n, err := flow.Unmark(m.N)
	if err == nil {
		_, err = flow.ParseN(n)
	}
	return err == nil || m.Type == saga.TypeReply
}

// isHandled reports whether the step that m is for has moved since m was written.
func (q *inquiry) isHandled(m *operator.OutboxMessage) bool {
	for _, s := range q.sites {
		for i := range s.in.Steps {
			if r := &s.in.Steps[i]; r.N == m.N && r.Step == m.Step && r.UpdatedAt.After(m.CreatedAt) {
				return true
			}
		}
	}
	return false
}

// findRows collects the findings about rows of an inbox. If the saga has an instance, it leaves out
// the rows of completed steps.
func (q *inquiry) findRows(s *site) {
	for i := range s.in.Steps {
		r := &s.in.Steps[i]
		over := r.State == "done" || r.State == "refused" || r.State == "void" || r.State == "compensated"
		if q.told[r] || over && q.isOrchestrated() {
			continue
		}
		step := cli.FormatCell(r.Step)
		if r.N != "" {
			step += "#" + r.N
		}
		q.found = append(q.found, Finding{
			What: "row", Schema: s.name, Step: r.Step, N: r.N, Since: cli.FormatMoment(r.UpdatedAt),
			Text: fmt.Sprintf("known: step %s in schema %s is %s since %s", step, s.name, r.State, cli.FormatTime(r.UpdatedAt)),
		})
	}
}
