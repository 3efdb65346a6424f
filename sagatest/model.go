package sagatest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A system is the part of a model that is the same in all schedules, and the world.
type system struct {
	ctx   context.Context
	flow  *flow.Flow // what runs
	true  *flow.Flow // what was defined
	start func() any // the first state
	box   box
	tx    pgx.Tx // the savepoint of the schedule; nil: there is no transaction
	print string // Model.Fingerprint
	check func(always bool, s *modelState) error

	routes map[routeKey][]*route
	count  int // of routes
	inputs []*route
	local  bool // there are local steps
	bug    bug

	gives    bool // Model.DeadLetters
	unjudged bool // there is neither Rest nor Always

	patient bool                // explore events that change nothing, too
	rested  func(s *modelState) // if set, is called with every state at rest

	fail func(format string, args ...any) // ends the test
}

type routeKey struct{ topic, typ string }

// A route leads messages to a step of a participant, or to an orchestrator.
type route struct {
	id    int
	name  string
	step  *consumer.Step // nil: an orchestrator
	kind  inbox.Kind
	input consumer.Input

	reached bool // a message was delivered to it in some schedule
}

// A box holds the world, without its type.
type box interface {
	keep() any       // a copy of the world, not to be changed
	set(kept any)    // restores a copy
	lose(before any) // rolls back the transaction that began with before
	touch()          // the next call may change the world
	digest(h *maphash.Hash)
}

type boxOf[W any] struct {
	world *W
	same  *W // a copy that equals the world; nil: there is none
	fail  func(format string, args ...any)
}

// copyWorld returns a deep copy. It ends the test if the world holds something that is no data.
func (b *boxOf[W]) copyWorld(w *W) *W {
	c, err := deepCopy(w)
	if err != nil {
		b.fail("%v", err)
	}
	return c
}

func (b *boxOf[W]) touch() { b.same = nil }

func (b *boxOf[W]) keep() any {
	if b.same == nil {
		b.same = b.copyWorld(b.world)
	}
	return b.same
}

func (b *boxOf[W]) set(kept any) {
	if k := kept.(*W); k != b.same {
		*b.world, b.same = *b.copyWorld(k), k
	}
}

func (b *boxOf[W]) lose(before any) {
	if before.(*W) == b.same {
		return
	}
	was := b.copyWorld(before.(*W))
	if r, ok := any(b.world).(RollBacker[W]); ok {
		b.touch()
		r.RollBack(*was)
		return
	}
	*b.world, b.same = *was, before.(*W)
}

func (b *boxOf[W]) digest(h *maphash.Hash) { digestValue(h, reflect.ValueOf(b.world), 0) }

// prepareModel checks a model and routes its messages. A model that cannot work ends the test.
func prepareModel[W, S any](t testing.TB, m Model[W, S], planted bug) *system {
	t.Helper()
	w := new(W)
	if m.World != nil {
		*w = m.World()
	}
	if m.Saga == nil || m.Steps == nil {
		t.Fatal("a Model needs a Saga and Steps")
	}
	defined := flow.FlowOfPlan(m.Saga(w))
	sys := &system{
		ctx: t.Context(), flow: defined, true: defined, box: &boxOf[W]{world: w, fail: t.Fatalf}, tx: m.Tx, print: m.Fingerprint, bug: planted,
		routes: map[routeKey][]*route{}, fail: t.Fatalf, gives: m.DeadLetters, unjudged: m.Rest == nil && m.Always == nil,
	}
	sys.start = m.stateMaker(t, sys)
	sys.check = m.outcomeChecker(w, sys)
	if planted == ignorePivot {
		sys.flow = withoutPivot(defined)
	}
	for _, step := range m.Steps(w) {
		if step.Action.Topic == "" && step.Compensation.Topic == "" {
			t.Fatalf("the step %q of Steps has neither an Action nor a Compensation", step.Name)
		}
		sys.addStep(&step)
	}
	sys.addOrchestrator(defined)
	if missing := sys.findUnrouted(defined); missing != "" {
		t.Fatal(missing)
	}
	return sys
}

