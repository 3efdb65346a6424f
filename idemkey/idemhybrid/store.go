package idemhybrid

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/rediskey"
)

// The defaults of [Options].
const (
	DefaultPrefix              = "idemlock:"
	DefaultCallTimeout         = 50 * time.Millisecond
	DefaultRequiredCallTimeout = 500 * time.Millisecond // with Options.RequireLock
)

// Options configure a [Store]. The zero value works.
type Options struct {
	Prefix string // prefix of the key of every lock in Redis: visible ASCII characters, no braces; default: idemlock:

	// CallTimeout is the longest time for one call of Redis, including connecting and repetitions.
	// A request waits for two: it takes the lock and frees it. Default: 50 ms, and
	// 500 ms with RequireLock.
	CallTimeout time.Duration

	// RequireLock refuses requests while Redis does not answer; set RequireLock if duplicate requests would overload
	// PostgreSQL. Each request asks Redis then, also after a failure. Default: while Redis does not answer, PostgreSQL
	// alone decides which requests may run.
	RequireLock bool

	Logger *slog.Logger // Logger gets a message when Redis stops answering, and when Redis answers again; default: slog.Default()
}

// A Store is an [idempg.Store] behind locks in Redis. It is safe for concurrent
// use, by any number of processes, and beside others that use the same table
// without locks.
type Store struct {
	pg      *idempg.Store
	client  redis.UniversalClient
	opts    Options
	circuit circuit
}

// New returns a Store on pg behind locks on client, a single server or a
// cluster, whose options have ContextTimeoutEnabled. It does no I/O. A nil opts
// means the defaults; an error names the option that is wrong.
func New(pg *idempg.Store, client redis.UniversalClient, opts *Options) (*Store, error) {
	if pg == nil {
		return nil, errors.New("idemhybrid: the Postgres store is nil")
	}
	if err := rediskey.CheckClient(client); err != nil {
		return nil, fmt.Errorf("idemhybrid: %w", err)
	}
	s := &Store{pg: pg, client: client}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.Prefix = cmp.Or(s.opts.Prefix, DefaultPrefix)
	timeout := DefaultCallTimeout
	if s.opts.RequireLock {
		timeout = DefaultRequiredCallTimeout
	}
	s.opts.CallTimeout = cmp.Or(s.opts.CallTimeout, timeout)
	s.opts.Logger = guard.Logger(cmp.Or(s.opts.Logger, slog.Default()))
	if err := rediskey.CheckPrefix(s.opts.Prefix); err != nil {
		return nil, fmt.Errorf("idemhybrid: Options.Prefix: %w", err)
	}
	if s.opts.CallTimeout < time.Millisecond {
		return nil, errors.New("idemhybrid: Options.CallTimeout must be at least a millisecond")
	}
	s.circuit = circuit{pause: retryPause, timeout: s.opts.CallTimeout, now: time.Now}
	return s, nil
}

// Traits are those of the store in Postgres: the lock does not change its guarantees.
func (s *Store) Traits() idemkey.Traits { return s.pg.Traits() }

// Begin claims c.ID and opens the business transaction, or decides otherwise, as
// [idempg.Store.Begin] does. Of callers that race, all but one are decided by the
// record alone, without a claim. After an error nothing was done, or a claim was
// made that lapses with its lease.
func (s *Store) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	if err := c.Check(); err != nil {
		return idemkey.Decision{}, fmt.Errorf("idemhybrid: begin: %w", err)
	}
	if c.ID.Key == "" {
		return s.pg.Begin(ctx, c) // without a key there are no duplicates
	}
	l := s.newLock(&c)
	busy, err := l.takeLock(ctx)
	if errors.Is(err, errPassedOver) {
		return s.pg.Begin(ctx, c)
	}
	if err != nil && (s.opts.RequireLock || ctx.Err() != nil) {
		_ = l.freeLock(ctx) // it may have been taken, and the reply lost
		return idemkey.Decision{}, fmt.Errorf("idemhybrid: begin: %w", err)
	}
	if busy > 0 {
		return s.shedDuplicate(ctx, &c, busy)
	}
	if err := failpoint.Hit("idemhybrid/after-lock"); err != nil {
		return idemkey.Decision{}, errors.Join(err, l.freeLock(ctx))
	}
	owns := false
	defer func() { // after a panic of a hook of the pool's, too
		if !owns {
			_ = l.freeLock(ctx)
		}
	}()
	d, err := s.pg.Begin(ctx, c)
	if owns = err == nil && d.Exec != nil; !owns {
		return d, err
	}
	d.Exec = &execution{Execution: d.Exec, lock: l}
	if err := failpoint.Hit("idemhybrid/after-claim"); err != nil {
		return idemkey.Decision{}, errors.Join(err, d.Exec.Release(ctx, idemkey.Bound, 0))
	}
	return d, nil
}

