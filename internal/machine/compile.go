package machine

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/sagamill/sagamill/internal/stepkey"
)

// The limits of a plan.
const (
	MaxName     = 50 // bytes of a saga's name
	MaxSteps    = 100
	MaxDepth    = 8 // of nodes in nodes
	MaxDeadline = 10 * 365 * 24 * time.Hour
	MaxAttempts = 1000
)

// The defaults of a plan.
var (
	defaultRetry = Retry{Attempts: 10, Base: time.Second, Cap: 5 * time.Minute}
	once         = Retry{Attempts: 1, Base: time.Second, Cap: 5 * time.Minute}
)

// ErrInvalid reports a plan that cannot work.
var ErrInvalid = errors.New("invalid definition")

// A Machine is a plan that passed all checks. It is immutable.
type Machine struct {
	plan  Plan
	steps []*Node // in the order of the plan; the id of a step is its place, from 1 on
	root  span
	pivot int // id of the pivot; 0: there is none
}

// A span is a node with the ids of the steps in it.
type span struct {
	node        *Node
	first, last int
	inner       []span
}

// Compile checks p and fills in its defaults. Its error is an [ErrInvalid] that names the step and the rule.
func Compile(p Plan) (*Machine, error) {
	m := &Machine{plan: p}
	if err := m.compilePlan(); err != nil {
		return nil, fmt.Errorf("%w: saga %s: %w", ErrInvalid, p.Name, err)
	}
	return m, nil
}

func (m *Machine) compilePlan() error {
	p := &m.plan
	if stepkey.CheckStep(p.Name) != nil {
		return fmt.Errorf("name: it must be 1 to %d of a-z 0-9 -, not beginning with -", MaxName)
	}
	switch {
	case len(p.Name) > MaxName:
		return fmt.Errorf("name has %d bytes, more than %d", len(p.Name), MaxName)
	case p.Version < 1:
		return fmt.Errorf("version %d is not positive", p.Version)
	case p.Deadline < 0 || p.Deadline > MaxDeadline:
		return fmt.Errorf("deadline %s is not between 0 and %s", p.Deadline, MaxDeadline)
	case len(p.Nodes) == 0:
		return errors.New("there is no step")
	}
	c := compiler{m: m, names: map[string]bool{}}
	root := &Node{Kind: Seq}
	var err error
	if p.Nodes, m.root.inner, err = c.compileNodes(p.Nodes, root, 1, false); err != nil {
		return err
	}
	if len(m.steps) > MaxSteps {
		return fmt.Errorf("there are %d steps, more than %d", len(m.steps), MaxSteps)
	}
	m.root.node, m.root.first, m.root.last = root, 1, len(m.steps)
	return nil
}

// A compiler walks through the nodes of a plan in order.
type compiler struct {
	m     *Machine
	names map[string]bool
}

// compileNodes returns copies of list with the defaults filled in, and the span of each. parallel says that a node
// around them is an All.
func (c *compiler) compileNodes(list []Node, in *Node, depth int, parallel bool) ([]Node, []span, error) {
	if depth > MaxDepth {
		return nil, nil, fmt.Errorf("step %q: nodes are nested deeper than %d", in.Name, MaxDepth)
	}
	copies, spans := make([]Node, len(list)), make([]span, len(list))
	for i := range list {
		n := &copies[i]
		*n = list[i]
		if err := c.claimName(n.Name); err != nil {
			return nil, nil, err
		}
		s := &spans[i]
		s.node, s.first = n, len(c.m.steps)+1
		var err error
		if n.Kind == All || n.Kind == Seq {
			if err = checkComposite(n); err == nil {
				n.Nodes, s.inner, err = c.compileNodes(n.Nodes, n, depth+1, parallel || n.Kind == All)
			}
		} else {
			err = c.compileStep(n, parallel)
		}
		if err != nil {
			return nil, nil, err
		}
		s.last = len(c.m.steps)
	}
	return copies, spans, nil
}