// stateMaker returns a function that makes a new copy of the first state.
func (m *Model[W, S]) stateMaker(t testing.TB, sys *system) func() any {
	first, err := json.Marshal(m.State)
	if err != nil {
		t.Fatalf("state: %v", err)
	}
	return func() any {
		state, err := sys.flow.State.Decode(first)
		if err != nil {
			t.Fatalf("state: %v", err)
		}
		return state
	}
}

// outcomeChecker returns a function that calls Rest or Always.
func (m *Model[W, S]) outcomeChecker(w *W, sys *system) func(always bool, s *modelState) error {
	return func(always bool, s *modelState) error {
		f := m.Rest
		if always {
			f = m.Always
		}
		if f == nil {
			return nil
		}
		row := s.host.rows[""]
		state, err := row.flow.State.Decode(row.State)
		if err != nil {
			return err
		}
		return f(w, Outcome[S]{
			Status: statusOf(&row.Progress), Reason: row.flow.Machine.Why(&row.Progress), State: *state.(*S), Dead: s.dead, Tx: sys.tx,
		})
	}
}

// addStep routes a step's messages.
func (sys *system) addStep(step *consumer.Step) {
	for kind, in := range [...]consumer.Input{step.Action, step.Compensation} {
		if in.Topic == "" {
			continue
		}
		if in.Type == "" {
			in.Type = in.Topic
		}
		sys.addRoute(in.Topic, in.Type, &route{name: step.Name, step: step, kind: []inbox.Kind{inbox.Action, inbox.Compensation}[kind], input: in})
	}
}

func (sys *system) addRoute(topic, typ string, r *route) {
	key := routeKey{topic, typ}
	sys.count++
	r.id = sys.count
	if r.step == nil && len(sys.routes[key]) > 0 {
		return // one orchestrator serves all sagas around it
	}
	sys.routes[key] = append(sys.routes[key], r)
	if r.step != nil {
		sys.inputs = append(sys.inputs, r)
	}
}

func (sys *system) addOrchestrator(f *flow.Flow) {
	topic := saga.Topic(f.Name())
	sys.addRoute(topic, saga.TypeReply, &route{name: "saga-" + f.Name(), kind: inbox.Action})
	sys.addRoute(topic, saga.TypeRevoke, &route{name: "revoke-" + f.Name(), kind: inbox.Action})
	for _, s := range f.Steps {
		sys.local = sys.local || s.Do.Local != nil || s.Undo.Local != nil
		if s.Do.Nested != nil {
			sys.addOrchestrator(s.Do.Nested)
		}
	}
}

// findUnrouted returns an error text for a command that no participant takes.
func (sys *system) findUnrouted(f *flow.Flow) string {
	for id := 1; id <= f.Machine.Steps(); id++ {
		n := f.Machine.Step(id)
		for _, side := range []struct {
			kind machine.Kind
			to   routeKey
		}{{n.Kind, routeKey{n.Topic, n.Type}}, {n.Undo, routeKey{n.UndoTopic, n.UndoType}}} {
			if side.kind == machine.Remote && len(sys.routes[side.to]) == 0 {
				return fmt.Sprintf("step %s: none of Steps takes messages of type %q from topic %q", n.Name, side.to.typ, side.to.topic)
			}
		}
		if nested := f.Steps[id-1].Do.Nested; nested != nil {
			if text := sys.findUnrouted(nested); text != "" {
				return text
			}
		}
	}
	return ""
}

// A letter is a message for one route. It never changes.
type letter struct {
	outbox.Message
	to     *route
	id     string
	digest []byte // of the payload
	text   string // all of it: two letters with one text are the same
}

// An envelope is a copy of a letter that the broker holds, or that is parked.
type envelope struct {
	*letter
	redelivered bool
}

// A cell is a row of the inbox, with the tries of its compensation.
type cell struct {
	state                  inbox.State
	attempts, undoAttempts int
	digest, undoDigest     string
}

