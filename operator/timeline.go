package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/saga"
)

// A StepState is the state of a step of an instance.
type StepState string

// The states. TimelineStep.Due is set for a step that waits for its next attempt or has a deadline.
const (
	StepToCome      StepState = "to-come" // not begun
	StepNever       StepState = "never"   // not begun, and will not be: the saga compensates or has ended
	StepRunning     StepState = "running" // its reply is awaited
	StepWaiting     StepState = "waiting" // waits for its next attempt
	StepDone        StepState = "done"
	StepSkipped     StepState = "skipped"  // its condition did not hold
	StepRejected    StepState = "rejected" // it has no effect
	StepUnknown     StepState = "unknown"  // it may have an effect, which is compensated
	StepStuck       StepState = "stuck"    // a person must act
	StepUndoing     StepState = "undoing"  // the reply to its compensation is awaited
	StepUndoWaiting StepState = "undo-waiting"
	StepUndoStuck   StepState = "undo-stuck"
	StepUndone      StepState = "undone"
)

// A TimelineStep is a step of an instance, or a group of steps.
type TimelineStep struct {
	Number int // of a step, from 1 on, as in the n of its messages; 0: a group
	Name   string
	Depth  int    // number of groups around it
	Kind   string // remote, local, nested, all (at once) or seq (one after the other)
	Pivot  bool
	Undo   string // kind of its compensation: remote, local or nested; "": none
	Saga   string // of a nested one: the name of the saga, also before it begins

	State    StepState // "" of a group
	Attempt  int       // of the action
	N        string    // n of the step key of its messages, at this attempt
	Topic    string    // of its last command or compensation; "": none
	Type     string    // of that message
	Reason   string    // of its last failure, or of the decision about it
	Override bool      // a person has decided its result
	InDoubt  bool      // of a stuck step: it may have an effect
	Held     bool      // of a running step: its command is a dead letter at the participant
	Resend   bool      // its last message will be sent again
	NotDone  bool      // of an undone step: its action had no effect, so nothing was undone

	Began, Sent, Ended   time.Time // the first attempt, the last attempt of action or compensation, and the end of the action
	UndoBegan, UndoEnded time.Time
	Due                  time.Time // the next attempt, or its deadline; zero: now or never

	Nested *Instance // the nested saga of this attempt; nil: none
}

// Awaits reports whether the step waits for a reply.
func (s *TimelineStep) Awaits() bool { return s.State == StepRunning || s.State == StepUndoing }

// A DecisionEntry is a decision of a person about an instance.
type DecisionEntry struct {
	ID   int64
	At   time.Time
	Verb Verb
	Step string
	By   string
	Why  string
}

// A Timeline is everything that the tables have about an instance, at one moment.
type Timeline struct {
	Instance
	Paused       bool   // by a person, stuck or not
	Compensating bool   // stuck or not, paused or not
	Fault        string // the error that keeps orchestrators from continuing; "": none. They retry until they give up

	// PlanProblem says why the plan is not known; "": it is. Without the plan, steps have no names,
	// and Fault, Deadline, Next, Undo and UndoNothing are empty.
	PlanProblem string
	Steps       []TimelineStep // in the plan's order
	Deadline    time.Time      // of the saga as a whole; zero: none any more
	Next        []string       // what an orchestrator does next, such as "do flight"

	// Undo are the steps that a cancellation now would compensate, or that are still to be
	// compensated: in that order, and each element has the steps that are compensated in
	// parallel. UndoNothing says why there are none.
	Undo        [][]string
	UndoNothing string

	Nested  []Instance // instances within it, at any depth
	Journal []DecisionEntry
	At      time.Time       // the moment, by the clock of the database
	State   json.RawMessage // of the definition; it may be confidential

	TraceParent string // the header traceparent of its start; "": it was not traced
}

// StatusText returns the status, and adds that the instance is paused if the status is another one.
func (t *Timeline) StatusText() string {
	if t.Paused && t.Status != saga.StatusPaused {
		return string(t.Status) + ", and paused"
	}
	return string(t.Status)
}

// Get returns the timeline of the instance at an address. Its error is an
// [saga.ErrNoInstance] if there is none, or an [ErrAmbiguous].
func (n *Instances) Get(ctx context.Context, at saga.Address) (t Timeline, err error) {
	err = n.db.InTx(ctx, oneSnapshot, func(tx pgx.Tx) (err error) {
		t, err = n.Read(ctx, tx, at)
		return err
	})
	return t, err
}

