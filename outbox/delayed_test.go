package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/needtest"
)

// delay writes messages of a key that are due in an hour.
func (f *fixture) delay(t *testing.T, key string, payloads ...string) {
	t.Helper()
	for _, p := range payloads {
		m := msg(key, p)
		m.Delay = time.Hour
		f.write(t, m)
	}
}

// sentAt are the times of writing that publications bear, by payload.
func (f *fixture) sentAt() map[string]string {
	f.broker.mu.Lock()
	defer f.broker.mu.Unlock()
	at := map[string]string{}
	for _, p := range f.broker.accepted {
		at[string(p.Message.Payload)] = p.Message.Metadata[PropertyTimestamp]
	}
	return at
}

// A delayed message is part of the log once it is due: it is kept, and a replay of what
// has been written since a time before that has it, to the letter.
func TestADelayedMessageIsReplayed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	plain, headed := msg("k", "plain"), msg("l", "headed")
	headed.Headers = map[string]string{"x-own": `{"timestamp":"no"}`}
	plain.Delay, headed.Delay = time.Hour, time.Hour
	f.write(t, plain, headed)
	f.exec(t, "UPDATE {schema}.outbox_held SET created_at = '2020-01-01', due_at = '2020-01-02'")
	since := time.Now().Add(-time.Minute)
	if kept, err := f.replay(t, ReplayFilter{Since: since}, true); err == nil {
		t.Errorf("%+v is replayed before it is due", kept)
	}
	opts := RelayOptions{Retention: time.Hour, RotateBytes: 1, Lanes: 1}
	mustSettle(t, f.relay(t, opts))
	published := slices.Clone(f.broker.accepted)
	for _, p := range published {
		if at := p.Message.Metadata[PropertyTimestamp]; at != "2020-01-02T00:00:00.000000Z" {
			t.Errorf("%s says that it was written at %q, want when it was due", p.Message.Payload, at)
		}
	}
	if got := published[len(published)-1].Message.Metadata["x-own"]; got != `{"timestamp":"no"}` {
		t.Errorf("its own header has become %q", got)
	}

	kept, err := f.replay(t, ReplayFilter{Since: since}, false)
	if err != nil || len(kept) != 2 {
		t.Fatalf("replayed are %+v, %v; want both messages", kept, err)
	}
	mustSettle(t, f.relay(t, opts))
	copies := f.broker.accepted[len(published):]
	if len(published) != 2 || len(copies) != 2 {
		t.Fatalf("published are %d messages and %d copies, want 2 and 2", len(published), len(copies))
	}
	for i := range copies {
		if copies[i].Message.Metadata[HeaderReplayed] == "" {
			t.Errorf("%s does not say that it was replayed", copies[i].Message.Payload)
		}
		delete(copies[i].Message.Metadata, HeaderReplayed)
		if !copies[i].Message.Equals(published[i].Message) {
			t.Errorf("the copy is %+v, want %+v", copies[i].Message, published[i].Message)
		}
	}
}

// A redriven message goes through the log as well, and keeps its time. A consumer that received it earlier, when its
// outcome was unknown, relies on that time.
func TestARedrivenMessageKeepsItsTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broker.answer = func(Publication) error { return ErrRefused }
	opts := RelayOptions{MaxAttempts: 1, Retention: time.Hour}
	f.write(t, msg("k", "plain"))
	f.delay(t, "l", "late")
	f.exec(t, "UPDATE {schema}.outbox_held SET due_at = '2020-01-02'")
	for round := range 2 { // they die, and die again
		mustSettle(t, f.relay(t, opts))
		if round == 0 {
			f.exec(t, "UPDATE {schema}.outbox_held SET created_at = '2020-01-01' WHERE payload = 'plain'")
		}
		if n, err := f.letters(t).Redrive(t.Context(), DeadFilter{}); n != 2 || err != nil {
			t.Fatalf("RedriveAll = %d, %v; want 2", n, err)
		}
	}
	f.broker.answer = nil
	mustSettle(t, f.relay(t, opts))
	if got := f.texts(t, "SELECT headers::text FROM {schema}.outbox WHERE headers::text LIKE '%timestamp%timestamp%'"); len(got) > 0 {
		t.Errorf("times have been added up: %q", got)
	}
	if at := f.sentAt(); at["plain"] != "2020-01-01T00:00:00.000000Z" || at["late"] != "2020-01-02T00:00:00.000000Z" {
		t.Errorf("they say that they were written at %v", at)
	}
	kept, err := f.replay(t, ReplayFilter{Key: "k"}, true)
	ids := map[string]bool{}
	for _, k := range kept {
		ids[k.MessageID] = true
	}
	if err != nil || len(kept) != 3 || len(ids) != 1 {
		t.Errorf("the log has %d messages of it, with %d ids, %v; want one for each time that it went out", len(kept), len(ids), err)
	}
}

