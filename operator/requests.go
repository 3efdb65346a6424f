package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A RequestFilter names an idempotency key.
type RequestFilter struct {
	Namespace string // default: any
	Scope     string // default: any. Without a scope the cost is one look-up for each scope that has keys
	Key       string // required
}

// A RequestState is the state of the record of an idempotency key.
type RequestState int16

// The states, as package idemkey stores them.
const (
	RequestInProgress RequestState = 1
	RequestFailed     RequestState = 2 // it may run again, for the same request only
	RequestCompleted  RequestState = 3 // the response is kept
	RequestTombstone  RequestState = 4 // it has run, and the body of the response is not kept
	RequestUnknown    RequestState = 5 // it may have run, and waits for a decision: see [Keys]
)

// String returns the name of the state.
func (s RequestState) String() string {
	names := map[RequestState]string{RequestInProgress: "in progress", RequestFailed: "failed", RequestCompleted: "completed", RequestTombstone: "tombstone", RequestUnknown: "unknown"}
	if name := names[s]; name != "" {
		return name
	}
	return fmt.Sprintf("state %d", int16(s))
}

// A RequestRecord is what PostgreSQL has of an idempotency key: never the response itself.
type RequestRecord struct {
	Namespace, Scope, Key string
	State                 RequestState
	Attempt               int
	LeaseUntil            time.Time
	Status                int   // HTTP status of the response; 0: none
	Bytes                 int64 // of the stored body; -1: the role may not read it
	CreatedAt             time.Time
	CompletedAt           time.Time // zero: not yet
	ExpiresAt             time.Time // zero: once its outcome is known
	At                    time.Time // the moment, by the clock of the database
}

// FindRequests returns the records of a key, the newest first, at most [MaxList]. PREFIX_reader may not read them, since a
// key may be all that a client proves itself with: the error is then that of PostgreSQL, with the code 42501. The size of
// the response needs SELECT on the column resp_body as well. Keys that are kept in Redis are not found.
func (r *Reader) FindRequests(ctx context.Context, filter RequestFilter) (all []RequestRecord, err error) {
	if filter.Key == "" {
		return nil, fmt.Errorf("operator: find requests: %w: a Key is needed", ErrInvalid)
	}
	all, err = r.findRequests(ctx, r.sql.findRequestsSized, filter)
	if isDenied(err) {
		all, err = r.findRequests(ctx, r.sql.findRequests, filter)
	}
	if err != nil {
		return nil, fmt.Errorf("operator: find requests: %w", sqlschema.Explain(err))
	}
	return all, nil
}

func (r *Reader) findRequests(ctx context.Context, statement string, f RequestFilter) (all []RequestRecord, err error) {
	err = r.readByIndex(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, statement, f.Namespace, f.Scope, f.Key, MaxList)
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (q RequestRecord, err error) {
			var size *int64
			at := func(t *time.Time) *zeronull.Timestamptz { return (*zeronull.Timestamptz)(t) }
			err = row.Scan(&q.Namespace, &q.Scope, &q.Key, &q.State, &q.Attempt, &q.LeaseUntil, &q.Status, &size, &q.CreatedAt, at(&q.CompletedAt), at(&q.ExpiresAt), &q.At)
			switch {
			case size != nil:
				q.Bytes = *size
			case statement == r.sql.findRequests:
				q.Bytes = -1
			}
			return q, err
		})
		return err
	})
	return all, err
}

// Digest names the record without showing the key: see [KeyRef].
func (q *RequestRecord) Digest() string {
	return idemkey.Identity{Namespace: q.Namespace, Scope: q.Scope, Key: q.Key}.Digest()
}

// Abandoned reports whether the process that ran the request has died or hangs.
func (q *RequestRecord) Abandoned() bool {
	return q.State == RequestInProgress && !q.LeaseUntil.After(q.At)
}

// Expired reports whether the life of the record has ended. A sweeper removes it later.
func (q *RequestRecord) Expired() bool { return !q.ExpiresAt.IsZero() && !q.ExpiresAt.After(q.At) }

// Unknown reports whether the outcome of the request is unknown, so that no retry runs it before somebody decides.
func (q *RequestRecord) Unknown() bool {
	return q.State == RequestUnknown || q.Abandoned() && q.ExpiresAt.IsZero()
}

// DescribeRetry says what a client gets that repeats the same request at the moment of the record, by the defaults of
// package idemkey.
func (q *RequestRecord) DescribeRetry() string {
	live := q.State == RequestInProgress && !q.Abandoned()
	switch {
	case q.Unknown():
		return "409 outcome-unknown: it may have run, and it runs again only after a decision (sagamill keys)."
	case live:
		return "409 in-progress, with Retry-After: an attempt runs it now."
	case q.State == RequestInProgress:
		return "The request runs again: the process of the earlier attempt has died or hangs, and has committed nothing."
	case q.Expired():
		return "The request runs as a new one: the record has expired. A service that rejects expired keys answers 410 key-expired."
	case q.State == RequestFailed:
		return "The request runs again: the last attempt failed and has committed nothing."
	case q.State == RequestCompleted:
		return fmt.Sprintf("The stored response again, with status %d. Nothing runs.", q.Status)
	case q.State == RequestTombstone:
		return fmt.Sprintf("410 response-not-retained: the request has run with status %d, and its body was not kept. Nothing runs.", q.Status)
	}
	return "Not known: a newer version has written this state."
}
