package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// TestMain is the program itself when it is told to be: the demo starts
// os.Executable, which is this test binary then.
func TestMain(m *testing.M) {
	if os.Getenv("TRIP_SAGA_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// runProgram runs the real program, on a database of the test's own.
func runProgram(t *testing.T, args ...string) string {
	t.Helper()
	if pgtest.Pooled() {
		needtest.LeaveOut(t, "the demo makes a database of its own through DATABASE_URL, and migrates it")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TRIP_SAGA_MAIN=1", "DATABASE_URL="+database(t), "AMQP_URL="+brokerURL())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "all invariants hold") {
		t.Errorf("demo: %v\n%s", err, out.String())
	}
	return out.String()
}

// These are not parallel: with all their pools, each has as many connections open
// as the tests may have.

func TestTheDemoInOneProcess(t *testing.T) {
	out := runProgram(t, "-trips", "42", "-clients", "4")
	for _, k := range kinds {
		if !strings.Contains(out, "\n"+k.name+" ") {
			t.Errorf("the table has no line for %s:\n%s", k.name, out)
		}
	}
}

// The orchestrator is killed first, and then two participants.
func TestSeparateProcessesSurviveKills(t *testing.T) {
	needtest.Slow(t)
	if out := runProgram(t, "-trips", "48", "-clients", "4", "-patience", "4s", "-processes", "-kill", "3"); !strings.Contains(out, "processes restarted 3") {
		t.Errorf("nothing says that three processes were killed:\n%s", out)
	}
}
