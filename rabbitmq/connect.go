package rabbitmq

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/brokerurls"
)

// The pause between two dials doubles from minPause to maxPause. The second half of it is random,
// so that clients do not all dial a restarted broker at once.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// ConnectionOptions are the name, the heartbeat and the time limits of a connection to a broker. The zero value means
// the defaults.
type ConnectionOptions struct {
	// Name is the name of the connection in the broker's tools. Default: none.
	Name string
	// Heartbeat is how often client and broker send each other a heartbeat; after about twice
	// this time without data from the other side, client or broker closes the connection. A heartbeat in the
	// URL or the amqp.Config wins. Default: 5 s.
	Heartbeat time.Duration
	// DialTimeout limits the time for connecting to one address, including TLS and the AMQP handshake. With several
	// addresses the next one is dialled beside it after 500 ms. So a round of dials takes up to
	// 500 ms longer for each further address. Default: 10 s.
	DialTimeout time.Duration
	// RequestTimeout limits the wait for an answer of the broker, such as the answer to a declaration.
	// After it the connection is dropped. If the broker still opens channels, a
	// declaration costs its own channel only, as long as no more than 8 of a
	// connection wait. Default: 10 s.
	RequestTimeout time.Duration
	// WriteTimeout limits the time of one write to the socket. After it the connection is
	// dropped. Default: 5 s.
	WriteTimeout time.Duration
	// CloseTimeout limits the time of the closing handshake with the broker. Default: 5 s.
	CloseTimeout time.Duration
}

func (o ConnectionOptions) withDefaults() ConnectionOptions {
	o.Heartbeat = cmp.Or(o.Heartbeat, 5*time.Second)
	o.DialTimeout = cmp.Or(o.DialTimeout, 10*time.Second)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, 10*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 5*time.Second)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, 5*time.Second)
	return o
}

// A link holds the current connection of a Publisher or a Subscriber and dials
// the next one when it is asked for one. Nothing of it runs in between.
type link struct {
	cfg       wamqp.ConnectionConfig
	opts      ConnectionOptions
	log       *slog.Logger
	urls      []string   // of the brokers, one or several
	addresses *addresses // of the process, but in tests
	dialer    dialer     // nil: over TCP
	alarms    moves
	silences  moves
	channels  int          // for messages, at most
	warnedOf  atomic.Int64 // the number of channels that the last warning was about

	life context.Context // ends with close; belongs to no caller
	end  context.CancelCauseFunc
	once sync.Once
	work sync.WaitGroup // every goroutine of every connection

	turn     chan struct{} // held to use the fields below
	current  *conn
	failures int
	notYet   time.Time // no dial before
}

func newLink(cfg wamqp.Config, opts ConnectionOptions, log *slog.Logger) *link {
	l := &link{cfg: cfg.Connection, opts: opts.withDefaults(), log: log, turn: make(chan struct{}, 1)}
	l.alarms.first, l.alarms.max = firstAlarmPause, maxAlarmPause
	l.silences.first, l.silences.max = firstSilencePause, maxSilencePause
	l.urls, l.addresses = brokerurls.Split(cfg.Connection.AmqpURI), &known
	if t, ours := cfg.TopologyBuilder.(*quorumTopology); ours {
		l.dialer = t.dialer
	}
	l.life, l.end = context.WithCancelCause(context.Background())
	return l
}

// hasSeveral reports whether l may go to another broker.
func (l *link) hasSeveral() bool { return len(l.urls) > 1 }

// configAt returns the settings for the one address of url.
func (l *link) configAt(url string) wamqp.ConnectionConfig {
	cfg := l.cfg
	cfg.AmqpURI = url
	return cfg
}

// getConnection returns a connection, dialling each address at most once and not sooner after
// the last dial than the backoff allows. Its error is an [ErrUnavailable] that
// wraps ctx's error or [ErrClosed] if one of them is the reason.
func (l *link) getConnection(ctx context.Context) (*conn, error) {
	ctx, cancel := l.boundDial(ctx)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return nil, unavailableError(ctx)
	}
	if l.current != nil && l.current.isAlive() {
		return l.current, nil
	}
	return l.redialNow(ctx)
}

