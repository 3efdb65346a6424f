package saga

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
)

// StepState is where a step of an instance is.
type StepState string

// The states. Those of a step that waits to be tried again, or has a deadline, come with a Due.
const (
	StepToCome      StepState = "to-come"  // its turn has not come
	StepNever       StepState = "never"    // nor will it, as things are: the saga compensates, or has ended
	StepRunning     StepState = "running"  // a reply is awaited
	StepWaiting     StepState = "waiting"  // to be tried again
	StepDone        StepState = "done"     //
	StepSkipped     StepState = "skipped"  // its condition did not hold
	StepRejected    StepState = "rejected" // it has done nothing
	StepUnknown     StepState = "unknown"  // it may have been done, and is to be undone
	StepStuck       StepState = "stuck"    // a person must look at it
	StepUndoing     StepState = "undoing"  // the reply to its compensation is awaited
	StepUndoWaiting StepState = "undo-waiting"
	StepUndoStuck   StepState = "undo-stuck"
	StepUndone      StepState = "undone"
)

// A TimelineStep is a step of an instance, or one that holds others.
type TimelineStep struct {
	Number int // of a step, from 1 on, as in its messages' n; 0: it holds others
	Name   string
	Depth  int    // how many steps hold it
	Kind   string // remote, local, nested, all (at once) or seq (one after the other)
	Pivot  bool
	Undo   string // how it is compensated: remote, local or nested; "": it is not

	State    StepState // "" of one that holds others
	Attempt  int       // at the action
	N        string    // what its messages' step key ends with, at this attempt
	Topic    string    // where the last of its commands, or its compensation, was sent; "": there is none
	Type     string    // of that message
	Reason   string    // of its last failure; or why a person has decided about it
	Override bool      // a person has decided what it passes for
	Doubt    bool      // of one that is stuck: it may have been done
	Again    bool      // its last message is to be sent again

	Began, Sent, Ended   time.Time // the first attempt, the last attempt at anything, and the action's end
	UndoBegan, UndoEnded time.Time
	Due                  time.Time // when it is tried again, or its deadline passes; zero: now, or never

	Nested *Instance // the saga that it runs, at this attempt; nil: there is none
}

// Awaits reports whether a message's reply is what is waited for.
func (s *TimelineStep) Awaits() bool { return s.State == StepRunning || s.State == StepUndoing }

// A JournalEntry is what a person has decided about an instance.
type JournalEntry struct {
	ID   int64
	At   time.Time
	Verb Verb
	Step string
	By   string
	Why  string
}

// A Timeline is all that the table knows of an instance, at one moment.
type Timeline struct {
	Instance
	Paused       bool   // by a person, stuck or not
	Compensating bool   // stuck or not, paused or not
	Fault        string // why no orchestrator could go on with it; "": one could. Until they give up, they try again

	// PlanProblem says why the plan is not known; "": it is. Without it, steps have
	// no names, and nothing below them is known but the journal.
	PlanProblem string
	Steps       []TimelineStep // in the plan's order
	Deadline    time.Time      // of the saga as a whole, with which it would be compensated; zero: none any more
	Next        []string       // what an orchestrator is to do now, such as "do flight"

	// Undo is what would be undone if the saga were cancelled now, or is still to be if it
	// compensates: what comes first first, each with what is undone beside it. UndoNothing says why that is nothing.
	Undo        [][]string
	UndoNothing string

	Nested  []Instance // instances within it, in theirs too
	Journal []JournalEntry
	At      time.Time       // the moment, by the database's clock
	State   json.RawMessage // the author's, which may hold what not everybody is to see
}

// oneMoment is the transaction in which several tables are read.
var oneMoment = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

// Get returns the timeline of the instance at an address. Its error is an
// [ErrNoInstance] if there is none, or an [ErrAmbiguous].
func (n *Instances) Get(ctx context.Context, at Address) (t Timeline, err error) {
	err = pgx.BeginTxFunc(ctx, n.db, oneMoment, func(tx pgx.Tx) (err error) {
		t, err = n.Read(ctx, tx, at)
		return err
	})
	return t, err
}

