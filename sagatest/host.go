package sagatest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// An instance is a row of the table saga. It is not changed once it is in a host.
type instance struct {
	flow.Instance
	flow    *flow.Flow
	parent  string         // name of the saga around it
	started machine.Millis // after the outermost
	updated machine.Millis
}

// A host keeps the instances of one saga in memory: the outermost, and those nested in it. It stands for the tables of
// package saga.
type host struct {
	now  machine.Millis
	rows map[string]*instance // by path

	// savepoint, if set, is called before a local step. If the step fails, rollback is called.
	savepoint func() (rollback func())
	fail      error // error of the next local step, at its end

	// takeLate, if set, takes an event for which no step waits: a planted bug.
	takeLate func(r *flow.Run, e flow.Event) error
}

// A posting is a message that an instance has sent, or a local step that has run.
type posting struct {
	outbox.Message
	by  string        // path of the instance
	cmd *flow.Command // nil: the message is not for a participant
	ran *ran          // if set, it is no message: a local step has run
}

// A session is the work on one instance in one transaction. Only [host.commitRows] keeps it.
type session struct {
	host *host
	tx   pgx.Tx
	row  *instance
	rows map[string]*instance
	sent []posting
}

func (h *host) cloneHost() *host {
	return &host{now: h.now, rows: maps.Clone(h.rows)}
}

// beginOutermost begins the outermost instance.
func (h *host) beginOutermost(ctx context.Context, tx pgx.Tx, f *flow.Flow, scope, key string, state any) (*session, error) {
	id := deterministicID(scope, key, "")
	s := &session{host: h, tx: tx, rows: map[string]*instance{}}
	return s, s.beginInstance(ctx, f, &instance{Instance: flow.Instance{ID: id, Root: id, Scope: scope, Key: key}, flow: f}, state)
}

func (s *session) beginInstance(ctx context.Context, f *flow.Flow, row *instance, state any) error {
	row.started, row.updated = s.host.now, s.host.now
	s.row = row
	run := s.newRun()
	begin := func() error {
		run.SetFirstState(state)
		return s.doWork(ctx, run)
	}
	if err := guard.Call(begin); err != nil {
		return fmt.Errorf("begin %s: %w", f.Name(), err)
	}
	s.rows[row.Path] = row
	s.answerParent()
	return nil
}

// moveRow moves the instance of a path by events. The host is unchanged until the caller commits the session.
func (h *host) moveRow(ctx context.Context, tx pgx.Tx, path string, events ...flow.Event) (*session, error) {
	old, ok := h.rows[path]
	if !ok {
		return nil, fmt.Errorf("there is no instance with the path %q", path)
	}
	row := *old
	row.Progress.Steps = slices.Clone(row.Progress.Steps)
	row.updated = h.now
	s := &session{host: h, tx: tx, row: &row, rows: map[string]*instance{path: &row}}
	phase := row.Progress.Phase
	run := s.newRun()
	if err := run.OpenState(); err != nil {
		return nil, err
	}
	for _, e := range events {
		if err := guard.Call(func() error { return s.takeEvent(ctx, run, e) }); err != nil {
			return nil, err
		}
	}
	if !phase.Ended() || row.Progress.Revoke {
		s.answerParent()
	}
	return s, nil
}

// commitRows stores the rows of a session.
func (h *host) commitRows(s *session) { maps.Copy(h.rows, s.rows) }

func (s *session) newRun() *flow.Run {
	return &flow.Run{Flow: s.row.flow, Instance: &s.row.Instance, Now: s.host.now - s.row.started}
}

func (s *session) postMessage(m outbox.Message, c *flow.Command) {
	s.sent = append(s.sent, posting{Message: m, by: s.row.Path, cmd: c})
}

func (s *session) answerParent() {
	if s.row.parent != "" && s.row.Progress.Phase.Ended() {
		s.postMessage(s.row.answerToParent(), nil)
	}
}

// takeEvent takes one event, and does the work that follows.
func (s *session) takeEvent(ctx context.Context, run *flow.Run, e flow.Event) error {
	err := run.TakeEvent(e)
	if errors.Is(err, machine.ErrLate) && s.host.takeLate != nil {
		err = s.host.takeLate(run, e)
	}
	if err != nil {
		return err
	}
	return s.doWork(ctx, run)
}

// doWork does the work that a run asks for, until none is left, as package saga does with a database.
func (s *session) doWork(ctx context.Context, run *flow.Run) error {
	for {
		work, err := run.NextWork()
		if err != nil || work == nil {
			return err
		}
		switch {
		case work.Command != nil:
			s.postCommand(work.Command)
		case work.Child != nil:
			err = s.beginChild(ctx, work.Child)
		default:
			err = s.runLocal(ctx, run, work.Local)
		}
		if err != nil {
			return fmt.Errorf("step %s: %w", work.Step, err)
		}
	}
}

// postCommand posts a command. A revocation is for an orchestrator, and no command of a participant.
func (s *session) postCommand(c *flow.Command) {
	if c.Nested != "" {
		s.postMessage(s.row.commandMessage(c), nil)
		return
	}
	s.postMessage(s.row.commandMessage(c), c)
}

