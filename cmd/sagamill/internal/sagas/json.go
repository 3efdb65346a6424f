package sagas

import (
	"encoding/json"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// An Instance is an instance as JSON. Zero times are left out.
type Instance struct {
	Schema    string `json:"schema"`
	Scope     string `json:"scope"`
	Key       string `json:"key"`
	Path      string `json:"path,omitempty"`
	ID        string `json:"id"`
	Root      string `json:"root"`
	Saga      string `json:"saga"`
	Version   int    `json:"version"`
	Parent    string `json:"parent,omitempty"`
	Status    string `json:"status"`
	Reason    string `json:"reason,omitempty"`
	Step      string `json:"step,omitempty"`
	WaitsFor  string `json:"waits_for,omitempty"`
	Tries     int    `json:"tries,omitempty"`
	StartedAt string `json:"started_at"`
	UpdatedAt string `json:"updated_at"`
	DueAt     string `json:"due_at,omitempty"`
	EndedAt   string `json:"ended_at,omitempty"`
}

func newInstance(schema string, i *operator.Instance) Instance {
	return Instance{
		Schema: schema, Scope: i.Scope, Key: i.Key, Path: i.Path, ID: i.ID, Root: i.Root, Saga: i.Saga, Version: i.Version, Parent: i.Parent,
		Status: string(i.Status), Reason: i.Reason, Tries: i.Tries, Step: i.Step, WaitsFor: string(i.WaitsFor),
		StartedAt: cli.FormatMoment(i.StartedAt), UpdatedAt: cli.FormatMoment(i.UpdatedAt), DueAt: cli.FormatMoment(i.DueAt), EndedAt: cli.FormatMoment(i.EndedAt),
	}
}

// A Timeline is a timeline as JSON.
type Timeline struct {
	Instance
	Paused      bool            `json:"paused"`
	Undoing     bool            `json:"compensating"`
	Fault       string          `json:"fault,omitempty"`
	PlanProblem string          `json:"plan_problem,omitempty"`
	Deadline    string          `json:"deadline,omitempty"`
	Steps       []stepLine      `json:"steps"`
	Next        []string        `json:"next"`
	Undo        [][]string      `json:"undo"`
	UndoNothing string          `json:"undo_nothing,omitempty"`
	Nested      []Instance      `json:"nested"`
	Journal     []journalLine   `json:"journal"`
	At          string          `json:"at"`
	State       json.RawMessage `json:"state,omitempty"`
}

type stepLine struct {
	Number    int    `json:"number,omitempty"`
	Name      string `json:"name"`
	Depth     int    `json:"depth"`
	Kind      string `json:"kind,omitempty"`
	Pivot     bool   `json:"pivot,omitempty"`
	Undo      string `json:"undo,omitempty"`
	State     string `json:"state,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	N         string `json:"n,omitempty"`
	Topic     string `json:"topic,omitempty"`
	Type      string `json:"type,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Override  bool   `json:"override,omitempty"`
	InDoubt   bool   `json:"in_doubt,omitempty"`
	Held      bool   `json:"held,omitempty"`
	NotDone   bool   `json:"not_done,omitempty"`
	Resend    bool   `json:"resend,omitempty"`
	Began     string `json:"began,omitempty"`
	Sent      string `json:"sent,omitempty"`
	Ended     string `json:"ended,omitempty"`
	UndoBegan string `json:"undo_began,omitempty"`
	UndoEnded string `json:"undo_ended,omitempty"`
	Due       string `json:"due,omitempty"`
	Nested    string `json:"nested_status,omitempty"`
}

type journalLine struct {
	ID   int64  `json:"id"`
	At   string `json:"at"`
	Verb string `json:"verb"`
	Step string `json:"step,omitempty"`
	By   string `json:"by"`
	Why  string `json:"why"`
}

func newTimeline(schema string, t *operator.Timeline, state bool) Timeline {
	j := Timeline{
		Instance: newInstance(schema, &t.Instance), Paused: t.Paused, Undoing: t.Compensating, Fault: t.Fault, PlanProblem: t.PlanProblem, Deadline: cli.FormatMoment(t.Deadline),
		Steps: []stepLine{}, Next: append([]string{}, t.Next...), Undo: append([][]string{}, t.Undo...), UndoNothing: t.UndoNothing,
		Nested: []Instance{}, Journal: []journalLine{}, At: cli.FormatMoment(t.At),
	}
	if state {
		j.State = t.State
	}
	for i := range t.Steps {
		j.Steps = append(j.Steps, newStep(&t.Steps[i]))
	}
	for i := range t.Nested {
		j.Nested = append(j.Nested, newInstance(schema, &t.Nested[i]))
	}
	for _, e := range t.Journal {
		j.Journal = append(j.Journal, journalLine{e.ID, cli.FormatMoment(e.At), string(e.Verb), e.Step, e.By, e.Why})
	}
	return j
}

func newStep(s *operator.TimelineStep) stepLine {
	j := stepLine{
		Number: s.Number, Name: s.Name, Depth: s.Depth, Kind: s.Kind, Pivot: s.Pivot, Undo: s.Undo, State: string(s.State),
		Attempt: s.Attempt, N: s.N, Topic: s.Topic, Type: s.Type, Reason: s.Reason, Override: s.Override, InDoubt: s.InDoubt, Held: s.Held, NotDone: s.NotDone, Resend: s.Resend,
		Began: cli.FormatMoment(s.Began), Sent: cli.FormatMoment(s.Sent), Ended: cli.FormatMoment(s.Ended), UndoBegan: cli.FormatMoment(s.UndoBegan), UndoEnded: cli.FormatMoment(s.UndoEnded), Due: cli.FormatMoment(s.Due),
	}
	if s.Nested != nil {
		j.Nested = string(s.Nested.Status)
	}
	return j
}
