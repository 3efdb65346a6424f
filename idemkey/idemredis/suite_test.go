package idemredis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/rediskey"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

// A fixture is a store under a prefix of its own.
type fixture struct {
	*Store
	client redis.UniversalClient // direct, whatever is between the store and the server
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	client := redistest.Client(t)
	return newFixtureOn(t, client, client, Options{Prefix: redistest.Prefix(t)})
}

func newFixtureOn(t *testing.T, client, direct redis.UniversalClient, opts Options) *fixture {
	t.Helper()
	s, err := New(client, &opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return &fixture{s, direct}
}

func (f *fixture) key(id idemkey.Identity) string { return rediskey.Of(f.opts.Prefix, id) }

func (f *fixture) set(t testing.TB, id idemkey.Identity, field string, value any) {
	t.Helper()
	if err := f.client.HSet(context.WithoutCancel(t.Context()), f.key(id), field, value).Err(); err != nil {
		t.Fatalf("set %s: %v", field, err)
	}
}

func (f *fixture) damage(t testing.TB, id idemkey.Identity) {
	t.Helper()
	f.set(t, id, "state", 7)
}

// lapse lets the lease have ended long ago; what the owner does is up to it.
func (f *fixture) lapse(t testing.TB, id idemkey.Identity, _ idemkey.Execution) {
	t.Helper()
	f.set(t, id, "lease_until", 1)
	open := f.openRunOf(id)
	if err := f.client.ZAddXX(context.WithoutCancel(t.Context()), open.set, redis.Z{Score: 1, Member: open.member}).Err(); err != nil {
		t.Fatalf("lapse: %v", err)
	}
}

func (f *fixture) expire(t testing.TB, id idemkey.Identity) {
	t.Helper()
	f.set(t, id, "expires_at", 1)
}

func (f *fixture) begin(t *testing.T, c idemkey.Claim) *execution {
	t.Helper()
	d, err := f.Begin(t.Context(), c)
	if err != nil || d.Kind != idemkey.KindProceed {
		t.Fatalf("Begin = %d, %v; want to proceed", d.Kind, err)
	}
	return d.Exec.(*execution)
}

func (f *fixture) kind(t *testing.T, c idemkey.Claim, want idemkey.Kind) idemkey.Decision {
	t.Helper()
	d, err := f.Begin(t.Context(), c)
	if err != nil || d.Kind != want {
		t.Errorf("Begin = %d, %v; want %d", d.Kind, err, want)
	}
	return d
}

func (f *fixture) commit(t *testing.T, e idemkey.Execution) {
	t.Helper()
	if err := e.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
		t.Errorf("Commit: %v", err)
	}
}

func (f *fixture) inspect(t *testing.T, id idemkey.Identity) idemkey.Record {
	t.Helper()
	rec, found, err := f.Inspect(t.Context(), id)
	if err != nil || !found {
		t.Fatalf("Inspect = %t, %v; want a record", found, err)
	}
	return rec
}

// left returns the time until Redis removes the key.
func (f *fixture) left(t *testing.T, id idemkey.Identity) time.Duration {
	t.Helper()
	left, err := f.client.PTTL(t.Context(), f.key(id)).Result()
	if err != nil {
		t.Fatalf("PTTL: %v", err)
	}
	return left
}

func TestStore(t *testing.T) {
	t.Parallel()
	idemkeytest.Run(t, func(t *testing.T) idemkeytest.Subject {
		f := newFixture(t)
		return idemkeytest.Subject{Store: f, Crash: f.lapse, Expire: f.expire, Damage: f.damage, SelfExpiring: true}
	})
}

// On a cluster each script must name its key, and one only: two are refused
// unless they share a slot.
func TestCluster(t *testing.T) {
	t.Parallel()
	client := redistest.Cluster(t)
	var n atomic.Int32
	idemkeytest.Run(t, func(t *testing.T) idemkeytest.Subject {
		f := newFixtureOn(t, client, client, Options{Prefix: fmt.Sprintf("t%d:", n.Add(1))})
		if err := f.Check(t.Context()); err != nil {
			t.Errorf("Check: %v", err)
		}
		return idemkeytest.Subject{Store: f, Crash: f.lapse, Expire: f.expire, Damage: f.damage, SelfExpiring: true}
	})
}

// Two processes, with a client each, are one store.
func TestTwoInstances(t *testing.T) {
	t.Parallel()
	idemkeytest.Run(t, func(t *testing.T) idemkeytest.Subject {
		f := newFixture(t)
		other := newFixtureOn(t, redistest.Client(t), f.client, f.opts)
		return idemkeytest.Subject{Store: &alternating{stores: [2]idemkey.Store{f, other}}, Crash: f.lapse, Expire: f.expire, Damage: f.damage, SelfExpiring: true}
	})
}

