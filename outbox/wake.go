package outbox

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A listening relay that has heard nothing for listenSilence pings its session, and waits for listenPatience. If the
// network drops all packets, TCP notices only minutes later, and until then each message waits for a poll.
const (
	listenSilence  = 2 * time.Second
	listenPatience = 2 * time.Second
)

// notifyInterval is the shortest time between two notifications of a process.
const notifyInterval = 10 * time.Millisecond

// sqlNotify is never sent in a transaction that writes: PostgreSQL lets transactions that notify
// commit one at a time.
const (
	sqlNotify = `SELECT pg_notify($1, $2)`
	sqlListen = `LISTEN `
)

// A busy relay reads the log at short intervals without being notified. It says so, and the processes that hear it send
// no notifications for busyTime. PostgreSQL lets one transaction that notifies commit at a time, and wakes each listener.
const (
	busyTime = time.Second

	busyWindow = 200 * time.Millisecond // in which the relay counts
	busyCount  = 8                      // notifications and reads with messages in busyWindow that make a relay busy
	busyMisses = 3                      // empty reads in a row that end it
)

// The payloads of notifications. Every other one says that there may be messages to publish.
const (
	payloadBusy = "busy" // the active relay is busy
	payloadIdle = "idle" // it is not any more
)

// A Notifier tells the active relay, in any process, that there may be messages to publish. It is
// for processes that write messages and have no [Relay]; a Relay has one itself. It saves the wait
// for the relay's next poll. A notification that is lost loses no message.
type Notifier struct {
	db      *pgxpool.Pool
	channel string
	log     *slog.Logger
	wake    chan struct{}

	announcement chan string   // a payload of the active relay; the newest counts
	busyUntil    atomic.Int64  // in nanoseconds of Unix time: until then the active relay needs no notifications
	idle         chan struct{} // the active relay needs them again
}

// NewNotifier returns a Notifier for the outbox in schema, by default sagamill. It starts nothing:
// call [Notifier.Run]. Its error names a schema that is not a plain identifier, or a missing pool.
func NewNotifier(db *pgxpool.Pool, schema string) (*Notifier, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if db == nil {
		return nil, errors.New("outbox: NewNotifier needs a pool")
	}
	if err := sqlschema.Check(schema); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return newNotifier(db, schema, guard.Logger(slog.Default())), nil
}

func newNotifier(db *pgxpool.Pool, schema string, log *slog.Logger) *Notifier {
	return &Notifier{db: db, channel: channelName(schema), log: log,
		wake: make(chan struct{}, 1), announcement: make(chan string, 1), idle: make(chan struct{}, 1)}
}

// channelName returns the channel of a schema. It is a hash, because the schema's name alone may
// fill an identifier.
func channelName(schema string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(schema)) // never fails
	return "sagamill_outbox_" + hex.EncodeToString(h.Sum(nil))
}

// Wake asks for a notification, after a transaction with messages has committed. It never blocks;
// many calls within 10 ms are one notification.
func (n *Notifier) Wake() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run sends notifications, each in its own transaction, until ctx ends. It returns nil. A Notifier that a [Relay] has
// sends none while the active relay is busy.
func (n *Notifier) Run(ctx context.Context) error {
	for {
		payload := ""
		select {
		case payload = <-n.announcement:
		case <-n.wake:
			n.awaitIdleRelay(ctx)
		case <-ctx.Done():
			return nil
		}
		err := guard.Call(func() error {
			_, err := n.db.Exec(ctx, sqlNotify, n.channel, payload)
			return err
		})
		if err != nil && ctx.Err() == nil {
			n.log.DebugContext(ctx, "outbox: notify", "error", err) // the relay polls
		}
		_ = backoff.Sleep(ctx, notifyInterval) // the next receive looks at ctx
	}
}