// Read does what [Instances.Get] does in tx, which should be REPEATABLE READ. It takes no lock.
func (n *Instances) Read(ctx context.Context, tx pgx.Tx, at saga.Address) (Timeline, error) {
	fail := func(err error) (Timeline, error) {
		return Timeline{}, fmt.Errorf("operator: read %s: %w", at, sqlschema.Explain(err))
	}
	found, err := n.resolveAddress(ctx, tx, at)
	if err != nil {
		return fail(err)
	}
	var t Timeline
	if t.Instance, t.Nested, err = n.readFamily(ctx, tx, found); err != nil {
		return fail(err)
	}
	i, err := sagarow.ScanRow(tx.QueryRow(ctx, n.rows.ReadInstance, found.Scope, found.Key, found.Path))
	if err != nil {
		return fail(err)
	}
	if err := n.readClockAndJournal(ctx, tx, &t); err != nil {
		return fail(err)
	}
	m, err := n.readMachine(ctx, tx, i.Name, i.Version, i.Hash)
	switch {
	case err != nil && !errors.Is(err, ErrPlanUnknown):
		return fail(err)
	case err == nil && !m.Fits(&i.Progress):
		t.PlanProblem = fmt.Sprintf("the instance has %d steps, the version that is registered has %d", len(i.Progress.Steps), m.Steps())
	case err != nil:
		t.PlanProblem = err.Error()
	}
	t.fillSteps(i, m)
	return t, nil
}

// readFamily returns the instance at an address, and those within it.
func (n *Instances) readFamily(ctx context.Context, tx pgx.Tx, at saga.Address) (is Instance, nested []Instance, err error) {
	rows, _ := tx.Query(ctx, n.sql.readFamily, at.Scope, at.Key)
	all, err := pgx.CollectRows(rows, scanListed)
	if err != nil {
		return is, nil, err
	}
	for _, i := range all {
		switch {
		case i.Path == at.Path:
			is = i
		case flow.Root(i.Path) == flow.Root(at.Path) && (at.Path == flow.Root(at.Path) || strings.HasPrefix(i.Path, at.Path+"-")):
			nested = append(nested, i)
		}
	}
	if is.Key == "" {
		return is, nil, saga.ErrNoInstance
	}
	return is, nested, nil
}

func (n *Instances) readClockAndJournal(ctx context.Context, tx pgx.Tx, t *Timeline) error {
	if err := tx.QueryRow(ctx, n.sql.readClock).Scan(&t.At); err != nil {
		return err
	}
	rows, _ := tx.Query(ctx, n.sql.readJournal, t.Scope, t.Key, t.Path)
	var err error
	t.Journal, err = pgx.CollectRows(rows, pgx.RowToStructByPos[DecisionEntry])
	return err
}

// fillSteps sets the fields that follow from the progress of i.
func (t *Timeline) fillSteps(i *sagarow.Row, m *machine.Machine) {
	t.TraceParent = i.Trace[0]
	t.State, t.Paused, t.Compensating = i.State, i.Progress.Paused, i.Progress.Phase == machine.Compensating
	if t.PlanProblem != "" {
		for id := range i.Progress.Steps {
			t.addStep(i, &machine.Node{Name: fmt.Sprintf("#%d", id+1)}, id+1, 0)
		}
		return
	}
	t.Fault = faultOf(i, m)
	id := 0
	t.addNodes(i, m.Plan().Nodes, &id, 0)
	ahead := tryCancel(m, &i.Progress)
	t.Undo, t.UndoNothing = ahead.waves, ahead.nothing
	if d := m.Plan().Deadline; d > 0 && ahead.cancellable {
		t.Deadline = t.StartedAt.Add(d)
	}
	for _, task := range m.Next(&i.Progress) {
		if task.Kind == machine.OnEnd {
			t.Next = append(t.Next, "call "+EndStep)
			continue
		}
		t.Next = append(t.Next, string(task.Kind)+" "+m.Step(task.ID).Name)
	}
	t.addEndCall(&i.Progress.End, id+1)
}

func (t *Timeline) addNodes(i *sagarow.Row, nodes []machine.Node, id *int, depth int) {
	for k := range nodes {
		n := &nodes[k]
		if len(n.Nodes) > 0 {
			t.Steps = append(t.Steps, TimelineStep{Name: n.Name, Depth: depth, Kind: string(n.Kind)})
			t.addNodes(i, n.Nodes, id, depth+1)
			continue
		}
		*id++
		t.addStep(i, n, *id, depth)
	}
}

// addEndCall adds a step after all others if a call of OnEnd has failed.
func (t *Timeline) addEndCall(c *machine.EndCall, number int) {
	if c.Tries == 0 {
		return
	}
	step := TimelineStep{Number: number, Name: EndStep, Kind: string(machine.Local), State: StepWaiting, Attempt: c.Tries, Reason: c.Reason}
	if c.Stuck {
		step.State = StepStuck
	}
	if c.Due != 0 {
		step.Due = t.StartedAt.Add(c.Due.Duration())
	}
	t.Steps = append(t.Steps, step)
}

