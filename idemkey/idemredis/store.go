package idemredis

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/rediskey"
	"github.com/sagamill/sagamill/internal/sagaid"
)

// A Store keeps idempotency records in Redis. It is safe for concurrent use, by
// any number of processes with one prefix.
type Store struct {
	client redis.UniversalClient
	opts   Options
}

// New returns a Store on client, a single server or a cluster, whose options
// have ContextTimeoutEnabled. It does no I/O: call [Store.Check]. A nil opts
// means the defaults; an error names the option that is wrong.
func New(client redis.UniversalClient, opts *Options) (*Store, error) {
	if err := rediskey.CheckClient(client); err != nil {
		return nil, fmt.Errorf("idemredis: %w", err)
	}
	s := &Store{client: client}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.setDefaults()
	return s, s.opts.checkOptions()
}

// Traits says that owners are kept alive by renewing their leases: a handler may
// run for longer than its own.
func (s *Store) Traits() idemkey.Traits { return idemkey.Traits{LiveOwners: true} }

// Begin claims c.ID or decides otherwise.
//
// After KindProceed the record is in progress until its lease lapses, unless
// Renew is called before. After an error nothing was done, or a claim was made
// that lapses with its lease. If the process dies, the next claim after the lease
// takes over. Of two callers that race, Redis serves one first, and the other
// gets KindInFlight.
func (s *Store) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	if err := c.Check(); err != nil {
		return idemkey.Decision{}, fmt.Errorf("idemredis: begin: %w", err)
	}
	if c.ID.Key == "" {
		return idemkey.Decision{Kind: idemkey.KindProceed, Exec: keyless{}, Attempt: 1}, nil
	}
	d, err := s.claimOrDecide(ctx, &c)
	if err != nil {
		return idemkey.Decision{}, fmt.Errorf("idemredis: begin: %w", err)
	}
	return d, nil
}

// claimOrDecide claims an absent record, and otherwise decides by the record. A record that
// may be taken over is claimed again, by the token it was read with.
func (s *Store) claimOrDecide(ctx context.Context, c *idemkey.Claim) (idemkey.Decision, error) {
	e := &execution{s: s, id: c.ID, key: rediskey.Of(s.opts.Prefix, c.ID), token: rand.Text(), lease: c.Lease, failedTTL: c.FailedTTL}
	if c.RejectExpired {
		e.keepExpired = s.opts.KeepExpired
	}
	if c.External {
		e.open, e.keptTTL, e.failedTTL = s.openRunOf(c.ID), c.TTL, cmp.Or(c.FailedTTL, c.TTL)
	}
	from, attempt, tookOver, unsettled, undo := "", 1, false, false, idemkey.Forget
	for range maxClaims {
		reply, err := s.sendClaim(ctx, e, c, from, attempt)
		if err != nil {
			return idemkey.Decision{}, s.forgetUnrun(ctx, e, undo, err)
		}
		if claim, won := decodeClaim(reply); won {
			if err := s.enterOpenRun(ctx, e, c, claim.attempt, undo); err != nil {
				return idemkey.Decision{}, err
			}
			d := idemkey.Decision{Kind: idemkey.KindProceed, Exec: e, Incarnation: claim.incarnation, Attempt: claim.attempt, ExpiresAt: claim.expires}
			if claim.attempt > 1 { // else the record was gone
				d.TookOver, d.Unsettled = tookOver, unsettled
			}
			return d, failpoint.Hit("idemredis/after-claim")
		}
		rec, err := decodeRecord(reply)
		if err != nil {
			return idemkey.Decision{}, err
		}
		if kind := c.Judge(&rec.Record); kind != idemkey.KindProceed {
			if kind == idemkey.KindUnknown && c.External {
				s.keepUnknown(ctx, e, c, rec)
			}
			return rec.decisionOf(kind)
		}
		if undo, unsettled = idemkey.Bound, c.LeavesUnknown(&rec.Record); unsettled {
			undo = idemkey.Hold
		}
		from, attempt, tookOver = rec.token, c.NextAttempt(&rec.Record), c.TakesOver(&rec.Record)
	}
	return idemkey.Decision{Kind: idemkey.KindInFlight}, nil // others were faster each time
}