func (c *compiler) claimName(name string) error {
	if err := stepkey.CheckStep(name); err != nil {
		return fmt.Errorf("step %q: %w", name, err)
	}
	if c.names[name] {
		return fmt.Errorf("step %q is given twice", name)
	}
	c.names[name] = true
	return nil
}

func checkComposite(n *Node) error {
	switch {
	case len(n.Nodes) == 0:
		return fmt.Errorf("step %q has no steps in it", n.Name)
	case n.Pivot || n.Undo != "" || n.Conditional || n.Deadline != 0 || n.Retry != Retry{} || n.UndoRetry != Retry{}:
		return fmt.Errorf("step %q holds other steps: only those can be a pivot, be undone, be conditional, have a deadline or be tried again", n.Name)
	case n.OnDeadLetter != "" || n.OnDeadline != "":
		return fmt.Errorf("step %q holds other steps: set OnDeadLetter and OnDeadline on those", n.Name)
	}
	return nil
}

func (c *compiler) compileStep(n *Node, parallel bool) error {
	c.m.steps = append(c.m.steps, n)
	if err := checkStep(n); err != nil {
		return fmt.Errorf("step %q %w", n.Name, err)
	}
	n.fillDefaults()
	if err := c.checkPivot(n, parallel); err != nil {
		return fmt.Errorf("step %q %w", n.Name, err)
	}
	if n.Pivot {
		c.m.pivot = len(c.m.steps)
	}
	return nil
}

// fillDefaults sets the retries that the plan leaves open.
func (n *Node) fillDefaults() {
	if n.Kind == Local {
		n.Retry = n.Retry.orDefault(defaultRetry)
	} else {
		n.Retry = n.Retry.orDefault(once)
	}
	if n.Undo == Local {
		n.UndoRetry = n.UndoRetry.orDefault(defaultRetry)
	}
}

func (r Retry) orDefault(preset Retry) Retry {
	r.Attempts, r.Base = cmp.Or(r.Attempts, preset.Attempts), cmp.Or(r.Base, preset.Base)
	r.Cap = max(cmp.Or(r.Cap, preset.Cap), r.Base)
	return r
}

func checkStep(n *Node) error {
	switch n.Kind {
	case Remote, Local, Nested:
	default:
		return fmt.Errorf("is of kind %q, which there is not", n.Kind)
	}
	switch {
	case len(n.Nodes) > 0:
		return fmt.Errorf("is of kind %s and cannot hold steps", n.Kind)
	case n.Undo != "" && n.Undo != Remote && n.Undo != Local && n.Undo != Nested:
		return fmt.Errorf("is undone by kind %q, which there is not", n.Undo)
	case n.Kind == Remote && n.Topic == "":
		return errors.New("has no topic for its command")
	case n.Kind == Nested && n.Saga == "":
		return errors.New("is of kind nested and names no saga")
	case n.Undo == Remote && n.UndoTopic == "":
		return errors.New("has no topic for its compensation")
	case n.Kind == Remote && n.Undo == Remote && n.Topic == n.UndoTopic && n.Type == n.UndoType:
		return errors.New("is set off and undone by the same message")
	case n.Undo == Remote && n.Kind == Local:
		return errors.New("is done here and undone by a participant, whose inbox would know nothing of it")
	case n.Undo == Local && n.Kind == Remote:
		return errors.New("is done by a participant and undone here, so that an action which comes late would stay")
	case n.Undo != "" && n.Undo != n.Kind:
		return fmt.Errorf("is of kind %s and undone by kind %s", n.Kind, n.Undo)
	case n.Kind == Local && n.Deadline != 0:
		return errors.New("runs in the orchestrator's transaction, and cannot have a deadline")
	case n.Deadline < 0 || n.Deadline > MaxDeadline:
		return fmt.Errorf("has the deadline %s, which is not between 0 and %s", n.Deadline, MaxDeadline)
	case n.Undo == "" && n.UndoRetry != Retry{}:
		return errors.New("cannot be undone, so there is nothing to retry")
	case n.Undo != Local && n.UndoRetry != Retry{}:
		return errors.New("has a retry of its compensation, which whoever undoes it has already")
	}
	return errors.Join(n.checkPolicies(), n.Retry.checkLimits("retry"), n.UndoRetry.checkLimits("retry of its compensation"))
}

