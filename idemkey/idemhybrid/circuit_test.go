package idemhybrid

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

var errOutage = errors.New("outage")

// A gate is a hook of a client that counts calls of Redis, and may keep them
// waiting or fail them. A lock that may have been taken is freed in any case: such a call fails without
// being counted while the gate does not let calls pass.
type gate struct {
	t       *testing.T
	mu      sync.Mutex
	asked   int
	hold    bool
	err     error
	waiting chan chan error // each call that is held: what is sent into it is its result, nil to let it pass
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" {
			return next(ctx, cmd)
		}
		g.mu.Lock()
		hold, err := g.hold, g.err
		if frees := cmd.Args()[1] == scriptUnlock.Hash(); frees && (hold || err != nil) {
			hold, err = false, errOutage
		} else {
			g.asked++
		}
		g.mu.Unlock()
		if hold {
			result := make(chan error)
			select {
			case g.waiting <- result:
			case <-ctx.Done():
			}
			select {
			case err = <-result:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		if err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// set decides what becomes of calls from now on.
func (g *gate) set(hold bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold, g.err = hold, err
}

// calls fails the test unless want calls have been made since the last time.
func (g *gate) calls(want int) {
	g.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked != want {
		g.t.Errorf("Redis was asked %d times, want %d", g.asked, want)
	}
	g.asked = 0
}

// A clock is the circuit's in a test.
type clock struct {
	mu   sync.Mutex
	time time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.time = c.time.Add(d)
}

// newGated returns a fixture whose calls of Redis go through a gate, and whose
// circuit has a clock of its own.
func newGated(t *testing.T, opts Options) (*fixture, *gate, *clock) {
	t.Helper()
	g := &gate{t: t, waiting: make(chan chan error)}
	client := redistest.Client(t)
	client.AddHook(g)
	if opts.CallTimeout == 0 {
		opts.CallTimeout = time.Minute // no call ends by the clock
	}
	opts.Logger = slog.New(slog.DiscardHandler)
	f := newFixture(t).with(client, opts)
	c := &clock{time: time.Now()}
	f.circuit.now = c.now
	return f, g, c
}

// run runs a request to its end.
func (f *fixture) run(key string, want idemkey.Kind) {
	f.t.Helper()
	if d := f.kind(f.t, idemkeytest.Claim(key, "a"), want); d.Exec != nil {
		commit(f.t, d.Exec)
	}
}

// After one failure neither new requests nor replays ask Redis, until a probe
// has succeeded.
func TestRedisIsPassedOver(t *testing.T) {
	t.Parallel()
	f, g, clock := newGated(t, Options{})
	f.run("warm", idemkey.KindProceed)
	g.calls(2) // to take the lock, and to free it

	g.set(false, errOutage)
	for i, asked := range []int{1, 0, 0} {
		key := fmt.Sprint("down ", i)
		f.run(key, idemkey.KindProceed)
		g.calls(asked)
		f.run(key, idemkey.KindReplay)
		f.run("warm", idemkey.KindReplay)
		g.calls(0)
	}

	clock.advance(retryPause)
	f.run("probe fails", idemkey.KindProceed)
	g.calls(1)
	g.set(false, nil)
	clock.advance(retryPause - 1)
	f.run("passed over", idemkey.KindProceed)
	g.calls(0)

	clock.advance(1)
	for range 2 {
		f.run("warm", idemkey.KindReplay)
		g.calls(2)
	}
	c := idemkeytest.Claim("up", "a")
	e := f.kind(t, c, idemkey.KindProceed).Exec
	f.locked(t, c.ID, true)
	commit(t, e)
	f.locked(t, c.ID, false)
}

// Requests that come before the first failure wait for Redis all at once, and
// each runs once.
func TestAnOutageIsFoundByAllAtOnce(t *testing.T) {
	t.Parallel()
	f, g, _ := newGated(t, Options{})
	g.set(true, nil)
	const requests = 30
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			d, err := f.Begin(t.Context(), idemkeytest.Claim(fmt.Sprint(i), "a"))
			if err != nil || d.Kind != idemkey.KindProceed {
				t.Errorf("Begin = %d, %v; want %d", d.Kind, err, idemkey.KindProceed)
				return
			}
			commit(t, d.Exec)
		})
	}
	held := make([]chan error, requests)
	for i := range held {
		held[i] = <-g.waiting // if one waited for another, this would not end
	}
	for _, result := range held {
		result <- errOutage
	}
	wg.Wait()
	g.calls(requests)
	f.run("later", idemkey.KindProceed)
	g.calls(0)
}

// A call that hangs ends with its budget, which is short unless the lock is
// required.
func TestCallTimeout(t *testing.T) {
	t.Parallel()
	f, g, _ := newGated(t, Options{CallTimeout: time.Millisecond})
	g.set(true, nil)
	go func() { <-g.waiting }() // and no result
	f.run("frozen", idemkey.KindProceed)
	f.run("frozen", idemkey.KindReplay)
	g.calls(1)
	for _, required := range []bool{false, true} {
		want := map[bool]time.Duration{false: DefaultCallTimeout, true: DefaultRequiredCallTimeout}[required]
		if got := f.with(redistest.Client(t), Options{RequireLock: required}).opts.CallTimeout; got != want {
			t.Errorf("default CallTimeout with RequireLock %t = %v, want %v", required, got, want)
		}
	}
}

