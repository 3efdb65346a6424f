package lineartest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/testing/proctest"
)

// The shape of the load: keys in use at once, clients of each, requests of each
// client. Their product stays within MaxOps for a key.
const (
	keysAtOnce    = 4
	clientsPerKey = 5
	opsPerClient  = 4
	otherBodyIn   = 5 // one request of so many has another body
	maxGap        = 60 * time.Millisecond
	patience      = 700 * time.Millisecond
)

// The faults that come from outside.
const (
	faultPause  = 150 * time.Millisecond // between two of them
	maxHang     = 1400 * time.Millisecond
	killOneIn   = 10
	stopOneIn   = 3
	faultKilled = "SIGKILL"
	faultHung   = "SIGSTOP"
)

// Config describes what a [Storm] is about.
type Config struct {
	// Command returns the command of an instance that runs [Serve]. fault is
	// one of Faults, or empty: the instance arms itself with it.
	Command func(fault string) *exec.Cmd

	Instances int      // default: 2
	Faults    []string // that an instance may be armed with, each of which ends it; default: none
	// Injected says how often each of the caller's own faults has struck so far,
	// by name. Storm waits for each as for those that it knows. Default: none.
	Injected func() map[string]int
	// Enough looks at the history so far, of keys without a request in hand: an answer
	// that is still to come may explain another. Storm waits for it as for a missing fault.
	// Default: any history is enough.
	Enough func(history []Op) bool

	Keys     int           // in use at once; default: 4
	Patience time.Duration // of a client with one request; default: 700 ms
	Gap      time.Duration // at most, between two requests of a client; default: 60 ms

	Calm  bool          // no faults from outside; default: kill and stop at random
	Least time.Duration // to run in any case; default: 2 s
	Limit time.Duration // to run for what is missing yet; default: 2 min, for machines that are busy with something else
}

// A Report is what a storm saw.
type Report struct {
	History []Op
	Kinds   map[Kind]int
	Faults  map[string]int // how often each struck
	Missing []string       // answers and faults that never occurred
}

// String sums the report up.
func (r *Report) String() string {
	return fmt.Sprintf("%d operations, answers %v, faults %v", len(r.History), r.Kinds, r.Faults)
}

// Storm runs the load against the instances until everything occurred that
// Report.Missing would name, or c.Limit is over. All instances have ended when
// it returns. An error means that an instance could not be started.
func Storm(ctx context.Context, c Config) (*Report, error) {
	c.Instances = cmp.Or(c.Instances, 2)
	c.Least = cmp.Or(c.Least, 2*time.Second)
	c.Keys = cmp.Or(c.Keys, keysAtOnce)
	c.Patience = cmp.Or(c.Patience, patience)
	c.Gap = cmp.Or(c.Gap, maxGap)
	c.Limit = cmp.Or(c.Limit, 2*time.Minute)
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	s := &storm{c: c, start: time.Now(), inHand: make(map[string]int), faults: make(map[string]int), slots: make([]atomic.Pointer[instance], c.Instances)}
	defer s.killAll()
	for i := range s.slots {
		if err := s.restartInstance(i); err != nil {
			return nil, err
		}
	}
	var wg sync.WaitGroup
	for range s.c.Keys {
		wg.Go(func() { s.sendLoad(ctx) })
	}
	for i := range s.slots {
		wg.Go(func() {
			if err := s.faultInstance(ctx, i); err != nil {
				s.recordFailure(err)
				cancel()
			}
		})
	}
	s.awaitReport(ctx)
	cancel()
	wg.Wait()
	return s.makeReport(), s.err
}

// A storm is a run of Storm.
type storm struct {
	c     Config
	start time.Time
	slots []atomic.Pointer[instance]
	keys  atomic.Int64

	mu      sync.Mutex
	history []Op
	inHand  map[string]int // requests without an answer, by key
	faults  map[string]int
	err     error
}

// An instance is a process and what it was armed with.
type instance struct {
	*proctest.Process
	fault string
}

// awaitReport returns when no fault and no answer is missing any more, or ctx ends.
func (s *storm) awaitReport(ctx context.Context) {
	tick := time.NewTicker(faultPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if time.Since(s.start) > s.c.Least && s.nothingMissing() {
				return
			}
		}
	}
}

func (s *storm) nothingMissing() bool {
	r := s.makeReport()
	return len(r.Missing) == 0 && (s.c.Enough == nil || s.c.Enough(s.settledHistory()))
}

