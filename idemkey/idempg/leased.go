package idempg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sagaid"
	"github.com/sagamill/sagamill/internal/sqlstate"
)

// claimLeased makes e the owner of c.ID by a record that is committed before the handler runs.
func (s *Store) claimLeased(ctx context.Context, e *execution, c *idemkey.Claim) (idemkey.Decision, error) {
	done, ok := s.memo.takeTurn(c.ID)
	if !ok {
		return s.decideBehind(ctx, e.conn, c)
	}
	defer done()
	for range maxClaims {
		life, err := s.insertRecord(ctx, e, c)
		if err != nil {
			return idemkey.Decision{}, s.forgetUnrun(ctx, e, c, err)
		}
		if life.claimWon() {
			d, err := e.proceedLeased(ctx, c, 1, life)
			if err != nil && e.record == nil {
				err = s.forgetUnrun(ctx, e, c, err)
			}
			return d, err
		}
		rec, err := s.readRecord(ctx, e.conn, c.ID)
		if err != nil {
			return idemkey.Decision{}, err
		}
		if rec == nil {
			continue // deleted in between
		}
		kind, err := s.judgeRecord(ctx, e.conn, c, rec)
		if err != nil {
			return idemkey.Decision{}, err
		}
		if kind != idemkey.KindProceed {
			return rec.decisionOf(kind)
		}
		attempt := c.NextAttempt(&rec.Record)
		life, err = s.takeOverRecord(ctx, e, c, rec.token, attempt)
		if err != nil {
			return idemkey.Decision{}, err
		}
		if !life.claimWon() {
			return inFlightDecision(0), s.checkHidden(ctx, e.conn)
		}
		d, err := e.proceedLeased(ctx, c, attempt, life)
		if err != nil && attempt == 1 && e.record == nil {
			err = s.forgetUnrun(ctx, e, c, err)
		}
		d.TookOver, d.Unsettled = d.Exec != nil && c.TakesOver(&rec.Record), d.Exec != nil && c.LeavesUnknown(&rec.Record)
		return d, err
	}
	return inFlightDecision(0), s.checkHidden(ctx, e.conn)
}

// forgetLimit bounds forgetUnrun.
const forgetLimit = time.Second

// forgetUnrun removes the record of a claim that failed by err, and may have been made all the same, as by an INSERT that
// nobody waited for to the end: its handler has not run. Without External the record lapses by itself.
func (s *Store) forgetUnrun(ctx context.Context, e *execution, c *idemkey.Claim, err error) error {
	if !c.External {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetLimit)
	defer cancel()
	_, failed := s.own.Exec(ctx, s.q.forgetRecord, e.id.Namespace, e.id.Scope, e.id.Key, e.token)
	return errors.Join(err, failed)
}

// checkHidden returns an [idemkey.ErrRecordHidden] if row-level security hides records from conn's session. It is asked where
// a record that exists cannot be read, or not be changed.
func (s *Store) checkHidden(ctx context.Context, conn *pgxpool.Conn) error {
	err := pg.CheckHidden(ctx, conn, s.q.findHidden)
	if errors.Is(err, pg.ErrHidden) {
		return fmt.Errorf("%w: %w", idemkey.ErrRecordHidden, err)
	}
	return err
}

// decideBehind decides c while another request of this process claims the key. Both may be
// retries that the memo has taken for new, so the record is read first. If it does not decide, c is in
// flight. decideBehind never waits for the other request.
func (s *Store) decideBehind(ctx context.Context, conn *pgxpool.Conn, c *idemkey.Claim) (idemkey.Decision, error) {
	d, decided, err := s.decideByRecord(ctx, conn, c)
	if decided || err != nil {
		return d, err
	}
	return inFlightDecision(0), nil
}

// judgeRecord is c.Judge, except that a last attempt which still runs is in flight:
// its lease has run out, but it holds the row lock, so its outcome is open.
func (s *Store) judgeRecord(ctx context.Context, conn *pgxpool.Conn, c *idemkey.Claim, rec *storedRecord) (idemkey.Kind, error) {
	kind := c.Judge(&rec.Record)
	if kind != idemkey.KindUnknown {
		return kind, nil
	}
	if rec.State == idemkey.StateInProgress {
		if abandoned, err := s.ownerDied(ctx, conn, c.ID, rec.token); err != nil || !abandoned {
			return idemkey.KindInFlight, err
		}
	}
	if c.External && !rec.ExpiresAt.IsZero() {
		return kind, s.keepUnknown(ctx, conn, c.ID, rec.token)
	}
	return kind, nil
}

