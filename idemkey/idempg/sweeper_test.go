package idempg

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

// A sweepCount ends a sweeping once enough records are gone.
type sweepCount struct {
	mu      sync.Mutex
	deleted int
	enough  int
	done    func()
}

func (s *sweepCount) Swept(_ context.Context, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deleted += n; s.deleted >= s.enough {
		s.done()
	}
}

// Sweepers in several processes remove each expired record once. Live records
// stay, and so does an expired one whose owner still runs.
func TestSweepers(t *testing.T) {
	t.Parallel()
	const expired, live, instances = 50, 3, 3
	f := newFixture(t, Options{Grace: 100 * time.Millisecond})
	for i := range expired + live {
		d, err := f.Begin(t.Context(), idemkeytest.Claim(fmt.Sprint(i), "a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Exec.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
			t.Fatal(err)
		}
	}
	owned := idemkeytest.Claim("owned", "a")
	owned.TTL, owned.Lease = time.Millisecond, time.Millisecond // the owner's row cannot be changed while it runs
	owner := f.begin(t, owned)
	if err := owner.tx.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.exec(t, "UPDATE "+f.schema+".idempotency_key SET expires_at = clock_timestamp() - interval '1 h' WHERE key ~ '^\\d+$' AND key::int < $1", expired)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := &sweepCount{enough: expired, done: cancel}
	var wg sync.WaitGroup
	for range instances {
		s, err := idemkey.NewSweeper(f, &idemkey.SweeperOptions{Interval: time.Millisecond, Batch: 4, Observer: seen, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	wg.Wait()
	if seen.deleted != expired {
		t.Errorf("%d records removed, want %d", seen.deleted, expired)
	}
	if err := owner.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
		t.Errorf("Commit of the owner: %v", err)
	}
	var left int // with that of the owner, unless a sweeper's last statement has gone on without it
	if err := f.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+f.schema+".idempotency_key").Scan(&left); err != nil || left < live || left > live+1 {
		t.Errorf("%d records left, %v; want %d, or %d", left, err, live+1, live)
	}
}
