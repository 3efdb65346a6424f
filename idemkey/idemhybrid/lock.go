package idemhybrid

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/rediskey"
)

// Each script has one key, whose value is the owner's token. Sent twice, it returns
// the same: a client repeats a script that it got no reply to.

// scriptLock takes a lock that is free. Otherwise it returns how long, in ms, the
// owner still has it.
var scriptLock = redis.NewScript(`
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
if redis.call('GET', KEYS[1]) == ARGV[1] then return 0 end
return math.max(1, redis.call('PTTL', KEYS[1]))
`)

// scriptUnlock frees the lock, if it is still the caller's.
var scriptUnlock = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
`)

// scriptRenew starts the lock's time again, if it is still the caller's. It does
// not take a lapsed lock again: a renewal that overtakes the release would leave a
// lock without an owner.
var scriptRenew = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
`)

// A lock is one claim's lock in Redis.
type lock struct {
	s          *Store
	key, token string
	lease      time.Duration
	held       bool // the lock is taken, or may be: the reply was lost
}

func (s *Store) newLock(c *idemkey.Claim) *lock {
	return &lock{s: s, key: rediskey.Of(s.opts.Prefix, c.ID), token: rand.Text(), lease: c.Lease}
}

// takeLock takes the lock. If another claim has it, busy is the rest of that claim's time.
func (l *lock) takeLock(ctx context.Context) (busy time.Duration, err error) {
	n, err := l.runScript(ctx, false, scriptLock, l.token, l.leaseMilliseconds())
	if l.held = n == 0 && !errors.Is(err, errPassedOver); err != nil {
		return 0, fmt.Errorf("take lock: %w", err)
	}
	return time.Duration(n) * time.Millisecond, nil
}

func (l *lock) renewLock(ctx context.Context) error {
	if _, err := l.runScript(ctx, false, scriptRenew, l.token, l.leaseMilliseconds()); err != nil {
		return fmt.Errorf("renew lock: %w", err)
	}
	return nil
}

// freeLock gives the lock back, even if ctx has ended: no other call can. A lock that
// is held is freed also while Redis is passed over: after a brief outage it would
// keep the retry of a failed request waiting for the lease.
func (l *lock) freeLock(ctx context.Context) error {
	if _, err := l.runScript(context.WithoutCancel(ctx), l.held, scriptUnlock, l.token); err != nil {
		return fmt.Errorf("free lock: %w", err)
	}
	return nil
}

// runScript runs a script, unless Redis is passed over.
func (l *lock) runScript(ctx context.Context, urgent bool, script *redis.Script, args ...any) (n int64, err error) {
	err = l.s.askRedis(ctx, urgent, func(ctx context.Context) error {
		n, err = script.Run(ctx, l.s.client, []string{l.key}, args...).Int64()
		return err
	})
	return n, err
}

// leaseMilliseconds rounds up: Redis refuses a time of none.
func (l *lock) leaseMilliseconds() int64 {
	return int64((l.lease + time.Millisecond - 1) / time.Millisecond)
}
