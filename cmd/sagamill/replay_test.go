package main

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/replay"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// kept stores messages in a schema of its own.
func kept(t *testing.T, msgs ...outbox.Message) (*pgxpool.Pool, string) {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	w, err := outbox.NewWriter(&outbox.WriterOptions{Schema: schema})
	if err == nil {
		err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return w.Write(t.Context(), tx, msgs...) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return pool, schema
}

func stored(t *testing.T, pool *pgxpool.Pool, schema string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM "+schema+".outbox").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func runReplay(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	if got := run(t.Context(), append([]string{"replay", "-database", pgtest.URL()}, args...), &out, &errs); got != code {
		t.Errorf("sagamill replay %s: exit %d, want %d: %s", strings.Join(args, " "), got, code, errs.String())
	}
	return out.String(), errs.String()
}

func TestReplay(t *testing.T) {
	t.Parallel()
	order := outbox.Message{Topic: "orders", Scope: "acme", Key: "k", Step: "pay", N: "1", Payload: []byte(secret)}
	elsewhere, odd := order, order
	elsewhere.Scope, elsewhere.Key = "globex", "shared"
	shared := order
	shared.Key = "shared"
	odd.Key, odd.Scope, odd.Topic = "odd", "\u202e\u009b", "\u202e"
	first, a := kept(t, order, shared, elsewhere, odd)
	second, b := kept(t, order, order)
	third, empty := kept(t)
	both := a + "," + b
	for _, tt := range []struct {
		args       string
		code       int
		says       string
		addA, addB int
	}{
		{"-schema " + both + " -key k -n", 0, "would replay 3 messages", 0, 0},
		{"-schema " + both + " -key k", 0, "replayed 3 messages", 1, 2},
		{"-schema " + both + " -key k", 0, "replayed 3 messages", 1, 2},
		{"-schema " + a + "," + empty + " -key k", 0, "its log is empty", 1, 0},
		{"-schema " + empty + " -key k", 1, "its log is empty", 0, 0},
		{"-schema " + b + " -key none", 1, "or not since", 0, 0},
		{"-schema " + b + " -key k:pay", 1, "published messages are kept; the key is without the step: is it -key k?", 0, 0},
		{"-schema " + b + " -key k:pay#2", 1, "is it -key k?", 0, 0},
		{"-schema " + a + " -key shared", 1, "say which with -scope: acme globex", 0, 0},
		{"-schema " + a + " -key shared -scope acme", 0, "replayed 1 message\n", 1, 0},
		{"-schema " + a + " -key k -since 2100-01-01T00:00:00Z", 1, "retains no such message", 0, 0},
		{"-schema " + a + " -key k -until 2100-01-01T00:00:00Z -json", 0, `{"did":"replayed","count":1}`, 1, 0},
		{"-schema " + a + " -key odd", 0, "replayed 1 message\n", 1, 0},
		{"-schema " + a + ",no-such -key k", 1, "no-such", 0, 0},
		{"-schema " + a, 1, "-key", 0, 0},
		{"-schema " + a + " -key k -scope=", 1, "-scope is empty", 0, 0},
		{"-schema " + a + " -key k -since yesterday", 1, "since", 0, 0},
	} {
		beforeA, beforeB := stored(t, first, a), stored(t, second, b)
		out, errs := runReplay(t, tt.code, strings.Fields(tt.args)...)
		if !strings.Contains(out+errs, tt.says) || strings.Contains(out+errs, secret) {
			t.Errorf("replay %s says %q and %q, want %q", tt.args, out, errs, tt.says)
		}
		if addA, addB := stored(t, first, a)-beforeA, stored(t, second, b)-beforeB; addA != tt.addA || addB != tt.addB {
			t.Errorf("replay %s has added %d and %d messages, want %d and %d", tt.args, addA, addB, tt.addA, tt.addB)
		}
		for _, r := range strings.ReplaceAll(out+errs, "\n", "") {
			if !strconv.IsPrint(r) {
				t.Fatalf("replay %s prints %U:\n%q", tt.args, r, out)
			}
		}
	}
	if _, errs := runReplay(t, 1, "-schema", both, "-key", "none:pay"); strings.Count(errs, "\n") != 2 || strings.Count(errs, "is it -key none?") != 1 {
		t.Errorf("replay of what two schemas do not keep says %q", errs)
	}
	out, _ := runReplay(t, 0, "-schema", a, "-key", "k", "-n", "-json")
	var got replay.Message
	if err := json.Unmarshal([]byte(strings.SplitAfter(out, "\n")[0]), &got); err != nil || got.Schema != a || got.Step != "pay" || got.N != "1" || got.Size != len(secret) {
		t.Errorf("replay -json: %v: %s", err, out)
	}
	if stored(t, third, empty) != 0 {
		t.Error("an empty outbox is not empty any more")
	}
}