func TestOptions(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	if _, err := New(nil, nil); err == nil {
		t.Error("New accepted no client")
	}
	if _, err := New(client, nil); err != nil {
		t.Errorf("New without options: %v", err)
	}
	for field, opts := range map[string]Options{
		"Prefix":      {Prefix: "{a}"},
		"CallTimeout": {CallTimeout: time.Microsecond},
		"KeepExpired": {KeepExpired: -1},
	} {
		_, err := New(client, &opts)
		if want := "Options." + field; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want an error that names %s", err, want)
		}
	}
	hasty := *client.Options()
	hasty.ContextTimeoutEnabled = false
	deaf := redis.NewClient(&hasty)
	defer deaf.Close()
	if _, err := New(deaf, nil); err == nil {
		t.Error("New accepted a client that ignores deadlines")
	}
}

// What a middleware may promise on this store.
func TestTraits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, opts := range map[string]idemkey.Options{
		"a handler longer than its lease": {Limits: idemkey.Limits{Lease: time.Second, ExecTimeout: time.Minute}},
		"fail open":                       {FailOpen: true},
		"external effects":                {ExternalEffects: true},
	} {
		opts.SingleTenant = true
		if _, err := idemkey.New(f, &opts); err != nil {
			t.Errorf("New for %s: %v", name, err)
		}
	}
}

// A key lives as long as its record: from the claim on, whatever becomes of it.
func TestKeyExpires(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a") // an hour
	rejecting := idemkeytest.Claim("rejecting", "a")
	rejecting.RejectExpired = true
	for _, tt := range []struct {
		claim    idemkey.Claim
		min, max time.Duration
	}{
		{c, 50 * time.Minute, time.Hour},
		{rejecting, 24*time.Hour + 50*time.Minute, 25 * time.Hour},
	} {
		for _, end := range []func(idemkey.Execution) error{
			func(idemkey.Execution) error { return nil },
			func(e idemkey.Execution) error { return e.Release(t.Context(), idemkey.Bound, 500) },
			func(e idemkey.Execution) error { return e.Commit(t.Context(), idemkey.Response{Status: 200}) },
		} {
			e := f.begin(t, tt.claim)
			if err := end(e); err != nil {
				t.Errorf("end: %v", err)
			}
			if left := f.left(t, tt.claim.ID); left < tt.min || left > tt.max {
				t.Errorf("%s expires in %v, want %v to %v", tt.claim.ID.Key, left, tt.min, tt.max)
			}
			f.lapse(t, tt.claim.ID, e)
		}
	}
	if rec := f.inspect(t, c.ID); rec.State != idemkey.StateCompleted || rec.Attempt != 3 {
		t.Errorf("record = %+v, want completed by attempt 3", rec)
	}
}

// A renewed lease may be longer than the record's life. The key must not go
// before its owner, and goes with the record once it is completed.
func TestRenewOutlivesRecord(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a")
	for _, end := range []func(idemkey.Execution) error{
		func(e idemkey.Execution) error { return e.Commit(t.Context(), idemkey.Response{Status: 200}) },
		func(e idemkey.Execution) error { return e.Release(t.Context(), idemkey.Bound, 500) },
	} {
		e := f.begin(t, c)
		f.set(t, c.ID, "purge_at", 1) // so long does it run already
		f.expire(t, c.ID)
		if err := f.client.PExpire(t.Context(), e.key, c.Lease/2).Err(); err != nil {
			t.Fatal(err)
		}
		if err := e.Renew(t.Context()); err != nil {
			t.Fatalf("Renew: %v", err)
		}
		f.kind(t, c, idemkey.KindInFlight)
		if left := f.left(t, c.ID); left <= c.Lease/2 {
			t.Errorf("key expires in %v, want the lease, %v", left, c.Lease)
		}
		if err := end(e); err != nil {
			t.Errorf("end: %v", err)
		}
		if left := f.left(t, c.ID); left > 0 {
			t.Errorf("record that has expired is kept for %v", left)
		}
	}
}

