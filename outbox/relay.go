package outbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/drain"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testsignal"
)

// RelayOptions are settings that most callers leave at their defaults. The zero value is usable.
type RelayOptions struct {
	Schema string // PostgreSQL schema of the outbox; default: sagamill

	// Window limits the number of messages that the relay has read from the outbox, but not yet recorded as published.
	// When the relay is killed, at most Window messages are published again. After a message over which the broker's
	// connection breaks, Window can grow to twice as many. Default: 2048, at most 100,000.
	Window int
	// WindowBytes limits the memory of the messages that Window counts: the payload and the headers of each message, and
	// 1 KiB; the last message may exceed the limit. Usually the messages that are being published take half of it, and the
	// other half only after a message over which the broker's connection breaks. The process of a relay takes twice
	// WindowBytes and 64 MiB at most. Default: 64 MiB; at least 1.
	WindowBytes int
	// Lanes is the number of lanes of the relay; each lane makes up to 64 calls of the Publisher at the same time, each
	// call for another topic. Messages of one ordering key are in one lane. Default: 4, at most 64.
	Lanes int
	// Lease is the time after which another relay takes over from a relay that does not renew its
	// lease. Default: 5 s; from 1 s to 1 h.
	Lease time.Duration

	// PollMin is the shortest pause between two reads of the outbox. Default: 5 ms.
	PollMin time.Duration
	// PollMax is the longest pause between two reads of the outbox. The relay reads at once after [Relay.Wake], and
	// after a notification of another process. Messages that are committed without either wait for so long at most, and
	// for 250 ms if others came so within the last five minutes, or if the relay does not listen. Default: 2 s.
	PollMax        time.Duration
	PublishTimeout time.Duration // longest wait for the broker in one call of the Publisher; default: 30 s, at most 1 h
	DrainTimeout   time.Duration // after the context of Run has ended, Run waits at most this time for messages that are still being published; default: 10 s

	MaxAttempts int           // number of refusals by the broker after which a message becomes a dead letter; default: 20
	RetryBase   time.Duration // longest wait between the first refusal by the broker and the next attempt; default: 1 s
	RetryCap    time.Duration // longest wait between any refusal by the broker and the next attempt; default: 5 min

	// With NoListen, the relay finds the commits of other processes only by polling, and does not listen for
	// notifications. By default the relay listens for notifications on a connection that it takes out of the pool. Set
	// NoListen behind a transaction-mode pooler, where listening does not work. Default: false.
	NoListen bool

	RotateBytes int64         // when the current table of the outbox log has this size, the next table becomes current; default: 64 MiB
	RotateAfter time.Duration // when a table of the outbox log has been current for this time, the next table becomes current; default: 1 min

	// Retention is the shortest time for which published messages are kept; during this time, a replay (package
	// operator) can publish them again after a queue was lost or a database was restored. Default: 1 h; with
	// [NoRetention], the relay empties a table of the outbox log when all its messages are published.
	Retention time.Duration

	// Observer is called after each call of the Publisher in which at least one message has a trace: see package
	// telemetry. Default: none.
	Observer PublishObserver

	Logger *slog.Logger // Logger gets the failures of the relay, and a message when the relay becomes active; default: slog.Default()
}

// NoRetention is the [RelayOptions].Retention of a relay whose published messages nobody will replay.
const NoRetention time.Duration = -1

// databaseTimeout bounds the statements of a round, so that a dead connection cannot stop the
// relay for ever: pgx sets no deadline.
const databaseTimeout = 10 * time.Second

// failurePolicy spaces rounds and calls that fail because the database or the broker is away.
var failurePolicy = backoff.Policy{Base: 100 * time.Millisecond, Cap: 5 * time.Second}

// A Relay publishes the messages of an outbox. Any number of relays may run on one outbox, in
// any processes: one is active at a time, under a lease, and the others stand by.
type Relay struct {
	core
	wake     chan struct{}
	notifier *Notifier
}

