package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// due makes every held message that backs off or is delayed due.
func (f *fixture) due(t *testing.T) {
	t.Helper()
	f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp() WHERE state IN ('delayed', 'refused')")
}

// No more than a window is in flight, of stored messages and of held ones: what a
// killed relay has published and not noted is published again.
func TestMessagesInFlightKeepToTheWindow(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]string{"stored": "", "due": "delayed", "held": "refused"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if state == "" {
				f.fill(t, 40)
			} else {
				f.hold(t, 40, state, "-1 s")
			}
			l := f.leader(t, RelayOptions{Window: 10})
			for range 5 { // nobody publishes
				if _, err := l.doRound(t.Context(), false); err != nil {
					t.Fatal(err)
				}
			}
			if l.window.messages == 0 || l.window.messages > 10 {
				t.Errorf("%d messages are in flight, want up to 10", l.window.messages)
			}
		})
	}
}

// However many refused messages are due, half of the window is left to others: a topic
// that refuses everything does not delay the rest.
func TestRefusedMessagesLeaveHalfOfTheWindowToOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broker.answer = func(Publication) error { return ErrRefused }
	for i := range 20 {
		f.write(t, msg(fmt.Sprint("b", i), "refused"))
	}
	mustSettle(t, f.relay(t, RelayOptions{RetryBase: time.Hour, RetryCap: time.Hour}))
	f.due(t)
	f.write(t, msg("k", "other"))
	l := f.leader(t, RelayOptions{Window: 4})
	for range 5 { // nobody publishes
		if _, err := l.doRound(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	inFlight := map[string]int{}
	for _, p := range l.window.pages {
		for i := range p.items {
			inFlight[string(p.items[i].Payload)]++
		}
	}
	if inFlight["refused"] != 2 || inFlight["other"] != 1 {
		t.Errorf("in flight are %v, want two that were refused and the other one", inFlight)
	}
}

// refuse makes the broker refuse the payload, until allow is called.
func (f *fixture) refuse(payload string) (allow func()) {
	var allowed atomic.Bool
	f.broker.answer = func(p Publication) error {
		if !allowed.Load() && string(p.Message.Payload) == payload {
			return ErrRefused
		}
		return nil
	}
	return func() { allowed.Store(true) }
}

// However much there is to publish, refused messages are tried again when they
// are due, and what waits behind them goes on.
func TestABacklogDoesNotHoldUpRefusedMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	allow := f.refuse("r0")
	f.write(t, msg("r", "r0"), msg("r", "r1"))
	mustSettle(t, f.relay(t, RelayOptions{RetryBase: time.Hour, RetryCap: time.Hour}))
	allow()
	f.due(t)
	const backlog = 200
	for i := range backlog / 10 {
		var messages []Message
		for j := range 10 {
			messages = append(messages, msg(fmt.Sprint("k", j), fmt.Sprint(i)))
		}
		f.write(t, messages...)
	}
	r := f.relay(t, RelayOptions{Window: 4, Lanes: 1})
	r.limits.list = 4
	mustSettle(t, r)
	published := f.broker.payloads()
	for _, p := range []string{"r0", "r1"} {
		if at := slices.Index(published, p); at < 0 || at > backlog/2 {
			t.Errorf("%s was published as number %d of %d", p, at, len(published))
		}
	}
}

// What waits behind a refused message goes on once that is published, dead or
// gone, without a new message of the key, and without a new relay.
func TestWhatWaitsGoesOn(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, f *fixture, allow func()){
		"published": func(t *testing.T, f *fixture, allow func()) { allow(); f.due(t) },
		"dead": func(t *testing.T, f *fixture, _ func()) {
			f.exec(t, "UPDATE {schema}.outbox_held SET attempts = 999 WHERE state = 'refused'")
			f.due(t)
		},
		"removed": func(t *testing.T, f *fixture, _ func()) {
			f.exec(t, "DELETE FROM {schema}.outbox_held WHERE state = 'refused'")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			allow := f.refuse("0")
			const followers = 100
			for i := range 1 + followers {
				f.write(t, msg("k", fmt.Sprint(i)))
			}
			r := f.relay(t, RelayOptions{RetryBase: time.Hour, RetryCap: time.Hour, MaxAttempts: 1000})
			if name == "removed" {
				r.limits.promote = 10 * time.Millisecond
			}
			start(t, r)
			eventually(t, "they wait", func() bool { return f.stats(t, r) == counts{Waiting: followers, Refused: 1} })
			end(t, f, allow)
			eventually(t, "they go on", func() bool { s := f.stats(t, r); return s.Waiting == 0 && s.Refused == 0 })
			last := -1
			for _, p := range f.broker.payloads() {
				if n, _ := strconv.Atoi(p); n <= last {
					t.Errorf("%s was published after %d", p, last)
				} else {
					last = n
				}
			}
			if last != followers {
				t.Errorf("the last one published is %d, want %d", last, followers)
			}
		})
	}
}

