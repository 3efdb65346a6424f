package idemredis

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

// An alternating store asks one store, then the other.
type alternating struct {
	stores [2]idemkey.Store
	calls  atomic.Uint32
}

func (a *alternating) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	return a.stores[a.calls.Add(1)%2].Begin(ctx, c)
}

func (a *alternating) Sweep(ctx context.Context, limit int) (int, error) {
	return a.stores[a.calls.Add(1)%2].Sweep(ctx, limit)
}

// allBytes is what a script or a protocol could take for something else.
func allBytes() []byte {
	data := make([]byte, 0, 512)
	for i := range 256 {
		data = append(data, byte(i), '\r')
	}
	return append(data, "\n$-1\r\n\x00nil"...)
}

func TestBinary(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", string(allBytes()))
	c.FP.Alg = "a\x00\r\nb"
	want := idemkey.Response{Status: 299, Header: http.Header{"X-Odd": {"\xff, \t\x80", "", " 1.0 "}}, Body: allBytes()}
	if err := f.begin(t, c).Commit(t.Context(), want); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	if diff := cmp.Diff(want, f.kind(t, c, idemkey.KindReplay).Record.Response); diff != "" {
		t.Errorf("replayed response (-want +got):\n%s", diff)
	}
	if rec := f.inspect(t, c.ID); !bytes.Equal(rec.FP.Sum, c.FP.Sum) || rec.FP.Alg != c.FP.Alg || !cmp.Equal(rec.Response, want) {
		t.Errorf("Inspect = %+v, want what was kept", rec)
	}
	c.FP.Sum = c.FP.Sum[:len(c.FP.Sum)-1]
	f.kind(t, c, idemkey.KindMismatch)
}

// The store's keys are spread over a cluster's slots, by the digest alone.
func TestClusterSlots(t *testing.T) {
	t.Parallel()
	client := redistest.Cluster(t)
	f := newFixtureOn(t, client, client, Options{})
	slot := func(key string) int64 {
		n, err := client.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatalf("CLUSTER KEYSLOT: %v", err)
		}
		return n
	}
	slots := make(map[int64]bool)
	for _, key := range []string{"a", "b", "c", "d"} {
		whole := f.key(idemkeytest.Claim(key, "a").ID)
		tag := whole[strings.Index(whole, "{")+1 : len(whole)-1]
		if slot(whole) != slot(tag) {
			t.Errorf("%s is not in the slot of its digest", whole)
		}
		slots[slot(whole)] = true
	}
	if len(slots) != 4 {
		t.Errorf("four keys are in %d slots", len(slots))
	}
}

// The application host's clock takes part in nothing: no script is sent a time.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a")
	now, err := f.client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	var sent []any
	f.client.AddHook(argumentHook(func(args []any) { sent = append(sent, args...) }))
	e := f.begin(t, c)
	f.commit(t, e)
	f.kind(t, c, idemkey.KindReplay)
	for _, arg := range sent {
		if n, ok := arg.(int64); ok && n > int64(365*24*time.Hour/time.Millisecond) {
			t.Errorf("a script was sent %d, which is a time; want durations only", n)
		}
	}
	if rec := f.inspect(t, c.ID); rec.ExpiresAt.Before(now.Add(c.TTL-time.Second)) || rec.ExpiresAt.After(now.Add(c.TTL+time.Hour)) {
		t.Errorf("ExpiresAt = %v, want %v after Redis's time %v", rec.ExpiresAt, c.TTL, now)
	}
}

// An argumentHook sees what each command is sent.
type argumentHook func([]any)

func (h argumentHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h argumentHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(cmd.Args())
		return next(ctx, cmd)
	}
}

