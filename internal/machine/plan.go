package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"
)

// Kind says what a node of a plan does.
type Kind string

// The kinds. The last two hold other nodes.
const (
	Remote Kind = "remote" // a command to a participant, who replies
	Local  Kind = "local"  // a function in the orchestrator's transaction
	Nested Kind = "nested" // another saga
	All    Kind = "all"    // its nodes in parallel, joined
	Seq    Kind = "seq"    // its nodes one after the other
)

// A Plan is the definition of a saga without its functions.
type Plan struct {
	Name     string        `json:"name"`
	Version  int           `json:"version"`
	Deadline time.Duration `json:"deadline,omitempty"` // from the start until the pivot is sent, or else to the end; nanoseconds
	OnEnd    bool          `json:"on_end,omitempty"`   // a function is called in the transaction that ends an instance
	Nodes    []Node        `json:"nodes"`
}

// A Node is a step, or several.
type Node struct {
	Name        string `json:"name"`
	Kind        Kind   `json:"kind"`
	Topic       string `json:"topic,omitempty"`        // of a Remote's command
	Type        string `json:"type,omitempty"`         // of that command
	ContentType string `json:"content_type,omitempty"` // of that command; "": JSON
	Saga        string `json:"saga,omitempty"`         // name of a Nested's
	Nodes       []Node `json:"nodes,omitempty"`

	Undo            Kind   `json:"undo,omitempty"` // how it is compensated; "": it is not
	UndoTopic       string `json:"undo_topic,omitempty"`
	UndoType        string `json:"undo_type,omitempty"`
	UndoContentType string `json:"undo_content_type,omitempty"`

	Pivot       bool `json:"pivot,omitempty"`       // after it the saga only goes forward
	Conditional bool `json:"conditional,omitempty"` // its condition is evaluated when its turn comes

	Deadline  time.Duration `json:"deadline,omitempty"` // from the command to the reply
	Retry     Retry         `json:"retry,omitzero"`
	UndoRetry Retry         `json:"undo_retry,omitzero"`

	OnDeadLetter Policy `json:"on_dead_letter,omitempty"` // default: PolicyWait
	OnDeadline   Policy `json:"on_deadline,omitempty"`    // default: PolicyUndo before the pivot; else the step is stuck
}

// A Policy says what a saga does when a step misses its deadline or its command becomes a dead letter.
type Policy string

// The policies.
const (
	PolicyUndo Policy = "undo" // compensate, the step included
	PolicyWait Policy = "wait" // for the reply
)

// A Retry limits the attempts. The wait between two is Base, doubled after each attempt, at most Cap.
type Retry struct {
	Attempts int           `json:"attempts,omitempty"`
	Base     time.Duration `json:"base,omitempty"`
	Cap      time.Duration `json:"cap,omitempty"`
}

// waitAfter returns the wait between the given attempt and the next one.
func (r Retry) waitAfter(attempt int) Millis {
	d := r.Base
	for ; attempt > 1 && d < r.Cap; attempt-- {
		d *= 2
	}
	return MillisOf(min(d, r.Cap))
}

// Millis is a time in the life of an instance: milliseconds since its start.
type Millis int64

// MillisOf returns d in milliseconds, rounded up: a wait is never cut short.
func MillisOf(d time.Duration) Millis {
	return Millis((d + time.Millisecond - 1) / time.Millisecond)
}

// Duration returns m as a time.Duration since the start.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// Hash returns a digest of what an instance relies on: the steps, their kinds and order, and how they are undone.
// Deadlines, retries, policies and OnEnd are not in it: they may change while instances run.
func (p Plan) Hash() string {
	p.Deadline, p.OnEnd = 0, false
	p.Nodes = withoutTuning(p.Nodes)
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings, numbers and booleans only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// withoutTuning returns nodes without deadlines, retries and policies.
func withoutTuning(nodes []Node) []Node {
	plain := make([]Node, len(nodes))
	for i, n := range nodes {
		n.Deadline, n.Retry, n.UndoRetry, n.OnDeadLetter, n.OnDeadline = 0, Retry{}, Retry{}, "", ""
		if len(n.Nodes) > 0 {
			n.Nodes = withoutTuning(n.Nodes)
		}
		plain[i] = n
	}
	return plain
}