// A held message that is locked is passed over, and with it what waits behind it in its key. An
// overtaken relay that reads what is due at the same moment locks it, and a person may.
func TestWhatWaitsBehindALockedMessageDoesNotOvertake(t *testing.T) {
	t.Parallel()
	for locked, want := range []string{"", "0", "0 1"} {
		t.Run(fmt.Sprint(locked), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			allow := f.refuse("0")
			f.write(t, msg("k", "0"), on("other", msg("k", "1")), msg("k", "2"), msg("k", "3"))
			mustSettle(t, f.relay(t, RelayOptions{RetryBase: time.Hour, RetryCap: time.Hour}))
			allow()
			f.due(t)
			l := f.leader(t, RelayOptions{Lanes: 1})
			overtaken, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = overtaken.Rollback(context.WithoutCancel(t.Context())) }()
			if _, err := overtaken.Exec(t.Context(), l.sql.fetchHeld, f.ids(t, "outbox_held", 4)[locked:locked+1]); err != nil {
				t.Fatal(err)
			}
			l.held.readRefusedSoon()
			if _, err := l.readHeld(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.publishPending(t, l)
			if got := strings.Join(f.broker.payloads(), " "); got != want {
				t.Errorf("published %q while %d is locked, want %q", got, locked, want)
			}
			if err := overtaken.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.lease.releaseLease(t.Context(), l.epoch)
			mustSettle(t, f.relay(t, RelayOptions{}))
			if got := strings.Join(f.broker.firsts(), " "); got != "0 1 2 3" {
				t.Errorf("published %q, want 0 1 2 3", got)
			}
		})
	}
}

// What comes behind a message that is refused for the last time waits until that
// is noted: a relay that dies before has another try at it, and the order would
// be lost.
func TestADeathIsNotedBeforeTheNextMessageGoes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, msg("k", "1"), msg("k", "2"))
	l := f.leader(t, RelayOptions{Lanes: 1, MaxAttempts: 1})
	_ = f.refuse("1")
	f.publishPage(t, l, f.broker.answer)
	if got := f.broker.payloads(); len(got) != 0 {
		t.Errorf("published %q before the death of 1 is noted", got)
	}
	l.lease.releaseLease(t.Context(), l.epoch) // it dies
	f.broker.answer = nil
	r := f.relay(t, RelayOptions{MaxAttempts: 1})
	mustSettle(t, r)
	if got := strings.Join(f.broker.payloads(), " "); got != "1 2" {
		t.Errorf("published %q, want 1 2", got)
	}
	_ = f.refuse("3")
	f.write(t, msg("k", "3"), msg("k", "4"))
	start(t, r)
	eventually(t, "4 goes", func() bool { return f.stats(t, r) == counts{Dead: 1} })
	if got := strings.Join(f.broker.payloads(), " "); got != "1 2 4" {
		t.Errorf("published %q, want 1 2 4", got)
	}
}

// A delayed message over which the connection breaks delays no other, with
// nothing else to publish, and is refused in the end.
func TestASuspectHeldMessageDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"delayed", "refused"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.broker.answer = func(p Publication) error {
				if string(p.Message.Payload) == "bad" {
					return errors.New("connection lost")
				}
				return nil
			}
			delay := func(payload string) {
				m := msg(payload, payload)
				m.Delay = time.Hour
				f.write(t, m)
				if state == "refused" {
					f.exec(t, "UPDATE {schema}.outbox_held SET state = 'refused', attempts = 1, refused_at = clock_timestamp() WHERE state = 'delayed'")
				}
				f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp() WHERE ordering_key LIKE '%' || $1", payload)
			}
			r := f.relay(t, RelayOptions{Window: 10, RetryBase: time.Hour, RetryCap: time.Hour})
			r.signals.rested.Enable()
			start(t, r)
			delay("bad")
			r.signals.rested.WaitFor(t, func(err error) bool { return err != nil })
			for i := range 2 * maxStrikes {
				delay(fmt.Sprint("good", i))
				eventually(t, "others are published", func() bool { return len(f.broker.payloads()) == 1+i })
			}
			want := map[string]int{"delayed": 1, "refused": 2}[state]
			eventually(t, "it is refused", func() bool {
				var attempts int
				err := f.pool.QueryRow(t.Context(), "SELECT attempts FROM "+f.schema+".outbox_held WHERE state = 'refused' AND due_at > clock_timestamp()").Scan(&attempts)
				return err == nil && attempts == want
			})
		})
	}
}
