package main

import (
	"encoding/json"
	"time"

	"github.com/sagamill/sagamill/saga"
)

// An instanceJSON is an instance as JSON. Times that there are not are left out.
type instanceJSON struct {
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
	Tries     int    `json:"tries,omitempty"`
	StartedAt string `json:"started_at"`
	UpdatedAt string `json:"updated_at"`
	DueAt     string `json:"due_at,omitempty"`
	EndedAt   string `json:"ended_at,omitempty"`
}

func newInstance(i *saga.Instance) instanceJSON {
	return instanceJSON{
		Scope: i.Scope, Key: i.Key, Path: i.Path, ID: i.ID, Root: i.Root, Saga: i.Saga, Version: i.Version, Parent: i.Parent,
		Status: string(i.Status), Reason: i.Reason, Tries: i.Tries,
		StartedAt: moment(i.StartedAt), UpdatedAt: moment(i.UpdatedAt), DueAt: moment(i.DueAt), EndedAt: moment(i.EndedAt),
	}
}

// moment is a time as JSON, to the microsecond; "" if there is none.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// A timelineJSON is a timeline as JSON.
type timelineJSON struct {
	instanceJSON
	Paused      bool            `json:"paused"`
	Undoing     bool            `json:"compensating"`
	Fault       string          `json:"fault,omitempty"`
	PlanProblem string          `json:"plan_problem,omitempty"`
	Deadline    string          `json:"deadline,omitempty"`
	Steps       []stepJSON      `json:"steps"`
	Next        []string        `json:"next"`
	Undo        [][]string      `json:"undo"`
	UndoNothing string          `json:"undo_nothing,omitempty"`
	Nested      []instanceJSON  `json:"nested"`
	Journal     []journalJSON   `json:"journal"`
	At          string          `json:"at"`
	State       json.RawMessage `json:"state,omitempty"`
}

type stepJSON struct {
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
	Again     bool   `json:"again,omitempty"`
	Began     string `json:"began,omitempty"`
	Sent      string `json:"sent,omitempty"`
	Ended     string `json:"ended,omitempty"`
	UndoBegan string `json:"undo_began,omitempty"`
	UndoEnded string `json:"undo_ended,omitempty"`
	Due       string `json:"due,omitempty"`
	Nested    string `json:"nested_status,omitempty"`
}

type journalJSON struct {
	ID   int64  `json:"id"`
	At   string `json:"at"`
	Verb string `json:"verb"`
	Step string `json:"step,omitempty"`
	By   string `json:"by"`
	Why  string `json:"why"`
}

func newTimeline(t *saga.Timeline, state bool) timelineJSON {
	j := timelineJSON{
		instanceJSON: newInstance(&t.Instance), Paused: t.Paused, Undoing: t.Compensating, Fault: t.Fault, PlanProblem: t.PlanProblem, Deadline: moment(t.Deadline),
		Steps: []stepJSON{}, Next: append([]string{}, t.Next...), Undo: append([][]string{}, t.Undo...), UndoNothing: t.UndoNothing,
		Nested: []instanceJSON{}, Journal: []journalJSON{}, At: moment(t.At),
	}
	if state {
		j.State = t.State
	}
	for i := range t.Steps {
		j.Steps = append(j.Steps, newStep(&t.Steps[i]))
	}
	for i := range t.Nested {
		j.Nested = append(j.Nested, newInstance(&t.Nested[i]))
	}
	for _, e := range t.Journal {
		j.Journal = append(j.Journal, journalJSON{e.ID, moment(e.At), string(e.Verb), e.Step, e.By, e.Why})
	}
	return j
}

func newStep(s *saga.TimelineStep) stepJSON {
	j := stepJSON{
		Number: s.Number, Name: s.Name, Depth: s.Depth, Kind: s.Kind, Pivot: s.Pivot, Undo: s.Undo, State: string(s.State),
		Attempt: s.Attempt, N: s.N, Topic: s.Topic, Type: s.Type, Reason: s.Reason, Override: s.Override, InDoubt: s.Doubt, Again: s.Again,
		Began: moment(s.Began), Sent: moment(s.Sent), Ended: moment(s.Ended), UndoBegan: moment(s.UndoBegan), UndoEnded: moment(s.UndoEnded), Due: moment(s.Due),
	}
	if s.Nested != nil {
		j.Nested = string(s.Nested.Status)
	}
	return j
}
