package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/operator"
)

const (
	// maxEvents is how many events a page shows: the last ones.
	maxEvents = 200

	// shortGap is the longest time between two events that the page does not mention.
	shortGap = time.Second

	maxErrorText = 2000 // characters
)

// A sagaEvent is something that has happened to a saga, as the tables tell it.
type sagaEvent struct {
	At    time.Time
	After time.Duration // since the beginning
	Tone  string
	Text  string
	Where string // the schema
	Error string
	Gap   string // how long nothing happened before, and what for; "": not long
	Now   bool   // the moment of the reading
}

// Clock returns the time of day.
func (e *sagaEvent) Clock() string { return e.At.UTC().Format("15:04:05.000") }

// An eventList collects events of a saga.
type eventList struct {
	s     *sagaReading
	all   []sagaEvent
	waits []wait
}

// A wait is a time in which a step waited.
type wait struct {
	name       string
	begin, end time.Time // end is zero: it still waits
}

// listEvents returns the last events of a saga, the oldest first, and how many are left out.
func listEvents(s *sagaReading) (events []sagaEvent, earlier int) {
	l := &eventList{s: s}
	home := s.homePart()
	for _, part := range s.Parts {
		if part == home {
			for i := range part.Sagas {
				l.addInstance(&part.Sagas[i])
			}
		}
		l.addRows(part)
		l.addMessages(part)
	}
	slices.SortStableFunc(l.all, func(a, b sagaEvent) int { return a.At.Compare(b.At) })
	if len(l.all) == 0 {
		return nil, 0
	}
	if s.timeline != nil && s.timeline.EndedAt.IsZero() {
		l.all = append(l.all, sagaEvent{At: s.timeline.At, Tone: "now", Text: "now", Now: true})
	}
	l.fillGaps()
	earlier = max(0, len(l.all)-maxEvents)
	return l.all[earlier:], earlier
}

func (l *eventList) add(at time.Time, tone, where, text string) *sagaEvent {
	if at.IsZero() {
		return &sagaEvent{}
	}
	l.all = append(l.all, sagaEvent{At: at, Tone: tone, Where: where, Text: text})
	return &l.all[len(l.all)-1]
}

// addInstance adds what has happened to an instance and its steps, and what people have decided about it.
func (l *eventList) addInstance(t *operator.Timeline) {
	name, where := "", l.s.home.Label
	if t.Path != l.s.timeline.Path {
		name = t.Saga + " / "
	}
	l.add(t.StartedAt, "begin", where, fmt.Sprintf("saga %s began, version %d", t.Saga, t.Version))
	for i := range t.Steps {
		if t.Steps[i].Number > 0 {
			l.addStep(t, &t.Steps[i], name, where)
		}
	}
	for _, d := range t.Journal {
		text := fmt.Sprintf("%s decided: %s", d.By, d.Verb)
		if d.Step != "" {
			text += " " + name + d.Step
		}
		l.add(d.At, "person", where, text+". "+d.Why)
	}
	if !t.EndedAt.IsZero() {
		l.add(t.EndedAt, "end-"+string(t.Status), where, fmt.Sprintf("saga %s %s after %s", t.Saga, t.Status, formatDuration(t.EndedAt.Sub(t.StartedAt)))).Error = t.Reason
	}
}

func (l *eventList) addStep(t *operator.Timeline, s *operator.TimelineStep, name, where string) {
	name += s.Name
	if !s.Began.IsZero() && s.State != operator.StepSkipped {
		l.add(s.Began, "run", where, "step "+name+" began")
		end := s.Ended
		if end.IsZero() && !s.Awaits() && s.State != operator.StepWaiting {
			end = latestOf(s.UndoBegan, s.Sent)
		}
		if s.UndoBegan.IsZero() || !s.Ended.IsZero() {
			l.waits = append(l.waits, wait{name, s.Began, end})
		}
	}
	if s.Attempt > 1 && s.UndoBegan.IsZero() && s.Sent.After(s.Began) {
		l.add(s.Sent, "wait", where, fmt.Sprintf("step %s: attempt %d began", name, s.Attempt)).Error = s.Reason
	}
	if !s.Ended.IsZero() {
		l.add(s.Ended, "done", where, fmt.Sprintf("step %s done after %s", name, formatDuration(s.Ended.Sub(s.Began))))
	}
	if !s.UndoBegan.IsZero() {
		l.add(s.UndoBegan, "undo", where, "compensation of "+name+" began")
		l.waits = append(l.waits, wait{"the compensation of " + name, s.UndoBegan, s.UndoEnded})
	}
	if !s.UndoEnded.IsZero() && !s.UndoBegan.IsZero() {
		l.add(s.UndoEnded, "undone", where, fmt.Sprintf("step %s undone after %s", name, formatDuration(s.UndoEnded.Sub(s.UndoBegan))))
	}
}