// beginChild begins a nested instance, unless it exists.
func (s *session) beginChild(ctx context.Context, c *flow.Child) error {
	if _, exists := s.host.rows[c.Path]; exists {
		return nil
	}
	row := &instance{flow: c.Flow, parent: s.row.flow.Name(), Instance: flow.Instance{
		ID: deterministicID(s.row.Scope, s.row.Key, c.Path), Root: s.row.Root, Scope: s.row.Scope, Key: s.row.Key, Path: c.Path,
	}}
	within := &session{host: s.host, tx: s.tx, rows: s.rows}
	if err := within.beginInstance(ctx, c.Flow, row, c.State); err != nil {
		return err
	}
	s.sent = append(s.sent, within.sent...)
	return nil
}

// postEmitted posts the messages of a local step.
func (s *session) postEmitted(msgs []outbox.Message) error {
	for _, m := range msgs {
		m = s.row.completeMessage(m)
		if err := outbox.Validate(m); err != nil {
			return err
		}
		s.postMessage(m, nil)
	}
	return nil
}

// runLocal runs a local step, and notes which one that was.
func (s *session) runLocal(ctx context.Context, run *flow.Run, step *flow.LocalStep) error {
	failed, err := s.inSavepoint(ctx, func(tx pgx.Tx) error {
		err := step.ExecuteStep(ctx, tx)
		if err == nil {
			err = step.ExecuteQueued(ctx, tx)
		}
		return err
	})
	s.sent = append(s.sent, posting{by: s.row.Path, ran: &ran{step.Turn, failed}})
	if err != nil {
		return err
	}
	if failed == nil {
		if err := s.postEmitted(step.Messages); err != nil {
			return err
		}
	}
	return run.EndLocal(step, failed)
}

// inSavepoint runs do in a savepoint, if there is a transaction.
func (s *session) inSavepoint(ctx context.Context, do func(tx pgx.Tx) error) (failed, err error) {
	if s.host != nil && s.host.savepoint != nil {
		rollback, inside := s.host.savepoint(), do
		do = func(tx pgx.Tx) error {
			err := inside(tx)
			if err == nil {
				err, s.host.fail = s.host.fail, nil
			}
			if err != nil {
				rollback()
			}
			return err
		}
	}
	if s.tx == nil {
		return do(nil), nil
	}
	inner, err := s.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if failed = do(inner); failed == nil {
		failed = inner.Commit(ctx)
	}
	if failed != nil {
		err = inner.Rollback(ctx)
	}
	return failed, err
}

// nextDueOf returns when the instance of a path is due next, on the host's clock, and whether it ever is. With a
// patience, an instance is also due when it has had no reply for that long.
func (h *host) nextDueOf(path string, patience machine.Millis) (at machine.Millis, silent, ok bool) {
	i := h.rows[path]
	if d := i.flow.Machine.Due(&i.Progress); d > 0 {
		at, ok = i.started+d, true
	}
	if s := i.updated + patience; patience > 0 && i.awaitsReply() && (!ok || s < at) {
		at, silent, ok = s, true, true
	}
	return max(at, h.now), silent, ok
}

// awaitsReply reports whether a step without a deadline waits for a reply.
func (i *instance) awaitsReply() bool {
	status := statusOf(&i.Progress)
	return (status == "running" || status == "compensating") && len(i.silentSteps()) > 0
}

// silentSteps returns the ids of the steps that wait for a participant and have no deadline.
func (i *instance) silentSteps() (ids []int) {
	for n := range i.Progress.Steps {
		s := &i.Progress.Steps[n]
		waits := s.State == machine.InFlight || s.State == machine.Undoing
		if waits && s.Due == 0 && i.flow.Machine.Step(n+1).Kind != machine.Nested {
			ids = append(ids, n+1)
		}
	}
	return ids
}

// overdueEvents returns the events by which the silent steps of an instance become stuck.
func (i *instance) overdueEvents(reason string) (events []flow.Event) {
	for _, id := range i.silentSteps() {
		s := &i.Progress.Steps[id-1]
		events = append(events, flow.Event{Event: machine.Event{
			Kind: machine.Overdue, Step: id, Undo: s.State == machine.Undoing, Attempt: s.Attempt, Reason: reason,
		}})
	}
	return events
}

// labelOfEnd stands for the call of OnEnd in the place of the name of a step.
const labelOfEnd = "(on-end)"

// sortedPaths returns the paths of all instances, the outermost first.
func (h *host) sortedPaths() []string { return slices.Sorted(maps.Keys(h.rows)) }

// labelOfStep returns the name of a step, with the steps around it. Step 0 is the call of OnEnd.
func (h *host) labelOfStep(path string, step int) string {
	name := labelOfEnd
	if step > 0 {
		name = h.rows[path].flow.Machine.Step(step).Name
	}
	if path == "" {
		return name
	}
	around, err := flow.ParseN(path)
	if err != nil {
		panic(err) // flow.N has made it
	}
	return h.labelOfStep(around.Path, around.Step) + "/" + name
}
