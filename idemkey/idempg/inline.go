package idempg

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sagamill/sagamill/idemkey"
)

// claimInline makes e the owner of c.ID by an advisory lock of the business
// transaction. The lock is taken by one statement and the record read by the
// next: a statement that did both would read from a snapshot older than the lock.
func (s *Store) claimInline(ctx context.Context, e *execution, c *idemkey.Claim) (idemkey.Decision, error) {
	in := &inlineRecord{execution: e, lock: s.lockKey(c.ID), claim: c}
	var (
		mine    bool
		rec     *storedRecord
		corrupt error // of the record, and no failure of the transaction
	)
	e.prepareTx(c, func(b *pgx.Batch) {
		b.Queue(sqlTryLock, append(s.txLimitArgs(c), in.lock, c.TTL.Milliseconds())...).
			QueryRow(func(row pgx.Row) error { return e.readXID(row, &mine, &in.expires) })
		b.Queue(s.q.readRecord, c.ID.Namespace, c.ID.Scope, c.ID.Key).Query(func(rows pgx.Rows) (err error) {
			if rec, err = collectRecord(rows); errors.Is(err, idemkey.ErrRecordCorrupt) {
				corrupt, err = err, nil
			}
			return err
		})
	})
	if err := e.tx.Open(ctx); err != nil {
		in.endLostSession(ctx)
		return idemkey.Decision{}, fmt.Errorf("lock key: %w", err)
	}
	if corrupt != nil {
		return idemkey.Decision{}, errors.Join(corrupt, e.rollBackTx(ctx))
	}
	kind := idemkey.KindProceed
	if rec != nil {
		kind = c.Judge(&rec.Record)
	}
	if kind == idemkey.KindProceed && !mine {
		kind = idemkey.KindInFlight
	}
	if kind == idemkey.KindProceed && rec != nil {
		// Left by a store that leases, or expired.
		in.prior, in.priorState = rec.token, int(rec.State)
		locked, err := s.lockPriorRecord(ctx, e, rec)
		if err != nil {
			return idemkey.Decision{}, err
		}
		if !locked {
			kind = idemkey.KindInFlight
			if err := s.checkHidden(ctx, e.conn); err != nil {
				return idemkey.Decision{}, err
			}
		}
	}
	if kind != idemkey.KindProceed {
		if err := e.rollBackTx(ctx); err != nil {
			return idemkey.Decision{}, err
		}
		if rec == nil {
			return inFlightDecision(0), nil
		}
		return rec.decisionOf(kind)
	}
	if s.opts.MaxPerScope > 0 && (rec == nil || rec.Expired) {
		if err := s.checkQuota(ctx, e, s.opts.MaxPerScope-1); err != nil {
			return idemkey.Decision{}, errors.Join(err, e.rollBackTx(ctx))
		}
	}
	e.record = in
	life := lifespan{created: in.expires.Add(-c.TTL)}
	return idemkey.Decision{Kind: idemkey.KindProceed, Exec: e, Incarnation: life.incarnation(e.id, c.TTL), Attempt: 1, ExpiresAt: in.expires}, nil
}

// keyLockHeld reports whether a handler runs under c's key that has no record yet. It takes no lock: a lock
// would turn away an owner that arrives at the same moment.
func (s *Store) keyLockHeld(ctx context.Context, c *idemkey.Claim) (held bool, err error) {
	if s.opts.ClaimMode != ClaimInline {
		return false, nil
	}
	conn, err := s.acquireConn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	if err := conn.QueryRow(ctx, sqlReadLock, s.lockKey(c.ID)).Scan(&held); err != nil {
		return false, fmt.Errorf("look for owner: %w", err)
	}
	return held, nil
}

// endLostSession ends the session of e's lost connection, if it holds the key's lock. The server may not notice
// that the connection is cut: the key would then be in flight for as long as a handler may be idle. The lock
// proves that the process id does not belong to another session by now.
func (i *inlineRecord) endLostSession(ctx context.Context) {
	if !i.connClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.s.opts.LookupTimeout)
	defer cancel()
	_, _ = i.s.pool.Exec(ctx, sqlEndOwner, i.lock, int64(i.pid)) // else its idle time ends it
}

