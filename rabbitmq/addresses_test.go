package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/brokerurls"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

// Two brokers that no test connects to.
const (
	urlA = "amqp://u:secret@127.0.0.1:1/"
	urlB = "amqp://u:secret@127.0.0.1:2/"
)

// idleLink returns a link to list that has no connection.
func idleLink(list string) *link {
	cfg := wamqp.Config{Connection: wamqp.ConnectionConfig{AmqpURI: list}}
	l := newLink(cfg, ConnectionOptions{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	l.addresses = &addresses{}
	return l
}

func TestConnectionsSpreadOverTheBrokers(t *testing.T) {
	t.Parallel()
	urls := []string{"amqp://a", "amqp://b", "amqp://c"}
	first := map[string]int{}
	for range 300 {
		order := (&addresses{}).orderURLs(urls)
		first[order[0]]++
		if slices.Sort(order); !slices.Equal(order, urls) {
			t.Fatalf("the order has %q, want %q", order, urls)
		}
	}
	for _, url := range urls {
		if first[url] == 0 {
			t.Errorf("%s is the first for none of 300 connections: %v", url, first)
		}
	}
}

// The broker that was left last is dialled last, and is one like the others after leftMemory.
func TestABrokerThatWasLeftIsDialledLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, urls := &addresses{}, []string{"amqp://a", "amqp://b", "amqp://c"}
		a.noteLeft("amqp://b")
		time.Sleep(leftMemory / 2)
		a.noteLeft("amqp://a")
		for range 100 {
			if got, want := a.orderURLs(urls), []string{"amqp://c", "amqp://b", "amqp://a"}; !slices.Equal(got, want) {
				t.Fatalf("order = %q, want %q", got, want)
			}
		}
		a.noteLeft("amqp://c")
		if a.hasUnleft(urls) {
			t.Error("a broker counts as not left, and all were")
		}
		time.Sleep(leftMemory + time.Nanosecond)
		if a.orderURLs(urls); !a.hasUnleft(urls) || len(a.left) > 0 {
			t.Errorf("%d brokers count as left after %s, want none", len(a.left), leftMemory)
		}
	})
}

// A lost connection costs no pause as long as there is a broker that was not left, and a
// failed round costs one.
func TestTheNextBrokerIsDialledAtOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, list string
		left       []string
		failures   int
		want       bool // at once
	}{
		{"one broker", urlA, nil, 0, false},
		{"another broker", urlA + "," + urlB, []string{urlA}, 0, true},
		{"all left", urlA + "," + urlB, []string{urlA, urlB}, 0, false},
		{"a round failed", urlA + "," + urlB, []string{urlA}, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, began := idleLink(tt.list), time.Now()
				defer l.closeLink()
				l.dialer = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }
				for _, url := range tt.left {
					l.addresses.noteLeft(url)
				}
				l.failures, l.notYet = tt.failures, began.Add(time.Second)
				_, err := l.getConnection(t.Context())
				if atOnce := time.Now().Equal(began); atOnce != tt.want || !errors.Is(err, ErrUnavailable) {
					t.Errorf("get dials at once: %t, want %t; %v", atOnce, tt.want, err)
				}
			})
		})
	}
}

// A dial that fails is followed by the next one at once, and one that hangs by the next one
// after the stagger, while it goes on.
func TestARoundGoesOnAtOnceAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const urlC = "amqp://u:secret@127.0.0.1:3/"
		l, began := idleLink(urlA+","+urlB+","+urlC), time.Now()
		defer l.closeLink()
		l.addresses.noteLeft(urlB)
		time.Sleep(time.Nanosecond)
		l.addresses.noteLeft(urlC)
		var (
			mu      sync.Mutex
			dialled []string
		)
		l.dialer = func(ctx context.Context, _, addr string) (net.Conn, error) {
			mu.Lock()
			dialled = append(dialled, fmt.Sprint(addr, " after ", time.Since(began).Truncate(time.Millisecond)))
			mu.Unlock()
			if addr == "127.0.0.1:1" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return nil, errors.New("refused")
		}
		_, err := l.dialRound(t.Context())
		want := []string{"127.0.0.1:1 after 0s", "127.0.0.1:2 after 500ms", "127.0.0.1:3 after 500ms"}
		if !slices.Equal(dialled, want) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a round dials %q and ends with %v; want %q, and DeadlineExceeded of the first", dialled, err, want)
		}
		if got, want := time.Since(began).Truncate(time.Millisecond), l.opts.DialTimeout; got != want {
			t.Errorf("the round takes %s, want %s: the first dial goes on", got, want)
		}
	})
}

// A connection that comes after another one has won is closed, and a link that is closed
// leaves nothing behind.
func TestALateConnectionIsDropped(t *testing.T) {
	t.Parallel()
	l, over := idleLink(rabbittest.URL()+","+rabbittest.URL()), make(chan struct{})
	c, err := l.getConnection(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.addresses.addConsumer(l, c)
	close(over)
	l.dialBeside(t.Context(), rabbittest.URL(), make(chan dialled), over)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		l.closeLink()
	}()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Fatal("close waits for a connection that came too late")
	}
	if c.isAlive() || len(l.addresses.consumers) > 0 {
		t.Errorf("connection lives: %t, of %d links; want false, 0", c.isAlive(), len(l.addresses.consumers))
	}
}