// shedDuplicate answers a duplicate while another request has the lock. A record that would let
// the duplicate run is about to be claimed by that other, or was left by a process that died.
func (s *Store) shedDuplicate(ctx context.Context, c *idemkey.Claim, busy time.Duration) (idemkey.Decision, error) {
	d, decided, err := s.pg.Find(ctx, *c)
	if err != nil || decided {
		return d, err
	}
	return idemkey.Decision{Kind: idemkey.KindInFlight, RetryAfter: busy}, nil
}

// Find decides c from the committed record alone, as [idempg.Store.Find] does.
func (s *Store) Find(ctx context.Context, c idemkey.Claim) (d idemkey.Decision, decided bool, err error) {
	return s.pg.Find(ctx, c)
}

// Sweep deletes up to limit expired records from Postgres. Locks lapse by themselves.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) { return s.pg.Sweep(ctx, limit) }

// EachUnknown calls found for each unknown outcome, as [idempg.Store.EachUnknown] does.
func (s *Store) EachUnknown(ctx context.Context, found func(idemkey.UnknownOutcome) error) error {
	return s.pg.EachUnknown(ctx, found)
}

// Settle ends the unknown outcome u, as [idempg.Store.Settle] does.
func (s *Store) Settle(ctx context.Context, u idemkey.UnknownOutcome, r *idemkey.Response, ttl time.Duration) error {
	return s.pg.Settle(ctx, u, r, ttl)
}

// errPassedOver says that a call was not made, because an earlier one failed.
var errPassedOver = errors.New("idemhybrid: Redis is passed over")

// askRedis makes a call of Redis. It returns errPassedOver if the circuit is open,
// unless the call is urgent. An error after the caller has given up does not count against Redis.
func (s *Store) askRedis(ctx context.Context, urgent bool, call func(context.Context) error) error {
	ok, probe := s.circuit.admitCall()
	if !ok && !urgent && !s.opts.RequireLock {
		return errPassedOver
	}
	budget, cancel := context.WithTimeout(ctx, s.opts.CallTimeout)
	defer cancel()
	err := call(budget)
	if err != nil && ctx.Err() != nil {
		return err
	}
	switch changed := s.circuit.reportResult(probe || s.opts.RequireLock, err); {
	case changed && err != nil:
		s.opts.Logger.WarnContext(ctx, "idemhybrid: Redis does not answer", "error", err, "require_lock", s.opts.RequireLock)
	case changed:
		s.opts.Logger.InfoContext(ctx, "idemhybrid: Redis answers again")
	}
	return err
}

// An execution is the one in Postgres, with the lock that is freed after it.
type execution struct {
	idemkey.Execution
	lock *lock
}

// Commit is that of package idempg.
func (e *execution) Commit(ctx context.Context, r idemkey.Response) error {
	defer e.freeLock(ctx)
	return e.Execution.Commit(ctx, r)
}

// Reject is that of package idempg.
func (e *execution) Reject(ctx context.Context, r idemkey.Response) error {
	defer e.freeLock(ctx)
	return e.Execution.Reject(ctx, r)
}

// Release is that of package idempg.
func (e *execution) Release(ctx context.Context, mode idemkey.ReleaseMode, status int) error {
	defer e.freeLock(ctx)
	return e.Execution.Release(ctx, mode, status)
}

// Renew keeps the lock, so that duplicates go on being shed. It always returns nil:
// a lock that is lost costs Postgres a claim, and the owner of the row is still the
// owner.
func (e *execution) Renew(ctx context.Context) error {
	_ = e.lock.renewLock(ctx)
	return nil
}

// freeLock gives the lock back once the outcome is durable: before that, a duplicate
// would reach Postgres and be refused there. If Redis cannot be reached, the lock
// lapses.
func (e *execution) freeLock(ctx context.Context) {
	if failpoint.Hit("idemhybrid/before-free") == nil {
		_ = e.lock.freeLock(ctx)
	}
}