// redialNow dials; the caller holds the turn. Its error names each login, because the broker's
// answer to a wrong login does not.
func (l *link) redialNow(ctx context.Context) (*conn, error) {
	if l.current != nil {
		l.noteDeparture(l.current, connectionLost)
	}
	if !l.mayDialAtOnce() && backoff.Sleep(ctx, time.Until(l.notYet)) != nil {
		return nil, unavailableError(ctx)
	}
	c, err := l.dialRound(ctx)
	if err != nil {
		l.failures++
		l.notYet = time.Now().Add(retryPause(l.failures))
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if l.current != nil {
		l.log.InfoContext(ctx, "rabbitmq: connected again", "name", l.opts.Name, "broker", brokerAddress(c.url))
	}
	l.failures, l.notYet, l.current = 0, time.Now().Add(retryPause(0)), c
	return c, nil
}

// mayDialAtOnce reports whether the next round needs no pause: the connection is lost, and
// there is a broker that no link has left lately. One that loses connections as soon as it
// has them is thereby dialled without a pause once in [leftMemory].
func (l *link) mayDialAtOnce() bool {
	return l.hasSeveral() && l.failures == 0 && l.addresses.hasUnleft(l.urls)
}

// boundDial returns a context that ends with ctx or when the link is closed.
func (l *link) boundDial(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.life, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// unavailableError returns an ErrUnavailable that says why ctx ended.
func unavailableError(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
}

// cutConnection refuses further connections and drops the current one. A dial going on
// ends at once.
func (l *link) cutConnection() {
	l.end(ErrClosed)
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.current != nil {
		l.current.dropConnection()
	}
}

// closeLink refuses further connections, closes the current one and waits for the goroutines of all
// connections. After that no caller may use them.
func (l *link) closeLink() {
	l.once.Do(func() {
		l.end(ErrClosed)
		l.turn <- struct{}{}
		defer func() { <-l.turn }()
		if l.current != nil {
			l.current.closeWithin(l.opts.CloseTimeout)
		}
		l.work.Wait()
		l.addresses.removeConsumer(l)
	})
}

// retryPause returns how long to wait after the n-th failure in a row.
func retryPause(n int) time.Duration {
	d := min(minPause<<min(n, 16), maxPause)
	return d/2 + rand.N(d/2)
}

const (
	// blockedPatience is how long a broker may block a connection before a link with
	// several addresses leaves it.
	blockedPatience = time.Second

	// After an alarm has made a link leave a broker, another alarm may do so after
	// firstAlarmPause. Then the pause doubles each time, up to maxAlarmPause: an alarm of one
	// broker blocks the publishers of its whole cluster. Two maxAlarmPause without an alarm count
	// as its end.
	firstAlarmPause = 2 * time.Second
	maxAlarmPause   = 30 * time.Second

	// The same of brokers that do not answer a request, after a link has left each of the others once.
	firstSilencePause = 10 * time.Second
	maxSilencePause   = 10 * time.Minute
)

// A departure is why a link leaves a broker.
type departure string

const (
	connectionLost departure = "the connection is lost"
	blockedByAlarm departure = "an alarm blocks it"
)

// leaveBroker drops c. If there are other addresses, every link of this process dials them before
// that of c for [leftMemory]. Leaving one connection again only drops it. It never waits.
func (l *link) leaveBroker(c *conn, why departure) {
	l.noteDeparture(c, why)
	c.dropConnection()
}

// mayGoElsewhere reports whether there is another broker than that of c which no link has left lately.
func (l *link) mayGoElsewhere(c *conn) bool {
	return l.hasSeveral() && l.addresses.hasOther(l.urls, c.url)
}

// leaveSilent leaves the broker of c, which has not answered a request since then, if the request waits still. If all
// brokers answer slowly, l leaves each once, and then ever more rarely.
func (l *link) leaveSilent(c *conn, since time.Time, waits func() bool) {
	if c.heardSince(since) || l.silences.nextMoveAfter(time.Now(), len(l.urls)-1) > 0 {
		return
	}
	c.leaveUnlessHeard(since, unanswered, waits)
}

// noteDeparture remembers that the broker of c was left, once for each connection.
func (l *link) noteDeparture(c *conn, why departure) {
	if !l.hasSeveral() || c.left.Swap(true) {
		return
	}
	l.addresses.noteLeft(c.url)
	if why != connectionLost {
		l.log.WarnContext(l.life, "rabbitmq: leaving a broker for another one", "name", l.opts.Name, "broker", brokerAddress(c.url), "reason", string(why))
	}
}

// tolerateAlarm returns what ends the patience with an alarm that is active or over. A further
// alarm does not prolong it.
func (l *link) tolerateAlarm(active bool, patience <-chan time.Time) <-chan time.Time {
	switch {
	case !active || !l.hasSeveral():
		return nil
	case patience == nil:
		return time.After(blockedPatience)
	}
	return patience
}

// leaveBlocked leaves the broker of c, which has blocked it for blockedPatience, or returns
// when to ask again.
func (l *link) leaveBlocked(c *conn) (again <-chan time.Time) {
	if wait := l.alarms.nextMoveAfter(time.Now(), 1); wait > 0 {
		return time.After(wait)
	}
	l.leaveBroker(c, blockedByAlarm)
	return nil
}

// moves limits how often a link leaves a broker for one reason that may hold for all brokers.
type moves struct {
	first, max time.Duration // pauses

	mu     sync.Mutex
	leaves int // in a row
	last   time.Time
}

// nextMoveAfter returns 0 and counts one if a link may leave for this reason, or how long it has to wait. The first free
// moves in a row need not wait.
func (a *moves) nextMoveAfter(now time.Time, free int) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	since := now.Sub(a.last)
	if since > 2*a.max {
		a.leaves = 0
	}
	if a.leaves >= free {
		pause := min(a.first<<min(a.leaves-free, 16), a.max)
		if since < pause {
			return pause - since
		}
	}
	a.leaves, a.last = a.leaves+1, now
	return 0
}
