package lineartest

import (
	"errors"
	"fmt"
	"testing"
)

// op is an operation from call to end; end 0 is never.
func op(call, end int64, body string, kind Kind, response string) Op {
	if end == 0 {
		end = Never
	}
	return Op{Client: int(call), Key: "k", Body: body, Call: call, Return: end, Kind: kind, Response: response}
}

// The checker is only as good as what it refuses.
func TestCheck(t *testing.T) {
	t.Parallel()
	created := op(1, 2, "a", Created, "r1")
	tests := []struct {
		name  string
		ops   []Op
		legal bool
	}{
		{"created, replayed", []Op{created, op(3, 4, "a", Replayed, "r1")}, true},
		{"flipped byte", []Op{created, op(3, 4, "a", Replayed, "r0")}, false},
		{"two creates", []Op{created, op(3, 4, "a", Created, "r1")}, false},
		{"two creates at once", []Op{op(1, 5, "a", Created, "r1"), op(2, 4, "a", Created, "r2")}, false},
		{"replay for another body", []Op{created, op(3, 4, "b", Replayed, "r1")}, false},
		{"replay of nothing", []Op{op(1, 2, "a", Replayed, "r1")}, false},
		{"replay before the create was called", []Op{op(1, 2, "a", Replayed, "r1"), op(3, 4, "a", Created, "r1")}, false},
		{"replay while the create returns", []Op{op(1, 9, "a", Created, "r1"), op(3, 4, "a", Replayed, "r1")}, true},
		{"two replays of an unheard create differ", []Op{op(1, 0, "a", Unknown, ""), op(3, 4, "a", Replayed, "r1"),
			op(5, 6, "a", Replayed, "r2")}, false},
		{"unheard create", []Op{op(1, 0, "a", Unknown, ""), op(3, 4, "a", Replayed, "r1"), op(5, 6, "a", Replayed, "r1")}, true},
		{"unheard failure", []Op{op(1, 0, "a", Unknown, ""), op(3, 4, "a", Created, "r1")}, true},
		{"unheard create takes effect late", []Op{op(1, 0, "a", Unknown, ""), op(3, 4, "a", InFlight, ""),
			op(5, 6, "a", Replayed, "r1")}, true},
		{"create after an unheard create was replayed", []Op{op(1, 0, "a", Unknown, ""), op(3, 4, "a", Replayed, "r1"),
			op(5, 6, "a", Created, "r2")}, false},
		{"mismatch after", []Op{created, op(3, 4, "b", Mismatch, "")}, true},
		{"mismatch for its own body", []Op{created, op(3, 4, "a", Mismatch, "")}, false},
		{"mismatch of nothing", []Op{op(1, 2, "b", Mismatch, "")}, false},
		{"mismatch while in flight", []Op{op(1, 9, "a", Created, "r1"), op(3, 4, "b", Mismatch, "")}, true},
		{"mismatch by what is called later", []Op{op(1, 2, "b", Mismatch, ""), op(3, 4, "a", Created, "r1")}, false},
		{"bound for good", []Op{op(1, 0, "a", Unknown, ""), op(3, 4, "b", Mismatch, ""), op(5, 6, "b", Created, "r1")}, false},
		{"all mismatch", []Op{op(1, 9, "a", Mismatch, ""), op(2, 8, "b", Mismatch, "")}, false},
		{"in flight", []Op{op(1, 9, "a", Created, "r1"), op(3, 4, "a", InFlight, "")}, true},
		{"in flight behind a claim that is lost", []Op{op(1, 9, "b", Mismatch, ""), op(2, 3, "b", InFlight, ""), op(4, 5, "a", Created, "r1")}, true},
		{"in flight alone", []Op{op(1, 2, "a", InFlight, "")}, false},
		{"in flight after the create was heard", []Op{created, op(3, 4, "a", InFlight, "")}, false},
		{"absurd", []Op{op(1, 2, "a", Absurd, "")}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := Check(tt.ops)
			if got := err == nil; got != tt.legal || err != nil && !errors.Is(err, ErrNotLinear) {
				t.Errorf("Check = %v, want legal: %t", err, tt.legal)
			}
		})
	}
}

