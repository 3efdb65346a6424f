package machine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

func remote(name string) machine.Node {
	return machine.Node{Name: name, Kind: machine.Remote, Topic: "commands", Type: name}
}

func local(name string) machine.Node { return machine.Node{Name: name, Kind: machine.Local} }

func nested(name string) machine.Node {
	return machine.Node{Name: name, Kind: machine.Nested, Saga: "inner"}
}

func group(kind machine.Kind, name string, nodes ...machine.Node) machine.Node {
	return machine.Node{Name: name, Kind: kind, Nodes: nodes}
}

func planOf(nodes ...machine.Node) machine.Plan {
	return machine.Plan{Name: "order", Version: 1, Nodes: nodes}
}

// with returns n after some changes.
func with(n machine.Node, changes ...func(*machine.Node)) machine.Node {
	for _, change := range changes {
		change(&n)
	}
	return n
}

func pivot(n *machine.Node)       { n.Pivot = true }
func conditional(n *machine.Node) { n.Conditional = true }

func undo(kind machine.Kind) func(*machine.Node) {
	return func(n *machine.Node) { n.Undo, n.UndoTopic = kind, "compensations" }
}

func deadline(d time.Duration) func(*machine.Node) {
	return func(n *machine.Node) { n.Deadline = d }
}

func retry(r machine.Retry) func(*machine.Node) { return func(n *machine.Node) { n.Retry = r } }

func undoRetry(r machine.Retry) func(*machine.Node) {
	return func(n *machine.Node) { n.UndoRetry = r }
}

func deep(n int) machine.Node {
	if n == 0 {
		return local("bottom")
	}
	return group(machine.Seq, fmt.Sprintf("level-%d", n), deep(n-1))
}

func many(n int) []machine.Node {
	var nodes []machine.Node
	for i := range n {
		nodes = append(nodes, local(fmt.Sprintf("s%d", i)))
	}
	return nodes
}

// A fault is something in a node that Compile refuses wherever it is.
type fault struct {
	name  string
	node  machine.Node
	want  string
	first bool // elsewhere another rule may be broken first: behind the pivot nothing is undone
}

var twice = machine.Retry{Attempts: 2}

