package rabbitmq

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A suspectedBroker is that of urlA, to which the connection of a subscription goes. A message
// to red is not confirmed there, and a Publisher leaves it.
type suspectedBroker struct {
	consumer         *conn
	dropped          func() bool
	publisher        *link
	from, to         *conn
	red, blue, green destination // the last one is red's exchange with a routing key
	log              bytes.Buffer
}

func newSuspectedBroker() *suspectedBroker {
	b := &suspectedBroker{publisher: idleLink(urlA + "," + urlB)}
	b.red, b.blue, b.green = destination{exchange: "red"}, destination{exchange: "blue"}, destination{"red", "green"}
	subscription := idleLink(urlA + "," + urlB)
	subscription.log = slog.New(slog.NewTextHandler(&b.log, nil))
	subscription.addresses = b.publisher.addresses
	b.consumer, b.dropped = fakeConn(subscription)
	subscription.addresses.addConsumer(subscription, b.consumer)
	b.from, _ = fakeConn(b.publisher)
	b.to, _ = fakeConn(b.publisher)
	b.to.url = urlB
	time.Sleep(time.Hour)
	return b
}

// suspect lets the confirm timeout pass, and then the publisher leaves.
func (b *suspectedBroker) suspect() {
	began := time.Now()
	time.Sleep(minConfirmTimeout)
	b.publisher.leaveUnconfirmed(b.from, b.red, began)
}

// suspicionCases are all that makes a subscription leave a suspect, or stay.
var suspicionCases = []struct {
	name string
	run  func(*suspectedBroker)
	want bool // it leaves
}{
	{"confirmed elsewhere", func(b *suspectedBroker) {
		b.suspect()
		b.publisher.confirmedBy(b.to, b.red)
	}, true},
	{"another exchange is confirmed elsewhere", func(b *suspectedBroker) {
		b.suspect()
		b.publisher.confirmedBy(b.to, b.blue)
	}, false},
	{"another routing key is confirmed elsewhere", func(b *suspectedBroker) {
		b.suspect()
		b.publisher.confirmedBy(b.to, b.green)
	}, false},
	{"another exchange, and then the one in question", func(b *suspectedBroker) {
		b.suspect()
		b.publisher.confirmedBy(b.to, b.blue)
		b.publisher.confirmedBy(b.to, b.red)
	}, true},
	{"confirmed by the suspect, and then elsewhere", func(b *suspectedBroker) {
		b.suspect()
		b.publisher.confirmedBy(b.from, b.red)
		b.publisher.confirmedBy(b.to, b.red)
	}, false},
	{"confirmed by a broker of another list", func(b *suspectedBroker) {
		b.suspect()
		b.publisher.urls = []string{urlB, urlB}
		b.publisher.confirmedBy(b.to, b.red)
	}, false},
	{"confirmed as late as may be", func(b *suspectedBroker) {
		b.suspect()
		time.Sleep(suspectMemory)
		b.publisher.confirmedBy(b.to, b.red)
	}, true},
	{"confirmed too late", func(b *suspectedBroker) {
		b.suspect()
		time.Sleep(suspectMemory + time.Nanosecond)
		b.publisher.confirmedBy(b.to, b.red)
	}, false},
	{"a delivery during the wait for the confirm", func(b *suspectedBroker) {
		began := time.Now()
		time.Sleep(time.Nanosecond)
		b.consumer.noteHeard()
		time.Sleep(minConfirmTimeout)
		b.publisher.leaveUnconfirmed(b.from, b.red, began)
		b.publisher.confirmedBy(b.to, b.red)
	}, false},
	{"a delivery before the wait", func(b *suspectedBroker) {
		b.consumer.noteHeard()
		b.suspect()
		b.publisher.confirmedBy(b.to, b.red)
	}, true},
	{"dialled since", func(b *suspectedBroker) {
		b.suspect()
		b.consumer.began = time.Now()
		b.publisher.confirmedBy(b.to, b.red)
	}, false},
	{"the connection is lost already", func(b *suspectedBroker) {
		b.suspect()
		close(b.consumer.dead)
		b.publisher.confirmedBy(b.to, b.red)
	}, false},
}

// The rule of suspicion, with a clock that is moved.
func TestWhenASubscriptionLeavesASuspect(t *testing.T) {
	t.Parallel()
	for _, tt := range suspicionCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newSuspectedBroker()
				tt.run(b)
				if b.dropped() != tt.want || b.consumer.left.Load() != tt.want {
					t.Errorf("the connection is dropped: %t, want %t", b.dropped(), tt.want)
				}
				const said = `it has not confirmed a message to exchange \"red\", which 127.0.0.1:2 has confirmed`
				if text := b.log.String(); tt.want && (!strings.Contains(text, said) || !strings.Contains(text, "broker=127.0.0.1:1")) {
					t.Errorf("the log has %q, want the suspect and %q", text, said)
				}
			})
		})
	}
}

// A subscription with messages in hand stays until the last is settled and its ack is written.
// It stays for good if something is delivered meanwhile.
func TestASuspectIsNotLeftWithMessagesInHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newSuspectedBroker()
		confirm := func() {
			b.suspect()
			b.publisher.confirmedBy(b.to, b.red)
			synctest.Wait()
		}
		b.consumer.noteHandover()
		b.consumer.noteHandover()
		confirm()
		time.Sleep(time.Hour)
		b.consumer.noteHandled()
		confirm() // again, which says nothing new
		time.Sleep(time.Hour)
		if b.dropped() {
			t.Fatal("the connection is dropped, and a handler is at work")
		}
		b.consumer.noteHeard()
		b.consumer.noteHandled()
		time.Sleep(time.Hour)
		if b.dropped() {
			t.Fatal("the connection is dropped, and something was delivered")
		}
		b.consumer.noteHandover()
		confirm()
		time.Sleep(settledPause / 2)
		b.consumer.noteHandled()
		time.Sleep(settledPause - time.Nanosecond)
		if b.dropped() {
			t.Error("the connection is dropped before the ack is written for sure")
		}
		time.Sleep(settledPause)
		if synctest.Wait(); !b.dropped() {
			t.Error("the connection is kept after the last handler")
		}
	})
}

// A link that is closed while its broker is to be left leaves nothing behind.
func TestASubscriptionEndsAtASuspect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newSuspectedBroker()
		b.consumer.noteHandover()
		b.suspect()
		b.publisher.confirmedBy(b.to, b.red)
		close(b.consumer.dead)
		time.Sleep(time.Hour)
		if b.consumer.leaving.Load() || b.consumer.left.Load() {
			t.Error("a connection that is lost is still looked at")
		}
	})
}
