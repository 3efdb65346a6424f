package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A data-only restore leaves the sequence of ids behind the rows. Before a relay publishes anything, it is behind the
// largest id of each table again.
func TestASequenceBehindItsRows(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"outbox_0", "outbox_1", "outbox_2", "outbox_other", "outbox_held"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			const largest = 5_000_000
			f.exec(t, "SELECT setval('{schema}.outbox_id_seq', $1)", largest-1)
			if table == "outbox_held" {
				f.kill(t, "no queue", msg("dead", "dead"))
			} else {
				leaf := slices.Index(leaves[:], table)
				f.exec(t, "SELECT setval('{schema}.outbox_leaf', $1)", 30+leaf)
				f.write(t, msg("k", "2"))
				if table == "outbox_other" {
					f.exec(t, "UPDATE {schema}.outbox SET leaf = 9 WHERE id = $1", largest)
				}
				if n := f.count(t, table); n == 0 {
					t.Fatalf("%s is empty", table)
				}
			}
			f.exec(t, "SELECT setval('{schema}.outbox_id_seq', 1)")
			f.write(t, msg("k", "3"))
			r := f.relay(t, RelayOptions{})
			if s, err := r.Stats(t.Context()); err != nil || s.SequenceBehind < largest-10 {
				t.Errorf("Stats = behind by %d, %v", s.SequenceBehind, err)
			}
			log := &listener{level: slog.LevelWarn}
			r.opts.Logger = slog.New(log)
			mustSettle(t, r)
			if log.heard("has been raised") != 1 {
				t.Errorf("said %q", log.said)
			}
			if next := f.texts(t, "SELECT nextval('{schema}.outbox_id_seq')::text"); len(next[0]) < len("5000000") {
				t.Errorf("the next id is %s", next[0])
			}
			if s, err := r.Stats(t.Context()); err != nil || s.SequenceBehind != 0 {
				t.Errorf("Stats = behind by %d, %v", s.SequenceBehind, err)
			}
			mustSettle(t, r)
			if log.heard("has been raised") != 1 {
				t.Errorf("said %q at a second takeover", log.said)
			}
		})
	}
}

// A relay whose role may not raise the sequence publishes nothing, and says which statement would mend it.
func TestARoleThatMayNotRaiseTheSequence(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string]string{"update": "UPDATE", "select": "SELECT"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			outsider := pgtest.NewOutsider(t, f.pool, f.schema)
			f.exec(t, "SELECT setval('{schema}.outbox_id_seq', 100)")
			f.write(t, msg("k", "1"))
			f.exec(t, "SELECT setval('{schema}.outbox_id_seq', 1)")
			outsider.Exec(t, "REVOKE "+missing+" ON SEQUENCE {schema}.outbox_id_seq FROM {role}")
			log := &logSignal{}
			log.Enable()
			f.broker.signal.Enable()
			relayed := *f
			relayed.pool = outsider.Pool
			stop := start(t, relayed.relay(t, RelayOptions{Lease: time.Second, Logger: slog.New(log)}))
			defer stop()
			said := log.WaitFor(t, func(line string) bool { return strings.Contains(line, f.schema+".outbox_id_seq") })
			if missing == "UPDATE" && !strings.Contains(said, "SELECT setval('"+f.schema+".outbox_id_seq', 1000101)") {
				t.Errorf("said %q", said)
			}
			if got := f.broker.payloads(); len(got) > 0 {
				t.Errorf("published %q", got)
			}
			outsider.Exec(t, "GRANT "+missing+" ON SEQUENCE {schema}.outbox_id_seq TO {role}")
			f.broker.signal.WaitFor(t, func(p string) bool { return p == "1" })
		})
	}
}

// A refused message whose id another message has in outbox_held is held all the same, in front of the later messages of
// its key. The other message stays as it was.
func TestAnIDThatIsTaken(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"dead", "delayed"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.write(t, msg("other", "1"), msg("other", "2"))
			mustSettle(t, f.relay(t, RelayOptions{}))
			taken := f.kill(t, "no queue", msg("x", "x1"), msg("x", "x2"))
			if state == "delayed" {
				f.exec(t, "UPDATE {schema}.outbox_held SET state = 'delayed', due_at = now() + interval '1 hour', attempts = 0, refused_at = NULL")
			}
			before := f.texts(t, "SELECT h::text FROM {schema}.outbox_held h ORDER BY id")
			f.broker.accepted = nil
			f.broker.signal.Enable()
			allow := f.refuse("a1")
			log := &logSignal{}
			log.Enable()
			r := f.relay(t, RelayOptions{Window: 1, RetryBase: time.Hour, RetryCap: time.Hour, Logger: slog.New(log)})
			r.limits.small, r.limits.page, r.limits.list = 1, 1, 1 // each is held by a transaction of its own
			stop := start(t, r)
			f.write(t, msg("b", "b1"))
			f.broker.signal.WaitFor(t, func(p string) bool { return p == "b1" })

			f.exec(t, "SELECT setval('{schema}.outbox_id_seq', $1, false)", taken[0])
			f.write(t, msg("a", "a1"), msg("a", "a2"), msg("b", "b2"), msg("a", "a3"))
			log.WaitFor(t, func(line string) bool { return strings.Contains(line, "another message had the id") })
			f.broker.signal.WaitFor(t, func(p string) bool { return p == "b2" })
			f.await(t, r, func(c counts) bool { return c.Refused == 1 && c.Stored == 0 })
			stop()
			if got := f.texts(t, "SELECT h::text FROM {schema}.outbox_held h WHERE id <= $$"+fmt.Sprint(taken[1])+"$$::bigint ORDER BY id"); !slices.Equal(got, before) {
				t.Errorf("the messages that had the ids are %q, want %q", got, before)
			}
			allow()
			f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp() WHERE state = 'refused'")
			mustSettle(t, f.relay(t, RelayOptions{}))
			if got := strings.Join(f.broker.firsts(), " "); got != "b1 b2 a1 a2 a3" {
				t.Errorf("published %q", got)
			}
		})
	}
}

