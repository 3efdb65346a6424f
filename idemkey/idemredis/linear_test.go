package idemredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest/lineartest"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/rediskey"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

const (
	linearURL    = "IDEMREDIS_TEST_LINEAR_URL"
	linearPrefix = "IDEMREDIS_TEST_LINEAR_PREFIX"
	linearPlant  = "IDEMREDIS_TEST_LINEAR_PLANT"

	// linearLease is shorter than the pauses of instances, so that some are
	// overtaken, and longer than a client's pause between two requests.
	linearLease = 400 * time.Millisecond

	// linearStall is what a process may hang without losing a lease by it: less
	// than is left of one after a renewal was due.
	linearStall = linearLease / 8

	// linearEffect is how long an effect takes at most: some owners are in the
	// middle of theirs when they are stopped.
	linearEffect = linearLease

	linearNamespace, linearScope = idemkey.DefaultNamespace, "storm"
)

// Bugs that a test plants in the store.
const (
	plantSteal = "takes over a live owner" // now and then
	plantIdle  = "does not renew"
	plantFlip  = "flips a byte"
)

// linearFaults kill an instance at each point of a request.
var linearFaults = []string{
	"idemredis/after-claim=kill:3",
	"test/in-handler=kill:3",
	"idemredis/before-save=kill:3",
	"idemredis/after-save=kill:3",
}

