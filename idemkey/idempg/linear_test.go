package idempg

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest/lineartest"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/linearpgtest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

const (
	linearSchema = "IDEMPG_TEST_LINEAR_SCHEMA"
	linearPlant  = "IDEMPG_TEST_LINEAR_PLANT"

	// linearGrace is shorter than the pauses of instances and handlers, so
	// that claims lapse while their owners are at work.
	linearGrace = 60 * time.Millisecond
)

// Bugs that a test plants in the store.
const (
	plantTwice = "runs twice" // now and then a request is not recognised
	plantFlip  = "flips a byte"
	plantBody  = "replays for another body"
)

// linearFaults kill an instance at each point of a request, some of them after
// it has hung past its grace between its claim and its lock.
var linearFaults = []string{
	"idempg/after-claim=kill:3",
	"test/in-handler=kill:3",
	"idempg/before-commit=kill:3",
	"idempg/after-commit=kill:3",
	"idempg/after-claim=stop:1;test/in-handler=kill:3",
}

// serveLinear is the main of an instance.
func serveLinear(schema, plant string) error {
	in := linearpgtest.Instance{Schema: schema, Tx: Tx, Point: func() { _ = failpoint.Hit("test/in-handler") }}
	in.Open = func(pool *pgxpool.Pool) (idemkey.Store, error) {
		s, err := New(pool, &Options{Schema: schema, Grace: linearGrace, AcquireTimeout: 200 * time.Millisecond})
		return sabotaged(s, plant), err
	}
	return in.Serve()
}

func linearConfig(r *linearpgtest.Run, plant string) lineartest.Config {
	return lineartest.Config{Command: linearpgtest.Command(linearSchema+"="+r.Schema, linearPlant+"="+plant)}
}

// Whatever dies or hangs, what clients see of each key is what one cell would
// have answered, and the business rows agree.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	r := linearpgtest.New(t)
	r.Prove(t, linearConfig(r, ""), linearFaults)
}

// A store with a bug does not get through.
func TestLinearizableFindsBugs(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for _, plant := range []string{plantTwice, plantFlip, plantBody} {
		t.Run(plant, func(t *testing.T) {
			t.Parallel()
			r := linearpgtest.New(t)
			c := linearConfig(r, plant)
			c.Calm, c.Least = true, time.Second
			c.Enough = func(history []lineartest.Op) bool {
				return errors.Is(lineartest.Check(history), lineartest.ErrNotLinear)
			}
			report, err := lineartest.Storm(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if err := lineartest.Check(report.History); !errors.Is(err, lineartest.ErrNotLinear) {
				t.Errorf("Check of %v = %v, want ErrNotLinear", report, err)
			}
			if err := r.Audit(t, report.History); plant == plantTwice && err == nil {
				t.Error("Audit found nothing")
			}
		})
	}
}

// sabotaged returns s with a bug, or s itself.
func sabotaged(s *Store, plant string) idemkey.Store {
	if plant == "" {
		return s
	}
	return &faulty{Store: s, plant: plant}
}

// A faulty store has a bug that shows now and then.
type faulty struct {
	*Store
	plant string
	calls atomic.Int64
}

// bugOneIn is how rare a bug is.
const bugOneIn = 5

func (f *faulty) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	if f.calls.Add(1)%bugOneIn != 0 {
		return f.Store.Begin(ctx, c)
	}
	switch f.plant {
	case plantTwice:
		c.ID.Key += fmt.Sprint("#", f.calls.Load())
	case plantBody:
		c.Prior = append(c.Prior, f.bound(ctx, c.ID))
	}
	d, err := f.Store.Begin(ctx, c)
	if f.plant == plantFlip && d.Kind == idemkey.KindReplay {
		d.Record.Response.Body[len(d.Record.Response.Body)/2] ^= 1
	}
	return d, err
}

// bound returns the fingerprint that id is bound to.
func (f *faulty) bound(ctx context.Context, id idemkey.Identity) (fp idemkey.Fingerprint) {
	_ = f.pool.QueryRow(ctx, "SELECT fp_alg, fp FROM "+f.opts.Schema+".idempotency_key WHERE (namespace, scope, key) = ($1, $2, $3)",
		id.Namespace, id.Scope, id.Key).Scan(&fp.Alg, &fp.Sum)
	return fp
}