// An execution ends once: what comes after changes nothing.
func TestEndsOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	kept, failed := idemkeytest.Claim("kept", "a"), idemkeytest.Claim("failed", "a")
	e := f.begin(t, kept)
	f.commit(t, e)
	for _, mode := range []idemkey.ReleaseMode{idemkey.Bound, idemkey.Forget} {
		if err := e.Release(t.Context(), mode, 500); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	if err := e.Commit(t.Context(), idemkey.Response{Status: 201, Dropped: true}); !errors.Is(err, idemkey.ErrNotStored) {
		t.Errorf("second Commit: %v, want ErrNotStored", err)
	}
	if d := f.kind(t, kept, idemkey.KindReplay); d.Record.Response.Status != 200 {
		t.Errorf("replayed %d, want 200", d.Record.Response.Status)
	}
	e = f.begin(t, failed)
	if err := e.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := e.Commit(t.Context(), idemkey.Response{Status: 200}); !errors.Is(err, idemkey.ErrNotStored) {
		t.Errorf("Commit after Release: %v, want ErrNotStored", err)
	}
	f.kind(t, failed, idemkey.KindProceed)
}

// A tombstone holds no body, and a record that is taken over nothing of the last.
func TestNothingLeftOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a")
	hasBody := func(want bool) {
		t.Helper()
		if got := f.client.HExists(t.Context(), f.key(c.ID), "body").Val(); got != want {
			t.Errorf("there is a body: %t, want %t", got, want)
		}
	}
	for _, dropped := range []bool{true, false} {
		if err := f.begin(t, c).Commit(t.Context(), idemkey.Response{Status: 200, Body: []byte("x"), Dropped: dropped}); err != nil {
			t.Errorf("Commit: %v", err)
		}
		hasBody(!dropped)
		f.expire(t, c.ID)
	}
	f.begin(t, c)
	hasBody(false)
}

// A take-over is compare and set: on the token that was read, and on a record
// that is still free.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a")
	claim := func(what, from string, attempt, want int) *execution {
		t.Helper()
		e := &execution{s: f.Store, key: f.key(c.ID), token: "claim " + what, lease: c.Lease}
		for range 2 { // a claim that was won is won again, since its reply may have been lost
			reply, err := f.sendClaim(t.Context(), e, &c, from, attempt)
			if got, won := decodeClaim(reply); err != nil || won != (want != 0) || got.attempt != want {
				t.Errorf("%s: claim = %+v, %t, %v; want attempt %d", what, got, won, err, want)
			}
		}
		return e
	}
	first := claim("absent by now", "gone", 7, 1)
	claim("live", first.token, 2, 0)
	f.lapse(t, c.ID, first)
	claim("read before another took over", "gone", 2, 0)
	second := claim("lapsed", first.token, 2, 2)
	f.commit(t, second)
	claim("completed", second.token, 3, 0)
	f.expire(t, c.ID)
	claim("expired", second.token, 1, 1)
}

// A lapsed owner may renew until another request has taken over.
func TestRenew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a")
	first := f.begin(t, c)
	f.lapse(t, c.ID, first)
	if err := first.Renew(t.Context()); err != nil {
		t.Errorf("Renew of a lapsed lease: %v", err)
	}
	if d := f.kind(t, c, idemkey.KindInFlight); d.RetryAfter <= c.Lease/2 || d.RetryAfter > c.Lease {
		t.Errorf("RetryAfter = %v, want about %v", d.RetryAfter, c.Lease)
	}
	f.lapse(t, c.ID, first)
	second := f.begin(t, c)
	if err := first.Renew(t.Context()); !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Renew after a take-over: %v, want ErrLeaseLost", err)
	}
	if err := first.Commit(t.Context(), idemkey.Response{Status: 200}); !errors.Is(err, idemkey.ErrNotStored) || !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Commit after a take-over: %v, want ErrNotStored and ErrLeaseLost", err)
	}
	f.commit(t, second)
	if err := second.Renew(t.Context()); !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Renew after Commit: %v, want ErrLeaseLost", err)
	}
	lost := f.begin(t, idemkeytest.Claim("lost", "a"))
	f.client.Del(t.Context(), lost.key)
	if err := lost.Renew(t.Context()); !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Renew of a record that Redis has lost: %v, want ErrLeaseLost", err)
	}
	if err := lost.Commit(t.Context(), idemkey.Response{Status: 200}); !errors.Is(err, idemkey.ErrNotStored) || !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Commit of a record that Redis has lost: %v, want ErrNotStored and ErrLeaseLost", err)
	}
	if keyless, ok := f.kind(t, idemkeytest.Claim("", ""), idemkey.KindProceed).Exec.(interface{ Renew(context.Context) error }); !ok || keyless.Renew(t.Context()) != nil {
		t.Error("an execution without a key cannot be renewed")
	}
}
