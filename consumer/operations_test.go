package consumer

import (
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
)

// The statement that docs/operations.md gives for a dead letter does what it
// says.
func TestTheRedriveOfTheOperationsManual(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	statement := regexp.MustCompile(`(?s)WITH again.*?;`).FindString(string(manual))
	if !strings.Contains(statement, "4711") {
		t.Fatalf("the manual's statement is %q", statement)
	}
	f := newFixture(t)
	redrive := strings.NewReplacer("UPDATE parked", "UPDATE {schema}.parked", "UPDATE inbox", "UPDATE {schema}.inbox",
		"id = 4711", "id = (SELECT max(id) FROM {schema}.parked)").Replace(statement)
	var entries, undoEntries atomic.Int32
	step := f.step(f.failing(2, "paid", &entries), f.failing(2, "refunded", &undoEntries))
	step.MaxAttempts = 2
	c := f.consumer(t, Options{}, step)
	for _, tt := range []struct{ dead, done string }{
		{"dead 2 0 | dead action attempts-exhausted 2", "done 1 0 | "},
		{"undo-dead 1 2 | dead compensation attempts-exhausted 2", "compensated 1 1 | "},
	} {
		msg := act("k")
		if strings.HasPrefix(tt.dead, "undo") {
			msg = undo("k")
		}
		handle(t, c, msg)
		runParkedOnce(t, c)
		if got := f.row(t) + " | " + f.parked(t); got != tt.dead {
			t.Fatalf("before: %q, want %q", got, tt.dead)
		}
		f.exec(t, redrive)
		runParkedOnce(t, c)
		if got := f.row(t) + " | " + f.parked(t); got != tt.done {
			t.Errorf("after: %q, want %q", got, tt.done)
		}
	}
	if got, want := f.effects(t), "paid k 1, refunded k 2"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
	// A message whose step has moved on is a duplicate.
	handle(t, c, newMessage("pay", "other", payment{1}), newMessage("pay", "other", payment{2}))
	f.exec(t, redrive)
	runParkedOnce(t, c)
	if got := f.parked(t); !strings.Contains(got, "dead action key-reused") {
		t.Errorf("parked %q, want the reused key to be a dead letter again", got)
	}
}
