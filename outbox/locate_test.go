package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// locate finds messages, with and without those that are published, and makes
// sure that the two say the same.
func (f *fixture) locate(t *testing.T, filter LocateFilter) FoundMessages {
	t.Helper()
	l := f.letters(t)
	var all, unpublished FoundMessages
	err := pgx.BeginTxFunc(t.Context(), f.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := l.Pin(t.Context(), tx); err != nil {
			return err
		}
		var err error
		if all, err = l.Locate(t.Context(), tx, filter); err != nil {
			return err
		}
		filter.Unpublished = true
		unpublished, err = l.Locate(t.Context(), tx, filter)
		return err
	})
	if err != nil {
		t.Fatalf("Locate: %v", err)
	}
	rest := []FoundMessage{}
	for _, m := range all.Messages {
		if m.Place != "published" {
			rest = append(rest, m)
		}
	}
	if diff := cmp.Diff(rest, append([]FoundMessage{}, unpublished.Messages...)); diff != "" && !all.More {
		t.Errorf("unpublished ones (-picked out of all +asked for):\n%s", diff)
	}
	return all
}

// places returns "step place", and what it waits behind, of each message.
func places(w FoundMessages) string {
	var all []string
	for _, m := range w.Messages {
		s := fmt.Sprint(m.Step, " ", m.Place)
		if m.Behind != nil {
			s += " behind " + m.Behind.Step
		}
		all = append(all, s)
	}
	return strings.Join(all, ", ")
}

// toStep is a message whose payload is the name of its step.
func toStep(key, step string) Message {
	m := msg(key, step)
	m.Step = step
	return m
}

// A message is found wherever it is, and nothing else is.
func TestEveryPlaceOfAMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broker.answer = func(p Publication) error {
		if s := string(p.Message.Payload); s == "refused" || s == "dead" {
			return fmt.Errorf("%w: 312 NO_ROUTE", ErrRefused)
		}
		return nil
	}
	opts := RelayOptions{RetryBase: time.Hour, RetryCap: time.Hour, Lanes: 1}
	dead := toStep("k", "dead")
	dead.OrderingKey = "another"
	f.write(t, dead)
	once := opts
	once.MaxAttempts = 1
	mustSettle(t, f.relay(t, once))
	late := toStep("k", "late")
	late.Delay, late.OrderingKey = time.Hour, "another"
	f.write(t, toStep("k", "published"), late, toStep("k", "refused"), toStep("kk", "other"))
	mustSettle(t, f.relay(t, opts))
	f.write(t, toStep("k", "behind"))
	free := toStep("k", "free")
	free.OrderingKey = "another"
	f.write(t, free)

	want := "dead dead, published published, refused refused, late delayed, behind waiting behind refused, free stored"
	w := f.locate(t, LocateFilter{Scope: "tenant", Key: "k"})
	if got := places(w); got != want || w.More || w.At.IsZero() {
		t.Errorf("stored: %s\nwant %s\n(%+v)", got, want, w)
	}
	if got := places(f.locate(t, LocateFilter{Key: "k"})); got != want {
		t.Errorf("of any scope: %s\nwant %s", got, want)
	}
	for _, none := range []LocateFilter{{Scope: "tenan", Key: "k"}, {Scope: "tenant", Key: "no"}, {Key: "K"}} {
		if got := places(f.locate(t, none)); got != "" {
			t.Errorf("%+v: %s", none, got)
		}
	}
	mustSettle(t, f.relay(t, opts))
	want = strings.Replace(want, "free stored", "free published", 1)
	if got := places(f.locate(t, LocateFilter{Key: "k"})); got != want {
		t.Errorf("read by the relay: %s\nwant %s", got, want)
	}
}

