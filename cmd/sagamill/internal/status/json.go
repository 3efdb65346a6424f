package status

import (
	"io"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/outboxes"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A Schema is the status of a schema as JSON. A part that it does not have, or that cannot be read, is left out. A
// number that reaches count_limit is a lower bound.
type Schema struct {
	Schema        string            `json:"schema"`
	Version       int32             `json:"version"`
	Newest        int32             `json:"newest"`
	VersionDenied bool              `json:"version_denied,omitempty"`
	Parts         []migrations.Part `json:"parts"`
	CountLimit    int               `json:"count_limit"`
	Outbox        *outboxes.Status  `json:"outbox,omitempty"`
	Inbox         *Inbox            `json:"inbox,omitempty"`
	Sagas         *Sagas            `json:"sagas,omitempty"`
	Requests      *Requests         `json:"requests,omitempty"`
	Unreadable    []Unreadable      `json:"unreadable,omitempty"`
	Problems      []Problem         `json:"problems"`
}

// An Inbox has the parked messages of a schema.
type Inbox struct {
	Retrying int      `json:"retrying"`
	Calling  int      `json:"calling"`
	Dead     int      `json:"dead"`
	Overdue  float64  `json:"overdue_seconds"`
	Parked   []Parked `json:"parked"`
}

// Parked counts the parked messages of one step, kind, state and reason.
type Parked struct {
	Step     string          `json:"step"`
	Undo     bool            `json:"undo,omitempty"`
	State    string          `json:"state"`
	Reason   consumer.Reason `json:"reason"`
	Messages int             `json:"messages"`
	Oldest   float64         `json:"oldest_seconds"`
}

// Sagas count the live instances of a schema.
type Sagas struct {
	Running      int     `json:"running"`
	Compensating int     `json:"compensating"`
	Paused       int     `json:"paused"`
	Stuck        int     `json:"stuck"`
	Held         int     `json:"held"`
	OldestStuck  float64 `json:"oldest_stuck_seconds"`
	OldestPaused float64 `json:"oldest_paused_seconds"`
	OldestHeld   float64 `json:"oldest_held_seconds"`
	Silent       float64 `json:"silent_seconds"`
	Overdue      float64 `json:"overdue_seconds"`
}

// Requests count the idempotency keys in progress, and those whose outcome is unknown.
type Requests struct {
	InProgress      int     `json:"in_progress"`
	Abandoned       int     `json:"past_lease"`
	OldestAbandoned float64 `json:"oldest_past_lease_seconds"`
	Unswept         float64 `json:"oldest_expired_seconds"` // how long ago the oldest key expired that is still stored
	Unknown         int     `json:"unknown"`
	OldestUnknown   float64 `json:"oldest_unknown_seconds"`
}

// Unreadable is a part that cannot be read.
type Unreadable struct {
	Part   migrations.Part `json:"part"`
	Denied bool            `json:"denied"`
	Error  string          `json:"error"`
}

// A Problem is an [operator.Problem] with its text and the command to run next.
type Problem struct {
	Kind    operator.ProblemKind `json:"kind"`
	Count   int                  `json:"count"`
	Oldest  float64              `json:"oldest_seconds"`
	Text    string               `json:"text"`
	Command string               `json:"command"`
}

// printJSON prints a line for each schema.
func (p *page) printJSON(w io.Writer) (problems int, err error) {
	for i := range p.schemas {
		line := newSchema(&p.schemas[i])
		problems += len(line.Problems)
		if err := cli.PrintJSON(w, line); err != nil {
			return problems, err
		}
	}
	return problems, nil
}

func newSchema(s *schema) *Schema {
	j := &Schema{
		Schema: s.Name, Version: s.Version, Newest: migrations.Newest(), VersionDenied: s.Denied, Parts: s.Parts, CountLimit: outbox.CountLimit,
		Inbox: newInbox(s.Inbox), Sagas: newSagas(s.Sagas), Problems: []Problem{},
	}
	if s.Outbox != nil {
		status := outboxes.NewStatus(s.Name, s.Outbox)
		j.Outbox = &status
	}
	if r := s.Requests; r != nil {
		j.Requests = &Requests{r.InProgress, r.Abandoned, r.OldestAbandoned.Seconds(), r.Unswept.Seconds(), r.Unknown, r.OldestUnknown.Seconds()}
	}
	for _, p := range s.Unreadable {
		j.Unreadable = append(j.Unreadable, Unreadable{p.Part, p.Denied, p.Err.Error()})
	}
	for _, n := range s.Problems() {
		text, command := s.explainProblem(&n)
		j.Problems = append(j.Problems, Problem{n.Kind, n.Count, n.Oldest.Seconds(), text, command})
	}
	return j
}

func newInbox(i *consumer.Stats) *Inbox {
	if i == nil {
		return nil
	}
	j := &Inbox{i.Retrying, i.Calling, i.Dead, i.Overdue.Seconds(), []Parked{}}
	for k := range i.Parked {
		p := &i.Parked[k]
		j.Parked = append(j.Parked, Parked{p.Step, p.Undo, p.State(), p.Reason, p.Messages, p.Oldest.Seconds()})
	}
	return j
}

func newSagas(g *saga.Stats) *Sagas {
	if g == nil {
		return nil
	}
	return &Sagas{
		g.Running, g.Compensating, g.Paused, g.Stuck, g.Held,
		g.OldestStuck.Seconds(), g.OldestPaused.Seconds(), g.OldestHeld.Seconds(), g.Silent.Seconds(), g.Overdue.Seconds(),
	}
}
