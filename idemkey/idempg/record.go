package idempg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
)

// A storedRecord is a record as it was read, with what names its owner.
type storedRecord struct {
	idemkey.Record
	token  pgtype.UUID
	header []byte
}

// readRecord returns the committed record, or nil. It never waits for a lock.
func (s *Store) readRecord(ctx context.Context, conn *pgxpool.Conn, id idemkey.Identity) (*storedRecord, error) {
	rows, err := conn.Query(ctx, s.q.readRecord, id.Namespace, id.Scope, id.Key)
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	return collectRecord(rows)
}

// collectRecord returns the record in rows, or nil. One that cannot be understood is
// [idemkey.ErrRecordCorrupt].
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
		r                        storedRecord
		leaseUntil, created, now time.Time
		expires                  pgtype.Timestamptz
		state, status            *int
		keyID                    *string
	)
	err := row.Scan(&state, &r.FP.Sum, &r.FP.Alg, &r.token, &r.Attempt, &leaseUntil, &created, &expires, &now,
		&status, &r.header, &r.Response.Body, &keyID)
	r.Age, r.Run = now.Sub(created), r.token.String()
	r.LeaseLeft = max(0, leaseUntil.Sub(now))
	if expires.InfinityModifier == pgtype.Finite {
		r.ExpiresAt, r.LifeLeft = expires.Time, max(0, expires.Time.Sub(now))
		r.Expired = r.LifeLeft == 0
	}
	r.Decided = leaseUntil.Unix() == 0
	if state != nil && *state == int(uint8(*state)) {
		r.State = idemkey.State(*state)
	}
	if status != nil {
		r.Response.Status = *status
	}
	if keyID != nil {
		r.Response.KeyID = *keyID
	}
	if err == nil {
		err = r.Check()
	}
	return &r, err
}

// decisionOf makes a decision of kind, with the response if the decision is a replay.
func (r *storedRecord) decisionOf(kind idemkey.Kind) (idemkey.Decision, error) {
	switch kind {
	case idemkey.KindInFlight:
		return inFlightDecision(r.LeaseLeft), nil
	case idemkey.KindReplay, idemkey.KindNotRetained:
		r.Response.Dropped = kind == idemkey.KindNotRetained
		if err := r.Response.UnmarshalHeader(r.header); err != nil {
			return idemkey.Decision{}, err
		}
		return idemkey.Decision{Kind: kind, Record: &r.Record}, nil
	case idemkey.KindUnknown:
		return idemkey.Decision{Kind: kind, Attempt: r.Attempt, Run: r.Run}, nil
	case idemkey.KindFingerprintUnknown:
		return idemkey.Decision{Kind: kind, FPAlg: r.FP.Alg}, nil
	}
	return idemkey.Decision{Kind: kind}, nil
}

// newToken returns the random name of one claim.
func newToken() pgtype.UUID {
	t := pgtype.UUID{Valid: true}
	rand.Read(t.Bytes[:]) // never fails
	return t
}