// What moves a message may commit after one that has got a later id. The two have no
// order then, but all others of their key keep theirs, also behind a refusal.
func TestAMoveThatCommitsLate(t *testing.T) {
	t.Parallel()
	for _, refused := range []string{"", "1", "late"} {
		t.Run("refused "+refused, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			allow := f.refuse(refused)
			f.delay(t, "k", "late")
			f.due(t)
			r := f.relay(t, RelayOptions{RetryBase: time.Hour, RetryCap: time.Hour})
			r.signals.rested.Enable()
			mover, err := f.pool.Begin(t.Context())
			if err == nil {
				_, err = mover.Exec(t.Context(), r.sql.moveDelayed, 10, maxPageBytes)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer mover.Rollback(t.Context())
			f.write(t, msg("k", "1"))
			f.write(t, msg("k", "2"))
			start(t, r)
			want := counts{}
			if refused == "1" {
				want = counts{Waiting: 1, Refused: 1}
			}
			eventually(t, "what has committed is settled", func() bool {
				s := f.stats(t, r)
				s.Delayed = 0 // the move is not seen yet
				return s == want
			})
			if err := mover.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.write(t, msg("k", "3"))
			r.Wake()
			eventually(t, "what is left is settled", func() bool {
				s := f.stats(t, r)
				return s.Stored+s.Delayed == 0 && (s.Refused == 1) == (refused != "")
			})
			allow()
			f.due(t)
			eventually(t, "all are published", func() bool { return f.stats(t, r) == counts{} })
			got := f.broker.payloads()
			if at := slices.Index(got, "late"); at < 0 {
				t.Errorf("published %q, and not the delayed one", got)
			} else if others := strings.Join(slices.Delete(slices.Clone(got), at, at+1), " "); others != "1 2 3" {
				t.Errorf("published %q, want 1 2 3 in order", got)
			}
			if refused == "late" && got[len(got)-1] != "3" {
				t.Errorf("published %q: 3 has overtaken what was in the log before", got)
			}
		})
	}
}

// A locked row delays neither the log nor, after the lock ends, other delayed messages. It does not change
// their order.
func TestALockedDelayedMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.delay(t, "k", "1", "2")
	f.due(t)
	tx, err := f.pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "SELECT FROM "+f.schema+".outbox_held WHERE payload = '1' FOR UPDATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	r := f.relay(t, RelayOptions{})
	r.limits.held = time.Millisecond
	start(t, r)
	for i := range 10 {
		f.write(t, msg("other", fmt.Sprint("other", i)))
		eventually(t, "the log goes on", func() bool { return len(f.broker.payloads()) == 1+i })
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the others follow", func() bool { return f.stats(t, r) == counts{} })
	if got := strings.Join(f.broker.payloads()[10:], " "); got != "1 2" {
		t.Errorf("published %q, want 1 2", got)
	}
}

// However many messages are due at once, no more are moved than are read next, so that
// what is written meanwhile goes out among them.
func TestDueMessagesDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.hold(t, 20, "delayed", "-1 s")
	l := f.leader(t, RelayOptions{Window: 4})
	for i, readAt := range []time.Time{{}, time.Now().Add(time.Hour), {}} { // nobody publishes
		if i == 2 {
			f.write(t, msg("k", "other"))
		}
		l.log.readAt = readAt
		if _, err := l.doRound(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if got, want := f.count(t, "outbox"), []int{2, 2, 2 + 1 + 2}[i]; got != want {
			t.Errorf("after round %d the log has %d messages, want %d", i, got, want)
		}
	}
	inFlight := map[string]int{}
	for _, p := range l.window.pages {
		for i := range p.items {
			inFlight[string(p.items[i].Payload)]++
		}
	}
	if inFlight["other"] != 1 || inFlight["x"] != 3 {
		t.Errorf("in flight are %v, want the other one and three that were due", inFlight)
	}
}

// A move takes no more bytes than may be in flight of held messages, a quarter of the window.
func TestAMoveIsLimitedInBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.delay(t, "k", slices.Repeat([]string{strings.Repeat("x", MaxPayload)}, 6)...)
	f.due(t)
	l := f.leader(t, RelayOptions{})
	for _, want := range []int{2, 2, 2, 0} {
		l.held.moveAt = time.Time{}
		if n, err := l.held.moveDelayed(t.Context()); n != want || err != nil {
			t.Errorf("%d messages of %d bytes were moved, %v; want %d", n, MaxPayload, err, want)
		}
	}
}