type cellKey struct {
	step, key, n string
	ofWorker     bool // a participant's, not an orchestrator's
}

// A fact is the effects of one command, counted apart from the inbox.
type fact struct {
	done, undone int  // commits of handlers, without rejections
	voided       bool // a compensation found nothing to undo
	overdone     bool // the action committed after that, or after the compensation
}

type factKey struct{ step, key, n string }

// A modelState is the state of a schedule, without the world and the tables.
type modelState struct {
	host   *host
	cells  map[cellKey]cell
	flight []envelope
	parked []envelope
	facts  map[factKey]fact
	used   [faultKinds]int
	dead   int
	log    uint64 // digest of all commits, where no Fingerprint reads the tables
	broken string // the first broken rule; "": none

	failures int // replies with a failure
}

func (s *modelState) cloneState() *modelState {
	c := *s
	c.host, c.cells, c.facts = s.host.cloneHost(), maps.Clone(s.cells), maps.Clone(s.facts)
	c.flight, c.parked = slices.Clone(s.flight), slices.Clone(s.parked)
	return &c
}

// countFaults returns how many faults have happened.
func (s *modelState) countFaults() (n int) {
	for _, used := range s.used[noFault+1:] {
		n += used
	}
	return n
}

// lettersFor returns a letter for each route of a message.
func (sys *system) lettersFor(m outbox.Message) (all []*letter) {
	if m.Type == "" {
		m.Type = m.Topic
	}
	sum := sha256.Sum256(m.Payload)
	for _, to := range sys.routes[routeKey{m.Topic, m.Type}] {
		l := &letter{Message: m, to: to, digest: sum[:]}
		l.text = fmt.Sprint(to.id, m.Topic, m.Type, m.Scope, m.Key, m.Step, m.N, m.Headers, string(m.Payload))
		l.id = deterministicID(l.text)
		all = append(all, l)
	}
	return all
}

// hashState returns a digest of everything that decides which events can follow, except the number of faults left.
func (sys *system) hashState(s *modelState, seed maphash.Seed) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	h.Write(encodeJSON(s.host.now))
	for _, path := range s.host.sortedPaths() {
		i := s.host.rows[path]
		h.WriteString(path)
		maphash.WriteComparable(&h, [2]machine.Millis{i.started, 0})
		h.Write(encodeJSON(&i.Progress))
		h.Write(i.State)
	}
	var sum uint64
	for k, c := range s.cells {
		sum += maphash.Comparable(seed, k) ^ maphash.Comparable(seed, c)*31
	}
	for k, f := range s.facts {
		sum += maphash.Comparable(seed, k) ^ maphash.Comparable(seed, f)*37
	}
	maphash.WriteComparable(&h, sum)
	for place, all := range [][]envelope{s.flight, s.parked} {
		sum = uint64(len(all))
		for _, e := range all { // in any order
			sum += maphash.String(seed, e.text) * map[bool]uint64{false: 3, true: 5}[e.redelivered]
		}
		maphash.WriteComparable(&h, [2]uint64{uint64(place), sum})
	}
	maphash.WriteComparable(&h, [3]uint64{s.log, uint64(s.dead), uint64(s.failures)})
	sys.box.digest(&h)
	if sys.tx != nil && sys.print != "" {
		var text string
		if err := sys.tx.QueryRow(sys.ctx, sys.print).Scan(&text); err != nil {
			sys.fail("Fingerprint: %v", err)
		}
		h.WriteString(text)
	}
	return h.Sum64()
}

// withoutPivot returns f without its pivot.
func withoutPivot(f *flow.Flow) *flow.Flow {
	p := f.Machine.Plan()
	p.Nodes = slices.Clone(p.Nodes)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Pivot = false; n.Undo == "" {
			n.UndoRetry = machine.Retry{}
		}
	}
	m, err := machine.Compile(p)
	if err != nil {
		panic(err) // fewer rules than before
	}
	return &flow.Flow{Machine: m, Steps: f.Steps, State: f.State}
}