func TestARoundIsPermanentIfEveryAddressIs(t *testing.T) {
	t.Parallel()
	var (
		cut     = fmt.Errorf("login: %w", &amqp.Error{Code: amqp.AccessRefused})
		refused = fmt.Errorf("login: %w", &amqp.Error{Code: amqp.AccessRefused, Server: true})
		away    = errors.New("connection refused")
	)
	for _, tt := range []struct {
		name             string
		failed           []error
		permanent, atCut bool
	}{
		{"one away", []error{away}, false, false},
		{"one cut", []error{cut}, true, true},
		{"one refused", []error{refused}, true, false},
		{"all refused", []error{refused, refused}, true, false},
		{"wrong settings", []error{refused, ErrConfig}, true, false},
		{"cut and refused", []error{refused, cut}, true, true},
		{"refused and away", []error{refused, away}, false, false},
		{"away and refused", []error{away, refused}, false, false},
		{"cut and away", []error{cut, away}, false, false},
		{"refused and cancelled", []error{refused, context.Canceled}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := fmt.Errorf("%w: %w", ErrUnavailable, joinRound(tt.failed))
			if isPermanent(err) != tt.permanent || isCutAtLogin(err) != tt.atCut {
				t.Errorf("permanent = %t, cutAtLogin = %t; want %t, %t", isPermanent(err), isCutAtLogin(err), tt.permanent, tt.atCut)
			}
			for _, one := range tt.failed {
				if !errors.Is(err, one) {
					t.Errorf("the error %v is not %v", err, one)
				}
			}
		})
	}
}

// An alarm of the whole cluster does not make a link wander about.
func TestAlarmsMakeALinkLeaveLessAndLessOften(t *testing.T) {
	t.Parallel()
	var (
		a   = moves{first: firstAlarmPause, max: maxAlarmPause}
		now = time.Now()
	)
	for i, want := range []time.Duration{0, 2, 4, 8, 16, 30, 30, 30} {
		if i > 0 {
			if got := a.nextMoveAfter(now, 1); got != want*time.Second {
				t.Errorf("after %d alarms the next may come in %s, want %d s", i, got, want)
			}
		}
		now = now.Add(want * time.Second)
		if got := a.nextMoveAfter(now, 1); got != 0 {
			t.Errorf("alarm %d has to wait for %s", i+1, got)
		}
	}
	now = now.Add(2*maxAlarmPause + time.Nanosecond)
	_ = a.nextMoveAfter(now, 1)
	if got := a.nextMoveAfter(now, 1); got != firstAlarmPause {
		t.Errorf("after a time without alarms the second one has to wait for %s, want %s", got, firstAlarmPause)
	}
}

// fakeConn returns a connection of l to urlA, and whether it is dropped.
func fakeConn(l *link) (c *conn, dropped func() bool) {
	socket, _ := net.Pipe()
	c = &conn{link: l, url: urlA, amqp: &amqp.Connection{}, socket: &deadlineConn{Conn: socket}, dead: make(chan struct{}), work: &l.work, began: time.Now()}
	return c, func() bool { return socket.SetDeadline(time.Time{}) != nil }
}

// The one broker that there is cannot be left: its connection is dropped, and that is all.
func TestTheOnlyBrokerIsNotLeft(t *testing.T) {
	t.Parallel()
	l := idleLink(urlA)
	defer l.closeLink()
	c, dropped := fakeConn(l)
	l.leaveUnconfirmed(c, destination{exchange: "red"}, time.Now())
	if !dropped() {
		t.Error("the connection is not dropped")
	}
	if c.left.Load() || l.addresses.left != nil || l.addresses.suspicions != nil {
		t.Errorf("the only broker counts as left: %t, %v, %v", c.left.Load(), l.addresses.left, l.addresses.suspicions)
	}
}

// watched runs the watch of a connection of l to urlA, which end ends.
func watched(l *link) (c *conn, dropped func() bool, blocks chan amqp.Blocking, end func()) {
	c, dropped = fakeConn(l)
	closes, blocks := make(chan *amqp.Error), make(chan amqp.Blocking)
	l.work.Go(func() { c.watchConnection(closes, blocks) })
	return c, dropped, blocks, func() {
		close(closes)
		close(blocks)
		l.closeLink()
	}
}

