package idemhybrid

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
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
	DefaultPrefix      = "idemlock:"
	DefaultCallTimeout = 500 * time.Millisecond
)

// Options configure a [Store]. The zero value works.
type Options struct {
	Prefix      string        // of every lock; visible ASCII without braces; default: idemlock:
	CallTimeout time.Duration // for one call of Redis, repetitions included; default: 500 ms

	// RequireLock refuses requests while Redis does not answer, for a Postgres
	// that could not bear the duplicates. Default: Postgres decides alone.
	RequireLock bool

	Logger *slog.Logger // hears when Redis is lost and when it is back; default: slog.Default()
}

// A Store is an [idempg.Store] behind locks in Redis. It is safe for concurrent
// use, by any number of processes, and beside others that use the same table
// without locks.
type Store struct {
	pg     *idempg.Store
	client redis.UniversalClient
	opts   Options
	lost   atomic.Bool // the last call of Redis failed
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
	s.opts.CallTimeout = cmp.Or(s.opts.CallTimeout, DefaultCallTimeout)
	s.opts.Logger = guard.Logger(cmp.Or(s.opts.Logger, slog.Default()))
	if err := rediskey.CheckPrefix(s.opts.Prefix); err != nil {
		return nil, fmt.Errorf("idemhybrid: Options.Prefix: %w", err)
	}
	if s.opts.CallTimeout < time.Millisecond {
		return nil, errors.New("idemhybrid: Options.CallTimeout must be at least a millisecond")
	}
	return s, nil
}

// Traits are those of the store in Postgres: the lock takes nothing from what a
// row promises, and adds nothing to it.
func (s *Store) Traits() idemkey.Traits { return s.pg.Traits() }

// Begin claims c.ID and opens the business transaction, or says why not: as
// [idempg.Store.Begin] does, except that of callers that race all but one are
// told by the record alone, without a claim. After an error nothing was done, or
// a claim was made that lapses by itself.
func (s *Store) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	if err := c.Check(); err != nil {
		return idemkey.Decision{}, fmt.Errorf("idemhybrid: begin: %w", err)
	}
	if c.ID.Key == "" {
		return s.pg.Begin(ctx, c) // nobody else can want it
	}
	l := s.newLock(&c)
	busy, err := l.take(ctx)
	if s.note(ctx, err); err != nil && (s.opts.RequireLock || ctx.Err() != nil) {
		_ = l.free(ctx) // it may have been taken, and the reply lost
		return idemkey.Decision{}, fmt.Errorf("idemhybrid: begin: %w", err)
	}
	if busy > 0 {
		return s.shed(ctx, &c, busy)
	}
	if err := failpoint.Hit("idemhybrid/after-lock"); err != nil {
		return idemkey.Decision{}, errors.Join(err, l.free(ctx))
	}
	owns := false
	defer func() { // after a panic of a hook of the pool's, too
		if !owns {
			s.note(ctx, l.free(ctx))
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

// shed answers a duplicate while another has the lock. A record that would let
// it run is about to be claimed by that other, or was left by one that died.
func (s *Store) shed(ctx context.Context, c *idemkey.Claim, busy time.Duration) (idemkey.Decision, error) {
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

// note logs that Redis is lost, or back, once each time. A caller that has given
// up says nothing about Redis.
func (s *Store) note(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	switch was := s.lost.Swap(err != nil); {
	case err != nil && !was:
		s.opts.Logger.WarnContext(ctx, "idemhybrid: Redis does not answer", "error", err, "require_lock", s.opts.RequireLock)
	case err == nil && was:
		s.opts.Logger.InfoContext(ctx, "idemhybrid: Redis answers again")
	}
}

// An execution is the one in Postgres, with the lock that is freed after it.
type execution struct {
	idemkey.Execution
	lock *lock
}

// Commit is that of package idempg.
func (e *execution) Commit(ctx context.Context, r idemkey.Response) error {
	defer e.free(ctx)
	return e.Execution.Commit(ctx, r)
}

// Reject is that of package idempg.
func (e *execution) Reject(ctx context.Context, r idemkey.Response) error {
	defer e.free(ctx)
	return e.Execution.Reject(ctx, r)
}

// Release is that of package idempg.
func (e *execution) Release(ctx context.Context, mode idemkey.ReleaseMode, status int) error {
	defer e.free(ctx)
	return e.Execution.Release(ctx, mode, status)
}

// Renew keeps the lock, so that duplicates go on being shed. It returns nil
// whatever Redis says: a lock that is lost costs Postgres a claim, and the owner
// of the row is still the owner.
func (e *execution) Renew(ctx context.Context) error {
	e.lock.s.note(ctx, e.lock.renew(ctx))
	return nil
}

// free gives the lock back once the outcome is durable: before that, a duplicate
// would get as far as Postgres and be refused there. If Redis does not hear of it,
// the lock lapses.
func (e *execution) free(ctx context.Context) {
	if failpoint.Hit("idemhybrid/before-free") == nil {
		e.lock.s.note(ctx, e.lock.free(ctx))
	}
}