// Read does what [Instances.Get] does, as of the snapshot of tx, which should be one of
// REPEATABLE READ. It takes no lock.
func (n *Instances) Read(ctx context.Context, tx pgx.Tx, at Address) (Timeline, error) {
	fail := func(err error) (Timeline, error) {
		return Timeline{}, fmt.Errorf("saga: read %s: %w", at, sqlschema.Explain(err))
	}
	found, err := n.resolve(ctx, tx, at)
	if err != nil {
		return fail(err)
	}
	var t Timeline
	if t.Instance, t.Nested, err = n.family(ctx, tx, found); err != nil {
		return fail(err)
	}
	i, err := sagarow.ScanRow(tx.QueryRow(ctx, n.rows.ReadInstance, found.Scope, found.Key, found.Path))
	if err != nil {
		return fail(err)
	}
	if err := n.readRest(ctx, tx, &t); err != nil {
		return fail(err)
	}
	m, err := n.machine(ctx, tx, i.Name, i.Version, i.Hash)
	switch {
	case err != nil && !errors.Is(err, ErrPlanUnknown):
		return fail(err)
	case err == nil && !m.Fits(&i.Progress):
		t.PlanProblem = fmt.Sprintf("the instance has %d steps, the version that is registered has %d", len(i.Progress.Steps), m.Steps())
	case err != nil:
		t.PlanProblem = err.Error()
	}
	t.fill(i, m)
	return t, nil
}

// family returns the instance at an address, and those within it.
func (n *Instances) family(ctx context.Context, tx pgx.Tx, at Address) (is Instance, nested []Instance, err error) {
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
		return is, nil, ErrNoInstance
	}
	return is, nested, nil
}

func (n *Instances) readRest(ctx context.Context, tx pgx.Tx, t *Timeline) error {
	if err := tx.QueryRow(ctx, n.sql.readClock).Scan(&t.At); err != nil {
		return err
	}
	rows, _ := tx.Query(ctx, n.sql.readJournal, t.Scope, t.Key, t.Path)
	var err error
	t.Journal, err = pgx.CollectRows(rows, pgx.RowToStructByPos[JournalEntry])
	return err
}

// fill sets what the progress of i says.
func (t *Timeline) fill(i *sagarow.Row, m *machine.Machine) {
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
	ahead := trial(m, &i.Progress)
	t.Undo, t.UndoNothing = ahead.waves, ahead.nothing
	if d := m.Plan().Deadline; d > 0 && ahead.cancellable {
		t.Deadline = t.StartedAt.Add(d)
	}
	for _, task := range m.Next(&i.Progress) {
		t.Next = append(t.Next, string(task.Kind)+" "+m.Step(task.ID).Name)
	}
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
		Number: id, Name: n.Name, Depth: depth, Kind: string(n.Kind), Pivot: n.Pivot, Undo: string(n.Undo),
		State: stepState(&i.Progress, s), Attempt: s.Attempt, Reason: s.Reason, Override: s.Override, Doubt: s.Doubt, Again: s.Resend,
		Began: at(s.Began, begun), Sent: at(s.Sent, begun), Ended: at(s.Ended, s.State == machine.Done),
		UndoBegan: at(s.UndoBegan, false), UndoEnded: at(s.UndoEnded, false), Due: at(s.Due, false),
	}
	if begun {
		own := flow.N(i.Path, id, s.Attempt)
		incarnation, rest := flow.Incarnation(own)
		step.N, step.Nested = stepkey.JoinN(incarnation, flow.Mark(i.Root, rest)), t.at(own)
		step.Topic, step.Type = sentTo(n, s.UndoBegan > 0)
	}
	t.Steps = append(t.Steps, step)
}

// sentTo returns where a step's command, or its compensation, is sent, and of which type it is.
func sentTo(n *machine.Node, undo bool) (topic, typ string) {
	switch {
	case !undo:
		return n.Topic, n.Type
	case n.Undo == machine.Nested:
		return Topic(n.Saga), TypeRevoke
	}
	return n.UndoTopic, n.UndoType
}

func (t *Timeline) at(path string) *Instance {
	k := slices.IndexFunc(t.Nested, func(i Instance) bool { return i.Path == path })
	if k < 0 {
		return nil
	}
	return &t.Nested[k]
}

func stepState(p *machine.Progress, s *machine.Step) StepState {
	switch {
	case s.State != machine.Idle:
		return StepState(s.State)
	case p.Phase == machine.Running, p.Back > 0:
		return StepToCome
	default:
		return StepNever
	}
}