func (t *Timeline) addStep(i *sagarow.Row, n *machine.Node, id, depth int) {
	s := &i.Progress.Steps[id-1]
	begun := s.State != machine.Idle && s.Attempt > 0
	at := func(m machine.Millis, zero bool) time.Time {
		if m == 0 && !zero {
			return time.Time{}
		}
		return t.StartedAt.Add(m.Duration())
	}
	step := TimelineStep{
		Number: id, Name: n.Name, Depth: depth, Kind: string(n.Kind), Pivot: n.Pivot, Undo: string(n.Undo), Saga: n.Saga,
		State: stateOfStep(&i.Progress, s), Attempt: s.Attempt, Reason: s.Reason, Override: s.Override, InDoubt: s.Doubt, Held: s.Held, Resend: s.Resend, NotDone: s.NotDone,
		Began: at(s.Began, begun), Sent: at(s.Sent, begun), Ended: at(s.Ended, s.State == machine.Done),
		UndoBegan: at(s.UndoBegan, false), UndoEnded: at(s.UndoEnded, false), Due: at(s.Due, false),
	}
	if begun {
		own := flow.N(i.Path, id, s.Attempt)
		incarnation, rest := flow.Incarnation(own)
		step.N, step.Nested = stepkey.JoinN(incarnation, flow.Mark(i.Root, rest)), t.nestedAt(own)
		step.Topic, step.Type = sentTo(n, s.UndoBegan > 0)
	}
	t.Steps = append(t.Steps, step)
}

// sentTo returns topic and type of the command of a step, or of its compensation.
func sentTo(n *machine.Node, undo bool) (topic, typ string) {
	switch {
	case !undo:
		return n.Topic, n.Type
	case n.Undo == machine.Nested:
		return saga.Topic(n.Saga), saga.TypeRevoke
	}
	return n.UndoTopic, n.UndoType
}

func (t *Timeline) nestedAt(path string) *Instance {
	k := slices.IndexFunc(t.Nested, func(i Instance) bool { return i.Path == path })
	if k < 0 {
		return nil
	}
	return &t.Nested[k]
}

func stateOfStep(p *machine.Progress, s *machine.Step) StepState {
	switch {
	case s.State != machine.Idle:
		return StepState(s.State)
	case p.Phase == machine.Running, p.Back > 0:
		return StepToCome
	default:
		return StepNever
	}
}

// An outlook says what a cancellation would compensate.
type outlook struct {
	waves       [][]string // names of steps in the order of their compensation
	nothing     string     // why there are none
	cancellable bool
}

// tryCancel cancels a copy of p and lets each compensation succeed.
func tryCancel(m *machine.Machine, p *machine.Progress) (o outlook) {
	if p.Phase.Ended() {
		o.nothing = "it has ended"
		return o
	}
	trial := *p
	trial.Steps = slices.Clone(p.Steps)
	if p.Phase == machine.Running {
		if err := m.Apply(&trial, machine.Event{Kind: machine.Cancel}); err != nil {
			o.nothing = strings.TrimPrefix(err.Error(), machine.ErrRefused.Error()+": ")
			return o
		}
		o.cancellable = true
	}
	trial.Paused = false
	for trial.Phase == machine.Compensating {
		wave := undoWave(m, &trial)
		if len(wave) == 0 {
			break // no event leads to such a progress
		}
		o.waves = append(o.waves, wave)
	}
	if len(o.waves) == 0 {
		o.nothing = "no step that may have been done has a compensation"
	}
	return o
}

// undoWave lets the next compensations succeed and returns their steps. A step in flight may
// have an effect.
func undoWave(m *machine.Machine, p *machine.Progress) (wave []string) {
	for id := range p.Steps {
		s := &p.Steps[id]
		s.Resend, s.Result = false, nil
		switch {
		case s.State == machine.InFlight && m.Step(id+1).Undo != "":
			s.State = machine.Unknown
		case s.State == machine.UndoWaiting:
			s.Due = 0
		}
	}
	for _, task := range m.Next(p) {
		if task.Kind == machine.OnEnd {
			return nil // nothing is left to undo
		}
		_ = m.Apply(p, machine.Event{Kind: machine.Sent, Step: task.ID, Undo: true})
	}
	var undone []int
	for id := range p.Steps {
		if s := p.Steps[id].State; s == machine.Undoing || s == machine.UndoStuck {
			undone = append(undone, id+1)
			wave = append(wave, m.Step(id+1).Name)
		}
	}
	for _, id := range undone {
		_ = m.Apply(p, machine.Event{Kind: machine.Replied, Step: id, Undo: true, Attempt: p.Steps[id-1].Attempt})
	}
	return wave
}