func TestMain(m *testing.M) {
	if url := os.Getenv(linearURL); url != "" {
		if err := serveLinear(url, os.Getenv(linearPrefix), os.Getenv(linearPlant)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serveLinear is the main of an instance. The effects are in Redis too, where
// no transaction could take them back.
func serveLinear(url, prefix, plant string) error {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	opts.ContextTimeoutEnabled = true
	client := redis.NewClient(opts)
	defer client.Close()
	s, err := New(client, &Options{Prefix: prefix})
	if err != nil {
		return err
	}
	m, err := idemkey.New(planted(s, plant), &idemkey.Options{
		Scope:    func(*http.Request) (string, error) { return linearScope, nil },
		Limits:   idemkey.Limits{Lease: cmp.Or(plantedLease(plant), linearLease)},
		Observer: losses{client, prefix},
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	effect := func(r *http.Request, e lineartest.Effect) error {
		<-time.After(linearEffect/2 + rand.N(linearEffect/2))
		return client.RPush(context.WithoutCancel(r.Context()), prefix+"effects", e.Key+" "+e.Run).Err()
	}
	h := lineartest.Handler(effect, func() { _ = failpoint.Hit("test/in-handler") })
	return lineartest.ServeWatched(m.Handler(h), linearStall)
}

// losses counts the owners that found themselves overtaken.
type losses struct {
	client *redis.Client
	prefix string
}

func (l losses) Observe(ctx context.Context, e idemkey.Event) {
	if e.Outcome == idemkey.OutcomeLost {
		_ = l.client.Incr(ctx, l.prefix+"lost").Err()
	}
}

// A linearRun is a storm's prefix, with a store to read what became of it.
type linearRun struct {
	*fixture
	config lineartest.Config
}

func newLinear(t *testing.T, plant string) *linearRun {
	t.Helper()
	r := &linearRun{fixture: newFixture(t)}
	r.config.Keys, r.config.Gap = 12, linearLease
	r.config.Patience = 3 * linearLease // some clients hear what an owner says that was overtaken
	r.config.Command = func(fault string) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), linearURL+"="+redistest.URL(t), linearPrefix+"="+r.opts.Prefix, linearPlant+"="+plant, "SAGAMILL_FAILPOINTS="+fault)
		return cmd
	}
	return r
}

// lost is how many owners have been overtaken.
func (r *linearRun) lost(t *testing.T) int {
	n, err := r.client.Get(context.WithoutCancel(t.Context()), r.opts.Prefix+"lost").Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Errorf("count the lost: %v", err)
	}
	return n
}

// audit compares effects, records and history.
func (r *linearRun) audit(t *testing.T, history []lineartest.Op) error {
	t.Helper()
	lines, err := r.client.LRange(t.Context(), r.opts.Prefix+"effects", 0, -1).Result()
	if err != nil {
		t.Fatalf("read effects: %v", err)
	}
	var rows []lineartest.Effect
	for _, line := range lines {
		key, run, _ := strings.Cut(line, " ")
		rows = append(rows, lineartest.Effect{Key: key, Run: run})
	}
	kept := make(map[string]string)
	for _, op := range history {
		rec, found, err := r.Inspect(t.Context(), idemkey.Identity{Namespace: linearNamespace, Scope: linearScope, Key: op.Key})
		if err != nil {
			t.Fatalf("Inspect: %v", err)
		}
		if found && rec.State == idemkey.StateCompleted {
			kept[op.Key] = string(rec.Response.Body)
		}
	}
	return lineartest.AuditLeased(history, rows, kept)
}

// steady is how many owners have not hung.
func steady(history []lineartest.Op) (n int) {
	for _, op := range history {
		if op.Kind == lineartest.Created && !op.Stalled {
			n++
		}
	}
	return n
}

// Whatever dies or hangs, there is one record for each key, and every client is
// told what it says, except by an owner that hung for longer than its lease. No
// handler ran unless a client was told so or does not know.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	r := newLinear(t, "")
	if failpoint.Enabled {
		r.config.Faults = linearFaults
	} else {
		t.Log("NOT TESTED: death at named points needs -tags=failpoints")
	}
	r.config.Injected = func() map[string]int { return map[string]int{"owner overtaken": r.lost(t)} }
	r.config.Enough = func(history []lineartest.Op) bool { return steady(history) > 0 }
	report, err := lineartest.Storm(t.Context(), r.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
	if len(report.Missing) > 0 {
		t.Errorf("void: the run never saw %q", report.Missing)
	}
	n := steady(report.History)
	if n == 0 {
		t.Error("void: every owner hung")
	}
	t.Logf("%d owners that did not hang", n)
	if err := lineartest.CheckLeased(report.History); err != nil {
		t.Error(err)
	}
	if err := r.audit(t, report.History); err != nil {
		t.Error(err)
	}
}

// A store with a bug does not get through.
func TestLinearizableFindsBugs(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for _, plant := range []string{plantSteal, plantIdle, plantFlip} {
		t.Run(plant, func(t *testing.T) {
			t.Parallel()
			r := newLinear(t, plant)
			r.config.Calm, r.config.Least = true, time.Second
			r.config.Enough = func(history []lineartest.Op) bool {
				return errors.Is(lineartest.CheckLeased(history), lineartest.ErrNotLinear)
			}
			r.config.Gap = 60 * time.Millisecond
			report, err := lineartest.Storm(t.Context(), r.config)
			if err != nil {
				t.Fatal(err)
			}
			if err := lineartest.CheckLeased(report.History); !errors.Is(err, lineartest.ErrNotLinear) {
				t.Errorf("CheckLeased of %v = %v, want ErrNotLinear", report, err)
			}
			if err := r.audit(t, report.History); err == nil {
				t.Error("AuditLeased found nothing")
			}
		})
	}
}

// planted returns s with a bug, or s itself.
func planted(s *Store, plant string) idemkey.Store {
	if plant == "" {
		return s
	}
	return &faulty{Store: s, plant: plant}
}

// plantedLease is shorter than a handler's pause where nobody renews.
func plantedLease(plant string) time.Duration {
	if plant == plantIdle {
		return linearLease / 4
	}
	return 0
}

// A faulty store has a bug.
type faulty struct {
	*Store
	plant string
	calls atomic.Int64
}

// bugOneIn is how rare a bug is that shows now and then.
const bugOneIn = 3

func (f *faulty) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	d, err := f.Store.Begin(ctx, c)
	rare := f.calls.Add(1)%bugOneIn == 0
	switch {
	case err != nil:
	case f.plant == plantIdle && d.Exec != nil:
		d.Exec = struct{ idemkey.Execution }{d.Exec} // it is no Renewer
	case f.plant == plantFlip && d.Kind == idemkey.KindReplay && rare:
		d.Record.Response.Body[len(d.Record.Response.Body)/2] ^= 1
	case f.plant == plantSteal && d.Kind == idemkey.KindInFlight && rare:
		f.client.HSet(ctx, rediskey.Of(f.opts.Prefix, c.ID), "lease_until", 1)
		d, err = f.Store.Begin(ctx, c)
	}
	return d, err
}
