package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/target"
)

const (
	storedKeys   = 64  // keys with a stored response, for replays
	costRequests = 200 // requests over which costs are averaged

	hotClients = 64
	hotHandler = 30 * time.Millisecond // how long the hot key's handler runs
	hotKeyTime = 250 * time.Millisecond
	window     = 100 * time.Millisecond // in which other keys must be served too

	firstGoal, replayGoal = 0.6, 5
	latencyGoal           = 20 // milliseconds
	othersGoal            = 0.3
)

func createdKeys(clients int, length time.Duration) load {
	return load{clients: clients, length: length, key: nextFreshKey, want: []int{http.StatusCreated}}
}

// measureRates compares first requests with the bare transaction, and replays with first requests.
func (b *bench) measureRates(ctx context.Context) ([]target.Target, error) {
	stored := make([]string, storedKeys)
	for i := range stored {
		stored[i] = nextFreshKey()
		for _, s := range b.subs {
			if _, err := s.callHandler(ctx, stored[i]); err != nil {
				return nil, err
			}
		}
	}
	first, again := make(map[string][]float64), make(map[string][]float64)
	for round := range b.rounds + 1 {
		base := 0.0
		for _, s := range b.subs {
			t, err := s.runLoad(ctx, createdKeys(b.clients, b.slice))
			if err != nil {
				return nil, err
			}
			if base == 0 {
				base = t.requestRate()
			}
			if s == b.subs[0] {
				continue // it replays nothing
			}
			replays := createdKeys(b.clients, b.slice)
			replays.key = func() string { return stored[rand.N(storedKeys)] }
			u, err := s.runLoad(ctx, replays)
			if err != nil {
				return nil, err
			}
			if round == 0 {
				continue // warms caches and plans up
			}
			first[s.name] = append(first[s.name], t.requestRate()/base)
			again[s.name] = append(again[s.name], u.requestRate()/t.requestRate())
		}
	}
	var targets []target.Target
	for _, s := range b.subs[1:] {
		fmt.Printf("rate %-8s first/bare %.2f  replay/first %.2f\n", s.name, target.MedianOf(first[s.name]), target.MedianOf(again[s.name]))
		if s.name == "leased" {
			targets = append(targets,
				target.Target{Name: "first-" + s.name + "/bare", Value: target.MedianOf(first[s.name]), Goal: firstGoal},
				target.Target{Name: "replay/first-" + s.name, Value: target.MedianOf(again[s.name]), Goal: replayGoal})
		}
	}
	return targets, nil
}

// measureCosts counts the server's work for one request without concurrent ones.
func (b *bench) measureCosts(ctx context.Context) ([]target.Target, error) {
	defer b.refreshTables()
	for _, s := range b.subs {
		key := nextFreshKey()
		for _, what := range []struct {
			name string
			key  func() string
		}{{"first", nextFreshKey}, {"replay", func() string { return key }}} {
			if s == b.subs[0] && what.name == "replay" {
				continue // it replays nothing
			}
			if _, err := s.callHandler(ctx, key); err != nil {
				return nil, err
			}
			before, err := s.countFlushes(ctx)
			if err != nil {
				return nil, err
			}
			statements, trips, inRedis := s.wire.statements.Load(), s.wire.trips.Load(), s.redis.currentCount()
			for range costRequests {
				if _, err := s.callHandler(ctx, what.key()); err != nil {
					return nil, err
				}
			}
			statements, trips = s.wire.statements.Load()-statements, s.wire.trips.Load()-trips
			after, err := s.countFlushes(ctx)
			if err != nil {
				return nil, err
			}
			each := func(n int64) float64 { return float64(n) / costRequests }
			fmt.Printf("cost %-8s %-6s statements %.2f  round trips %.2f  WAL flushes %.2f%s\n",
				s.name, what.name, each(statements), each(trips), each(after-before), s.redis.formatCost(inRedis))
		}
	}
	return nil, nil
}

// refreshTables drops the connections that countFlushes has ended on the server.
func (b *bench) refreshTables() {
	for _, s := range b.subs {
		s.pool.Reset()
	}
}