func TestABlockedBrokerIsLeftAfterAWhile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		list string
		want bool // it is left
	}{"one broker": {urlA, false}, "two": {urlA + "," + urlB, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := idleLink(tt.list)
				c, dropped, blocks, end := watched(l)
				defer end()
				blocks <- amqp.Blocking{Active: true}
				time.Sleep(blockedPatience - time.Nanosecond)
				blocks <- amqp.Blocking{Active: false}
				time.Sleep(time.Minute)
				if c.left.Load() || dropped() || c.blockedError() != nil {
					t.Error("a short alarm made the link leave its broker")
				}
				blocks <- amqp.Blocking{Active: true, Reason: "memory"}
				time.Sleep(blockedPatience - time.Nanosecond)
				blocks <- amqp.Blocking{Active: true, Reason: "disk"} // does not prolong it
				synctest.Wait()
				if c.left.Load() {
					t.Error("the link has left its broker before its patience is over")
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				if c.left.Load() != tt.want || dropped() != tt.want || l.addresses.orderURLs(l.urls)[0] != l.urls[len(l.urls)-1] {
					t.Errorf("after a long alarm the link has left its broker: %t, dropped the connection: %t; want %t", c.left.Load(), dropped(), tt.want)
				}
			})
		})
	}
}

// The second broker is blocked as well: the link stays for firstAlarmPause, and asks again.
func TestABlockedBrokerIsNotLeftAtOnceAfterAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := idleLink(urlA + "," + urlB)
		l.alarms.nextMoveAfter(time.Now(), 1)
		c, _, blocks, end := watched(l)
		defer end()
		blocks <- amqp.Blocking{Active: true}
		time.Sleep(firstAlarmPause - time.Nanosecond)
		if synctest.Wait(); c.left.Load() {
			t.Error("the link has left two brokers within firstAlarmPause")
		}
		time.Sleep(time.Nanosecond)
		if synctest.Wait(); !c.left.Load() {
			t.Error("the link stays with a blocked broker after firstAlarmPause")
		}
	})
}

// The error about a list repeats no text of the list.
func FuzzAddresses(f *testing.F) {
	f.Add("amqp://u:p@a:5672/vh, amqps://u:,p@b/vh")
	f.Add("amqp://u:p@a/vh,amqp://u:p@b/other,AMQP://")
	f.Add("amqp://u:%zz@a")
	f.Add("amqp://u:p@a/vh;amqp://u:p@b/vh, ")
	known := regexp.MustCompile(`^rabbitmq: invalid configuration: (\d+ addresses, the limit is 32|(address \d+ of \d+ is )?not an AMQP URL, as amqp://user:password@host:5672/vhost \(special characters in user and password must be percent-encoded\)|address \d+ of \d+ is empty|the virtual host of address \d+ of \d+ contains a comma, a semicolon or a space: separate addresses by one comma each, and percent-encode such a character of a virtual host|address \d+ of \d+ has another virtual host than the first)$`)
	f.Fuzz(func(t *testing.T, list string) {
		cfg, err := NewConfig(list, "svc", nil)
		if err != nil {
			if !errors.Is(err, ErrConfig) || !known.MatchString(err.Error()) {
				t.Errorf("NewConfig(%q) = %v", list, err)
			}
			return
		}
		if _, err := NewPublisher(cfg, nil); err != nil {
			t.Errorf("NewPublisher of what NewConfig accepts: %v", err)
		}
		for _, url := range brokerurls.Split(list) {
			if _, err := amqp.ParseURI(url); err != nil {
				t.Errorf("NewConfig(%q) accepts %q: %v", list, url, err)
			}
		}
	})
}

// A broker that does not answer is left only for one that was not left lately.
func TestASilentBrokerIsLeftForOneThatWasNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := idleLink(urlA + "," + urlB)
		c := &conn{link: l, url: urlA}
		check := func(when string, want bool) {
			t.Helper()
			if got := l.mayGoElsewhere(c); got != want {
				t.Errorf("%s: %t, want %t", when, got, want)
			}
		}
		check("no broker was left", true)
		l.addresses.noteLeft(urlA)
		check("its own was left", true)
		l.addresses.noteLeft(urlB)
		check("the other was left", false)
		time.Sleep(leftMemory + time.Second)
		check("the other was left long ago", true)
	})
	if l := idleLink(urlA); l.mayGoElsewhere(&conn{link: l, url: urlA}) {
		t.Error("the only broker is left")
	}
}

// If all brokers answer slowly, each is left once, and then ever more rarely.
func TestAllSlowBrokersAreNotLeftInTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := idleLink(urlA + "," + urlB)
		leaves := 0
		const ask = unansweredPatience + silenceInterval
		for began := time.Now(); time.Since(began) < time.Hour; {
			c, dropped := fakeConn(l)
			l.leaveSilent(c, time.Now(), always)
			if time.Sleep(ask); dropped() {
				leaves++
			}
		}
		if leaves < 2 || leaves > 12 {
			t.Errorf("slow brokers were left %d times in an hour", leaves)
		}
	})
}

// A broker that has answered is not left when the handler of its message ends.
func TestABrokerThatHasAnsweredIsNotLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := idleLink(urlA + "," + urlB)
		c, dropped := fakeConn(l)
		c.noteHandover()
		var answered atomic.Bool
		l.leaveSilent(c, time.Now(), func() bool { return !answered.Load() })
		answered.Store(true)
		c.noteHandled()
		time.Sleep(3 * settledPause)
		if synctest.Wait(); dropped() || c.leaving.Load() {
			t.Error("the broker is left")
		}
	})
}