// An owner that hung may have been overtaken, and no other.
func TestCheckLeased(t *testing.T) {
	t.Parallel()
	late := op(1, 9, "a", Created, "own")
	late.Stalled = true
	after := op(10, 11, "a", Created, "own")
	after.Stalled = true
	other := op(2, 5, "a", Created, "r1")
	tests := []struct {
		name  string
		ops   []Op
		legal bool
	}{
		{"overtaken", []Op{late, other, op(10, 12, "a", Replayed, "r1")}, true},
		{"not overtaken", []Op{late, op(10, 12, "a", Replayed, "own")}, true},
		{"its response is replayed as well", []Op{late, other, op(10, 11, "a", Replayed, "r1"), op(12, 13, "a", Replayed, "own")}, false},
		{"it began when all was over", []Op{other, after}, false},
		{"it was bound to another body", []Op{late, op(2, 5, "b", Created, "r1")}, false},
		{"two owners that did not hang", []Op{op(1, 9, "a", Created, "own"), other}, false},
		{"overtaken, and nobody completed", []Op{late, op(10, 19, "a", InFlight, ""), op(11, 18, "a", Created, "r1")}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if err := CheckLeased(tt.ops); (err == nil) != tt.legal {
				t.Errorf("CheckLeased = %v, want legal: %t", err, tt.legal)
			}
			if err := Check(tt.ops); tt.legal && tt.name != "not overtaken" && err == nil {
				t.Error("Check finds nothing")
			}
		})
	}
}

// One bad key among good ones is found and named.
func TestCheckNamesTheKey(t *testing.T) {
	t.Parallel()
	var history []Op
	for i := range 200 {
		key := fmt.Sprint("k", i)
		for j := range int64(20) {
			kind := Replayed
			if j == 0 {
				kind = Created
			}
			history = append(history, Op{Key: key, Body: "a", Call: 2 * j, Return: 2*j + 1, Kind: kind, Response: key})
		}
	}
	if err := Check(history); err != nil {
		t.Fatalf("Check: %v", err)
	}
	history[70].Response = "k2"
	bad := (*NotLinearError)(nil)
	if err := Check(history); !errors.As(err, &bad) || bad.Key != history[70].Key {
		t.Errorf("Check = %v, want an error about key %s", err, history[70].Key)
	}
}

func TestCheckLimit(t *testing.T) {
	t.Parallel()
	if err := Check(make([]Op, MaxOps+1)); err == nil || errors.Is(err, ErrNotLinear) {
		t.Errorf("Check = %v, want it to refuse so many operations", err)
	}
}

// What the business table may not hold.
func TestAudit(t *testing.T) {
	t.Parallel()
	heard := []Op{op(1, 2, "a", Created, runResponse("run-1", "a"))}
	tests := []struct {
		name      string
		rows      []Effect
		completed []string
		legal     bool
	}{
		{"one row", []Effect{{"k", "run-1"}}, []string{"k"}, true},
		{"no row", nil, []string{"k"}, false},
		{"two rows", []Effect{{"k", "run-1"}, {"k", "run-2"}}, []string{"k"}, false},
		{"another run's row", []Effect{{"k", "run-2"}}, []string{"k"}, false},
		{"row without a record", []Effect{{"k", "run-1"}, {"l", "run-3"}}, []string{"k"}, false},
		{"response without a record", []Effect{{"k", "run-1"}}, nil, false},
		{"completed, unheard", []Effect{{"k", "run-1"}, {"l", "run-3"}}, []string{"k", "l"}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if err := Audit(heard, tt.rows, tt.completed); (err == nil) != tt.legal {
				t.Errorf("Audit = %v, want legal: %t", err, tt.legal)
			}
		})
	}
}

// What effects that cannot be rolled back may not be.
func TestAuditLeased(t *testing.T) {
	t.Parallel()
	heard, unknown := op(1, 2, "a", Created, runResponse("run-1", "a")), op(3, 0, "a", Unknown, "")
	late := op(3, 9, "a", Created, runResponse("run-2", "a"))
	late.Stalled = true
	kept := map[string]string{"k": runContent("run-1", "a")}
	one, two := []Effect{{"k", "run-1"}}, []Effect{{"k", "run-1"}, {"k", "run-2"}}
	tests := []struct {
		name    string
		history []Op
		rows    []Effect
		kept    map[string]string
		legal   bool
	}{
		{"one effect", []Op{heard}, one, kept, true},
		{"another that nobody asked for", []Op{heard}, two, kept, false},
		{"another of a request whose end is unknown", []Op{heard, unknown}, two, kept, true},
		{"another of an owner that hung", []Op{heard, late}, two, kept, true},
		{"an owner that hung, without an effect", []Op{heard, late}, one, kept, false},
		{"another of one that did not", []Op{heard, op(3, 9, "a", Created, late.Response)}, two, kept, false},
		{"no effect", []Op{heard}, nil, kept, false},
		{"the response is not kept", []Op{heard}, one, nil, false},
		{"what is kept had no effect", []Op{unknown}, one, map[string]string{"k": runContent("run-3", "a")}, false},
		{"a replay of something else", []Op{heard, op(3, 9, "a", Replayed, runResponse("run-2", "a")), unknown}, two, kept, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if err := AuditLeased(tt.history, tt.rows, tt.kept); (err == nil) != tt.legal {
				t.Errorf("AuditLeased = %v, want legal: %t", err, tt.legal)
			}
		})
	}
}
