package outbox

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A move whose outcome is unknown may have moved everything. Messages that are delayed afterwards are moved all the same.
func TestDelayedMessagesMoveAfterAMoveFailedAndNoneWereLeft(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.leader(t, RelayOptions{})
	broken, cancel := context.WithCancel(t.Context())
	cancel()
	l.expectsMessages = false
	if _, err := l.moveDelayed(broken); err != nil || l.held.unmoved != 1 || !l.expectsMessages {
		t.Fatalf("%d moves have failed, %v, and the log is read: %v; want 1 and yes", l.held.unmoved, err, l.expectsMessages)
	}
	look := func() {
		t.Helper()
		l.held.nextLookAt, l.expectsMessages = time.Time{}, true
		if _, err := l.readLog(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	look() // nothing is delayed
	f.delay(t, "k", "1")
	f.due(t)
	look()
	if n, err := l.moveDelayed(t.Context()); n != 1 || err != nil {
		t.Errorf("moved %d messages, %v, and the next move is in %v; want 1", n, err, time.Until(l.held.moveAt))
	}
}

// A relay that stops tries to write its checkpoint until the database takes it.
func TestARelayStopsAfterItsCheckpointIsWritten(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.leader(t, RelayOptions{Lanes: 1})
	f.write(t, msg("k", "1"))
	f.publishPage(t, l, nil)
	f.exec(t, "ALTER TABLE {schema}.outbox_cursor_0 RENAME TO away")
	if _, err := l.doRound(t.Context(), true); err == nil || l.isFinished() {
		t.Fatalf("the checkpoint: %v, and the relay has finished: %v; want an error, and a relay that goes on", err, l.isFinished())
	}
	f.exec(t, "ALTER TABLE {schema}.away RENAME TO outbox_cursor_0")
	if _, err := l.doRound(t.Context(), true); err != nil || !l.isFinished() {
		t.Fatalf("the checkpoint: %v, and the relay has finished: %v; want a relay that has", err, l.isFinished())
	}
	if at, _, err := l.readCheckpoint(t.Context(), f.pool); err != nil || at.newestSnapshot().text != l.settler.at.newestSnapshot().text {
		t.Errorf("the checkpoint is %+v, %v; want %+v", at, err, l.settler.at)
	}
}

// After a reported commit the relay looks for delayed messages as soon as a look is allowed, regardless of how many pages
// it reads before that. A commit with many messages may have stored a delayed one.
func TestALookForDelayedMessagesFollowsACommitOfManyPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.leader(t, RelayOptions{PollMax: time.Hour})
	l.listens.Store(true)
	l.limits.small, l.limits.page = 2, 2
	for range 7 {
		f.write(t, msg("k", "1"))
	}
	l.held.nextLookAt = time.Now().Add(time.Minute)
	for pages := 1; ; pages++ {
		if _, err := l.readLog(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !l.log.backlog {
			if pages < 3 {
				t.Fatalf("read %d pages, want some", pages)
			}
			break
		}
	}
	if !l.pollAt.Equal(l.held.nextLookAt) {
		t.Errorf("the log is read again in %v, want the look in %v to go with it", time.Until(l.pollAt), time.Until(l.held.nextLookAt))
	}
	if !l.silentWriterUntil.IsZero() {
		t.Error("the pages of one reported commit count as commits that were not reported")
	}
}

// What a kill publishes again is bounded in bytes too.
func TestSettledMessagesCountInTheWindowsBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const size = 5 + messageOverhead
	l := f.leader(t, RelayOptions{Lanes: 1, WindowBytes: 4 * size})
	f.write(t, msg("k", "12345"))
	f.publishPage(t, l, nil)
	if _, err := l.settlePages(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, bytes := l.window.roomForLog(); bytes != 2*size || l.window.settled != 1 || l.window.settledBytes != size {
		t.Errorf("%d messages of %d bytes are settled without a checkpoint, and there is room for %d bytes; want 1 of %d, and room for two",
			l.window.settled, l.window.settledBytes, bytes, size)
	}
	f.write(t, msg("k", "67890"))
	f.publishPage(t, l, nil)
	if l.window.settledBytes != 0 {
		t.Errorf("the checkpoint of %d bytes has not gone with the read", l.window.settledBytes)
	}
	if _, err := l.settlePages(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.window.settledBytes = 3 * size
	if _, bytes := l.window.roomForLog(); bytes != size {
		t.Errorf("there is room for %d bytes beside three settled messages of four, want %d", bytes, size)
	}
	l.window.settledBytes = 4 * size
	if !l.window.isFullWithSettled() {
		t.Error("settled messages that fill the window are not written")
	}
}

// A relay whose retries are in flight, or whose window is full, waits for the broker: neither without a pause, nor beyond
// the time after which a few more messages are read.
func TestTheWaitForTheBroker(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := newLeader(f.relay(t, RelayOptions{PollMax: time.Hour}), tenure{}, nil)
	l.pollAt, l.held.moveAt = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	l.held.readRefusedSoon()
	l.held.retrying = true
	if wait, _ := l.nextPause(t.Context(), 0); wait < time.Minute {
		t.Errorf("with retries in flight the relay waits %v, want until they are decided", wait)
	}
	l.window.messages = l.opts.Window
	if wait, _ := l.nextPause(t.Context(), 0); wait != stallTimeout {
		t.Errorf("with a full window the relay waits %v, want %v", wait, stallTimeout)
	}
}

// While keys with waiting messages are still to be looked at, the relay does not rest until PollMax.
func TestARoundOfPromotionsGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.leader(t, RelayOptions{PollMax: time.Hour})
	l.pollAt, l.held.moveAt = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	l.limits.first = 1
	f.hold(t, 2, "waiting", "0")
	if _, err := l.held.promoteWaiting(t.Context()); err != nil {
		t.Fatal(err)
	}
	if wait, _ := l.nextPause(t.Context(), 0); wait > maxLookPause {
		t.Errorf("the next keys are looked at in %v, want %v at most", wait, maxLookPause)
	}
}

// A look that brings no result is repeated soon at first: the database may have been away for a moment.
func TestAFailedLookIsRepeated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := newLeader(f.relay(t, RelayOptions{}), tenure{}, nil)
	for _, most := range []time.Duration{failurePolicy.Base, 2 * failurePolicy.Base} {
		l.held.nextLookAt = time.Time{}
		l.held.queueLookForHeld(&pgx.Batch{})
		if wait := time.Until(l.held.nextLookAt); wait > most {
			t.Errorf("the look is repeated in %v, want %v at most", wait, most)
		}
	}
}

// A read that does not list its messages ends before the first large payload, and takes no more bytes than it may. The
// messages from there on are listed, and follow in their order.
func TestAReadEndsBeforeALargePayload(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		payloads []string
		bytes    int
		first    int // messages of the first read
	}{
		{"all are small", []string{"1", "", "333", "4"}, 5000, 4},
		{"the first is large", []string{"123456", "2", "3"}, 5000, 0},
		{"the second is large", []string{"1", "234567", "3", "456789"}, 5000, 1},
		{"the last is large", []string{"1", "2", "345678"}, 5000, 2},
		{"as large as allowed", []string{"12345", "2"}, 5000, 2},
		{"more bytes than there is room for", []string{"123", "45", "6", "7"}, 5 + 2*messageOverhead, 2},
		{"no room for one", []string{"123", "4"}, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			l := f.leader(t, RelayOptions{Lanes: 1})
			l.limits.large = 5
			for _, payload := range c.payloads {
				f.write(t, msg("k", payload))
			}
			var got []string
			for reads := 0; len(got) < len(c.payloads); reads++ {
				rows, _, err := l.log.readPage(t.Context(), l.log.newReadBatch(), l.limits.page, c.bytes)
				if err != nil || reads > len(c.payloads) {
					t.Fatalf("after %d reads: %q, %v; want %q", reads, got, err, c.payloads)
				}
				if reads == 0 && len(rows) != c.first {
					t.Errorf("the first read has %d messages, want %d", len(rows), c.first)
				}
				for _, m := range rows {
					got = append(got, string(m.Payload))
				}
			}
			if !slices.Equal(got, c.payloads) {
				t.Errorf("read %q, want %q", got, c.payloads)
			}
		})
	}
}