// forgetUnrun gives a claim back that failed by err, and may have been made all the same: its handler has not run. Without
// effects outside of the store the record lapses by itself.
func (s *Store) forgetUnrun(ctx context.Context, e *execution, undo idemkey.ReleaseMode, err error) error {
	if e.open == nil {
		return err
	}
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.CallTimeout)
	defer cancel()
	return errors.Join(err, e.Release(detached, undo, 0))
}

// keepUnknown sees to it that an unknown outcome does not expire and is listed. If that fails, the next retry does it.
func (s *Store) keepUnknown(ctx context.Context, e *execution, c *idemkey.Claim, rec *storedRecord) {
	if rec.State != idemkey.StateInProgress && rec.State != idemkey.StateUnknown {
		return
	}
	if !rec.ExpiresAt.IsZero() {
		_ = s.callScript(ctx, scriptKeep, e.key, rec.token).Err()
	}
	s.openRunOf(c.ID).heal(ctx, s)
}

func (s *Store) sendClaim(ctx context.Context, e *execution, c *idemkey.Claim, from string, attempt int) ([]any, error) {
	ttl := any(milliseconds(c.TTL))
	if c.External {
		ttl = ""
	}
	life := sagaid.NewLife(c.ID.Namespace, c.ID.Scope, c.ID.Key, c.TTL)
	return s.callScript(ctx, scriptBegin, e.key, e.token, from, c.FP.Sum, c.FP.Alg,
		ttl, milliseconds(c.Lease), milliseconds(e.keepExpired), attempt, life.Prefix(), life.Offset(), milliseconds(c.TTL)).Slice()
}

// callScript runs a script within the budget. Run sends its digest, and the script
// itself where the server has not got it: a restart, a failover or SCRIPT FLUSH
// may have removed it at any time.
func (s *Store) callScript(ctx context.Context, script *redis.Script, key string, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, s.opts.CallTimeout)
	defer cancel()
	cmd := script.Run(ctx, s.client, []string{key}, args...)
	if err := cmd.Err(); err != nil && strings.Contains(err.Error(), "WRONGTYPE") {
		cmd.SetErr(fmt.Errorf("%w: it is no hash: %w", idemkey.ErrRecordCorrupt, err))
	}
	return cmd
}

// Inspect returns id's record, for an administrator's tools. It is not found if
// there is none.
func (s *Store) Inspect(ctx context.Context, id idemkey.Identity) (rec idemkey.Record, found bool, err error) {
	stored, err := s.readRecord(ctx, id)
	if err == nil && stored == nil {
		return rec, false, nil
	}
	if err == nil && (stored.State == idemkey.StateCompleted || stored.State == idemkey.StateTombstone) {
		err = stored.Response.UnmarshalHeader(stored.header)
	}
	if err != nil {
		return rec, false, fmt.Errorf("idemredis: inspect: %w", err)
	}
	return stored.Record, true, nil
}

// readRecord returns id's record, nil if there is none.
func (s *Store) readRecord(ctx context.Context, id idemkey.Identity) (*storedRecord, error) {
	reply, err := s.callScript(ctx, scriptInspect, rediskey.Of(s.opts.Prefix, id)).Slice()
	if err != nil || len(reply) > 1 && reply[1] == nil {
		return nil, err
	}
	return decodeRecord(reply)
}

// Find decides c from the record alone and claims nothing. It is not decided
// where the request would run.
func (s *Store) Find(ctx context.Context, c idemkey.Claim) (d idemkey.Decision, decided bool, err error) {
	if err := c.Check(); err != nil {
		return d, false, fmt.Errorf("idemredis: find: %w", err)
	}
	if c.ID.Key == "" {
		return d, false, nil
	}
	rec, err := s.readRecord(ctx, c.ID)
	if err == nil && rec == nil {
		return d, false, nil
	}
	if err == nil {
		kind := c.Judge(&rec.Record)
		if kind == idemkey.KindProceed {
			return d, false, nil
		}
		d, err = rec.decisionOf(kind)
	}
	if err != nil {
		return idemkey.Decision{}, false, fmt.Errorf("idemredis: find: %w", err)
	}
	return d, true, nil
}

// Sweep does nothing: Redis removes expired records without a sweeper.
func (s *Store) Sweep(context.Context, int) (int, error) { return 0, nil }

// milliseconds rounds up: a lease of less than one millisecond must not become zero.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// errReply reports a reply that the scripts cannot have made.
var errReply = errors.New("unexpected reply of a script")