// lockPriorRecord locks the record that e is to replace, so that no store that leases
// takes it over meanwhile. It reports false if the lock is not free: another claim has
// just taken it, or the owner still holds its row lock, even after its lease.
func (s *Store) lockPriorRecord(ctx context.Context, e *execution, rec *storedRecord) (bool, error) {
	tag, err := e.conn.Exec(ctx, s.q.lockPrior, e.id.Namespace, e.id.Scope, e.id.Key, rec.token, int(rec.State))
	if err != nil {
		return false, fmt.Errorf("lock record: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// lockKey is a digest: advisory locks have one number for the whole database.
func (s *Store) lockKey(id idemkey.Identity) int64 {
	h := sha256.New()
	for _, part := range []string{s.opts.Schema, id.Namespace, id.Scope, id.Key} {
		_ = binary.Write(h, binary.BigEndian, uint32(len(part)))
		h.Write([]byte(part))
	}
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}

// An inlineRecord is the end of a claim that has no record before it commits.
type inlineRecord struct {
	*execution
	lock       int64
	claim      *idemkey.Claim
	prior      pgtype.UUID // of the record that is replaced, if there is one
	priorState int
}

func (i *inlineRecord) queueKeep(b *pgx.Batch, xid string, header []byte, r *idemkey.Response) *pgx.QueuedQuery {
	return b.Queue(i.s.q.commitInline, append(i.responseArgs(header, r), xid)...)
}

// keepOutside takes the lock again, since it ended with the transaction. If another claim has taken it in
// between, that claim is the owner now.
func (i *inlineRecord) keepOutside(ctx context.Context, db execer, header []byte, r *idemkey.Response) (bool, error) {
	tag, err := db.Exec(ctx, i.s.q.keepInline, append(i.responseArgs(header, r), i.lock)...)
	if hasCode(err, codeDivisionByZero) {
		return false, nil
	}
	return tag.RowsAffected() == 1, err
}

// freeRecord frees the key's lock, if a lost connection still holds it. It deletes a record that a store which leases has
// left, in mode Forget. Otherwise there is none.
func (i *inlineRecord) freeRecord(ctx context.Context, mode idemkey.ReleaseMode, _ int) error {
	i.endLostSession(ctx)
	if mode != idemkey.Forget || !i.prior.Valid {
		return nil
	}
	_, err := i.connAfterTx().Exec(ctx, i.s.q.forgetPrior, i.id.Namespace, i.id.Scope, i.id.Key, i.prior, i.priorState)
	if err != nil {
		return fmt.Errorf("idempg: release record: %w", err)
	}
	return nil
}

// lookUpRecord asks for the record. If there is none and the lock is free, there will be none: the
// transaction had the lock until its end.
func (i *inlineRecord) lookUpRecord(ctx context.Context) (kept, known bool, err error) {
	var free bool
	if err := i.s.pool.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", i.lock).Scan(&free); err != nil {
		return false, false, nil
	}
	state, err := i.readOwnState(ctx)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if whose, err := i.readHolder(ctx); err != nil || whose == heldByUs || whose == heldUntilNow {
			return false, false, nil
		}
		if free && i.txCommitted(ctx) {
			return false, true, idemkey.ErrTxMisuse
		}
		return false, free, nil
	case err != nil:
		return false, false, nil
	}
	return state == idemkey.StateCompleted || state == idemkey.StateTombstone, true, nil
}

func (i *inlineRecord) responseArgs(header []byte, r *idemkey.Response) []any {
	return []any{
		i.id.Namespace, i.id.Scope, i.id.Key, i.token, int(r.State()), r.Status, header, r.Body, r.KeyID,
		i.claim.FP.Sum, i.claim.FP.Alg, i.expires, i.claim.TTL.Milliseconds(), i.prior, i.priorState,
	}
}