// core is what all stages of a relay use. The options do not change while it runs.
// Counters, refusals and topics have their own locks.
type core struct {
	db       pg.Own
	pub      Publisher
	opts     RelayOptions
	sql      queries
	retry    backoff.Policy
	holder   string // names this relay in the lease
	limits   limits
	counters counters
	refusals refusalLog
	topics   topics
	listens  atomic.Bool // for the commits of other processes
	signals  struct {
		passed    testsignal.Signal[int]   // messages that a round has moved on
		rested    testsignal.Signal[error] // nil: nothing to do and nothing in flight; else an error
		standby   testsignal.Signal[bool]  // another relay is active
		listening testsignal.Signal[bool]
	}
}

// limits of a relay, which tests make small.
type limits struct {
	list    int           // messages of a difference that are listed at once
	page    int           // messages that are read at once
	small   int           // messages that are read without being listed
	large   int           // bytes of payload; a message with more is listed before it is read
	cursors int64         // checkpoints after which the two tables of cursors take turns
	held    time.Duration // time between two looks for due messages
	rotate  time.Duration // time between two looks at the leaves
	stall   time.Duration // how long a full window may make no progress
	resume  int           // messages of a topic that are made due at once when it resumes
	promote time.Duration // time between two looks at all ordering keys with waiting messages
	first   int           // ordering keys that one step of that looks at
	keys    int           // blocked keys at which a lane forgets some
}

var defaultLimits = limits{
	list: maxList, page: maxPage, small: smallDifference, large: largePayload, cursors: cursorRows, held: heldInterval, rotate: rotateInterval, stall: stallTimeout,
	resume: resumeRows, promote: promoteInterval, first: promoteKeys, keys: blockedKeys,
}

// NewRelay returns a Relay from the outbox in db to pub. It starts nothing: call [Relay.Run].
// A nil opts means the defaults; an error names the option that cannot be used.
func NewRelay(db *pgxpool.Pool, pub Publisher, opts *RelayOptions) (*Relay, error) {
	if db == nil || pub == nil {
		return nil, errors.New("outbox: NewRelay needs a pool and a publisher")
	}
	o := RelayOptions{}
	if opts != nil {
		o = *opts
	}
	o.setDefaults()
	if err := o.checkValues(); err != nil {
		return nil, fmt.Errorf("outbox: relay %w", err)
	}
	return &Relay{
		core: core{
			db: pg.NewOwn(db), pub: pub, opts: o, sql: newQueries(o.Schema), holder: newHolderName(),
			retry:  backoff.Policy{Base: o.RetryBase, Cap: o.RetryCap},
			limits: defaultLimits, topics: topics{patience: stallPatience, changed: func() {}},
		},
		wake:     make(chan struct{}, 1),
		notifier: newNotifier(db, o.Schema, o.Logger),
	}, nil
}

// newHolderName returns a name in the lease that leads an operator to this process.
func newHolderName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return cleantext.Clip(host, maxHostBytes) + "/" + strconv.Itoa(os.Getpid()) + "/" + rand.Text()[:6]
}

// maxHostBytes is how many bytes of the host's name are in a holder's name.
const maxHostBytes = 100

func (o *RelayOptions) setDefaults() {
	o.Schema = cmp.Or(o.Schema, sqlschema.Default)
	o.Window = cmp.Or(o.Window, 2048)
	o.WindowBytes = cmp.Or(o.WindowBytes, 64<<20)
	o.Lanes = cmp.Or(o.Lanes, 4)
	o.Lease = cmp.Or(o.Lease, 5*time.Second)
	o.PollMin = cmp.Or(o.PollMin, 5*time.Millisecond)
	o.PollMax = cmp.Or(o.PollMax, 2*time.Second)
	o.PublishTimeout = cmp.Or(o.PublishTimeout, 30*time.Second)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 10*time.Second)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, 20)
	o.RetryBase = cmp.Or(o.RetryBase, time.Second)
	o.RetryCap = cmp.Or(o.RetryCap, 5*time.Minute)
	o.RotateBytes = cmp.Or(o.RotateBytes, 64<<20)
	o.RotateAfter = cmp.Or(o.RotateAfter, time.Minute)
	o.Retention = cmp.Or(o.Retention, time.Hour)
	o.Logger = guard.Logger(cmp.Or(o.Logger, slog.Default()))
}

