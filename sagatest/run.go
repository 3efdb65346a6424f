package sagatest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A Run is an instance of a saga in memory, with those nested in it. The test stands for all participants: it checks
// the commands, and answers. Time stands still until [Run.Advance] is called.
//
// A failed expectation ends the test, and prints all events of the run. Only one goroutine may use a Run.
type Run[S any] struct {
	*core
	path string
}

// A core is what a run and the views of its nested sagas share.
type core struct {
	t        testing.TB
	ctx      context.Context
	host     *host
	timeline timeline
	commands []*Command
	emitted  []*emitted
	statuses map[string]saga.Status // the last ones in the timeline

	tx       pgx.Tx
	scope    string
	patience time.Duration
	lenient  bool
	title    string // names the run, where a test has several
}

type emitted struct {
	outbox.Message
	seen bool
}

// An Option is what most tests leave alone.
type Option func(*core)

// WithTx runs local steps in tx, each in its own savepoint. Default: their transaction is nil.
func WithTx(tx pgx.Tx) Option { return func(c *core) { c.tx = tx } }

// WithScope sets the scope of the instance. Default: "test".
func WithScope(scope string) Option { return func(c *core) { c.scope = scope } }

// WithPatience is that of [saga.Options]. Default: 24 h.
func WithPatience(d time.Duration) Option { return func(c *core) { c.patience = d } }

// AllowLeftovers lets a test end with commands or messages that it has neither expected nor answered.
func AllowLeftovers() Option { return func(c *core) { c.lenient = true } }

// Start starts an instance of d with state as its first. Commands and messages that are neither expected nor answered
// when the test ends are errors.
func Start[S any](t testing.TB, d *saga.Definition[S], key string, state S, opts ...Option) *Run[S] {
	t.Helper()
	c := &core{
		t: t, ctx: t.Context(), host: &host{rows: map[string]*instance{}}, statuses: map[string]saga.Status{},
		scope: "test", patience: 24 * time.Hour, title: fmt.Sprintf("%s, key %s, started at %s", d.Name(), key, callerOfStart()),
	}
	for _, o := range opts {
		o(c)
	}
	c.noteLine("start", "%s, version %d, key %s", d.Name(), d.Version(), key)
	s, err := c.host.beginOutermost(c.ctx, c.tx, flow.FlowOfPlan(d), c.scope, key, &state)
	if err != nil {
		c.failTest("%s", c.explainForRun(err))
	}
	c.commitSession(s)
	t.Cleanup(c.checkLeftovers)
	return &Run[S]{core: c}
}

// callerOfStart returns where [Start] was called. At the end of the test that line is no longer on the stack.
func callerOfStart() string {
	_, file, line, _ := runtime.Caller(2)
	return fmt.Sprintf("%s:%d", filepath.Base(file), line)
}

func (c *core) explainForRun(err error) string { return explainError(err, c.tx != nil, "WithTx") }

// Child returns the nested saga that the last attempt at a step has begun. It is part of the same run: its end is the
// answer to the step.
func Child[C, S any](r *Run[S], step string) *Run[C] {
	r.t.Helper()
	id, s := r.findStep(step)
	path := flow.N(r.path, id, s.Attempt)
	if s.Attempt == 0 || r.host.rows[path] == nil {
		r.failTest("step %s has not begun a nested saga", step)
	}
	child := &Run[C]{core: r.core, path: path}
	child.State() // fails unless the saga's state is a C
	return child
}

// Advance lets d pass. Deadlines, retries and other timers that are due happen in order, each at its time.
func (r *Run[S]) Advance(d time.Duration) {
	r.t.Helper()
	until := r.host.now + machine.MillisOf(d)
	for range maxTimers {
		path, silent, at, ok := r.nextTimer()
		if !ok || at > until {
			r.host.now = until
			return
		}
		r.host.now = at
		r.fireTimer(path, silent)
	}
	r.failTest("there are more than %d timers in %s", maxTimers, d)
}

// timerEvent is the event of an instance that is due.
var timerEvent = flow.Event{Event: machine.Event{Kind: machine.Timer}}

// maxTimers limits the timers in one Advance.
const maxTimers = 10_000

// nextTimer returns the instance that is due next.
func (c *core) nextTimer() (path string, silent bool, at machine.Millis, ok bool) {
	for _, p := range c.host.sortedPaths() {
		if due, s, any := c.host.nextDueOf(p, machine.MillisOf(c.patience)); any && (!ok || due < at) {
			path, silent, at, ok = p, s, due, true
		}
	}
	return path, silent, at, ok
}

