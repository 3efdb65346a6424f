package saga_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A record is what orchestrators have logged.
type record struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (r *record) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.Write(line)
}

func (r *record) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (r *record) lines() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.all.String()) {
		all = append(all, line)
	}
	return all
}

// Two orchestrators take the replies of parallel steps of many instances, in batches.
// Neither waits for what the other has locked while that waits for it; nothing
// fails, nothing is lost, and no attempt is wasted.
func TestRepliesOfParallelStepsAtOnce(t *testing.T) {
	t.Parallel()
	items := []string{"x", "no guide", "no car"}
	t.Run("steps", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		d := fan()
		s.atOnce(60, []int{5, 8, 6}, func(i int) { start(s.place, d, fmt.Sprint("k", i), trip{Item: items[i%3]}) })
	})
	t.Run("sagas", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		d := fair()
		s.atOnce(24, []int{13, 20, 16}, func(i int) { start(s.place, d, fmt.Sprint("k", i), tour{Item: items[i%3]}) })
	})
}

// atOnce runs n instances in two orchestrators. So many effects is a key to have, by its
// number.
func (s *site) atOnce(n int, effects []int, start func(i int)) {
	s.t.Helper()
	for i := range n {
		start(i)
	}
	s.patient = true // a lock that lasts for long is no deadlock
	var log record
	both := [2]*saga.Orchestrator{}
	for i := range both {
		both[i] = s.orchestrate(saga.Options{Logger: log.logger()})
	}
	s.participate()
	s.await("all have ended", func() bool {
		return s.one("SELECT count(*)::text FROM "+s.schema+".saga WHERE ended_at IS NULL") == "0"
	})
	for i := range n {
		got := s.effects(fmt.Sprint("k", i))
		if len(strings.Fields(strings.ReplaceAll(got, "no ", "no-"))) != effects[i%len(effects)] {
			s.t.Errorf("k%d: effects %s, want %d", i, got, effects[i%len(effects)])
		}
	}
	s.noneWasted(both[:])
	for _, line := range log.lines() {
		s.t.Error(line)
	}
}

// noneWasted checks that each message was handled in one attempt.
func (s *site) noneWasted(all []*saga.Orchestrator) {
	s.t.Helper()
	entries, outcomes, transactions := uint64(0), uint64(0), uint64(0)
	for _, o := range all {
		counters := o.Consumer().Counters()
		transactions += counters.Transactions.Count
		for _, step := range counters.Steps {
			entries += step.Handler.Count
			outcomes += step.Outcomes["done"]
			for reason, n := range step.Retries {
				s.t.Errorf("%d messages of %s were tried again: %s", n, step.Step, reason)
			}
		}
	}
	if entries != outcomes {
		s.t.Errorf("%d entries into handlers for %d messages", entries, outcomes)
	}
	s.t.Logf("%d messages in %d transactions", outcomes, transactions)
}

// The deadline and the reply come at the same time, in two processes. Either may be
// first: the saga completes, or nothing is left of it.
func TestADeadlineAgainstAReply(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var log record
	for range 2 {
		s.orchestrate(saga.Options{Logger: log.logger()})
	}
	s.participate()
	const n = 32
	completed := 0
	for wave := range n / 4 { // as many as can be at work at once, or all are too late
		for i := range 4 {
			start(s.place, closeTrip(), fmt.Sprint("k", 4*wave+i), trip{Item: closeItem})
		}
		s.await("all have ended", func() bool {
			return s.one("SELECT count(*)::text FROM "+s.schema+".saga WHERE ended_at IS NULL") == "0"
		})
	}
	for i := range n {
		key := fmt.Sprint("k", i)
		done := map[string]int{}
		for _, what := range s.did(key) {
			name, undone := strings.CutPrefix(what, "no ")
			if done[name]++; undone {
				done[name] -= 2
			}
			if done[name] != 0 && done[name] != 1 {
				t.Errorf("%s: effects %s", key, s.effects(key))
			}
		}
		want := 0
		if s.one("SELECT status FROM "+s.schema+".saga WHERE key = $1", key) == "completed" {
			want = 1
			completed++
		}
		for _, name := range []string{"flight", "hotel", "car", "guide"} {
			if done[name] != want {
				t.Errorf("%s: effects %s, want %d of each at the end", key, s.effects(key), want)
			}
		}
	}
	for _, line := range log.lines() {
		t.Error(line)
	}
	t.Logf("%d of %d completed", completed, n)
}

// did returns the effects of a key.
func (s *site) did(key string) []string {
	s.t.Helper()
	rows, _ := s.db.Query(s.t.Context(), "SELECT what FROM "+s.schema+".effect WHERE key = $1 ORDER BY at", key)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// A transaction has an instance locked, as a verb does. Other instances do not wait for it.
func TestALockedInstanceHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.orchestrate(saga.Options{})
	s.orchestrate(saga.Options{})
	for i := range 40 {
		start(s.place, fan(), fmt.Sprint("k", i), trip{Item: "x"})
	}
	tx, err := s.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM "+s.schema+".saga WHERE key = 'k7' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	s.participate()
	s.await("all others have ended", func() bool {
		return s.one("SELECT count(*)::text FROM "+s.schema+".saga WHERE ended_at IS NULL") == "1"
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.until("k7", saga.StatusCompleted)
}

// Nested sagas are undone while replies for them arrive: those are in one batch, and
// none is handled with what was read before the other.
func TestARevocationAndAReplyInOneBatch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := fair()
	const n = 20
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
		start(s.place, d, keys[i], tour{})
	}
	for _, key := range keys {
		s.publish(outbox.Message{Topic: saga.Topic("fan"), Type: saga.TypeRevoke, Key: key, Step: "one", N: "2.1", Payload: []byte(`{"reason":"why not"}`)})
		s.publish(outbox.Message{Topic: saga.Topic("fan"), Type: saga.TypeReply, Key: key, Step: "visa", N: "2.1-1.1.d", Payload: []byte(`{"outcome":"done","result":{"number":"LH1"}}`)})
	}
	s.await("all are published", func() bool {
		stats, err := s.relay.Stats(t.Context())
		return err == nil && stats.Stored == 0
	})
	var log record
	o := s.orchestrate(saga.Options{Logger: log.logger(), Consumer: consumer.Options{BatchTime: time.Minute}})
	s.await("all have turned round", func() bool {
		return s.one("SELECT count(*)::text FROM "+s.schema+".inbox WHERE step LIKE '%-fan' AND state = 'done'") == fmt.Sprint(2*n)
	})
	s.noneWasted([]*saga.Orchestrator{o})
	for _, line := range log.lines() {
		t.Error(line)
	}
}