func (o *RelayOptions) checkValues() error {
	if err := sqlschema.Check(o.Schema); err != nil {
		return fmt.Errorf("option Schema: %w", err)
	}
	switch {
	case o.Window < 1 || o.Window > maxWindow:
		return fmt.Errorf("option Window: %d is not between 1 and %d", o.Window, maxWindow)
	case o.WindowBytes < 1:
		return fmt.Errorf("option WindowBytes: %d is not positive", o.WindowBytes)
	case o.Lanes < 1 || o.Lanes > maxLanes:
		return fmt.Errorf("option Lanes: %d is not between 1 and %d", o.Lanes, maxLanes)
	case o.Lease < time.Second || o.Lease > time.Hour:
		return fmt.Errorf("option Lease: %s is not between 1s and 1h", o.Lease)
	case o.PollMin < 0 || o.PollMax < o.PollMin:
		return fmt.Errorf("option PollMax: %s is less than PollMin, %s", o.PollMax, o.PollMin)
	case o.PublishTimeout < 0 || o.PublishTimeout > time.Hour:
		return fmt.Errorf("option PublishTimeout: %s is not between 0 and 1h", o.PublishTimeout)
	case o.DrainTimeout < 0:
		return fmt.Errorf("option DrainTimeout: %s is negative", o.DrainTimeout)
	case o.MaxAttempts < 1:
		return fmt.Errorf("option MaxAttempts: %d is not positive", o.MaxAttempts)
	case o.RetryBase < 0 || o.RetryCap < o.RetryBase:
		return fmt.Errorf("option RetryCap: %s is less than RetryBase, %s", o.RetryCap, o.RetryBase)
	case o.RotateBytes < 0 || o.RotateAfter < 0:
		return errors.New("options RotateBytes and RotateAfter must not be negative")
	case o.Retention < 0 && o.Retention != NoRetention:
		return fmt.Errorf("option Retention: %s is negative; NoRetention keeps nothing", o.Retention)
	}
	return nil
}

const (
	maxWindow = 100_000
	maxLanes  = 64
)

// Run publishes until ctx ends, then finishes the messages in hand, for DrainTimeout at the
// most, and returns nil. It does not wait for a broker that is away by then. A database or a
// broker that is away, or a queue that takes no messages, is logged and tried again for ever;
// it costs no message an attempt.
func (r *Relay) Run(ctx context.Context) error {
	work, cancel := drain.Context(ctx, r.opts.DrainTimeout)
	defer cancel()
	var helpers sync.WaitGroup
	defer helpers.Wait()
	helping, stop := context.WithCancel(ctx)
	defer stop()
	helpers.Go(func() { _ = r.notifier.Run(helping) })
	if !r.opts.NoListen {
		helpers.Go(func() { r.listenForWakes(helping) })
	}
	r.leadInTurns(ctx, work)
	return nil
}

// leadInTurns stands by and leads in turns until ctx ends.
func (r *Relay) leadInTurns(ctx, work context.Context) {
	standby := false
	for failures := 0; ctx.Err() == nil; {
		err := guard.Call(func() error { // a hook of the pool may panic
			t, err := lease{&r.core}.takeOver(work)
			if err == nil {
				failures, standby = 0, false
				r.opts.Logger.InfoContext(ctx, "outbox: relay is active", "schema", r.opts.Schema, "epoch", t.epoch)
				err = r.leadTenure(ctx, work, t)
			}
			return err
		})
		wait := r.opts.Lease / looksPerLease
		switch {
		case err == nil:
			return
		case errors.Is(err, errStandby):
			if !standby {
				r.opts.Logger.InfoContext(ctx, "outbox: relay stands by: another one is active", "schema", r.opts.Schema)
			}
			standby = true
			r.signals.standby.Send(true)
		default:
			failures++
			wait = failurePolicy.Wait(failures)
			r.opts.Logger.ErrorContext(ctx, "outbox: the relay could not become active, trying again", "schema", r.opts.Schema, "failures", failures, "error", err)
			r.signals.rested.Send(err)
		}
		_ = backoff.Sleep(ctx, wait) // the loop looks at ctx
	}
}

// looksPerLease is how often a standby looks at the lease in the time of one.
const looksPerLease = 10