// One call at a time probes a Redis that has failed, and no other waits for it.
func TestOneProbeAtATime(t *testing.T) {
	t.Parallel()
	f, g, clock := newGated(t, Options{})
	g.set(false, errOutage)
	f.run("down", idemkey.KindProceed)
	g.calls(1)

	for _, result := range []error{errOutage, nil} {
		g.set(true, nil)
		clock.advance(retryPause)
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.run("down", idemkey.KindReplay)
		}()
		probe := <-g.waiting
		g.set(false, nil)
		clock.advance(f.opts.CallTimeout)
		for i := range 10 {
			f.run(fmt.Sprint(result, i), idemkey.KindProceed)
		}
		g.calls(1)
		probe <- result
		<-done
		g.calls(1) // the probe has freed its lock, or what may be one
	}
	f.run("up", idemkey.KindProceed)
	g.calls(2)
}

// The caller of a probe may give up: another call probes later.
func TestAProbeIsGivenUp(t *testing.T) {
	t.Parallel()
	f, g, clock := newGated(t, Options{})
	g.set(false, errOutage)
	f.run("down", idemkey.KindProceed)
	clock.advance(retryPause)
	g.set(true, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-g.waiting
		g.set(false, nil)
		cancel()
	}()
	if d, err := f.Begin(ctx, idemkeytest.Claim("given up", "a")); err == nil || d.Exec != nil {
		t.Errorf("Begin = %+v, %v; want an error", d, err)
	}
	g.calls(3) // it may have been taken, and is freed
	f.run("passed over", idemkey.KindProceed)
	g.calls(0)
	clock.advance(retryPause + f.opts.CallTimeout)
	f.run("probe", idemkey.KindProceed)
	g.calls(2)
}

// A call that was under way before a failure does not end the pause: with a
// cluster of which one node is down, each request would ask that node.
func TestALateAnswerIsNoProbe(t *testing.T) {
	t.Parallel()
	f, g, _ := newGated(t, Options{})
	g.set(true, nil)
	c := idemkeytest.Claim("late", "a")
	begun := make(chan idemkey.Execution)
	go func() {
		d, err := f.Begin(t.Context(), c)
		if err != nil {
			t.Errorf("Begin: %v", err)
		}
		begun <- d.Exec
	}()
	late := <-g.waiting
	g.set(false, errOutage)
	f.run("down", idemkey.KindProceed)
	g.set(false, nil)
	late <- nil
	e := <-begun
	g.calls(2)
	f.run("passed over", idemkey.KindProceed)
	g.calls(0)

	// Its lock is freed although Redis is passed over, or the retry would wait for it.
	f.locked(t, c.ID, true)
	if err := e.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Errorf("Release: %v", err)
	}
	f.locked(t, c.ID, false)
}

// A request that must not run without the lock asks Redis each time.
func TestRequireLockPassesNothingOver(t *testing.T) {
	t.Parallel()
	f, g, _ := newGated(t, Options{RequireLock: true})
	g.set(false, errOutage)
	for range 2 {
		if d, err := f.Begin(t.Context(), idemkeytest.Claim("k", "a")); err == nil || d.Exec != nil {
			t.Errorf("Begin = %+v, %v; want an error", d, err)
		}
		g.calls(1)
	}
	g.set(false, nil)
	f.run("k", idemkey.KindProceed)
	g.calls(2)
}

// A lock whose reply was lost may be held: it is freed at the end of the run, although Redis is passed over by
// then. Otherwise a retry would wait for the lease.
func TestALockWhoseReplyIsLostIsFreed(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	lost := &lostReplies{}
	client.AddHook(lost)
	f := newFixture(t).with(client, Options{CallTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	clock := &clock{time: time.Now()}
	f.circuit.now = clock.now
	for _, n := range []int64{0, 1} { // the first loads the scripts
		lost.n.Store(n)
		d, err := f.Begin(t.Context(), idemkeytest.Claim(fmt.Sprint(n), "a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Exec.Release(t.Context(), idemkey.Bound, 500); err != nil {
			t.Fatal(err)
		}
	}
	clock.advance(time.Hour)
	if d, err := f.Begin(t.Context(), idemkeytest.Claim("1", "a")); err != nil || d.Kind != idemkey.KindProceed {
		t.Errorf("the retry of a run that has ended = %v, %v; want that it proceeds", d.Kind, err)
	}
}

// lostReplies is a hook that loses the replies to n scripts, which Redis has executed.
type lostReplies struct{ n atomic.Int64 }

func (l *lostReplies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lostReplies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lostReplies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && cmd.Name() == "evalsha" && l.n.Add(-1) >= 0 {
			err = errOutage
			cmd.SetErr(err)
		}
		return err
	}
}