var faults = []fault{
	{"no name", local(""), `step "": malformed step key`, false},
	{"bad name", local("Pay"), `step "Pay": malformed step key`, false},
	{"unknown kind", with(local("x"), func(n *machine.Node) { n.Kind = "http" }), `step "x" is of kind "http", which there is not`, false},
	{"no kind", with(local("x"), func(n *machine.Node) { n.Kind = "" }), `step "x" is of kind "", which there is not`, false},
	{"steps in a step", with(local("x"), func(n *machine.Node) { n.Nodes = many(1) }), `step "x" is of kind local and cannot hold steps`, false},
	{"no topic", with(remote("x"), func(n *machine.Node) { n.Topic = "" }), `step "x" has no topic for its command`, false},
	{"no saga", with(nested("x"), func(n *machine.Node) { n.Saga = "" }), `step "x" is of kind nested and names no saga`, false},
	{"local with deadline", with(local("x"), deadline(time.Second)), `step "x" runs in the orchestrator's transaction, and cannot have a deadline`, false},
	{"negative deadline", with(remote("x"), deadline(-1)), `step "x" has the deadline -1ns`, false},
	{"long deadline", with(remote("x"), deadline(machine.MaxDeadline+1)), `step "x" has the deadline 87600h`, false},
	{"retry of no undo", with(remote("x"), undoRetry(twice)), `step "x" cannot be undone, so there is nothing to retry`, false},
	{"negative attempts", with(remote("x"), retry(machine.Retry{Attempts: -1})), `step "x" has a retry of -1 attempts`, false},
	{"many attempts", with(remote("x"), retry(machine.Retry{Attempts: machine.MaxAttempts + 1})), `step "x" has a retry of 1001 attempts`, false},
	{"negative base", with(remote("x"), retry(machine.Retry{Base: -1})), `step "x" has a retry with a wait`, false},
	{"long base", with(remote("x"), retry(machine.Retry{Base: machine.MaxDeadline + 1})), `step "x" has a retry with a wait`, false},
	{"long cap", with(remote("x"), retry(machine.Retry{Cap: machine.MaxDeadline + 1})), `step "x" has a retry with a wait`, false},
	{"cap below base", with(remote("x"), retry(machine.Retry{Base: 2, Cap: 1})), `step "x" has a retry whose longest wait, 1ns, is shorter than its first, 2ns`, false},
	{"empty group", group(machine.All, "x"), `step "x" has no steps in it`, false},
	{"group with condition", with(group(machine.All, "x", local("y")), conditional), `step "x" holds other steps`, false},
	{"group with deadline", with(group(machine.Seq, "x", local("y")), deadline(1)), `step "x" holds other steps`, false},
	{"group with retry", with(group(machine.Seq, "x", local("y")), retry(twice)), `step "x" holds other steps`, false},
	{"group with undo retry", with(group(machine.Seq, "x", local("y")), undoRetry(twice)), `step "x" holds other steps`, false},
	{"group with undo", with(group(machine.Seq, "x", local("y")), undo(machine.Local)), `step "x" holds other steps`, false},
	{"group as pivot", with(group(machine.Seq, "x", local("y")), pivot), `step "x" holds other steps`, false},
	{"too deep", deep(machine.MaxDepth + 1), `nodes are nested deeper than 8`, false},

	{"unknown undo", with(remote("x"), undo(machine.All)), `step "x" is undone by kind "all", which there is not`, true},
	{"no undo topic", with(remote("x"), undo(machine.Remote), func(n *machine.Node) { n.UndoTopic = "" }), `step "x" has no topic for its compensation`, true},
	{"same message", with(remote("x"), undo(machine.Remote), func(n *machine.Node) { n.UndoTopic, n.UndoType = n.Topic, n.Type }), `step "x" is set off and undone by the same message`, true},
	{"undone as nested", with(remote("x"), undo(machine.Nested)), `step "x" is of kind remote and undone by kind nested`, true},
	{"undone here", with(remote("x"), undo(machine.Local)), `step "x" is done by a participant and undone here`, true},
	{"undone elsewhere", with(local("x"), undo(machine.Remote)), `step "x" is done here and undone by a participant`, true},
	{"retry of another's undo", with(remote("x"), undo(machine.Remote), undoRetry(twice)), `step "x" has a retry of its compensation, which whoever undoes it has`, true},
	{"undo retry", with(local("x"), undo(machine.Local), undoRetry(machine.Retry{Attempts: -1})), `step "x" has a retry of its compensation of -1 attempts`, true},
	{"pivot with undo", with(local("x"), undo(machine.Local), pivot), `step "x" is the pivot: after it nothing is undone`, true},
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			wantInvalid(t, planOf(f.node), f.want)
		})
	}
}

func wantInvalid(t interface {
	Helper()
	Errorf(string, ...any)
}, p machine.Plan, want string) {
	t.Helper()
	if _, err := machine.Compile(p); !errors.Is(err, machine.ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("Compile = %v, want an ErrInvalid with %q", err, want)
	}
}

func TestCompileRefusesPlan(t *testing.T) {
	t.Parallel()
	named := func(name string, version int, d time.Duration) machine.Plan {
		return machine.Plan{Name: name, Version: version, Deadline: d, Nodes: many(1)}
	}
	tests := []struct {
		name string
		plan machine.Plan
		want string
	}{
		{"no name", named("", 1, 0), "name: it must be"},
		{"long name", named(strings.Repeat("a", machine.MaxName+1), 1, 0), "name has 51 bytes, more than 50"},
		{"version", named("order", 0, 0), "saga order: version 0 is not positive"},
		{"negative deadline", named("order", 1, -1), "deadline -1ns is not between"},
		{"long deadline", named("order", 1, machine.MaxDeadline+1), "is not between"},
		{"no step", planOf(), "there is no step"},
		{"too many steps", planOf(many(machine.MaxSteps + 1)...), "there are 101 steps, more than 100"},
		{"name twice", planOf(local("x"), group(machine.All, "y", local("x"))), `step "x" is given twice`},
		{"name of a group", planOf(group(machine.All, "x", local("x"))), `step "x" is given twice`},
		{"two pivots", planOf(with(local("x"), pivot), with(local("y"), pivot)), `step "y" is a pivot, and so is "x"`},
		{"parallel pivot", planOf(group(machine.All, "a", group(machine.Seq, "b", with(local("x"), pivot)))), `step "x" is a pivot beside parallel steps`},
		{"undo behind", planOf(with(local("x"), pivot), with(local("y"), undo(machine.Local))), `step "y" comes after the pivot, "x", and has a compensation`},
		{"no retry behind", planOf(with(local("x"), pivot), remote("y")), `step "y" comes after the pivot, "x", so it can only go forward`},
		{"one attempt behind", planOf(with(local("x"), pivot), with(local("y"), retry(machine.Retry{Attempts: 1}))), `step "y" comes after the pivot`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantInvalid(t, tt.plan, tt.want)
		})
	}
}