// rowTones are the states of inbox rows with how they look, and what they say of a step.
var rowTones = map[string][2]string{
	"open": {"run", "an attempt was begun and has left no trace"}, "retrying": {"wait", "failed, and is retried"}, "dead": {"stuck", "is a dead letter"},
	"done": {"done", "done"}, "refused": {"reject", "refused: it has done nothing"}, "void": {"off", "will not run: its compensation came first"},
	"undoing": {"wait", "compensation failed, and is retried"}, "undo-dead": {"stuck", "compensation is a dead letter"}, "compensated": {"undone", "undone"},
}

// replySteps begins the names of the steps in which an orchestrator reads replies.
const replySteps = "saga-"

// addRows adds what participants have recorded. The rows of an orchestrator's replies say nothing that its steps do not.
func (l *eventList) addRows(part *operator.SagaPart) {
	for i := range part.Inbox.Steps {
		row := &part.Inbox.Steps[i]
		if l.s.timeline != nil && strings.HasPrefix(row.Step, replySteps) {
			continue
		}
		look, known := rowTones[row.State]
		if !known {
			look = [2]string{"todo", row.State}
		}
		text := fmt.Sprintf("participant %s: %s", row.Step, look[1])
		if attempts := row.Attempts + row.UndoAttempts; attempts > 1 {
			text += fmt.Sprintf(", %d attempts", attempts)
		}
		l.add(row.UpdatedAt, look[0], part.Name, text)
		if l.s.timeline == nil {
			l.waits = append(l.waits, wait{row.Step, row.CreatedAt, row.UpdatedAt})
		}
	}
	for i := range part.Inbox.Letters {
		letter := &part.Inbox.Letters[i]
		tone, text := "wait", "retrying"
		if letter.State == operator.StateDead {
			tone, text = "stuck", "dead letter "+fmt.Sprint(letter.ID)
		}
		e := l.add(letter.LastAt, tone, part.Name, fmt.Sprintf("participant %s: %s after %s, %s", cmp.Or(letter.Step, "(unreadable)"), text, formatPlural(letter.Attempts, "attempt", "attempts"), letter.Reason))
		e.Error = visibleLines(clipText(letter.Error, maxErrorText))
	}
}

// addMessages adds when the messages were written. With an instance, commands and replies are left out: its steps tell of
// them.
func (l *eventList) addMessages(part *operator.SagaPart) {
	for i := range part.Outbox.Messages {
		m := &part.Outbox.Messages[i]
		if l.s.timeline == nil || part != l.s.homePart() && m.Topic != flow.ReplyTopic(l.s.timeline.Saga) {
			l.add(m.CreatedAt, "message", part.Name, fmt.Sprintf("message %s written, topic %s", m.Type, m.Topic))
		}
		if m.Place == operator.PlaceRefused || m.Place == operator.PlaceDead {
			e := l.add(m.RefusedAt, "stuck", part.Name, fmt.Sprintf("message %s refused by the broker, %s", m.Type, formatPlural(m.Attempts, "time", "times")))
			e.Error = visibleLines(clipText(m.Reason, maxErrorText))
		}
	}
}

// fillGaps says how long nothing happened before an event, and which steps waited meanwhile.
func (l *eventList) fillGaps() {
	for i := range l.all {
		e := &l.all[i]
		e.After = e.At.Sub(l.all[0].At)
		if i == 0 {
			continue
		}
		before := l.all[i-1].At
		switch gap := e.At.Sub(before); {
		case gap < shortGap:
		case e.Now: // without a duration, which would change each time the stream reads
			e.Gap = "waits since then" + l.waitedFor(before, e.At)
		default:
			e.Gap = "waited " + formatDuration(gap) + l.waitedFor(before, e.At)
		}
	}
}

// waitedFor names at most three of the steps that waited all the time between two moments.
func (l *eventList) waitedFor(begin, end time.Time) string {
	var names []string
	for _, w := range l.waits {
		if !w.begin.After(begin) && (w.end.IsZero() || !w.end.Before(end)) && !slices.Contains(names, w.name) {
			names = append(names, w.name)
		}
	}
	switch {
	case len(names) == 0:
		return ""
	case len(names) > 3:
		return fmt.Sprintf(" for %s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return " for " + strings.Join(names, ", ")
}