// keepUnknown lets a record never expire that was claimed without External. If it changes no row, another request was
// faster, or row-level security hides the record from an UPDATE: then it would expire, and its request run again.
func (s *Store) keepUnknown(ctx context.Context, conn *pgxpool.Conn, id idemkey.Identity, token pgtype.UUID) error {
	tag, err := conn.Exec(ctx, s.q.keepUnknown, id.Namespace, id.Scope, id.Key, token)
	switch {
	case err != nil:
		return fmt.Errorf("keep the unknown outcome: %w", err)
	case tag.RowsAffected() == 0:
		return s.checkHidden(ctx, conn)
	}
	return nil
}

// ownerDied reports whether the owner by token has died.
func (s *Store) ownerDied(ctx context.Context, conn *pgxpool.Conn, id idemkey.Identity, token pgtype.UUID) (bool, error) {
	tag, err := conn.Exec(ctx, s.q.findAbandoned, id.Namespace, id.Scope, id.Key, token)
	if err != nil {
		return false, fmt.Errorf("look for owner: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// A lifespan is the time from a record's creation to its expiry, by the server's clock. It is zero
// for a claim that was not won.
type lifespan struct {
	created time.Time
	expires pgtype.Timestamptz
}

func (l lifespan) claimWon() bool { return !l.created.IsZero() }

// end returns when the record expires, zero if that is not known before its outcome is.
func (l lifespan) end() time.Time { return l.expires.Time }

// incarnation names the record among all that its identity has had: these were created a TTL apart. A record that the
// database has lost, and that is created again, has its name again.
func (l lifespan) incarnation(id idemkey.Identity, ttl time.Duration) string {
	return sagaid.NewLife(id.Namespace, id.Scope, id.Key, ttl).Incarnation(l.created)
}

// insertRecord returns the life of an absent key's new record.
func (s *Store) insertRecord(ctx context.Context, e *execution, c *idemkey.Claim) (life lifespan, err error) {
	err = e.conn.QueryRow(ctx, s.q.insertClaim, e.id.Namespace, e.id.Scope, e.id.Key, c.FP.Sum, c.FP.Alg, e.token,
		s.leaseOf(c).Milliseconds(), c.TTL.Milliseconds(), c.External).Scan(&life.expires, &life.created, nil)
	return claimResult(life, err, "claim key")
}

// takeOverRecord returns the life of a record that has changed its owner.
func (s *Store) takeOverRecord(ctx context.Context, e *execution, c *idemkey.Claim, from pgtype.UUID, attempt int) (life lifespan, err error) {
	err = e.conn.QueryRow(ctx, s.q.takeOver, e.id.Namespace, e.id.Scope, e.id.Key, from, c.FP.Sum, c.FP.Alg, e.token,
		attempt, s.leaseOf(c).Milliseconds(), c.TTL.Milliseconds(), c.External).Scan(&life.expires, &life.created, nil)
	return claimResult(life, err, "take over key")
}

// leaseOf returns for how long a run counts as running although the server has lost sight of its owner.
func (s *Store) leaseOf(c *idemkey.Claim) time.Duration {
	if c.External {
		return max(s.opts.Grace, c.Lease)
	}
	return s.opts.Grace
}

// claimResult reads the result of a claim. Losing a race is no error.
func claimResult(life lifespan, err error, what string) (lifespan, error) {
	if err == nil || errors.Is(err, pgx.ErrNoRows) || lockUnavailable(err) || sqlstate.Conflict(err) {
		return life, nil
	}
	return lifespan{}, fmt.Errorf("%s: %w", what, err)
}

// proceedLeased lets e proceed under its record. The transaction begins with the
// handler's first statement and then holds the row lock, which is the proof
// that the owner lives. If the handler takes its time, the transaction is opened
// for it while the lease still protects it.
func (e *execution) proceedLeased(ctx context.Context, c *idemkey.Claim, attempt int, life lifespan) (idemkey.Decision, error) {
	if err := failpoint.Hit("idempg/after-claim"); err != nil {
		return idemkey.Decision{}, err
	}
	if attempt == 1 {
		if err := e.s.enforceQuota(ctx, e, c.MaxUnknown); err != nil {
			return idemkey.Decision{}, err
		}
	}
	e.record, e.expires, e.external = (*leasedRecord)(e), life.end(), c.External
	if e.failedTTL = c.FailedTTL; c.External {
		e.keptTTL, e.failedTTL = c.TTL, cmp.Or(c.FailedTTL, c.TTL)
	}
	args := append(e.s.txLimitArgs(c), e.id.Namespace, e.id.Scope, e.id.Key, e.token)
	e.prepareTx(c, func(b *pgx.Batch) { b.Queue(e.s.q.lockRecord, args...).QueryRow(e.readLockResult) })
	e.s.opener.addExecution(e, c.ExecTimeout)
	return idemkey.Decision{Kind: idemkey.KindProceed, Exec: e, Incarnation: life.incarnation(e.id, c.TTL), Attempt: attempt, ExpiresAt: life.end()}, nil
}

// readLockResult reads the result of locking the record.
func (e *execution) readLockResult(row pgx.Row) error {
	err := e.readXID(row)
	if errors.Is(err, pgx.ErrNoRows) || lockUnavailable(err) || sqlstate.Conflict(err) {
		return idemkey.ErrLeaseLost
	}
	return err
}

// A leasedRecord is the end of a claim that has a record.
type leasedRecord execution

func (l *leasedRecord) queueKeep(b *pgx.Batch, xid string, header []byte, r *idemkey.Response) *pgx.QueuedQuery {
	return b.Queue(l.s.q.commitRecord, l.recordArgs(int(r.State()), r.Status, header, r.Body, r.KeyID, lifeArg(l.keptTTL), xid)...)
}

func (l *leasedRecord) keepOutside(ctx context.Context, db execer, header []byte, r *idemkey.Response) (bool, error) {
	tag, err := db.Exec(ctx, l.s.q.completeRecord, l.recordArgs(int(r.State()), r.Status, header, r.Body, r.KeyID, lifeArg(l.keptTTL))...)
	return tag.RowsAffected() == 1, err
}

// freeRecord releases the record, once nobody has locked its row: otherwise the key would stay in progress until the
// grace is over. After a lost connection the server frees this claim's own lock once it notices the loss, and may never
// notice, so freeRecord ends the lost session. Others, such as a DELETE without WHERE, free theirs when they end.
func (l *leasedRecord) freeRecord(ctx context.Context, mode idemkey.ReleaseMode, status int) error {
	statement, args := l.s.q.failRecord, l.failArgs(status, mode)
	if mode == idemkey.Forget {
		statement, args = l.s.q.forgetRecord, l.recordArgs()
	}
	for pause := freePause; ; pause = min(2*pause, maxFreePause) {
		tag, err := (*execution)(l).connAfterTx().Exec(ctx, statement, args...)
		if err != nil {
			return fmt.Errorf("idempg: release record: %w", err)
		}
		if tag.RowsAffected() > 0 || !l.endLostSession(ctx) {
			return nil
		}
		if backoff.Sleep(ctx, pause) != nil {
			return nil // the record lapses with its lease
		}
	}
}

// endLostSession ends the session of l's transaction, which is over, if it still holds the row lock. It reports false if
// the record is not this claim's any more, or cannot be read.
func (l *leasedRecord) endLostSession(ctx context.Context) bool {
	var ended *bool
	return l.s.pool.QueryRow(ctx, l.s.q.endLostOwner, l.recordArgs(int64(l.pid))...).Scan(&ended) == nil
}

// lookUpRecord asks for the record. Its row lock tells whether the transaction is open
// yet. If it is not, a record in progress is freed, which also turns away a
// statement that the server has received and not begun.
func (l *leasedRecord) lookUpRecord(ctx context.Context) (kept, known bool, err error) {
	state, err := (*execution)(l).readOwnState(ctx)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		switch whose, err := (*execution)(l).readHolder(ctx); {
		case err != nil || whose == heldByUs || whose == heldUntilNow:
			return false, false, nil
		case whose == heldByOthers: // only a transaction that had ended can have lost it
			return false, true, idemkey.ErrLeaseLost
		}
		return false, true, nil // a crash of the server has taken the claim back, and with it all that came after
	case err != nil:
		return false, false, nil
	case state == idemkey.StateCompleted, state == idemkey.StateTombstone:
		return true, true, nil
	case (*execution)(l).txCommitted(ctx):
		return false, true, idemkey.ErrTxMisuse
	}
	tag, err := l.s.own.Exec(ctx, l.s.q.failRecord, l.failArgs(0, (*execution)(l).undone())...)
	return false, err == nil && tag.RowsAffected() == 1, nil
}

// failArgs returns the arguments of sqlFailRecord.
func (l *leasedRecord) failArgs(status int, mode idemkey.ReleaseMode) []any {
	state := idemkey.StateFailed
	if mode == idemkey.Hold {
		state = idemkey.StateUnknown
	}
	return l.recordArgs(status, int(state), lifeArg(l.failedTTL))
}

// lifeArg returns a life from now on as an argument, null if a record's life has begun with its claim.
func lifeArg(d time.Duration) *int64 {
	if d == 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

func (l *leasedRecord) recordArgs(more ...any) []any {
	return append([]any{l.id.Namespace, l.id.Scope, l.id.Key, l.token}, more...)
}
