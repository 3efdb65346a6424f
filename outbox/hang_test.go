//go:build failpoints

package outbox

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/devservices"
)

// hung starts a relay in a process of its own, which stops at point with its
// connections open, and returns it once it has.
func (f *fixture) hung(t *testing.T, log Log, point string) *os.Process {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.SysProcAttr = &syscall.SysProcAttr{}
	devservices.DieWithParent(child.SysProcAttr, syscall.SIGKILL)
	child.Env = append(os.Environ(), "SAGAMILL_TEST_RELAY="+f.schema, "SAGAMILL_TEST_LOG="+string(log), "SAGAMILL_FAILPOINTS="+point+"=stop")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	eventually(t, "the relay hangs", func() bool {
		state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(child.Process.Pid)).Output()
		return err == nil && strings.HasPrefix(string(state), "T")
	})
	return child.Process
}

// A relay that hangs in the middle of a transaction keeps the others out for as
// long as its lease, not for as long as its connection is open; and when it goes
// on, it can do no harm.
func TestAHungRelayIsOvertaken(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"outbox/before-take-over", "outbox/before-commit", "outbox/after-publish", "outbox/after-checkpoint"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.exec(t, "CREATE TABLE {schema}.delivered (position bigserial, message_id text, key text)")
			f.exec(t, "CREATE TABLE {schema}.refusing AS SELECT true AS yes")
			number := 0
			write := func(n int) {
				for range n {
					m := msg(fmt.Sprint("k", number%2), "")
					m.N = fmt.Sprintf("%03d", number)
					f.write(t, m)
					number++
				}
			}
			write(6)
			hung := f.hung(t, LogAppend, point)
			f.exec(t, "UPDATE {schema}.refusing SET yes = false")
			r, err := NewRelay(f.pool, tableBroker{f.pool, f.schema}, &RelayOptions{Schema: f.schema, Lease: time.Second, RetryBase: time.Millisecond, RetryCap: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			stop := start(t, r)
			drained := func() bool { return f.stats(t, r) == counts{} && f.count(t, "delivered") >= number }
			eventually(t, "another relay takes over", drained)
			epoch := f.epoch(t)
			write(6)
			if err := hung.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			write(6)
			eventually(t, "it goes on", drained)
			if got := f.epoch(t); got != epoch {
				t.Errorf("epoch %d, want %d: the relay that had hung took over from one that leads", got, epoch)
			}
			f.checkDelivered(t, number)
			stop()
			write(6) // for the one that hung
			eventually(t, "the first relay goes on after the second has stopped", drained)
			f.checkDelivered(t, number)
		})
	}
}

// checkDelivered checks that a table broker has n messages, in the order of
// each key.
func (f *fixture) checkDelivered(t *testing.T, n int) {
	t.Helper()
	rows, _ := f.pool.Query(t.Context(), "SELECT key FROM "+f.schema+".delivered GROUP BY key ORDER BY min(position)")
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]string{}
	for _, key := range keys {
		of, n, _ := strings.Cut(key, "#")
		if n <= last[of] {
			t.Errorf("%s came after #%s: %q", key, last[of], keys)
		}
		last[of] = n
	}
	if len(keys) != n {
		t.Errorf("delivered %d messages, want %d: %q", len(keys), n, keys)
	}
}