// settledHistory is the history of keys without a request in hand.
func (s *storm) settledHistory() []Op {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.history), func(op Op) bool { return s.inHand[op.Key] > 0 })
}

func (s *storm) makeReport() *Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &Report{History: slices.Clone(s.history), Kinds: make(map[Kind]int), Faults: make(map[string]int)}
	for _, op := range r.History {
		r.Kinds[op.Kind]++
	}
	for _, kind := range kinds {
		if r.Kinds[kind] == 0 && !(s.c.Calm && kind == Unknown) {
			r.Missing = append(r.Missing, string(kind))
		}
	}
	want := slices.Clone(s.c.Faults)
	if !s.c.Calm {
		want = append(want, faultKilled, faultHung)
	}
	for _, fault := range want {
		r.Faults[fault] = s.faults[fault]
	}
	if s.c.Injected != nil {
		maps.Copy(r.Faults, s.c.Injected())
	}
	for _, fault := range slices.Sorted(maps.Keys(r.Faults)) {
		if r.Faults[fault] == 0 {
			r.Missing = append(r.Missing, fault)
		}
	}
	return r
}

// sendLoad runs one key after the other until ctx ends. A request that has been
// sent is waited for: cut short, its outcome would be unknown for no reason.
func (s *storm) sendLoad(ctx context.Context) {
	for ctx.Err() == nil {
		key := fmt.Sprintf("key-%d", s.keys.Add(1))
		var wg sync.WaitGroup
		for i := range clientsPerKey {
			wg.Go(func() {
				for range opsPerClient {
					_ = backoff.Sleep(ctx, rand.N(s.c.Gap))
					if ctx.Err() != nil {
						return
					}
					s.sendOperation(i, key)
				}
			})
		}
		wg.Wait()
	}
}

// sendOperation sends one request to a random instance and records the answer.
func (s *storm) sendOperation(client int, key string) {
	op := Op{Client: client, Key: key, Body: "a"}
	if rand.N(otherBodyIn) == 0 {
		op.Body = "b"
	}
	in := s.slots[rand.N(len(s.slots))].Load()
	s.mu.Lock()
	s.inHand[key]++
	s.mu.Unlock()
	op.Call = int64(time.Since(s.start))
	op.Kind, op.Response, op.Stalled = sendKeyed(in.URL, key, op.Body, s.c.Patience)
	op.Return = int64(time.Since(s.start))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inHand[key]--
	if op.Kind == unsent {
		return
	}
	if op.Kind == Unknown {
		op.Return = Never
	}
	s.history = append(s.history, op)
}

// faultInstance kills and stops the instance in slot i and starts it again. Each new
// one is armed with the next fault of the list, so that all have their turn.
func (s *storm) faultInstance(ctx context.Context, i int) error {
	for ctx.Err() == nil {
		_ = backoff.Sleep(ctx, faultPause)
		in := s.slots[i].Load()
		if in.Dead() {
			s.countFault(in.fault)
			if err := s.restartInstance(i); err != nil {
				return err
			}
			continue
		}
		in.Continue() // a fault may have stopped it on its way to its end
		switch {
		case !s.c.Calm && rand.N(killOneIn) == 0:
			in.Kill()
			s.countFault(faultKilled)
			if err := s.restartInstance(i); err != nil {
				return err
			}
		case !s.c.Calm && rand.N(stopOneIn) == 0:
			in.Stop()
			s.countFault(faultHung)
			_ = backoff.Sleep(ctx, rand.N(maxHang))
			in.Continue()
		}
	}
	return nil
}

func (s *storm) restartInstance(i int) error {
	fault := ""
	if n := len(s.c.Faults); n > 0 {
		s.mu.Lock()
		fault = slices.MinFunc(s.c.Faults, func(a, b string) int { return cmp.Compare(s.faults[a], s.faults[b]) })
		if i%2 == 1 { // another than its neighbour
			fault = s.c.Faults[rand.N(n)]
		}
		s.mu.Unlock()
	}
	p, err := proctest.Start(s.c.Command(fault))
	if err != nil {
		return fmt.Errorf("lineartest: start instance: %w", err)
	}
	s.slots[i].Store(&instance{p, fault})
	return nil
}

func (s *storm) killAll() {
	for i := range s.slots {
		if in := s.slots[i].Load(); in != nil {
			in.Kill()
		}
	}
}

func (s *storm) countFault(fault string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[fault]++
}

func (s *storm) recordFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}