// A dead letter that has a new id, because its own was taken, is noted once, even if the first COMMIT had no answer.
func TestADeadLetterWithANewIDIsNotedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	taken := f.kill(t, "no queue", msg("x", "x"))
	f.exec(t, "SELECT setval('{schema}.outbox_id_seq', $1, false)", taken[0])
	f.write(t, msg("a", "a"))
	ids := f.texts(t, "SELECT message_id::text FROM {schema}.outbox WHERE key = 'a'")
	for range 2 {
		_, err := f.pool.Exec(t.Context(), newQueries(f.schema).holdMessages, taken, []string{"dead"}, []int64{0}, []int{1}, []string{"no queue"}, ids)
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := f.texts(t, "SELECT count(*)::text FROM {schema}.outbox_held WHERE key = 'a'"); got[0] != "1" {
		t.Errorf("%s dead letters, want 1", got[0])
	}
}

// Messages of the log whose ids come twice are published, wherever a page, a list or a tenure ends between them.
func TestIDsOfTheLogThatComeTwice(t *testing.T) {
	t.Parallel()
	for i := range 24 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 0))
			f := newFixture(t)
			var want []string
			for copies := range 3 {
				f.exec(t, "SELECT setval('{schema}.outbox_id_seq', 1, false)")
				f.exec(t, "SELECT setval('{schema}.outbox_leaf', $1)", random.IntN(3))
				for n := range 6 {
					payload := fmt.Sprint(copies, n)
					f.write(t, msg(payload, payload))
					want = append(want, payload)
				}
			}
			refusals := random.IntN(2)
			f.broker.answer = func(Publication) error {
				if refusals > 0 && random.IntN(2) == 0 {
					return ErrRefused
				}
				return nil
			}
			r := f.relay(t, RelayOptions{Lanes: 1, Window: 1 + random.IntN(20), RetryBase: time.Microsecond, RetryCap: time.Microsecond, MaxAttempts: 1 << 20})
			r.limits.small, r.limits.page, r.limits.list = 1+random.IntN(20), 1+random.IntN(5), 3+random.IntN(20)
			f.broker.signal.Enable()
			stop := start(t, r)
			if i%2 == 0 { // another relay goes on from a cursor that is somewhere in the middle
				f.broker.signal.Wait(t)
				stop()
				stop = start(t, r)
			}
			defer stop()
			f.await(t, r, func(c counts) bool { return c == counts{} })
			slices.Sort(want)
			if got := slices.Sorted(slices.Values(f.broker.firsts())); !slices.Equal(got, want) {
				t.Errorf("published %q, want %q", got, want)
			}
		})
	}
}

// A message that got the id of a listed one later is left to the next difference: its key may have earlier ones there.
func TestALaterMessageWithTheIDOfAListedOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	write := func(payload string) {
		f.exec(t, "SELECT setval('{schema}.outbox_id_seq', 7), setval('{schema}.outbox_leaf', 3)")
		f.write(t, msg("k", payload))
	}
	l := f.leader(t, RelayOptions{})
	write("listed")
	if err := l.log.listDifference(t.Context(), l.log.newReadBatch()); err != nil {
		t.Fatal(err)
	}
	write("later")
	rows, err := l.log.fetchMessages(t.Context(), l.log.newReadBatch(), l.log.list)
	if err != nil || len(rows) != 1 || string(rows[0].Payload) != "listed" {
		t.Errorf("fetchMessages = %d messages, %v", len(rows), err)
	}
}

// A writer of a delayed message meets the taken id itself: its transaction fails, and the next relay raises the sequence.
func TestADelayedMessageWhoseIDIsTaken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	taken := f.kill(t, "no queue", msg("x", "x1"))
	f.exec(t, "SELECT setval('{schema}.outbox_id_seq', $1, false)", taken[0])
	late := msg("k", "late")
	late.Delay = time.Hour
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if err := f.writer.Write(t.Context(), tx, late); err == nil || !strings.Contains(err.Error(), "outbox_held_pkey") {
		t.Errorf("Write = %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	f.exec(t, "SELECT setval('{schema}.outbox_id_seq', $1, false)", taken[0])
	mustSettle(t, f.relay(t, RelayOptions{}))
	f.write(t, late)
}
