package machine_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/internal/machine"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt with what the machine does")

// A trace begins with a plan: "saga NAME [deadline=D] [on-end]", and below it a line
// "NAME KIND [option…]" for each node, indented by two spaces more than the node
// around it. Options are pivot, if, undo=KIND, deadline=D, on-deadline=POLICY, on-dead-letter=POLICY, retry=N and undo-retry=N;
// waits between attempts are one second. Then come events, "> KIND [STEP…] [option…]";
// after several in a row stands what the instance looks like. Options are @TIME, #ATTEMPT,
// because=REASON and result=JSON. "again", "undo", "undone" and "undo-KIND" are the events
// of a message that is sent again and of a compensation. "reload" stores the progress and reads it again.
func TestTraces(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d traces, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := runTrace(t, string(text))
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(string(text), got); diff != "" {
				t.Errorf("-file +machine\n%s", diff)
			}
		})
	}
}

// A trace is an instance on its way through a file.
type trace struct {
	t   *testing.T
	m   *machine.Machine
	p   machine.Progress
	now machine.Millis
	out strings.Builder
}

// runTrace returns text with what the machine does in place of what is there.
func runTrace(t *testing.T, text string) string {
	plan, events, found := strings.Cut(text, "\n\n")
	if !found {
		t.Fatal("no empty line after the plan")
	}
	m, err := machine.Compile(parsePlan(t, strings.Split(plan, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	tr := &trace{t: t, m: m, p: m.NewProgress()}
	tr.out.WriteString(plan + "\n\n")
	shown := true
	for line := range strings.Lines(events) {
		switch {
		case strings.HasPrefix(line, ">"):
			tr.out.WriteString(line)
			tr.event(strings.Fields(line[1:]))
			shown = false
			continue
		case strings.HasPrefix(line, "!"):
			continue // what an event has answered, in the midst of others
		case strings.HasPrefix(line, "#"):
			tr.out.WriteString(line)
		}
		if !shown {
			tr.show()
			shown = true
		}
	}
	if !shown {
		tr.show()
	}
	return strings.TrimSuffix(tr.out.String(), "\n")
}

func (tr *trace) show() { fmt.Fprintf(&tr.out, "%v\n", view{tr.m, &tr.p}) }

// event applies the events of one line.
func (tr *trace) event(words []string) {
	e, steps := machine.Event{Kind: machine.EventKind(words[0])}, []string{}
	for _, word := range words[1:] {
		option, value, _ := strings.Cut(word, "=")
		switch {
		case word[0] == '@':
			tr.now = machine.MillisOf(duration(tr.t, word[1:]))
		case word[0] == '#':
			e.Attempt, _ = strconv.Atoi(word[1:])
		case option == "because":
			e.Reason = strings.ReplaceAll(value, "_", " ")
		case option == "result":
			e.Result = []byte(value)
		default:
			steps = append(steps, word)
		}
	}
	e.At = tr.now
	if len(steps) == 0 || e.Kind == machine.GoBack {
		e.Name = strings.Join(steps, " ")
		tr.apply(e)
		return
	}
	for _, name := range steps {
		tr.apply(tr.of(e, name))
	}
}

// of fills in which step e is about, and what the words that are not kinds stand for.
func (tr *trace) of(e machine.Event, name string) machine.Event {
	if e.Step = tr.m.FindStep(name); e.Step == 0 {
		tr.t.Fatalf("there is no step %q", name)
	}
	n, st := tr.m.Step(e.Step), &tr.p.Steps[e.Step-1]
	if e.Attempt == 0 {
		e.Attempt = st.Attempt
	}
	after, undo := strings.CutPrefix(string(e.Kind), "undo-")
	e.Kind, e.Undo = machine.EventKind(after), undo
	switch e.Kind {
	case "again":
		e.Kind, e.Undo = machine.Sent, st.State == machine.Undoing
	case "undone":
		e.Kind, e.Undo = machine.Replied, true
	case "undo":
		e.Kind, e.Undo = machine.Sent, true
		if n.Undo != machine.Local {
			e.Message = fmt.Appendf(nil, "undo-%s-%d", name, st.Attempt)
		}
	case machine.Sent:
		if n.Kind != machine.Local {
			e.Message = fmt.Appendf(nil, "%s-%d", name, st.Attempt+1)
		}
	}
	return e
}

func (tr *trace) apply(e machine.Event) {
	if e.Kind == "reload" {
		tr.reload()
	} else if err := tr.m.Apply(&tr.p, e); err != nil {
		fmt.Fprintf(&tr.out, "! %v\n", err)
	}
}

func (tr *trace) reload() {
	text, p := marshal(tr.t, tr.p), machine.Progress{}
	unmarshal(tr.t, text, &p)
	tr.p = p
}

// parsePlan reads the lines of a plan, of which comments are none.
func parsePlan(t *testing.T, lines []string) machine.Plan {
	for strings.HasPrefix(lines[0], "#") {
		lines = lines[1:]
	}
	head := strings.Fields(lines[0])
	p := machine.Plan{Name: head[1], Version: 1}
	for _, word := range head[2:] {
		if word == "on-end" {
			p.OnEnd = true
			continue
		}
		p.Deadline = duration(t, strings.TrimPrefix(word, "deadline="))
	}
	rest := lines[1:]
	p.Nodes = parseNodes(t, &rest, "  ")
	return p
}

func parseNodes(t *testing.T, lines *[]string, indent string) []machine.Node {
	var nodes []machine.Node
	for len(*lines) > 0 && strings.HasPrefix((*lines)[0], indent) {
		words := strings.Fields((*lines)[0])
		n := machine.Node{Name: words[0], Kind: machine.Kind(words[1])}
		*lines = (*lines)[1:]
		for _, word := range words[2:] {
			parseOption(t, &n, word)
		}
		switch n.Kind {
		case machine.Remote:
			n.Topic, n.Type = "commands", n.Name
		case machine.Nested:
			n.Saga = n.Name
		}
		n.Nodes = parseNodes(t, lines, indent+"  ")
		nodes = append(nodes, n)
	}
	return nodes
}

func parseOption(t *testing.T, n *machine.Node, word string) {
	option, value, _ := strings.Cut(word, "=")
	attempts, _ := strconv.Atoi(value)
	switch option {
	case "pivot":
		n.Pivot = true
	case "if":
		n.Conditional = true
	case "undo":
		n.Undo, n.UndoTopic = machine.Kind(value), "compensations"
	case "deadline":
		n.Deadline = duration(t, value)
	case "retry":
		n.Retry = machine.Retry{Attempts: attempts, Base: time.Second}
	case "on-dead-letter":
		n.OnDeadLetter = machine.Policy(value)
	case "on-deadline":
		n.OnDeadline = machine.Policy(value)
	case "undo-retry":
		n.UndoRetry = machine.Retry{Attempts: attempts, Base: time.Second}
	default:
		t.Fatalf("there is no option %q", word)
	}
}

func duration(t *testing.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