func (n *Node) checkPolicies() error {
	for field, p := range map[string]Policy{"OnDeadLetter": n.OnDeadLetter, "OnDeadline": n.OnDeadline} {
		if p != "" && p != PolicyUndo && p != PolicyWait {
			return fmt.Errorf("has the %s %q, which is neither %s nor %s", field, p, PolicyUndo, PolicyWait)
		}
	}
	switch {
	case n.OnDeadLetter != "" && n.Kind != Remote:
		return fmt.Errorf("is of kind %s and has OnDeadLetter, but only a participant has dead letters", n.Kind)
	case n.OnDeadline != "" && n.Deadline == 0:
		return errors.New("has OnDeadline and no deadline")
	}
	return nil
}

func (r Retry) checkLimits(what string) error {
	switch {
	case r.Attempts < 0 || r.Attempts > MaxAttempts:
		return fmt.Errorf("has a %s of %d attempts, which is not between 1 and %d", what, r.Attempts, MaxAttempts)
	case r.Base < 0 || r.Cap < 0 || r.Cap > MaxDeadline || r.Base > MaxDeadline:
		return fmt.Errorf("has a %s with a wait that is not between 0 and %s", what, MaxDeadline)
	case r.Cap != 0 && r.Cap < r.Base:
		return fmt.Errorf("has a %s whose longest wait, %s, is shorter than its first, %s", what, r.Cap, r.Base)
	}
	return nil
}

// checkPivot checks where a step stands in relation to the pivot.
func (c *compiler) checkPivot(n *Node, parallel bool) error {
	pivot := c.m.pivot
	switch {
	case n.Pivot && pivot != 0:
		return fmt.Errorf("is a pivot, and so is %q: there can be one", c.m.steps[pivot-1].Name)
	case n.Pivot && parallel:
		return errors.New("is a pivot beside parallel steps, which could not be undone any more")
	case n.Pivot && n.Undo != "":
		return errors.New("is the pivot: after it nothing is undone, so it cannot have a compensation")
	case (n.Pivot || pivot != 0) && n.OnDeadLetter == PolicyUndo:
		return errors.New("is the pivot, or comes after it: nothing is undone then, so OnDeadLetter cannot be undo")
	case (n.Pivot || pivot != 0) && n.OnDeadline == PolicyUndo:
		return errors.New("is the pivot, or comes after it: nothing is undone then, so OnDeadline cannot be undo")
	case pivot == 0:
		return nil
	case n.Undo != "":
		return fmt.Errorf("comes after the pivot, %q, and has a compensation, which could never be sent", c.m.steps[pivot-1].Name)
	case n.Retry.Attempts < 2:
		return fmt.Errorf("comes after the pivot, %q, so it can only go forward: it needs a retry of two attempts or more", c.m.steps[pivot-1].Name)
	}
	return nil
}

// Plan returns the plan with its defaults filled in.
func (m *Machine) Plan() Plan { return m.plan }

// Steps returns how many steps there are. Their ids are 1 to Steps.
func (m *Machine) Steps() int { return len(m.steps) }

// Step returns the step of an id.
func (m *Machine) Step(id int) *Node { return m.steps[id-1] }

// FindStep returns the id of the step of that name; 0 if there is none.
func (m *Machine) FindStep(name string) int {
	for i, n := range m.steps {
		if n.Name == name {
			return i + 1
		}
	}
	return 0
}

// findNode returns the node of that name. It finds no node within an All.
func (m *Machine) findNode(name string, in span) (span, bool) {
	for _, s := range in.inner {
		if s.node.Name == name {
			return s, true
		}
		if s.node.Kind == Seq {
			if found, ok := m.findNode(name, s); ok {
				return found, true
			}
		}
	}
	return span{}, false
}

// HasPivot reports whether the plan has a pivot.
func (m *Machine) HasPivot() bool { return m.pivot != 0 }
