package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const requestBody = `{"customer": "c-17", "items": [{"sku": "book", "n": 2}], "amount": "42.00"}`

var sequence atomic.Int64

func nextFreshKey() string { return fmt.Sprintf("key-%d", sequence.Add(1)) }

// A sink is a ResponseWriter that keeps the status and no bytes.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }

// callHandler sends one request and returns its status.
func (s *subject) callHandler(ctx context.Context, key string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader(requestBody))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	w := &sink{header: make(http.Header), status: http.StatusOK}
	s.handler.ServeHTTP(w, r)
	return w.status, nil
}

// A load describes the requests of some clients for a while.
type load struct {
	clients int
	length  time.Duration
	think   time.Duration
	key     func() string
	want    []int // statuses
}

// A tally is the result of a load.
type tally struct {
	requests int
	took     time.Duration
	latency  []time.Duration
	at       []time.Duration // since the start, when each request ended
	statuses map[int]int
}

func (t *tally) requestRate() float64 { return float64(t.requests) / t.took.Seconds() }

// runLoad sends the requests of l to s. An unexpected status is an error, because its rate would mean nothing.
func (s *subject) runLoad(ctx context.Context, l load) (*tally, error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		total = &tally{statuses: make(map[int]int)}
		fault error
		start = time.Now()
	)
	for range l.clients {
		wg.Go(func() {
			mine := &tally{statuses: make(map[int]int)}
			var err error
			for err == nil && time.Since(start) < l.length && ctx.Err() == nil {
				err = s.requestOnce(ctx, &l, start, mine)
			}
			mu.Lock()
			defer mu.Unlock()
			total.requests += mine.requests
			total.latency = append(total.latency, mine.latency...)
			total.at = append(total.at, mine.at...)
			for status, n := range mine.statuses {
				total.statuses[status] += n
			}
			if err != nil {
				fault = err
			}
		})
	}
	wg.Wait()
	total.took = time.Since(start)
	return total, fault
}

func (s *subject) requestOnce(ctx context.Context, l *load, start time.Time, t *tally) error {
	sent := time.Now()
	status, err := s.callHandler(ctx, l.key())
	if err != nil {
		return err
	}
	if !slices.Contains(l.want, status) {
		err := fmt.Errorf("%s: status %d, want one of %v", s.name, status, l.want)
		if cause := s.failure.Load(); cause != nil {
			err = fmt.Errorf("%w: %w", err, *cause)
		}
		return err
	}
	t.requests++
	t.statuses[status]++
	t.latency = append(t.latency, time.Since(sent))
	t.at = append(t.at, time.Since(start))
	if l.think > 0 {
		time.Sleep(l.think)
	}
	return nil
}
