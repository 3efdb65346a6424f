package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/replay"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// several are n messages of different sagas.
func several(n int) []outbox.Message {
	messages := make([]outbox.Message, n)
	for i := range messages {
		messages[i] = outbox.Message{Topic: "orders", Scope: "acme", Key: fmt.Sprint("k", i), Step: "pay", Payload: []byte(secret)}
	}
	return messages
}

func TestReplayOfARange(t *testing.T) {
	t.Parallel()
	first, a := kept(t, several(3)...)
	second, b := kept(t, several(cli.DefaultLimit)...)
	_, empty := kept(t)
	hour := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	both := "-schema " + a + "," + b
	var butOne string
	if err := first.QueryRow(t.Context(), "SELECT $1 || ':' || max(id) - 1 FROM "+a+".outbox", a).Scan(&butOne); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args       string
		code       int
		says       string
		addA, addB int
	}{
		{both + " -since " + hour + " -n", 0, "would replay 103 messages", 0, 0},
		{both + " -since " + hour, 1, "would replay 103 messages", 0, 0},
		{both + " -since " + hour, 1, "nothing is done yet: the same with -yes does it", 0, 0},
		{both + " -since " + hour + " -n -yes", 1, "and not both", 0, 0},
		{both + " -yes -since " + hour, 0, "replayed 103 messages", 3, 100},
		{both + " -yes -since " + hour, 0, "replayed 103 messages", 3, 100}, // without the copies
		{both + " -yes -since " + hour + " -json", 0, `{"did":"replayed","count":103}`, 3, 100},
		{both + " -yes -since " + hour + " -scope acme -rate 1000", 0, "replayed 103 messages", 3, 100},
		{both + " -since " + hour + " -scope globex", 1, "retains no such message", 0, 0},
		{both + " -since 2100-01-01T00:00:00Z", 1, "Retention", 0, 0},
		{both + " -since 2020-01-01T00:00:00Z -until " + hour, 1, "retains no such message", 0, 0},
		{both + " -since 2020-01-01T00:00:00Z -n", 0, "schema " + a + " keeps what was written since", 0, 0},
		{both + " -since " + hour + " -n", 0, "these are the first 100", 0, 0},
		{"-schema " + a + "," + empty + " -yes -since " + hour, 0, "its log is empty", 3, 0},
		{"-schema " + empty + " -since " + hour, 1, "its log is empty", 0, 0},
		{"-schema " + a + ",no-such -since " + hour, 1, "no-such", 0, 0},
		{"-schema " + a + ",nosuch -since " + hour, 1, "nosuch", 0, 0},
		{both, 1, "say which: a saga with -key, or a time range with -since", 0, 0},
		{both + " -until " + hour, 1, "say which", 0, 0},
		{both + " -since " + hour + " -until 2020-01-01T00:00:00Z", 1, "is not before -until", 0, 0},
		{both + " -since " + hour + " -until " + hour, 1, "is not before -until", 0, 0},
		{both + " -since " + hour + " -rate -1", 1, "-rate must not be negative", 0, 0},
		{both + " -key k1 -rate 1", 1, "without -key", 0, 0},
		{both + " -key k1 -after " + a + ":1", 1, "without -key", 0, 0},
		{both + " -since " + hour + " -after here", 1, "want SCHEMA:ID", 0, 0},
		{both + " -since " + hour + " -after elsewhere:1", 1, "-after names elsewhere", 0, 0},
		{both + " -yes -rate 0 -since " + hour + " -after " + butOne, 0, "replayed 101 messages", 1, 100},
		{both + " -yes -since " + hour + " -after " + a + ":9000000," + b + ":9000000", 0, "schema " + b + ": nothing is left behind 9000000", 0, 0},
	} {
		beforeA, beforeB := stored(t, first, a), stored(t, second, b)
		out, errs := runReplay(t, tt.code, strings.Fields(tt.args)...)
		if !strings.Contains(out+errs, tt.says) || strings.Contains(out+errs, secret) {
			t.Errorf("replay %s says %.300q and %q, want %q", tt.args, out, errs, tt.says)
		}
		if addA, addB := stored(t, first, a)-beforeA, stored(t, second, b)-beforeB; addA != tt.addA || addB != tt.addB {
			t.Errorf("replay %s has added %d and %d messages, want %d and %d", tt.args, addA, addB, tt.addA, tt.addB)
		}
	}
	out, _ := runReplay(t, 0, "-schema", a, "-since", hour, "-n", "-json")
	var got replay.Message
	if lines := strings.Split(out, "\n"); len(lines) != 3+1+1 || json.Unmarshal([]byte(lines[0]), &got) != nil || got.Schema != a || got.Key != "k0" || got.Size != len(secret) {
		t.Errorf("replay -n -json of a range: %s", out)
	}
	if out, _ := runReplay(t, 0, "-schema", a, "-since", hour, "-n"); strings.Count(out, "\n") != 1+3+1 {
		t.Errorf("replay -n of a range prints %s", out)
	}
}

// onFirstWrite does something when the first line is printed.
type onFirstWrite struct {
	bytes.Buffer
	once sync.Once
	do   func()
}

func (w *onFirstWrite) Write(p []byte) (int, error) {
	w.once.Do(w.do)
	return w.Buffer.Write(p)
}

// A replay that is interrupted says how it goes on, and does.
func TestAnInterruptedReplayGoesOn(t *testing.T) {
	t.Parallel()
	pool, a := kept(t, several(5)...)
	_, b := kept(t, several(2)...)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	args := []string{"-schema", a + "," + b, "-yes", "-since", "2020-01-01T00:00:00Z"}
	out := onFirstWrite{do: interrupt}
	var errs bytes.Buffer
	code := run(ctx, append([]string{"replay", "-database", pgtest.URL(), "-json", "-rate", "2"}, args...), &out, &errs)
	goesOn := regexp.MustCompile(`interrupted: replayed 2 messages; the same with -after (\S+) goes on`).FindStringSubmatch(errs.String())
	if code != 1 || goesOn == nil || stored(t, pool, a) != 5+2 {
		t.Fatalf("interrupted: exit %d, %q, %d messages stored; want 2 replayed", code, errs.String(), stored(t, pool, a))
	}
	says, _ := runReplay(t, 0, append(args, "-after", goesOn[1])...)
	if !strings.Contains(says, "replayed 5 messages") || stored(t, pool, a) != 5+5 {
		t.Errorf("it goes on: %q, %d messages stored; want the other 3, and the 2 of the next schema", says, stored(t, pool, a))
	}
}

// What the relay removes in the course of a replay is missed in the end.
func TestAReplaySaysWhatHasGone(t *testing.T) {
	t.Parallel()
	pool, a := kept(t, several(5)...)
	out := onFirstWrite{do: func() {
		if _, err := pool.Exec(t.Context(), "DELETE FROM "+a+".outbox WHERE key = 'k4'"); err != nil {
			t.Error(err)
		}
	}}
	var errs bytes.Buffer
	code := run(t.Context(), []string{"replay", "-database", pgtest.URL(), "-json", "-rate", "4", "-yes", "-schema", a, "-since", "2020-01-01T00:00:00Z"}, &out, &errs)
	if code != 0 || !strings.Contains(errs.String(), "1 fewer than there were") {
		t.Errorf("exit %d, %q; want one fewer", code, errs.String())
	}
}