// One fault in an otherwise valid plan is found, wherever it stands.
func TestCompileFindsTheFault(t *testing.T) {
	t.Parallel()
	needtest.Shortened(t)
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		f := rapid.SampledFrom(faults).Draw(t, "fault")
		if f.first {
			p.Nodes = append([]machine.Node{f.node}, p.Nodes...)
		} else {
			insert(t, &p.Nodes, f.node)
		}
		if f.name == "too deep" {
			f.want = "nested deeper" // how far in depends on where it stands
		}
		wantInvalid(t, p, f.want)
	})
}

// insert puts n somewhere among nodes, which are changed in place.
func insert(t *rapid.T, nodes *[]machine.Node, n machine.Node) {
	i := rapid.IntRange(0, len(*nodes)).Draw(t, "place")
	if i < len(*nodes) && len((*nodes)[i].Nodes) > 0 {
		insert(t, &(*nodes)[i].Nodes, n)
		return
	}
	*nodes = append((*nodes)[:i:i], append([]machine.Node{n}, (*nodes)[i:]...)...)
}

// A plan with its defaults means what it meant without them: it is stored so, and
// compiled again.
func TestCompiledPlanCompiles(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		m, err := machine.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := machine.Compile(m.Plan())
		if err != nil {
			t.Fatalf("the compiled plan: %v", err)
		}
		if diff := cmp.Diff(m.Plan(), again.Plan()); diff != "" {
			t.Fatalf("-once +twice\n%s", diff)
		}
		if p.Hash() != m.Plan().Hash() {
			t.Fatal("the defaults change the hash")
		}
	})
}

func TestCompileFillsDefaults(t *testing.T) {
	t.Parallel()
	m, err := machine.Compile(planOf(
		with(local("a"), undo(machine.Local)), with(remote("b"), retry(machine.Retry{Base: time.Hour})),
		with(local("c"), pivot), local("d")))
	if err != nil {
		t.Fatal(err)
	}
	ten := machine.Retry{Attempts: 10, Base: time.Second, Cap: 5 * time.Minute}
	one := machine.Retry{Attempts: 1, Base: time.Second, Cap: 5 * time.Minute}
	want := [][2]machine.Retry{{ten, ten}, {{Attempts: one.Attempts, Base: time.Hour, Cap: time.Hour}, {}}, {ten, {}}, {ten, {}}}
	for i, w := range want {
		if n := m.Step(i + 1); n.Retry != w[0] || n.UndoRetry != w[1] {
			t.Errorf("step %s has retries %v and %v, want %v", n.Name, n.Retry, n.UndoRetry, w)
		}
	}
	if m.Steps() != 4 || m.FindStep("c") != 3 || m.FindStep("e") != 0 {
		t.Errorf("Steps = %d, Find = %d and %d; want 4, 3 and 0", m.Steps(), m.FindStep("c"), m.FindStep("e"))
	}
}

