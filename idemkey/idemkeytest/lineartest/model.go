package lineartest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// MaxOps is how many operations one key may have: the search for an order is
// exponential in those that are concurrent.
const MaxOps = 30

// checkTimeout bounds the search for all keys together. Undecided is an error.
const checkTimeout = 60 * time.Second

// Never is the Return of an operation whose outcome the client does not know:
// it may take effect at any time after its Call.
const Never int64 = math.MaxInt64

// A Kind is what a client learned from an answer.
type Kind string

// The kinds.
const (
	Created  Kind = "created"  // the handler ran, and this is its response
	Replayed Kind = "replayed" // it had run before
	Mismatch Kind = "mismatch" // the key belongs to another request
	InFlight Kind = "in flight"
	Unknown  Kind = "unknown" // timeout, reset, 5xx: anything may have happened
	Absurd   Kind = "absurd"  // an answer that no state of the key explains
)

// kinds are those that a run must have seen to prove something.
var kinds = []Kind{Created, Replayed, Mismatch, InFlight, Unknown}

// An Op is one request as its client saw it. Times are from one monotonic clock.
type Op struct {
	Client       int
	Key, Body    string
	Call, Return int64
	Kind         Kind
	Response     string // of Created and Replayed: status, headers and bytes
	Stalled      bool   // the process hung while it served the request, as [ServeWatched] tells
}

// String is a line of a report.
func (o Op) String() string {
	end := "never"
	if o.Return != Never {
		end = time.Duration(o.Return).String()
	}
	return fmt.Sprintf("[%v, %s] client %d: %s %s: %s %q", time.Duration(o.Call), end, o.Client, o.Key, o.Body, o.Kind, o.Response)
}

// ErrNotLinear reports a history that no order of its operations explains.
var ErrNotLinear = errors.New("lineartest: the history has no legal order")

// A NotLinearError is an [ErrNotLinear] with the key and its operations.
type NotLinearError struct {
	Key string
	Ops []Op
}

// Error lists the operations in order of Call.
func (e *NotLinearError) Error() string {
	lines := make([]string, len(e.Ops))
	for i, op := range e.Ops {
		lines[i] = "\n  " + op.String()
	}
	return fmt.Sprintf("%v: key %s:%s", ErrNotLinear, e.Key, strings.Join(lines, ""))
}

// Unwrap lets errors.Is find ErrNotLinear.
func (e *NotLinearError) Unwrap() error { return ErrNotLinear }

// Check returns nil if each key's operations have a legal order. For keys without
// one it returns joined [NotLinearError]s. A history that is too long, or that is
// not decided in time, gets another error.
func Check(history []Op) error { return checkHistory(history, false) }

// CheckLeased is [Check] for a store whose owners are kept by a lease alone. An owner
// that hung may have been overtaken. Then its client may get a response that no other
// client gets. All others answer as under Check.
func CheckLeased(history []Op) error { return checkHistory(history, true) }

func checkHistory(history []Op, leased bool) error {
	var (
		errs     []error
		deadline = time.Now().Add(checkTimeout)
		model    = cell.ToModel()
	)
	for _, ops := range splitByKey(history) {
		if len(ops) > MaxOps {
			return fmt.Errorf("lineartest: key %s has %d operations, want at most %d", ops[0].Key, len(ops), MaxOps)
		}
		// A timeout of 0 would mean none.
		switch porcupine.CheckOperationsTimeout(model, porcupineOps(ops, leased), max(time.Millisecond, time.Until(deadline))) {
		case porcupine.Illegal:
			errs = append(errs, &NotLinearError{ops[0].Key, ops})
		case porcupine.Unknown:
			return fmt.Errorf("lineartest: key %s is undecided", ops[0].Key)
		}
	}
	return errors.Join(errs...)
}

// splitByKey splits a history into keys, each in order of Call.
func splitByKey(history []Op) map[string][]Op {
	keys := make(map[string][]Op)
	for _, op := range history {
		keys[op.Key] = append(keys[op.Key], op)
	}
	for _, ops := range keys {
		slices.SortFunc(ops, func(a, b Op) int { return int(a.Call - b.Call) })
	}
	return keys
}

// An input is an operation with what the others of its key allow it to see.
type input struct {
	op      Op
	binders []string // other bodies that may have claimed the key before op returned
	crowded bool     // another operation overlaps op
	leased  bool     // op may have been overtaken
}

// porcupineOps are the ops of one key as porcupine takes them. A claim precedes
// its own effect, so that others can see a key bound or in flight before the
// operation that did it takes effect. They see it only from one that has been
// called and may have claimed. In flight is also what a process answers while another request of the key
// is about to claim it there: that one may still lose the key to a third, and end as a mismatch.
func porcupineOps(ops []Op, leased bool) []porcupine.Operation {
	var all []porcupine.Operation
	for i, op := range ops {
		in := input{op: op, leased: leased && op.Stalled}
		for j, other := range ops {
			if i == j || other.Call > op.Return {
				continue
			}
			in.crowded = in.crowded || other.Return >= op.Call
			if other.Kind == Mismatch {
				continue // it has never claimed
			}
			if other.Body != op.Body && !slices.Contains(in.binders, other.Body) {
				in.binders = append(in.binders, other.Body)
			}
		}
		all = append(all, porcupine.Operation{ClientId: op.Client, Input: in, Call: op.Call, Output: op.Kind, Return: op.Return})
	}
	return all
}

// A state is the state of a key. If the client that completed the key did not get the
// response, the response is unknown until the first replay.
type state struct {
	body     string // that the key is bound to; empty: none
	done     bool
	heard    bool
	response string
}

var cell = porcupine.NondeterministicModel{
	Init:  func() []any { return []any{state{}} },
	Step:  func(s, in, _ any) []any { return nextStates(s.(state), in.(input)) },
	Equal: func(a, b any) bool { return a.(state) == b.(state) },
}

// nextStates returns the states that in may lead to; none: in is not legal in s.
func nextStates(s state, in input) []any {
	op := in.op
	free := s.body == "" || s.body == op.Body
	switch op.Kind {
	case Created:
		return statesCreated(s, in, free)
	case Replayed:
		if s.done && free && (!s.heard || s.response == op.Response) {
			return []any{state{op.Body, true, true, op.Response}}
		}
	case Mismatch:
		return statesMismatch(s, in)
	case InFlight:
		if !s.done && in.crowded {
			return []any{s}
		}
	case Unknown:
		next := []any{s}
		if free && !s.done {
			next = append(next, state{body: op.Body}, state{body: op.Body, done: true})
		}
		return next
	}
	return nil
}

// statesCreated completes a free key. An owner that was overtaken has only bound it.
func statesCreated(s state, in input, free bool) []any {
	if !free || s.done {
		return nil
	}
	next := []any{state{in.op.Body, true, true, in.op.Response}}
	if in.leased {
		next = append(next, state{body: in.op.Body})
	}
	return next
}

// statesMismatch needs a key that is bound to another body, or that a claim may just have bound.
func statesMismatch(s state, in input) []any {
	if s.body != "" {
		if s.body == in.op.Body {
			return nil
		}
		return []any{s}
	}
	var next []any
	for _, body := range in.binders {
		next = append(next, state{body: body})
	}
	return next
}
