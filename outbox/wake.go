package outbox

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// notifyInterval is the shortest time between two notifications of a process.
const notifyInterval = 10 * time.Millisecond

// sqlNotify is never sent in a transaction that writes: PostgreSQL lets transactions that notify
// commit one at a time.
const (
	sqlNotify = `SELECT pg_notify($1, '')`
	sqlListen = `LISTEN `
)

// A Notifier tells the active relay, in any process, that there may be messages to publish. It is
// for processes that write messages and have no [Relay]; a Relay has one itself. It saves the wait
// for the relay's next poll. A notification that is lost loses no message.
type Notifier struct {
	db      *pgxpool.Pool
	channel string
	log     *slog.Logger
	wake    chan struct{}
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
	return &Notifier{db: db, channel: channelName(schema), log: log, wake: make(chan struct{}, 1)}
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

// Run sends notifications, each in its own transaction, until ctx ends. It returns nil.
func (n *Notifier) Run(ctx context.Context) error {
	for {
		select {
		case <-n.wake:
		case <-ctx.Done():
			return nil
		}
		err := guard.Call(func() error {
			_, err := n.db.Exec(ctx, sqlNotify, n.channel)
			return err
		})
		if err != nil && ctx.Err() == nil {
			n.log.DebugContext(ctx, "outbox: notify", "error", err) // the relay polls
		}
		_ = backoff.Sleep(ctx, notifyInterval) // the next receive looks at ctx
	}
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
		r.opts.Logger.DebugContext(ctx, "outbox: listen", "schema", r.opts.Schema, "error", err) // until then it polls
		_ = backoff.Sleep(ctx, failurePolicy.Wait(failures+1))                                   // the loop looks at ctx
	}
}

// listenOnConnection listens on a connection that it takes from the pool for good. Back in the pool
// it would go on listening.
func (r *Relay) listenOnConnection(ctx context.Context) error {
	conn, err := r.db.Acquire(ctx)
	if err != nil {
		return err
	}
	own := conn.Hijack()
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = own.Close(closing)
	}()
	if _, err := own.Exec(ctx, sqlListen+r.notifier.channel); err != nil {
		return err
	}
	r.listens.Store(true)
	defer r.listens.Store(false)
	r.wakeLocally() // what was committed before
	r.signals.listening.Send(true)
	for {
		if _, err := own.WaitForNotification(ctx); err != nil {
			return err
		}
		r.wakeLocally()
	}
}
