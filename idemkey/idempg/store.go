package idempg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/failpoint"
)

// A Store keeps idempotency records in Postgres. It is safe for concurrent
// use, by any number of processes on one table.
type Store struct {
	pool *pgxpool.Pool
	opts Options
	q    queries
	slot chan struct{} // one element for each handler that runs
}

// New returns a Store on pool, whose database has been migrated. It does no
// I/O. A nil opts means the defaults; an error names the option that is wrong.
func New(pool *pgxpool.Pool, opts *Options) (*Store, error) {
	if pool == nil {
		return nil, errors.New("idempg: pool is nil")
	}
	s := &Store{pool: pool}
	if opts != nil {
		s.opts = *opts
	}
	maxConns := int(pool.Config().MaxConns)
	s.opts.setDefaults(maxConns)
	if err := s.opts.check(maxConns); err != nil {
		return nil, err
	}
	s.q = newQueries(s.opts.Schema)
	s.slot = make(chan struct{}, s.opts.MaxInFlight)
	return s, nil
}

// Traits says that business writes and record commit together, and that a row
// lock keeps a live owner from being overtaken.
func (s *Store) Traits() idemkey.Traits {
	return idemkey.Traits{Transactional: true, LiveOwners: true}
}

// Begin claims c.ID and opens the business transaction, or says why not.
//
// After KindProceed the record is in progress and the transaction holds its row
// lock. After an error nothing was done, or a claim was made that lapses after
// Options.Grace. If the process dies, the server rolls back and frees the lock, and the next
// claim takes over. Of two callers that race, one inserts the record or takes it
// over, and the other gets KindInFlight.
func (s *Store) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	d, err := s.begin(ctx, c)
	if err != nil {
		return idemkey.Decision{}, fmt.Errorf("idempg: begin: %w", err)
	}
	return d, nil
}

func (s *Store) begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	if err := c.Check(); err != nil {
		return idemkey.Decision{}, err
	}
	if d, decided, err := s.admit(ctx, &c); decided || err != nil {
		return d, err
	}
	conn, err := s.acquire(ctx)
	if err != nil {
		<-s.slot
		return idemkey.Decision{}, err
	}
	e := &execution{s: s, conn: conn, id: c.ID, token: newToken()}
	d, err := s.claim(ctx, e, &c)
	if err != nil || d.Exec == nil {
		e.end()
	}
	return d, err
}

