package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/planted"
)

// A bug without a trap would count as caught, and one that there is not would never be planted.
func TestEveryBugHasATrap(t *testing.T) {
	t.Parallel()
	for _, b := range planted.Bugs() {
		if len(trapsOf(b)) == 0 {
			t.Errorf("bug %s has no trap", b.Name)
		}
	}
	for _, trap := range traps {
		if _, err := pick(trap.bug); err != nil {
			t.Errorf("trap %s: %v", trap.run, err)
		}
		if trap.says == "" || trap.why == "" {
			t.Errorf("trap %s: it must say what fails, and why", trap.run)
		}
	}
}

// The tests of all traps are where they are looked for.
func TestEveryTrapIsATest(t *testing.T) {
	t.Parallel()
	for _, trap := range traps {
		files, err := filepath.Glob(filepath.Join("../../..", trap.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		there := slices.ContainsFunc(files, func(name string) bool {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Error(err)
			}
			return strings.Contains(string(text), "\nfunc "+trap.test()+"(t *testing.T)")
		})
		if !there {
			t.Errorf("there is no %s in %s", trap.test(), trap.pkg)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	exit := errors.New("exit status 1")
	trap := trap{run: "TestA/case", says: "twice"}
	for said, tt := range map[string]struct {
		err  error
		want string
	}{
		"=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\n":                         {nil, "the test passes"},
		"=== RUN   TestA\n--- FAIL: TestA (0.00s)\n    a_test.go:1: ran twice\n":   {exit, ""},
		"=== RUN   TestA\n--- FAIL: TestA (0.00s)\n    a_test.go:1: no database\n": {exit, `the test fails, but not with "twice"`},
		"=== RUN   TestA\npanic: test timed out after 2m, twice\n":                 {exit, "it ends by exit status 1, and no test has failed"},
		"--- FAIL: TestAOfB (0.00s)\n    a_test.go:1: ran twice\n":                 {exit, "it ends by exit status 1, and no test has failed"},
	} {
		if got := trap.judge(said, tt.err); got != tt.want {
			t.Errorf("judge(%q) = %q, want %q", said, got, tt.want)
		}
	}
}

// Without a bug each package is built once, before any that has one.
func TestJobs(t *testing.T) {
	t.Parallel()
	bugs, err := pick("safe-to-retry,cursor-outbox")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, j := range jobs(bugs) {
		got = append(got, strings.TrimSpace(j.bug.Name+" "+j.pkg))
	}
	want := []string{"consumer", "idemkey/idempg", "outbox", "safe-to-retry consumer", "safe-to-retry idemkey/idempg", "cursor-outbox outbox"}
	if !slices.Equal(got, want) {
		t.Errorf("jobs %q, want %q", got, want)
	}
}
