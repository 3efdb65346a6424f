package main

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
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
	t.Parallel()
	needtest.Slow(t)
	for _, ownDatabases := range []bool{false, true} {
		t.Run(fmt.Sprint("own databases ", ownDatabases), func(t *testing.T) {
			t.Parallel()
			if pgtest.Pooled() && !ownDatabases {
				needtest.LeaveOut(t, "the demo makes a database of its own through DATABASE_URL, and migrates it")
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "demo", "-orders", "80", "-clients", "6", "-kill", "8")
			cmd.Env = append(os.Environ(), "ORDER_SAGA_MAIN=1", "DATABASE_URL="+smallPool(t, database(t)), "AMQP_URL="+brokerURL())
			if ownDatabases {
				for _, service := range program.Services {
					cmd.Env = append(cmd.Env, demo.DatabaseVariable(service)+"="+smallPool(t, database(t)))
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

// smallPool bounds the connections of each service: the other tests have theirs
// on the same server at the same time.
func smallPool(t *testing.T, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("pool_max_conns", "3")
	u.RawQuery = q.Encode()
	return u.String()
}
