//go:build failpoints

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

const (
	commandEnv = "SAGAMILL_TEST_COMMAND"

	casesAtOnce = 4
)

// TestMain is the command when it is told to be.
func TestMain(m *testing.M) {
	if text := os.Getenv(commandEnv); text != "" {
		var args []string
		if err := json.Unmarshal([]byte(text), &args); err != nil {
			panic(err)
		}
		os.Exit(run(context.Background(), args, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// An order is a command about parked messages, of which there are: the dead action
// and the dead compensation of key k1, the dead action of k2, and the action of k3 that
// goes round, but not soon.
type order struct {
	words string // "ID(k1)" is the id of k1's action, FILE a payload that asks for 7
	hits  int    // how often it comes to each point
	done  scene  // what is so once it is done, however often it was said
	after scene  // and what a consumer makes of that; without Steps: nothing
}

// A scene is all that can be seen of the messages.
type scene struct{ Steps, Parked, Effects, Receipts []string }

// The messages at the beginning.
const (
	dead1     = "k1 action dead 1"
	dead1Undo = "k1 compensation dead 2"
	dead2     = "k2 action dead 1"
	waiting3  = "k3 action retrying 1"
)

var steps = []string{"k1 dead", "k2 dead", "k3 retrying"}

// orders are all that changes messages.
func orders() []order {
	return []order{
		{"dead redrive -id ID(k1)", 1,
			scene{Steps: []string{"k1 retrying", "k2 dead", "k3 retrying"}, Parked: []string{"k1 action retrying 1 due", dead1Undo, dead2, waiting3}},
			scene{Steps: []string{"k1 done", "k2 dead", "k3 retrying"}, Parked: []string{dead1Undo, dead2, waiting3}, Effects: []string{"k1 1"}, Receipts: []string{"k1 1"}}},
		{"dead redrive -all -older 0s -yes", 2,
			scene{Steps: []string{"k1 retrying", "k2 retrying", "k3 retrying"}, Parked: []string{"k1 action retrying 1 due", "k1 compensation retrying 2 due", "k2 action retrying 1 due", waiting3}},
			scene{Steps: []string{"k1 compensated", "k2 done", "k3 retrying"}, Parked: []string{waiting3}, Effects: []string{"k1 1 2", "k2 1"}, Receipts: []string{"k1 1", "k1 2", "k2 1"}}},
		{"dead edit -id ID(k2) -payload FILE", 1, scene{Steps: steps, Parked: []string{dead1, dead1Undo, "k2 action dead 7", waiting3}}, scene{}},
		{"dead discard -id ID(k1)", 1, scene{Steps: steps, Parked: []string{dead1Undo, dead2, waiting3}}, scene{}},
		{"dead discard -all -key k1 -json -yes", 1, scene{Steps: steps, Parked: []string{dead2, waiting3}}, scene{}},
		{"dead retry -id ID(k3)", 1,
			scene{Steps: steps, Parked: []string{dead1, dead1Undo, dead2, waiting3 + " due"}},
			scene{Steps: []string{"k1 dead", "k2 dead", "k3 done"}, Parked: []string{dead1, dead1Undo, dead2}, Effects: []string{"k3 1"}, Receipts: []string{"k3 1"}}},
		{"dead bury -id ID(k3)", 1, scene{Steps: []string{"k1 dead", "k2 dead", "k3 dead"}, Parked: []string{dead1, dead1Undo, dead2, "k3 action dead 1"}}, scene{}},
	}
}

// Whatever strikes the command at any point of what it does to parked messages, it is
// done once it is said again, and done once: what is sent round has its effect once, what
// is discarded has none, and nobody holds a lock.
func TestFaultsOfARedrive(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	offices := faulttest.NewStock(casesAtOnce, func() *office { return newOffice(t) })
	for _, f := range faulttest.Faults("redrive") {
		if strings.HasPrefix(f.Name, "redrive/outbox-") {
			continue // package outbox strikes there
		}
		for _, o := range orders() {
			for hit := range o.hits {
				t.Run(f.At(hit+1).String()+" "+o.words, func(t *testing.T) {
					t.Parallel()
					needtest.Share(t)
					w := offices.Borrow(t)
					w.open(t)
					w.strike(t, f.At(hit+1), o)
				})
			}
		}
	}
}

// An office is a schema in which one case after the other is tried.
type office struct {
	pool   *pgxpool.Pool
	schema string
	c      *consumer.Consumer
	broken atomic.Bool // its handlers give up, or fail for k3
	file   string
}

func newOffice(t *testing.T) *office {
	t.Helper()
	w := &office{file: filepath.Join(t.TempDir(), "payload")}
	w.pool, w.schema = pgtest.Schema(t)
	if err := os.WriteFile(w.file, []byte("7"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.exec(t, "CREATE TABLE {schema}.effect (id bigserial PRIMARY KEY, key text, amount integer)")
	s := consumer.Step{Name: "pay", Action: consumer.On("act", w.handle), Compensation: consumer.On("undo", w.handle), RetryBase: 1, RetryCap: 1}
	var err error
	w.c, err = consumer.New(w.pool, nil, []consumer.Step{s}, &consumer.Options{
		Schema: w.schema, ParkedWorkers: 2, ParkedPoll: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *office) handle(ctx context.Context, tx pgx.Tx, in consumer.Message[int], emit consumer.Emit) error {
	switch {
	case w.broken.Load() && in.Key == "k3":
		return errors.New("for now")
	case w.broken.Load():
		return consumer.Terminal(errors.New("no such card"))
	}
	emit(outbox.Message{Topic: "receipts", Step: "receive", N: fmt.Sprint(in.Body), Payload: in.Payload})
	_, err := tx.Exec(ctx, "INSERT INTO "+w.schema+".effect (key, amount) VALUES ($1, $2)", in.Key, in.Body)
	return err
}

// open leaves the messages of an [order], and nothing else.
func (w *office) open(t *testing.T) {
	t.Helper()
	for _, table := range []string{"inbox", "parked", "effect", "outbox", "operator_journal"} {
		w.exec(t, "DELETE FROM {schema}."+table)
	}
	w.broken.Store(true)
	for _, m := range []struct{ topic, key, payload string }{{"act", "k1", "1"}, {"undo", "k1", "2"}, {"act", "k2", "1"}, {"act", "k3", "1"}} {
		msg := message.NewMessage(m.topic+m.key, []byte(m.payload))
		msg.Metadata = message.Metadata{outbox.HeaderKey: m.key + ":pay", outbox.HeaderScope: "acme", outbox.PropertyType: m.topic}
		if err := w.c.Handle(t.Context(), m.topic, msg); err != nil {
			t.Fatal(err)
		}
	}
	w.exec(t, "UPDATE {schema}.parked SET due_at = 'infinity' WHERE state = 'retrying'")
	w.broken.Store(false)
}

func (w *office) exec(t *testing.T, statement string) {
	t.Helper()
	if _, err := w.pool.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", w.schema)); err != nil {
		t.Fatal(err)
	}
}

const sqlLook = `SELECT
	ARRAY(SELECT key || ' ' || state FROM {schema}.inbox ORDER BY key),
	ARRAY(SELECT concat_ws(' ', key, kind, state, convert_from(payload, 'UTF8'), CASE WHEN state = 'retrying' AND due_at <= clock_timestamp() THEN 'due' END)
		FROM {schema}.parked ORDER BY key, kind),
	ARRAY(SELECT key || ' ' || string_agg(amount::text, ' ' ORDER BY id) FROM {schema}.effect GROUP BY key ORDER BY key),
	ARRAY(SELECT key || ' ' || n FROM {schema}.outbox ORDER BY key, n)`

func (w *office) look(t *testing.T) (s scene) {
	t.Helper()
	err := w.pool.QueryRow(t.Context(), strings.ReplaceAll(sqlLook, "{schema}", w.schema)).Scan(&s.Steps, &s.Parked, &s.Effects, &s.Receipts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// journaled reports whether the journal says that anything was done.
func (w *office) journaled(t *testing.T) (is bool) {
	t.Helper()
	if err := w.pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM "+w.schema+".operator_journal)").Scan(&is); err != nil {
		t.Fatal(err)
	}
	return is
}

// is fails the test unless the scene is want.
func (w *office) is(t *testing.T, when string, want scene) {
	t.Helper()
	if diff := cmp.Diff(want, w.look(t), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// args are the words of o as a command line.
func (w *office) args(t *testing.T, o order) []string {
	t.Helper()
	words := strings.Fields(strings.ReplaceAll(o.words, "FILE", w.file))
	for i, word := range words {
		if key, ok := strings.CutPrefix(word, "ID("); ok {
			var id string
			err := w.pool.QueryRow(t.Context(), "SELECT id::text FROM "+w.schema+".parked WHERE key = $1 AND kind = 'action'", strings.TrimSuffix(key, ")")).Scan(&id)
			if err != nil {
				t.Fatal(err)
			}
			words[i] = id
		}
	}
	return append(words, "-schema", w.schema, "-database", pgtest.URL())
}

// strike lets the command be struck by f, and has it said again.
func (w *office) strike(t *testing.T, f faulttest.Fault, o order) {
	t.Helper()
	args := w.args(t, o)
	text, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	before := w.look(t)
	v := faulttest.Start(t, f, commandEnv+"="+string(text))
	v.Struck()
	switch f.Action {
	case "kill":
		faulttest.AtRest(t, w.pool, w.schema)
	case "error":
		if code := v.Ended(); code != 1 || !strings.Contains(v.Said(), "failpoint") {
			t.Errorf("exit code %d, and it said: %s", code, v.Said())
		}
	case "delay": // and somebody else says it meanwhile
		w.say(t, args)
		if code := v.Ended(); code > 1 {
			t.Errorf("exit code %d, and it said: %s", code, v.Said())
		}
	case "stop":
		faulttest.EndIdle(t, w.pool, w.schema, "")
		w.say(t, args)
		w.is(t, "said again while the first hangs", o.done)
		v.Continue()
		if code := v.Ended(); code > 1 {
			t.Errorf("exit code %d, and it said: %s", code, v.Said())
		}
	default:
		t.Fatalf("no case for the action %s", f.Action)
	}
	if changed := !cmp.Equal(before, w.look(t), cmpopts.EquateEmpty()); changed != w.journaled(t) {
		t.Errorf("after the fault: messages have changed: %t, and the journal says so: %t", changed, !changed)
	}
	w.say(t, args)
	w.is(t, "said again", o.done)
	if o.after.Steps == nil {
		o.after = o.done
	}
	w.consume(t)
	w.is(t, "after a consumer", o.after)
	faulttest.AtRest(t, w.pool, w.schema)
}

// say runs the command here. It may be that there is nothing left to do.
func (w *office) say(t *testing.T, args []string) {
	t.Helper()
	var out bytes.Buffer
	if code := run(t.Context(), args, &out, &out); code != 0 && !strings.Contains(out.String(), "nothing was changed") && !strings.Contains(out.String(), "at work") {
		t.Errorf("said again: exit code %d, %s", code, out.String())
	}
}

// consume runs what is due until nothing is.
func (w *office) consume(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.c.Run(ctx) }()
	faulttest.Await(t, "nothing goes round that is due", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("Run has ended: %v", err)
		default:
		}
		for _, p := range w.look(t).Parked {
			if strings.Contains(p, "retrying") && p != waiting3 {
				return false
			}
		}
		return true
	}, func() string { return fmt.Sprint(w.look(t)) })
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}