// Regardless of the JSON that is stored as headers, the messages behind it are moved.
func TestHeadersOfAnyShapeAreMoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	shapes := []string{`{}`, `[]`, `null`, `"{\"a"`, ` {"a":1}`, `{"timestamp":"then"}`, `{"a":"\u0000"}`}
	for i, headers := range shapes {
		f.delay(t, "k", fmt.Sprint(i))
		f.exec(t, "UPDATE {schema}.outbox_held SET headers = $1::text::json, due_at = '2020-01-02'::timestamptz WHERE convert_from(payload, 'utf8') = $2", headers, fmt.Sprint(i))
	}
	want := slices.Clone(shapes)
	want[6] = `{"timestamp":"2020-01-02T00:00:00.000000Z","a":"\u0000"}`
	l := f.leader(t, RelayOptions{})
	if n, err := l.held.moveDelayed(t.Context()); n != len(shapes) || err != nil {
		t.Errorf("%d messages were moved, %v; want %d", n, err, len(shapes))
	}
	if got := f.texts(t, "SELECT headers::text FROM {schema}.outbox ORDER BY id"); !slices.Equal(got, want) {
		t.Errorf("headers have become %q, want %q", got, want)
	}
}

// Two who move at the same time move each message once, in order.
func TestTwoRelaysMoveDelayedMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.delay(t, "k", "1", "2", "3")
	f.due(t)
	l := f.leader(t, RelayOptions{})
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), l.sql.moveDelayed, 2, maxPageBytes); err != nil {
			return err
		}
		if n, err := l.held.moveDelayed(t.Context()); n != 0 || err != nil {
			t.Errorf("%d messages were moved past others, %v", n, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l.held.moveAt = time.Time{}
	if n, err := l.held.moveDelayed(t.Context()); n != 1 || err != nil {
		t.Errorf("%d messages were moved, %v; want what is left", n, err)
	}
	if got := strings.Join(f.texts(t, "SELECT convert_from(payload, 'utf8') FROM {schema}.outbox ORDER BY id"), " "); got != "1 2 3" {
		t.Errorf("the log has %q, want 1 2 3", got)
	}
}

// A message that the log does not take delays neither what is written nor what is due
// before it, and goes out once it is taken.
func TestAMoveThatFailsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	f := newFixture(t)
	f.exec(t, "ALTER TABLE {schema}.outbox ADD CONSTRAINT taken CHECK (payload <> 'bad')")
	f.delay(t, "good", "good")
	f.delay(t, "bad", "bad")
	f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp() - CASE payload WHEN 'bad' THEN 1 ELSE 2 END * interval '1 s'")
	f.write(t, msg("k", "plain"))
	start(t, f.relay(t, RelayOptions{PollMax: 20 * time.Millisecond}))
	want := []string{"good", "plain"} // it tries fewer of them each time
	published := func() []string { return slices.Sorted(slices.Values(f.broker.payloads())) }
	eventually(t, "the others are published", func() bool { return slices.Equal(published(), want) })
	f.exec(t, "ALTER TABLE {schema}.outbox DROP CONSTRAINT taken")
	eventually(t, "all are published", func() bool { return slices.Equal(published(), []string{"bad", "good", "plain"}) })
}

// The longer a look for what is due takes, the longer is the pause after it: looks do not take
// the time in which the log is read.
func TestSlowLooksAreFarApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.delay(t, "k", "1")
	f.due(t)
	l := f.leader(t, RelayOptions{})
	l.limits.held, l.held.promoteAt = time.Millisecond, time.Now().Add(time.Hour) // which is no look
	const long = 10 * time.Millisecond                                            // is lockPatience
	locked := func(statement string, look func()) {
		t.Helper()
		tx, err := f.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		if _, err := tx.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", f.schema)); err != nil {
			t.Fatal(err)
		}
		look()
	}
	locked("SELECT FROM {schema}.outbox_held FOR UPDATE", func() {
		began := time.Now()
		if n, err := l.held.moveDelayed(t.Context()); n != 0 || err != nil {
			t.Fatalf("%d messages were moved that are locked, %v", n, err)
		}
		if next := l.held.moveAt.Sub(began); next < lookSpacing*long {
			t.Errorf("a move that took at least %v is followed by another %v after it began", long, next)
		}
	})
	var waiting time.Time // since when at the latest
	listed := make(chan error, 1)
	locked("LOCK TABLE {schema}.outbox_held", func() {
		l.held.readRefusedSoon()
		go func() {
			_, err := l.readHeld(t.Context())
			listed <- err
		}()
		f.awaitWaiter(t, f.schema+".outbox_held", listed)
		for waiting = time.Now(); time.Since(waiting) < long; {
			f.awaitWaiter(t, f.schema+".outbox_held", listed)
		}
	})
	if err := <-listed; err != nil {
		t.Fatal(err)
	}
	if next := l.held.retryAt.Sub(waiting); next < lookSpacing*long {
		t.Errorf("a look for retries that took at least %v is followed by another %v after it began", long, next)
	}
	if got := l.held.pauseAfterLook(time.Minute); got != maxLookPause {
		t.Errorf("after a look of a minute the pause is %v, want %v", got, maxLookPause)
	}
}
