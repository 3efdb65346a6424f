package consumerstorm

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
)

var flagRestarts = flag.Int("storm.restarts", 3, "how often each process of the rolling restart is restarted")

// Three processes are restarted one after the other, over and over, under load. A
// handler that has been entered finishes, and its message is acked: every message
// enters its handler once, over all of them, and each process ends in good order
// within its time.
func TestARollingRestartRunsNothingTwice(t *testing.T) {
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			f := newField(t, processConfig{Batch: batch, Limit: 5, Lanes: 4, Prefetch: 32})
			for range 3 {
				f.add("")
			}
			stop := f.load(16)
			for range 3 * *flagRestarts {
				began := f.count()
				f.await("the processes are at work", drainLimit, func() bool { return f.count() > began+50 })
				f.retire(f.processes[0])
				f.add("")
			}
			stop()
			f.drain()
			f.judge(Limits{Attempts: 1, Drained: true})
			entries := f.evidence().entries()
			for _, m := range f.published {
				if n := entries[m.ID]; n != 1 {
					t.Errorf("%s entered its handler %d times", m.ID, n)
				}
			}
			t.Logf("%d messages, %d restarts", len(f.published), 3**flagRestarts)
		})
	}
}

// count returns how many entries into handlers there were.
func (f *field) count() (n int) {
	f.Helper()
	if err := f.pool.QueryRow(f.Context(), "SELECT count(*) FROM "+f.config.Schema+".storm_entry").Scan(&n); err != nil {
		f.Fatal(err)
	}
	return n
}

// load publishes messages, always so many ahead of the handlers that every
// process has its prefetch, until the returned function is called.
func (f *field) load(chunk int) (stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	var group sync.WaitGroup
	group.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if f.waiting() > 200 {
				_ = backoff.Sleep(ctx, 5*time.Millisecond)
				continue
			}
			var letters []letter
			for j := range chunk {
				letters = append(letters, letter{key: fmt.Sprint("k", i, "-", j), step: "pay", kind: Action, payload: `{"wait":5}`})
			}
			f.publish(letters...)
		}
	})
	return func() {
		cancel()
		group.Wait()
	}
}