func (c *core) fireTimer(path string, silent bool) {
	c.t.Helper()
	c.noteLine("timer", "%s", c.nameInstance(path))
	events := []flow.Event{timerEvent}
	if silent {
		events = c.host.rows[path].overdueEvents("no reply for " + c.patience.String())
	}
	if err := c.moveInstance(path, events...); err != nil {
		c.failTest("timer of %s: %s", c.nameInstance(path), c.explainForRun(err))
	}
}

// Now returns how long the run has lasted.
func (r *Run[S]) Now() time.Duration { return r.host.now.Duration() }

// moveInstance moves an instance, and the instances that it sends messages to.
func (c *core) moveInstance(path string, events ...flow.Event) error {
	c.t.Helper()
	s, err := c.host.moveRow(c.ctx, c.tx, path, events...)
	if err != nil {
		return err
	}
	c.commitSession(s)
	return nil
}

// commitSession commits a session. Messages between instances arrive at once.
func (c *core) commitSession(s *session) {
	c.t.Helper()
	c.host.commitRows(s)
	for _, p := range s.sent {
		switch {
		case p.ran != nil:
			c.noteLocal(p)
		case p.cmd != nil:
			c.noteCommand(p)
		case p.Type != saga.TypeReply && p.Type != saga.TypeRevoke:
			c.noteLine("message", "%s to %s%s", p.Type, p.Topic, showBody(p.Payload))
			c.emitted = append(c.emitted, &emitted{Message: p.Message})
		}
	}
	for path := range s.rows {
		c.noteStatus(path)
	}
	for _, p := range s.sent {
		if p.Type == saga.TypeReply || p.Type == saga.TypeRevoke {
			c.deliverInternal(p)
		}
	}
}

// deliverInternal delivers a message from one instance to another.
func (c *core) deliverInternal(p posting) {
	c.t.Helper()
	path, event, err := parseMessage(p.Message)
	if err != nil {
		panic(err) // an instance has made it
	}
	if err := c.moveInstance(path, event); err != nil && !errors.Is(err, machine.ErrLate) {
		c.failTest("%s: %s", c.nameInstance(path), c.explainForRun(err))
	}
}

// noteLocal notes a local step that has run.
func (c *core) noteLocal(p posting) {
	id := c.host.rows[p.by].flow.Machine.FindStep(p.ran.turn.Step)
	c.noteLine("local", "%s, attempt %d, %s", c.host.labelOfStep(p.by, id), p.ran.turn.Attempt, p.ran.describeRan(c.tx != nil))
}

func (c *core) noteCommand(p posting) {
	path, step := p.by, c.host.rows[p.by].flow.Machine.FindStep(p.cmd.Step)
	cmd := &Command{
		Step: c.host.labelOfStep(path, step), Topic: p.Topic, Type: p.Type, N: p.N, Undo: p.cmd.Undo, Body: p.Payload,
		core: c, path: path, id: step, codec: p.cmd.Codec,
	}
	cmd.Attempt = c.host.rows[path].Progress.Steps[step-1].Attempt
	c.commands = append(c.commands, cmd)
	what := "command"
	if cmd.Undo {
		what = "undo"
	}
	c.noteLine(what, "%s, attempt %d, to %s%s", cmd.Step, cmd.Attempt, cmd.Topic, showBody(cmd.Body))
}

// noteStatus adds a change of status to the timeline.
func (c *core) noteStatus(path string) {
	i := c.host.rows[path]
	status, reason := statusOf(&i.Progress), i.flow.Machine.Why(&i.Progress)
	if c.statuses[path] == status {
		return
	}
	c.statuses[path] = status
	if reason != "" {
		reason = ": " + reason
	}
	c.noteLine("status", "%s is %s%s", c.nameInstance(path), status, reason)
}

func (c *core) nameInstance(path string) string {
	if path == "" {
		return "the saga"
	}
	around, err := flow.ParseN(path)
	if err != nil {
		panic(err) // flow.N has made it
	}
	return c.host.labelOfStep(around.Path, around.Step)
}

func (c *core) noteLine(what, format string, args ...any) {
	c.timeline.addLine(c.host.now.Duration(), what, format, args...)
}

// failTest ends the test.
func (c *core) failTest(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf(format+"\nwhat has happened:\n%s", append(args, c.timeline.String())...)
}
