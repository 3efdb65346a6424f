package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/pgtest"
)

// TestMain is the program itself when it is told to be: the demo starts
// os.Executable, which is this test binary then.
func TestMain(m *testing.M) {
	if os.Getenv("ORDER_SAGA_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// The real program, each service in a process of its own, on one database or
// on one each, while processes are killed.
func TestSeparateProcessesSurviveKills(t *testing.T) {
	// Not parallel: with all their pools, these are the most connections that
	// the tests have open at once.
	for _, ownDatabases := range []bool{false, true} {
		t.Run(fmt.Sprint("own databases ", ownDatabases), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "demo", "-orders", "80", "-clients", "6", "-kill", "8")
			cmd.Env = append(os.Environ(), "ORDER_SAGA_MAIN=1", "DATABASE_URL="+pgtest.Database(t), "AMQP_URL="+brokerURL())
			if ownDatabases {
				for _, service := range serviceNames {
					cmd.Env = append(cmd.Env, databaseVariable(service)+"="+pgtest.Database(t))
				}
			}
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "all invariants hold") || !strings.Contains(out.String(), "processes restarted") {
				t.Errorf("demo: %v\n%s", err, out.String())
			}
		})
	}
}