// What is told of a message is what was written, and what became of it.
func TestWhatIsToldOfALocatedMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broker.answer = func(Publication) error { return fmt.Errorf("%w: 312 NO_ROUTE", ErrRefused) }
	first, second := toStep("other", "first"), toStep("k", "second")
	second.Type, second.N, second.CorrelationID, second.CausationID, second.ID = "command", "n1", "saga", "cause", "01890a5d-ac96-774b-bcce-b302099a8057"
	first.OrderingKey, second.OrderingKey = "o", "o"
	f.write(t, first, second)
	mustSettle(t, f.relay(t, RelayOptions{RetryBase: time.Hour, RetryCap: time.Hour, Lanes: 1}))
	behind := f.locate(t, LocateFilter{Key: "k"})
	head := f.locate(t, LocateFilter{Key: "other"})
	if len(behind.Messages) != 1 || len(head.Messages) != 1 {
		t.Fatalf("located %+v and %+v", behind, head)
	}
	got, h := behind.Messages[0], head.Messages[0]
	want := FoundMessage{
		ID: got.ID, MessageID: second.ID, Place: "waiting", Topic: "t", Type: "command", Scope: "tenant", Key: "k", Step: "second", N: "n1",
		OrderingKey: "o", CorrelationID: "saga", CausationID: "cause", Size: 6, CreatedAt: got.CreatedAt,
		Behind: &Blocker{ID: h.ID, Topic: "t", Scope: "tenant", Key: "other", Step: "first", Attempts: 1, Reason: h.Reason, RetryAt: h.DueAt},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("waiting (-want +got):\n%s", diff)
	}
	soon := h.DueAt.After(behind.At) && h.DueAt.Before(behind.At.Add(2*time.Hour))
	if h.Place != "refused" || h.Attempts != 1 || !strings.Contains(h.Reason, "NO_ROUTE") || !soon || h.RefusedAt.IsZero() || h.Behind != nil {
		t.Errorf("refused: %+v", h)
	}
	if behind.At.Sub(got.CreatedAt) < 0 || got.CreatedAt.IsZero() {
		t.Errorf("created at %s, located at %s", got.CreatedAt, behind.At)
	}
	f.exec(t, "DELETE FROM {schema}.outbox_held WHERE state = 'refused'") // by hand
	if got := f.locate(t, LocateFilter{Key: "k"}).Messages[0]; got.Place != "waiting" || got.Behind != nil || !got.DueAt.IsZero() {
		t.Errorf("waiting behind none: %+v", got)
	}
	third := toStep("third", "third")
	third.OrderingKey = "o"
	f.write(t, third)
	if got := f.locate(t, LocateFilter{Key: "third"}).Messages[0]; got.Place != "waiting" || got.Behind == nil || got.Behind.Step != "second" || !got.Behind.RetryAt.IsZero() {
		t.Errorf("waiting behind one that waits: %+v", got)
	}
}

// Where the cursor is decides what is published, whatever transactions overlap.
func TestLocateKnowsWhatIsBehindTheCursor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	snapshots := f.snapshots(t)
	seq := int64(0)
	check := func(from string, to *string, last int) {
		t.Helper()
		f.exec(t, "INSERT INTO {schema}.outbox_cursor_0 (epoch, seq, from_snapshot, to_snapshot, last_id) VALUES (1, $1, $2, $3, $4)", seq, from, to, last)
		seq++
		rows, _ := f.pool.Query(t.Context(), `SELECT id FROM `+f.schema+`.outbox
			WHERE key IN ('open', 'at once') AND NOT pg_visible_in_snapshot(xid, $1::text::pg_snapshot)
				AND NOT ($2::text IS NOT NULL AND id <= $3 AND pg_visible_in_snapshot(xid, $2::text::pg_snapshot)) ORDER BY id`, from, to, last)
		want, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			t.Fatal(err)
		}
		stored := map[int64]bool{}
		total := 0
		for _, key := range []string{"open", "at once"} {
			for _, m := range f.locate(t, LocateFilter{Key: key}).Messages {
				total++
				if m.Place == "stored" {
					stored[m.ID] = true
				}
			}
		}
		for _, id := range want {
			if !stored[id] {
				t.Errorf("from %s after %d: message %d is not stored", from, last, id)
			}
		}
		if len(stored) != len(want) || total != f.count(t, "outbox") {
			t.Errorf("from %s after %d: %d of %d are stored, want %d of %d", from, last, len(stored), total, len(want), f.count(t, "outbox"))
		}
	}
	for i, from := range snapshots {
		check(from, nil, 0)
		for _, last := range []int{0, 5, 14} {
			check(from, &snapshots[min(i+2, len(snapshots)-1)], last)
		}
	}
}