// Waits and deadlines may be tuned while instances run; nothing else may change.
func TestHash(t *testing.T) {
	t.Parallel()
	base := func() machine.Plan {
		return planOf(with(remote("a"), undo(machine.Remote)), group(machine.All, "g", nested("b"), local("c")), with(remote("d"), pivot))
	}
	same := map[string]func(*machine.Plan){
		"saga's deadline": func(p *machine.Plan) { p.Deadline = 1 },
		"deadline":        func(p *machine.Plan) { p.Nodes[0].Deadline = 1 },
		"retry":           func(p *machine.Plan) { p.Nodes[0].Retry = twice },
		"undo retry":      func(p *machine.Plan) { p.Nodes[0].UndoRetry = twice },
		"inner deadline":  func(p *machine.Plan) { p.Nodes[1].Nodes[0].Deadline = 1 },
		"inner retry":     func(p *machine.Plan) { p.Nodes[1].Nodes[1].Retry = twice },
		"no nodes":        func(p *machine.Plan) { p.Nodes[0].Nodes = []machine.Node{} },
	}
	other := map[string]func(*machine.Plan){
		"name":         func(p *machine.Plan) { p.Name = "other" },
		"version":      func(p *machine.Plan) { p.Version++ },
		"step's name":  func(p *machine.Plan) { p.Nodes[0].Name = "z" },
		"kind":         func(p *machine.Plan) { p.Nodes[1].Kind = machine.Seq },
		"topic":        func(p *machine.Plan) { p.Nodes[0].Topic = "z" },
		"type":         func(p *machine.Plan) { p.Nodes[0].Type = "z" },
		"nested saga":  func(p *machine.Plan) { p.Nodes[1].Nodes[0].Saga = "z" },
		"undo":         func(p *machine.Plan) { p.Nodes[0].Undo = machine.Local },
		"undo's topic": func(p *machine.Plan) { p.Nodes[0].UndoTopic = "z" },
		"undo's type":  func(p *machine.Plan) { p.Nodes[0].UndoType = "z" },
		"pivot":        func(p *machine.Plan) { p.Nodes[2].Pivot = false },
		"condition":    func(p *machine.Plan) { p.Nodes[1].Nodes[1].Conditional = true },
		"order":        func(p *machine.Plan) { n := p.Nodes[1].Nodes; n[0], n[1] = n[1], n[0] },
		"fewer":        func(p *machine.Plan) { p.Nodes = p.Nodes[:2] },
	}
	for name, change := range same {
		if p := base(); changed(&p, change).Hash() != base().Hash() {
			t.Errorf("%s changes the hash", name)
		}
	}
	for name, change := range other {
		if p := base(); changed(&p, change).Hash() == base().Hash() {
			t.Errorf("%s does not change the hash", name)
		}
	}
	p := base()
	p.Nodes[1].Nodes[0].Deadline = 1
	if p.Hash(); p.Nodes[1].Nodes[0].Deadline != 1 {
		t.Error("Hash changes the plan")
	}
}

func changed(p *machine.Plan, change func(*machine.Plan)) machine.Plan {
	change(p)
	return *p
}

// FuzzAnything has any plan compiled and any progress moved by any events: nothing panics,
// and an error changes nothing.
func FuzzAnything(f *testing.F) {
	f.Add([]byte(`{"name":"a","version":1,"nodes":[{"name":"b","kind":"local","undo":"local"},{"name":"c","kind":"remote","topic":"t","pivot":true}]}`),
		[]byte(`{"phase":"running","steps":[{"state":"done"},{"state":"stuck","doubt":true}]}`), []byte(`[{"Kind":"retry"},{"Kind":"timer","At":9},{"Kind":"done","Step":2}]`))
	f.Add([]byte(`{"name":"a","version":1,"nodes":[{"name":"b","kind":"all","nodes":[{"name":"c","kind":"local","undo":"local"},{"name":"d","kind":"nested","saga":"e"}]}]}`),
		[]byte(`{"phase":"compensating","back":9,"steps":[{"state":"unknown","result":1},{"resend":true,"state":"undoing"}]}`), []byte(`[{"Kind":"unfit","Step":1},{"Kind":"cancel"},{"Kind":"compensate-to","Name":"b"}]`))
	f.Fuzz(func(t *testing.T, plan, progress, events []byte) {
		var p machine.Plan
		var state machine.Progress
		var list []machine.Event
		if !decodes(plan, &p) || !decodes(progress, &state) || !decodes(events, &list) {
			return
		}
		m, err := machine.Compile(p)
		if err != nil {
			return
		}
		p.Hash()
		for _, e := range list {
			before := marshal(t, state)
			if err := m.Apply(&state, e); err != nil && string(before) != string(marshal(t, state)) {
				t.Fatalf("Apply(%+v) = %v changed %s to %s", e, err, before, marshal(t, state))
			}
			if m.Fits(&state) {
				m.Next(&state)
				m.Due(&state)
			}
			state.Stuck()
		}
	})
}