// countFlushes returns how often the server has flushed its WAL. A session adds its own count at its end at the
// latest. So countFlushes first ends all sessions, including that of an earlier request.
func (s *subject) countFlushes(ctx context.Context) (n int64, err error) {
	s.pool.Reset()
	err = s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
			WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND datname = current_database()`)
		if err != nil {
			return err
		}
		return conn.QueryRow(ctx, "SELECT wal_sync FROM pg_stat_wal").Scan(&n)
	})
	s.pool.Reset()
	if err != nil {
		return 0, fmt.Errorf("WAL statistics: %w", err)
	}
	return n, nil
}

// measureHotKeys lets 64 clients send one key, a new one each hotKeyTime, while other clients send distinct keys.
func (b *bench) measureHotKeys(ctx context.Context) ([]target.Target, error) {
	var targets []target.Target
	for _, s := range b.subs[1:] {
		var (
			share, worst []float64
			p99          []float64
			twice        int
			waited       = &waits{events: make(map[string]int)}
		)
		for range b.rounds {
			alone, err := s.runLoad(ctx, createdKeys(b.clients, 2*b.slice))
			if err != nil {
				return nil, err
			}
			sampling, stop := context.WithCancel(ctx)
			sampled := make(chan error, 1)
			go func() {
				some, err := sampleWaits(sampling, s.pool.Config().ConnConfig.Copy())
				if err == nil {
					waited.add(some)
				}
				sampled <- err
			}()
			others, crowd, double, err := b.runTogether(ctx, s)
			stop()
			if err := errors.Join(err, <-sampled); err != nil {
				return nil, err
			}
			twice += double
			share = append(share, others.requestRate()/alone.requestRate())
			worst = append(worst, others.lowestRate()/alone.requestRate())
			p99 = append(p99, float64(target.Percentile(crowd.latency, 0.99).Microseconds())/1000)
			fmt.Printf("hot  %-8s others %.2f of alone, worst window %.2f; hot key %v, p50 %v p99 %v\n", s.name,
				share[len(share)-1], worst[len(worst)-1], crowd.statuses, target.Percentile(crowd.latency, 0.5), target.Percentile(crowd.latency, 0.99))
		}
		fmt.Printf("hot  %-8s sessions of PostgreSQL at a time, by what they wait for: %v\n", s.name, waited)
		targets = append(targets,
			target.Target{Name: "hot-handlers-run-twice-" + s.name, Value: float64(twice), Goal: 0, AtMost: true},
			target.Target{Name: "hot-p99-ms-" + s.name, Value: target.MedianOf(p99), Goal: latencyGoal, AtMost: true},
			target.Target{Name: "hot-others-share-" + s.name, Value: target.MedianOf(share), Goal: othersGoal},
			target.Target{Name: "hot-others-worst-window-" + s.name, Value: target.MedianOf(worst), Goal: othersGoal / 3})
	}
	return targets, nil
}

// runTogether runs both loads. The crowd's latencies are those of answers without a run of the handler: a run
// is too rare to count at p99.
func (b *bench) runTogether(ctx context.Context, s *subject) (others, crowd *tally, double int, err error) {
	name := nextFreshKey()
	start := time.Now()
	hot := func() string { return fmt.Sprintf("hot-%s-%d", name, time.Since(start)/hotKeyTime) }
	var ran sync.Map
	slow := func(key string) {
		if len(key) < 4 || key[:4] != "hot-" {
			return
		}
		n, _ := ran.LoadOrStore(key, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		time.Sleep(hotHandler)
	}
	s.slow.Store(&slow)
	defer s.slow.Store(nil)
	var (
		wg       sync.WaitGroup
		crowdErr error
	)
	wg.Go(func() {
		l := load{clients: hotClients, length: 2 * b.slice, think: b.think, key: hot, want: []int{http.StatusCreated, http.StatusConflict}}
		crowd, crowdErr = s.runLoad(ctx, l)
	})
	others, err = s.runLoad(ctx, createdKeys(b.clients, 2*b.slice))
	wg.Wait()
	if err == nil {
		err = crowdErr
	}
	ran.Range(func(_, n any) bool {
		if n.(*atomic.Int64).Load() > 1 {
			double++
		}
		return true
	})
	return others, crowd, double, err
}

// lowestRate returns the rate in the window with the fewest requests.
func (t *tally) lowestRate() float64 {
	windows := make([]int, int(t.took/window))
	for _, at := range t.at {
		if i := int(at / window); i < len(windows) {
			windows[i]++
		}
	}
	least := math.MaxInt
	for _, n := range windows {
		least = min(least, n)
	}
	return float64(least) / window.Seconds()
}