// awaitIdleRelay waits until the active relay needs notifications: it has said so, or has not said for busyTime that it is
// busy. What was committed before the relay said so may be unread, so a notification follows.
func (n *Notifier) awaitIdleRelay(ctx context.Context) {
	for {
		busy := time.Until(time.Unix(0, n.busyUntil.Load()))
		if busy <= 0 {
			return
		}
		timer := time.NewTimer(busy)
		select {
		case <-timer.C:
		case <-n.idle:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// announce sends payload to the other processes soon, in the place of one that is not sent yet. It never blocks.
func (n *Notifier) announce(payload string) {
	select {
	case <-n.announcement:
	default:
	}
	select {
	case n.announcement <- payload:
	default: // another announcement came between
	}
}

// hearBusy notes that the active relay is busy, or is not.
func (n *Notifier) hearBusy(busy bool) {
	if busy {
		n.busyUntil.Store(time.Now().Add(busyTime).UnixNano())
		return
	}
	n.busyUntil.Store(0)
	select {
	case n.idle <- struct{}{}:
	default:
	}
}

// A pace says whether the active relay is busy: many processes notify it, and its reads find messages.
type pace struct {
	since     time.Time // when counting began
	reads     int       // that have found messages since then
	notified  uint64    // notifications received until then
	busy      bool
	announced time.Time
	misses    int // empty reads in a row
}

// noteRead counts a read that has found n messages after so many notifications were received. It returns what to
// announce, "" for nothing.
func (p *pace) noteRead(now time.Time, n int, notified uint64) string {
	if n > 0 {
		p.reads++
		p.misses = 0
	} else {
		p.misses++
	}
	if p.busy {
		switch {
		case p.misses >= busyMisses:
			*p = pace{since: now, notified: notified}
			return payloadIdle
		case now.Sub(p.announced) >= busyTime/2:
			p.announced = now
			return payloadBusy
		}
		return ""
	}
	if now.Sub(p.since) > busyWindow {
		p.since, p.reads, p.notified = now, 0, notified
		return ""
	}
	if p.busy = p.reads >= busyCount && notified-p.notified >= busyCount; !p.busy {
		return ""
	}
	p.announced = now
	return payloadBusy
}

// Wake makes the active relay look at once instead of at its next poll. The active relay may be this
// one or, by a notification, one in another process. Call it after a transaction with messages has
// committed. It never blocks, and waking a relay that is not running or has nothing to do is
// harmless.
func (r *Relay) Wake() {
	if !r.counters.leads.Load() {
		r.notifier.Wake()
	}
	r.wakeLocally()
}

func (r *Relay) wakeLocally() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// listenForWakes wakes this relay when another process notifies, until ctx ends.
func (r *Relay) listenForWakes(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		err := guard.Call(func() error { return r.listenOnConnection(ctx) })
		if ctx.Err() != nil {
			return
		}
		r.opts.Logger.DebugContext(ctx, "outbox: the relay hears no wake-ups, and polls until it listens again",
			"schema", r.opts.Schema, "error", err)
		_ = backoff.Sleep(ctx, failurePolicy.Wait(failures+1)) // the loop looks at ctx
	}
}

// listenOnConnection listens on a connection that it takes from the pool for good. Back in the pool
// it would go on listening.
func (r *Relay) listenOnConnection(ctx context.Context) error {
	// An idle connection may be on a path that has gone silent too: the pool's ping would wait until TCP gives up.
	var conn *pgxpool.Conn
	err := withinPatience(ctx, func(ctx context.Context) (err error) {
		conn, err = r.db.Pool().Acquire(ctx)
		return err
	})
	if err != nil {
		return err
	}
	own := conn.Hijack()
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = own.Close(closing)
	}()
	err = withinPatience(ctx, func(ctx context.Context) error {
		_, err := own.Exec(ctx, sqlListen+r.notifier.channel)
		return err
	})
	if err != nil {
		return err
	}
	r.listens.Store(true)
	defer r.listens.Store(false)
	defer r.notifier.hearBusy(false) // nobody would hear the end of it
	r.wakeLocally()                  // what was committed before
	r.signals.listening.Send(true)
	for {
		notification, err := hearWithin(ctx, own)
		switch {
		case err != nil:
			return err
		case notification != nil:
			r.takeNotification(notification.Payload)
		default:
			if err := withinPatience(ctx, own.Ping); err != nil {
				return fmt.Errorf("nothing was heard for %v, and there is no answer: %w", listenSilence, err)
			}
		}
	}
}

// hearWithin waits for a notification, and returns nil if there is none within listenSilence. The socket has the
// deadline, and not ctx: when a context ends, a pool's own watcher may cancel a statement on the server.
func hearWithin(ctx context.Context, own *pgx.Conn) (*pgconn.Notification, error) {
	socket := own.PgConn().Conn()
	if err := socket.SetReadDeadline(time.Now().Add(listenSilence)); err != nil {
		return nil, err
	}
	notification, err := own.WaitForNotification(ctx)
	if late := net.Error(nil); ctx.Err() == nil && errors.As(err, &late) && late.Timeout() {
		err = nil
	}
	return notification, errors.Join(err, socket.SetReadDeadline(time.Time{}))
}

// withinPatience calls ask with a context that ends after listenPatience.
func withinPatience(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, listenPatience)
	defer cancel()
	return ask(ctx)
}

// takeNotification wakes this relay, unless the notification is about a busy relay.
func (r *Relay) takeNotification(payload string) {
	switch payload {
	case payloadBusy:
		r.notifier.hearBusy(!r.counters.leads.Load()) // it may be its own announcement
	case payloadIdle:
		r.notifier.hearBusy(false)
	default:
		r.counters.notified.Add(1)
		r.wakeLocally()
	}
}
