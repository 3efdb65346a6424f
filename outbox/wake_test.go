package outbox

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// A process holds its notifications back while the active relay is busy. It sends one as soon as the relay says that it is
// not, or if the relay says nothing more: that process may have died.
func TestNoNotificationWhileTheRelayIsBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNotifier(nil, "s", slog.Default())
		n.awaitIdleRelay(t.Context()) // no relay has said anything
		await := func() (ended chan time.Time) {
			ended = make(chan time.Time, 1)
			go func() {
				n.awaitIdleRelay(t.Context())
				ended <- time.Now()
			}()
			synctest.Wait()
			return ended
		}

		n.hearBusy(true)
		ended := await()
		if len(ended) > 0 {
			t.Error("a busy relay is notified")
		}
		n.hearBusy(false)
		synctest.Wait()
		if len(ended) == 0 {
			t.Error("a relay that is not busy any more is not notified at once")
		}

		begun := time.Now()
		n.hearBusy(true)
		ended = await()
		time.Sleep(busyTime / 2)
		n.hearBusy(true)
		if waited := (<-ended).Sub(begun); waited != busyTime*3/2 {
			t.Errorf("the notification was held back for %s, want %s after the relay was last heard", waited, busyTime)
		}

		n.hearBusy(true)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		n.awaitIdleRelay(ctx) // does not hang
	})
}

// A relay becomes busy by notifications and messages, not by one of them alone. It says so again before the others
// forget it, and says when it is over.
func TestPaceOfABusyRelay(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	for _, tt := range []struct {
		name               string
		messages, notified int // for each read
		gap                time.Duration
		busy               bool
	}{
		{"many processes", 3, 1, 10 * time.Millisecond, true},
		{"its own process alone", 3, 0, 10 * time.Millisecond, false},
		{"notifications of what was read before", 0, 1, 10 * time.Millisecond, false},
		{"few messages", 3, 1, 40 * time.Millisecond, false},
	} {
		p, now, notified, announced := pace{}, at, uint64(5), 0
		for range 100 {
			now, notified = now.Add(tt.gap), notified+uint64(tt.notified)
			if p.noteRead(now, tt.messages, notified) == payloadBusy {
				announced++
			}
		}
		if p.busy != tt.busy || (announced > 0) != tt.busy {
			t.Errorf("%s: busy %v, announced %d times", tt.name, p.busy, announced)
		}
	}

	p, now, last := pace{}, at, time.Time{}
	for i := range 1000 {
		now = now.Add(10 * time.Millisecond)
		if p.noteRead(now, 1, uint64(i)) == payloadBusy {
			last = now
		}
		if i > 100 && now.Sub(last) >= busyTime {
			t.Fatalf("the others heard of the busy relay %s ago", now.Sub(last))
		}
	}
	for i := range busyMisses {
		payload := p.noteRead(now, 0, 1000)
		if want := map[bool]string{true: payloadIdle}[i == busyMisses-1]; payload != want {
			t.Errorf("after %d empty reads: announced %q, want %q", i+1, payload, want)
		}
	}
	if p.busy {
		t.Error("busy without messages")
	}
}

// A standby that hears of a busy relay does not wake its own reader, and a relay that leads does not hold back for itself.
func TestAnnouncementsAreNoNotifications(t *testing.T) {
	t.Parallel()
	r := &Relay{core: core{}, wake: make(chan struct{}, 1), notifier: newNotifier(nil, "s", slog.Default())}
	r.takeNotification(payloadBusy)
	if len(r.wake) != 0 || r.notifier.busyUntil.Load() == 0 {
		t.Error("an announcement woke the relay, or was not heard")
	}
	r.counters.leads.Store(true)
	r.takeNotification(payloadBusy)
	if r.notifier.busyUntil.Load() != 0 {
		t.Error("a relay holds back for itself")
	}
	r.takeNotification("")
	if len(r.wake) != 1 || r.counters.notified.Load() != 1 {
		t.Error("a notification does not wake the relay")
	}
}
