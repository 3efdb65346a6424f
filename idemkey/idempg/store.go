package idempg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/pg"
)

// A Store keeps idempotency records in Postgres. It is safe for concurrent
// use, by any number of processes on one table.
type Store struct {
	pool *pgxpool.Pool
	own  pg.Own // on pool, for what no handler takes part in
	opts Options
	q    queries
	slot chan struct{} // one element for each handler that runs
	memo *memo

	opener opener
}

// New returns a Store on pool, whose database has been migrated. It does no
// I/O. A nil opts means the defaults; an error names the option that is wrong.
func New(pool *pgxpool.Pool, opts *Options) (*Store, error) {
	if pool == nil {
		return nil, errors.New("idempg: pool is nil")
	}
	s := &Store{pool: pool, own: pg.NewOwn(pool), memo: newMemo()}
	if opts != nil {
		s.opts = *opts
	}
	maxConns := int(pool.Config().MaxConns)
	s.opts.setDefaults(maxConns)
	if err := s.opts.checkOptions(maxConns); err != nil {
		return nil, err
	}
	s.q = newQueries(s.opts.Schema)
	s.slot = make(chan struct{}, s.opts.MaxInFlight)
	s.opener.after = s.opts.Grace / openEarly
	return s, nil
}

// Traits says that business writes and record commit together, and that a lock
// keeps a live owner from being overtaken. Under ClaimInline only what was kept
// leaves a record.
func (s *Store) Traits() idemkey.Traits {
	return idemkey.Traits{Transactional: true, LiveOwners: true, Traceless: s.opts.ClaimMode == ClaimInline}
}

// Begin claims c.ID and prepares the business transaction, or decides otherwise.
//
// After KindProceed the caller alone may run: under ClaimLeased by its record, and soon by
// that record's row lock, under ClaimInline by the lock that its transaction holds. After an
// error nothing was done, or a claim was made that lapses after Options.Grace. If the process
// dies, the server rolls back and frees the lock, and the next claim proceeds. Of
// two callers that race, one proceeds and the other gets KindInFlight.
func (s *Store) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	d, err := s.beginClaim(ctx, c)
	if err != nil {
		return idemkey.Decision{}, fmt.Errorf("idempg: begin: %w", err)
	}
	return d, nil
}

func (s *Store) beginClaim(ctx context.Context, c idemkey.Claim) (d idemkey.Decision, err error) {
	if err := c.Check(); err != nil {
		return d, err
	}
	if d, decided, err := s.admitHandler(ctx, &c); decided || err != nil {
		return d, err
	}
	e, owns := &execution{s: s, id: c.ID, token: newToken()}, false
	defer func() { // after a panic of a hook of the pool's, too
		if !owns { // a connection that is still in a transaction is closed by the pool
			e.endExecution()
		}
	}()
	if e.conn, err = s.acquireConn(ctx); err != nil {
		return idemkey.Decision{}, err
	}
	d, err = s.claimKey(ctx, e, &c)
	owns = err == nil && d.Exec != nil
	return d, err
}

// admitHandler waits for a place among the running handlers. While there is none, a
// request that will not run is still decided: replays and duplicates must not queue up behind
// slow handlers.
func (s *Store) admitHandler(ctx context.Context, c *idemkey.Claim) (d idemkey.Decision, decided bool, err error) {
	select {
	case s.slot <- struct{}{}:
		return d, false, nil
	default:
	}
	if c.ID.Key != "" {
		if d, decided, err = s.peekRecord(ctx, c); decided || err != nil {
			return d, decided, err
		}
		if held, err := s.keyLockHeld(ctx, c); held || err != nil {
			return inFlightDecision(0), held, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, s.opts.AcquireTimeout)
	defer cancel()
	select {
	case s.slot <- struct{}{}:
		return d, false, nil
	case <-wait.Done():
		return d, false, fmt.Errorf("%w: %d handlers run", idemkey.ErrCapacity, s.opts.MaxInFlight)
	}
}

// peekRecord decides by the record alone, on a connection that it gives back.
func (s *Store) peekRecord(ctx context.Context, c *idemkey.Claim) (d idemkey.Decision, decided bool, err error) {
	conn, err := s.acquireConn(ctx)
	if err != nil {
		return d, false, err
	}
	defer conn.Release()
	return s.decideByRecord(ctx, conn, c)
}

// decideByRecord decides by the record alone. It is not decided if c may run.
func (s *Store) decideByRecord(ctx context.Context, conn *pgxpool.Conn, c *idemkey.Claim) (d idemkey.Decision, decided bool, err error) {
	rec, err := s.readRecord(ctx, conn, c.ID)
	if err != nil || rec == nil {
		return d, false, err
	}
	kind, err := s.judgeRecord(ctx, conn, c, rec)
	if kind == idemkey.KindProceed || err != nil {
		return d, false, err
	}
	d, err = rec.decisionOf(kind)
	return d, true, err
}

// acquireConn returns ErrCapacity for a pool that is used up, and another error for a database that does not
// answer.
func (s *Store) acquireConn(ctx context.Context) (*pgxpool.Conn, error) {
	wait, cancel := context.WithTimeout(ctx, s.opts.AcquireTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(wait)
	if err == nil {
		return conn, nil
	}
	if stat := s.pool.Stat(); wait.Err() != nil && stat.AcquiredConns() >= stat.MaxConns() {
		return nil, fmt.Errorf("%w: no connection within %v", idemkey.ErrCapacity, s.opts.AcquireTimeout)
	}
	return nil, fmt.Errorf("acquire connection: %w", err)
}

// claimKey makes e the owner of c.ID, or decides otherwise.
func (s *Store) claimKey(ctx context.Context, e *execution, c *idemkey.Claim) (idemkey.Decision, error) {
	if c.ID.Key == "" {
		e.prepareTx(c, func(b *pgx.Batch) {
			b.Queue(sqlLimitTx, s.txLimitArgs(c)...).QueryRow(func(row pgx.Row) error { return e.readXID(row) })
		})
		return idemkey.Decision{Kind: idemkey.KindProceed, Exec: e, Attempt: 1}, nil
	}
	if s.memo.metBefore(c.ID) {
		if d, decided, err := s.decideByRecord(ctx, e.conn, c); decided || err != nil {
			return d, err
		}
	}
	if s.opts.ClaimMode == ClaimInline {
		return s.claimInline(ctx, e, c)
	}
	return s.claimLeased(ctx, e, c)
}

// txLimitArgs returns the arguments of txLimits.
func (s *Store) txLimitArgs(c *idemkey.Claim) []any {
	return []any{c.ExecTimeout.Milliseconds(), (c.ExecTimeout + s.opts.IdleMargin).Milliseconds(), max(0, s.opts.ConnectionCheck.Milliseconds())}
}

func inFlightDecision(after time.Duration) idemkey.Decision {
	return idemkey.Decision{Kind: idemkey.KindInFlight, RetryAfter: after}
}

// Sweep deletes up to limit expired records, oldest first, in batches of
// Options.SweepBatch. After an error it returns how many it had deleted.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	deleted := 0
	for deleted < limit {
		batch := min(limit-deleted, s.opts.SweepBatch)
		tag, err := s.own.ExecByIndex(ctx, s.q.sweepRecords, batch)
		deleted += int(tag.RowsAffected())
		if err != nil {
			return deleted, fmt.Errorf("idempg: sweep records: %w", err)
		}
		if int(tag.RowsAffected()) < batch {
			break
		}
	}
	return deleted, nil
}