// admit waits for a place among the running handlers. While there is none, a
// request that will not run is still decided: replays must not queue up behind
// slow handlers.
func (s *Store) admit(ctx context.Context, c *idemkey.Claim) (d idemkey.Decision, decided bool, err error) {
	select {
	case s.slot <- struct{}{}:
		return d, false, nil
	default:
	}
	if c.ID.Key != "" {
		if d, decided, err = s.peek(ctx, c); decided || err != nil {
			return d, decided, err
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

// peek decides from the record alone, on a connection that it gives back.
func (s *Store) peek(ctx context.Context, c *idemkey.Claim) (d idemkey.Decision, decided bool, err error) {
	conn, err := s.acquire(ctx)
	if err != nil {
		return d, false, err
	}
	defer conn.Release()
	rec, err := s.read(ctx, conn, c.ID)
	if err != nil || rec == nil {
		return d, false, err
	}
	kind, err := s.judge(ctx, conn, c, rec)
	if kind == idemkey.KindProceed || err != nil {
		return d, false, err
	}
	d, err = rec.decide(kind)
	return d, true, err
}

// acquire tells a pool that is used up from a database that does not answer.
func (s *Store) acquire(ctx context.Context) (*pgxpool.Conn, error) {
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

// claim makes e the owner of c.ID and opens its transaction, or decides otherwise.
func (s *Store) claim(ctx context.Context, e *execution, c *idemkey.Claim) (idemkey.Decision, error) {
	if c.ID.Key == "" {
		return s.open(ctx, e, c, 1)
	}
	for range maxClaims {
		mine, rec, err := s.insertOrRead(ctx, e, c)
		if err != nil {
			return idemkey.Decision{}, err
		}
		if mine {
			return s.open(ctx, e, c, 1)
		}
		if rec == nil {
			continue // deleted in between
		}
		kind, err := s.judge(ctx, e.conn, c, rec)
		if err != nil {
			return idemkey.Decision{}, err
		}
		if kind != idemkey.KindProceed {
			return rec.decide(kind)
		}
		attempt := c.NextAttempt(&rec.Record)
		mine, err = s.takeOver(ctx, e, c, rec.token, attempt)
		if err != nil || !mine {
			return inFlight(0), err
		}
		return s.open(ctx, e, c, attempt)
	}
	return inFlight(0), nil
}

// judge is c.Judge, except that a last attempt which still runs is in flight:
// its lease has run out, but the row lock says that its outcome is to come.
func (s *Store) judge(ctx context.Context, conn *pgxpool.Conn, c *idemkey.Claim, rec *storedRecord) (idemkey.Kind, error) {
	kind := c.Judge(&rec.Record)
	if kind != idemkey.KindUnknown || rec.State != idemkey.StateInProgress {
		return kind, nil
	}
	tag, err := conn.Exec(ctx, s.q.findAbandoned, c.ID.Namespace, c.ID.Scope, c.ID.Key, rec.token)
	if err != nil {
		return 0, fmt.Errorf("look for owner: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return idemkey.KindInFlight, nil
	}
	return kind, nil
}

func inFlight(after time.Duration) idemkey.Decision {
	return idemkey.Decision{Kind: idemkey.KindInFlight, RetryAfter: after}
}

func (s *Store) insert(ctx context.Context, e *execution, c *idemkey.Claim) (bool, error) {
	var expires time.Time
	err := e.conn.QueryRow(ctx, s.q.insertClaim, s.insertArgs(e, c)...).Scan(&expires)
	return won(err, "claim key")
}

func (s *Store) insertArgs(e *execution, c *idemkey.Claim) []any {
	return []any{e.id.Namespace, e.id.Scope, e.id.Key, c.FP.Sum, c.FP.Alg, e.token,
		s.opts.Grace.Milliseconds(), c.TTL.Milliseconds(), fmt.Sprint(claimLockTimeout.Milliseconds())}
}

// insertOrRead makes e the owner of an absent key, or returns the record, nil
// if it was deleted in between. Both statements go in one round trip, which is
// all that a replay takes: they are one transaction, but with a snapshot each
// under READ COMMITTED. Where the session's default is stricter the insert fails
// over a record that is newer than the snapshot, and then the read is repeated.
func (s *Store) insertOrRead(ctx context.Context, e *execution, c *idemkey.Claim) (mine bool, rec *storedRecord, err error) {
	batch := &pgx.Batch{}
	batch.Queue(s.q.insertClaim, s.insertArgs(e, c)...).QueryRow(func(row pgx.Row) error {
		var expires time.Time
		err := row.Scan(&expires)
		mine = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	batch.Queue(s.q.readRecord, e.id.Namespace, e.id.Scope, e.id.Key).Query(func(rows pgx.Rows) error {
		if mine {
			return nil
		}
		var err error
		rec, err = collectRecord(rows)
		return err
	})
	err = e.conn.SendBatch(ctx, batch).Close()
	switch {
	case err == nil:
		return mine, rec, nil
	case lockUnavailable(err), conflict(err):
		rec, err = s.read(ctx, e.conn, c.ID)
		return false, rec, err
	}
	return false, nil, fmt.Errorf("claim key: %w", err)
}

func (s *Store) takeOver(ctx context.Context, e *execution, c *idemkey.Claim, from pgtype.UUID, attempt int) (bool, error) {
	var expires time.Time
	err := e.conn.QueryRow(ctx, s.q.takeOver, e.id.Namespace, e.id.Scope, e.id.Key, from, c.FP.Sum, c.FP.Alg, e.token,
		attempt, s.opts.Grace.Milliseconds(), c.TTL.Milliseconds()).Scan(&expires)
	return won(err, "take over key")
}

// won reads the result of a claim. Losing a race is no error.
func won(err error, what string) (bool, error) {
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, pgx.ErrNoRows), lockUnavailable(err), conflict(err):
		return false, nil
	}
	return false, fmt.Errorf("%s: %w", what, err)
}

// open begins the business transaction and takes the row lock in it.
func (s *Store) open(ctx context.Context, e *execution, c *idemkey.Claim, attempt int) (idemkey.Decision, error) {
	if err := failpoint.Hit("idempg/after-claim"); err != nil {
		return idemkey.Decision{}, err
	}
	tx, err := e.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: s.opts.Isolation, AccessMode: pgx.ReadWrite})
	if err != nil {
		return idemkey.Decision{}, fmt.Errorf("begin transaction: %w", err)
	}
	e.tx = tx
	var expires time.Time
	batch := &pgx.Batch{}
	limits := []any{c.ExecTimeout.Milliseconds(), (c.ExecTimeout + s.opts.IdleMargin).Milliseconds(), s.opts.LockTimeout.Milliseconds()}
	if s.opts.ConnectionCheck > 0 {
		batch.Queue(s.q.limitTxWatched, append(limits, s.opts.ConnectionCheck.Milliseconds())...)
	} else {
		batch.Queue(s.q.limitTx, limits...)
	}
	if c.ID.Key != "" {
		batch.Queue(s.q.lockRecord, e.id.Namespace, e.id.Scope, e.id.Key, e.token).
			QueryRow(func(row pgx.Row) error { return row.Scan(&expires, nil) })
	} else {
		batch.Queue(s.q.restoreLockTimeout)
	}
	err = tx.SendBatch(ctx, batch).Close()
	switch {
	case errors.Is(err, pgx.ErrNoRows), lockUnavailable(err), conflict(err):
		return inFlight(0), e.rollback(ctx) // taken over before the lock was had
	case err != nil:
		return idemkey.Decision{}, fmt.Errorf("lock record: %w", err)
	}
	return idemkey.Decision{Kind: idemkey.KindProceed, Exec: e, Attempt: attempt, ExpiresAt: expires}, nil
}

// A storedRecord is a record as it was read, with what names its owner.
type storedRecord struct {
	idemkey.Record
	token  pgtype.UUID
	header []byte
}

// read returns the committed record, or nil. It waits for nobody.
func (s *Store) read(ctx context.Context, conn *pgxpool.Conn, id idemkey.Identity) (*storedRecord, error) {
	rows, err := conn.Query(ctx, s.q.readRecord, id.Namespace, id.Scope, id.Key)
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	return collectRecord(rows)
}

// collectRecord returns the record in rows, or nil.
func collectRecord(rows pgx.Rows) (*storedRecord, error) {
	rec, err := pgx.CollectExactlyOneRow(rows, scanRecord)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	return rec, nil
}

func scanRecord(row pgx.CollectableRow) (*storedRecord, error) {
	var (
		r         storedRecord
		leaseLeft int64
		lifeLeft  int64
		status    *int
	)
	err := row.Scan(&r.State, &r.FP.Sum, &r.FP.Alg, &r.token, &r.Attempt, &leaseLeft, &r.Expired, &r.ExpiresAt, &lifeLeft,
		&status, &r.header, &r.Response.Body, &r.Response.KeyID)
	r.LifeLeft = time.Duration(lifeLeft) * time.Millisecond
	r.LeaseLeft = time.Duration(leaseLeft) * time.Millisecond
	if status != nil {
		r.Response.Status = *status
	}
	return &r, err
}

// decide turns kind into a decision, with the response where that is the answer.
func (r *storedRecord) decide(kind idemkey.Kind) (idemkey.Decision, error) {
	switch kind {
	case idemkey.KindInFlight:
		return inFlight(r.LeaseLeft), nil
	case idemkey.KindReplay, idemkey.KindNotRetained:
		r.Response.Dropped = kind == idemkey.KindNotRetained
		if err := r.Response.UnmarshalHeader(r.header); err != nil {
			return idemkey.Decision{}, err
		}
		return idemkey.Decision{Kind: kind, Record: &r.Record}, nil
	}
	return idemkey.Decision{Kind: kind}, nil
}

// Sweep deletes up to limit expired records, oldest first, in batches of
// Options.SweepBatch. After an error it returns how many it had deleted.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	deleted := 0
	for deleted < limit {
		batch := min(limit-deleted, s.opts.SweepBatch)
		tag, err := s.pool.Exec(ctx, s.q.sweepRecords, batch)
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

// newToken returns the random name of one claim.
func newToken() pgtype.UUID {
	t := pgtype.UUID{Valid: true}
	rand.Read(t.Bytes[:]) // never fails
	return t
}

// conflict reports a serialization failure or a deadlock.
func conflict(err error) bool { return hasCode(err, "40001", "40P01") }

// lockUnavailable reports that lock_timeout ran out.
func lockUnavailable(err error) bool { return hasCode(err, "55P03") }

func hasCode(err error, codes ...string) bool {
	pgErr := (*pgconn.PgError)(nil)
	if !errors.As(err, &pgErr) {
		return false
	}
	for _, code := range codes {
		if pgErr.Code == code {
			return true
		}
	}
	return false
}