func (h argumentHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A server may forget scripts at any time.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	server := redistest.Server(t)
	f := newFixtureOn(t, server, server, Options{})
	flush := func() {
		if err := server.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatalf("SCRIPT FLUSH: %v", err)
		}
	}
	c := idemkeytest.Claim("k", "a")
	e := f.begin(t, c)
	flush()
	if err := e.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	flush()
	if err := e.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Errorf("Release: %v", err)
	}
	flush()
	e = f.begin(t, c)
	flush()
	f.commit(t, e)
	flush()
	f.kind(t, c, idemkey.KindReplay)
	flush()
	f.inspect(t, c.ID)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy, aof string
		allow       bool
		wantErr     bool
		wantLog     []string
	}{
		{"noeviction", "yes", false, false, nil},
		{"noeviction", "no", false, false, []string{"append-only"}},
		{"volatile-lru", "yes", false, true, nil},
		{"allkeys-random", "yes", true, false, []string{"evict"}},
	} {
		t.Run(tt.policy+"/"+tt.aof, func(t *testing.T) {
			t.Parallel()
			server := redistest.Server(t, "--maxmemory-policy", tt.policy, "--appendonly", tt.aof)
			var log bytes.Buffer
			f := newFixtureOn(t, server, server, Options{AllowEviction: tt.allow, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err := f.Check(t.Context()); errors.Is(err, ErrEviction) != tt.wantErr || (err != nil) != tt.wantErr {
				t.Errorf("Check = %v, want ErrEviction: %t", err, tt.wantErr)
			}
			if got := strings.Count(log.String(), "\n"); got != len(tt.wantLog) {
				t.Errorf("%d log lines, want %d: %s", got, len(tt.wantLog), &log)
			}
			for _, want := range tt.wantLog {
				if !strings.Contains(log.String(), want) {
					t.Errorf("log = %s, want it to mention %q", &log, want)
				}
			}
		})
	}
}

func TestCheckUnreachable(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true})
	defer client.Close()
	f := newFixtureOn(t, client, client, Options{})
	if err := f.Check(t.Context()); err == nil || errors.Is(err, ErrEviction) {
		t.Errorf("Check = %v, want another error than ErrEviction", err)
	}
}

// What is not a record is never run over.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for field, value := range map[string]string{
		"state": "259", "attempt": "x", "token": "", "status": "20", "header": "\x09", "fp_alg": "", "lease_until": "x", "expires_at": "",
	} {
		c := idemkeytest.Claim(field, "a")
		f.commit(t, f.begin(t, c))
		f.set(t, c.ID, field, value)
		want := idemkey.ErrRecordCorrupt
		if field == "fp_alg" {
			f.kind(t, c, idemkey.KindFingerprintUnknown)
			continue
		}
		if _, err := f.Begin(t.Context(), c); !errors.Is(err, want) {
			t.Errorf("Begin with a damaged %s: %v, want %v", field, err, want)
		}
		if _, _, err := f.Inspect(t.Context(), c.ID); !errors.Is(err, want) {
			t.Errorf("Inspect with a damaged %s: %v, want %v", field, err, want)
		}
	}
	foreign := idemkeytest.Claim("foreign", "a")
	f.set(t, foreign.ID, "other", "x")
	if _, err := f.Begin(t.Context(), foreign); !errors.Is(err, idemkey.ErrRecordCorrupt) {
		t.Errorf("Begin on a foreign hash: %v, want %v", err, idemkey.ErrRecordCorrupt)
	}
	wrong := idemkeytest.Claim("wrong", "a")
	f.client.Set(t.Context(), f.key(wrong.ID), "x", time.Minute)
	if _, err := f.Begin(t.Context(), wrong); !errors.Is(err, idemkey.ErrRecordCorrupt) {
		t.Errorf("Begin on a string: %v, want %v", err, idemkey.ErrRecordCorrupt)
	}
	for _, field := range []string{"state", "fp", "fp_alg", "token", "attempt", "lease_until", "expires_at", "status", "header", "body"} {
		c := idemkeytest.Claim("without-"+field, "a")
		f.commit(t, f.begin(t, c))
		f.client.HDel(t.Context(), f.key(c.ID), field)
		if _, err := f.Begin(t.Context(), c); !errors.Is(err, idemkey.ErrRecordCorrupt) {
			t.Errorf("Begin without %s: %v, want %v", field, err, idemkey.ErrRecordCorrupt)
		}
	}
	if _, found, err := f.Inspect(t.Context(), idemkeytest.Claim("absent", "a").ID); found || err != nil {
		t.Errorf("Inspect of nothing = %t, %v", found, err)
	}
}