// A log that comes from another cluster is published anew, so that nothing of it
// counts as published.
func TestLocateInARestoredLog(t *testing.T) {
	t.Parallel()
	for name, restore := range map[string]string{
		"other cluster": "UPDATE {schema}.outbox_relay SET system_identifier = 'another'",
		"behind":        "INSERT INTO {schema}.outbox_cursor_0 (epoch, seq, from_snapshot, last_id) VALUES (99, 0, '9000000000:9000000000:', 0)",
	} {
		f := newFixture(t)
		f.keeping(t, toStep("k", "one"))
		if got := places(f.locate(t, LocateFilter{Key: "k"})); got != "one published" {
			t.Errorf("%s, before: %s", name, got)
		}
		f.exec(t, restore)
		if got := places(f.locate(t, LocateFilter{Key: "k"})); got != "one stored" {
			t.Errorf("%s, restored: %s", name, got)
		}
	}
}

func TestLocateLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keeping(t, toStep("k", "old"), toStep("k", "published"))
	write := func(n int) {
		f.exec(t, `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload)
			SELECT gen_random_uuid(), 't', 't', 's', 'k', 'new', i, 'o', '', '', '', '' FROM generate_series(1, $1::int) i`, n)
	}
	write(MaxList - 1)
	w := f.locate(t, LocateFilter{Key: "k"})
	if !w.More || len(w.Messages) != MaxList || w.Messages[0].Step != "published" || w.Messages[MaxList-1].N != fmt.Sprint(MaxList-1) {
		t.Errorf("%d messages, more: %t; want %d without the oldest published one", len(w.Messages), w.More, MaxList)
	}
	write(2)
	if w := f.locate(t, LocateFilter{Key: "k"}); !w.More || len(w.Messages) != MaxList || w.Messages[0].Step != "new" {
		t.Errorf("%d messages, more: %t; want %d that are not published", len(w.Messages), w.More, MaxList)
	}
	l := f.letters(t)
	if _, err := l.Locate(t.Context(), nil, LocateFilter{Scope: "tenant"}); !errors.Is(err, ErrDeskInvalid) {
		t.Errorf("without a key: %v", err)
	}
	l, err := OpenDesk(f.pool, "nowhere")
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := l.Locate(t.Context(), tx, LocateFilter{Key: "k"})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "migrated") {
		t.Errorf("in a schema that is not there: %v", err)
	}
}

// The relay does not wait for who looks, and who looks is not misled by what it
// does meanwhile.
func TestLocateWhileTheRelayMovesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keeping(t, toStep("k", "one"))
	l := f.letters(t)
	for _, pin := range []bool{true, false} {
		err := pgx.BeginTxFunc(t.Context(), f.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			if pin {
				if err := l.Pin(t.Context(), tx); err != nil {
					return err
				}
			}
			if _, err := tx.Exec(t.Context(), "SELECT FROM pg_class LIMIT 1"); err != nil { // takes the snapshot
				return err
			}
			lead := f.leader(t, RelayOptions{Retention: time.Hour})
			defer lead.lease.releaseLease(context.WithoutCancel(t.Context()), lead.epoch)
			for range 2 {
				lead.settler.marks = lead.settler.turnAt
				lead.settler.turnCursors(t.Context())
				if err := lead.settler.writeCheckpoint(t.Context(), lead.settler.at); err != nil {
					return err
				}
			}
			w, err := l.Locate(t.Context(), tx, LocateFilter{Key: "k"})
			if pin && (places(w) != "one published" || err != nil) {
				t.Errorf("pinned: %t: %s, %v", pin, places(w), err)
			}
			return err
		})
		if pin != (err == nil) || !pin && !errors.Is(err, ErrMoved) {
			t.Errorf("pinned: %t: %v", pin, err)
		}
	}
}
