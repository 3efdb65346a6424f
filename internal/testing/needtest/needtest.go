// Package needtest ends tests that do not run in this run of the suite: their machine lacks something, they do not apply,
// or they are too slow for it. `go test` shows a skipped test only with -v, so what the machine lacks is reported.
package needtest

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

const (
	// requireVariable holds names, separated by commas: a test that lacks one of them fails instead of being
	// skipped.
	requireVariable = "SAGAMILL_REQUIRE"

	// reportVariable names a file that gets a line for each test that did not run.
	// internal/tools/with prints it in the end.
	reportVariable = "SAGAMILL_NOT_TESTED"

	// shareVariable holds the hash of a commit, which draws one case of each [shares]. If it is empty, all cases run.
	shareVariable = "SAGAMILL_SHARE"

	// shares is in how many commits a case runs once, on average.
	shares = 3
)

// names are the names that SAGAMILL_REQUIRE may hold. internal/tools/with looks for the versions of RabbitMQ.
var names = []string{"postgres", "postgres-client", "rabbitmq", "rabbitmq-3.10", "rabbitmq-4.0", "rabbitmq-4.3", "redis", "nats", "pgbouncer", "node", "chromium"}

// Missing ends t, because the machine lacks the thing called name; format and args give the details. The test
// fails if SAGAMILL_REQUIRE names it, and is skipped otherwise.
func Missing(t testing.TB, name, format string, args ...any) {
	t.Helper()
	reason := oneLine(fmt.Sprintf(format, args...))
	required, err := parse(os.Getenv(requireVariable))
	switch {
	case err != nil:
		t.Fatal(err)
	case !slices.Contains(names, name):
		t.Fatalf("needtest knows nothing that is called %q", name)
	case slices.Contains(required, name):
		t.Fatalf("%s asks for %s: %s", requireVariable, name, reason)
	}
	leave(t, "NOT TESTED", reason)
}

// LeaveOut skips t for reason, because t does not apply to this run of the suite.
func LeaveOut(t testing.TB, reason string) {
	t.Helper()
	leave(t, "LEFT OUT", reason)
}

// Slow skips t if the tests run with -short, as make test runs them. Nothing is reported, because make verify runs t: it
// finds this call in the source. Call Slow in the body of the test itself (archtest looks), after t.Parallel.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: make verify runs it")
	}
}

// Shortened says that t runs with -short, but does less, because rapid or Watermill's suite asks for it: make verify runs
// t as well, whole. Call it as [Slow] is called.
func Shortened(testing.TB) {}

// Drawn reports whether the case name of t runs for the commit in SAGAMILL_SHARE. It is for cases that are many and
// alike: each commit runs some, and make nightly runs all. Without SAGAMILL_SHARE every case is drawn.
func Drawn(t testing.TB, name string) bool {
	commit := os.Getenv(shareVariable)
	if commit == "" {
		return true
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, commit+" "+t.Name()+" "+name)
	return h.Sum64()>>32%shares == 0
}

// Draw returns the cases that are [Drawn], or all if none is. name returns the name of a case.
func Draw[C any](t testing.TB, cases []C, name func(C) string) []C {
	drawn := slices.DeleteFunc(slices.Clone(cases), func(c C) bool { return !Drawn(t, name(c)) })
	if len(drawn) == 0 {
		return cases
	}
	return drawn
}

// Share skips t, which is one of many similar cases, unless it is [Drawn]. Nothing is reported: .ci/run says once that
// it runs a share.
func Share(t testing.TB) {
	t.Helper()
	if !Drawn(t, "") {
		t.Skip("not in this commit's share: make nightly runs it")
	}
}

// parse returns what list names.
func parse(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	required := strings.Split(list, ",")
	for i, name := range required {
		required[i] = strings.TrimSpace(name)
		if !slices.Contains(names, required[i]) {
			return nil, fmt.Errorf("%s: there is no %q (there are %s)", requireVariable, required[i], strings.Join(names, ", "))
		}
	}
	return required, nil
}

// leave skips t and reports it.
func leave(t testing.TB, what, reason string) {
	t.Helper()
	if err := report(os.Getenv(reportVariable), fmt.Sprintf("%s: %s: %s", what, t.Name(), reason)); err != nil {
		t.Fatal(err)
	}
	t.Skipf("%s: %s", what, reason)
}

// report appends one line to path. The tests of several packages write to it at once: a short write at the
// end of a file is atomic.
func report(path, line string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// oneLine returns text without line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
