package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A Reader reads what pages show of one schema: messages of the outbox, topics, idempotency keys and what people have
// done. It changes nothing and takes no lock. [Options].ReadTimeout limits each of its statements. Any number of
// goroutines may use it.
type Reader struct {
	db    pg.Own
	begin string
	sql   readerQueries
	where outboxQueries
}

// NewReader returns the Reader of a schema. It does no I/O. Its errors name a schema that is not a plain identifier, or a
// missing pool. By and Why are not used.
func NewReader(db *pgxpool.Pool, opts *Options) (*Reader, error) {
	o, err := opts.withDefaults()
	switch {
	case err != nil:
		return nil, err
	case db == nil:
		return nil, errors.New("operator: NewReader needs a pool")
	}
	return &Reader{db: pg.NewOwn(db), begin: o.beginLimitedRead(), sql: newReaderQueries(o.Schema), where: newOutboxQueries(o.Schema)}, nil
}

// read calls do in a transaction with the limit of [Options].ReadTimeout.
func (r *Reader) read(ctx context.Context, do func(pgx.Tx) error) error {
	return r.db.InTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly, BeginQuery: r.begin}, do)
}

// readByIndex is read for the log and for other large tables, whose statistics mislead: it plans by their indexes.
func (r *Reader) readByIndex(ctx context.Context, do func(pgx.Tx) error) error {
	return r.read(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, r.where.planByIndex); err != nil {
			return err
		}
		return do(tx)
	})
}

// readBySearch is read for messages of the log with a key or an id.
func (r *Reader) readBySearch(ctx context.Context, do func(pgx.Tx) error) error {
	return r.read(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, r.where.planBySearch); err != nil {
			return err
		}
		return do(tx)
	})
}

// PlaceLog is for a [MessageFilter]: all messages of the log, published or not, the newest first.
const PlaceLog Place = "log"

// A MessageFilter picks messages of an outbox. A message matches if it matches every field that is not empty.
type MessageFilter struct {
	Place Place // required: PlaceLog, or any place but PlacePublished

	Topic, Type, Scope, Key    string
	OrderingKey, CorrelationID string
	MessageID                  string // a UUID
}

// args returns the parameters of messageFilter. Its error is an [ErrInvalid].
func (f *MessageFilter) args() ([]any, error) {
	var id *uuid.UUID
	if f.MessageID != "" {
		parsed, err := uuid.Parse(f.MessageID)
		if err != nil {
			return nil, fmt.Errorf("%w: the message id is not a UUID", ErrInvalid)
		}
		id = &parsed
	}
	return []any{f.Topic, f.Type, f.Scope, f.Key, f.OrderingKey, id, f.CorrelationID}, nil
}

// A MessageMark is where a list of messages goes on: behind a message. The zero mark is the beginning.
type MessageMark struct {
	ID  int64  `json:"id"`
	Xid string `json:"xid,omitempty"` // of the transaction that wrote it, for PlaceStored
}

// ListMessages lists up to limit messages that filter picks, at most [MaxList], and returns where the list goes on; nil:
// this is its end. Stored messages are in the order in which their transactions began, held ones in the order of their
// IDs, and those of the log the newest first. Following the marks, no message is listed twice while it stays in its place.
//
// Of the log, messages with a Key or a MessageID are found by an index. Other filters have none: a filter that picks few
// of many messages reads all that are in the place.
func (r *Reader) ListMessages(ctx context.Context, filter MessageFilter, after MessageMark, limit int) (all []OutboxMessage, next *MessageMark, err error) {
	args, err := filter.args()
	if err != nil {
		return nil, nil, fmt.Errorf("operator: list messages: %w", err)
	}
	limit = min(limit, MaxList)
	statement := r.sql.listHeld
	switch filter.Place {
	case PlaceStored:
		statement = r.sql.listStored
		if after.Xid == "" {
			after.Xid = "0"
		}
		if _, err := strconv.ParseUint(after.Xid, 10, 64); err != nil {
			return nil, nil, fmt.Errorf("operator: list messages: %w: the mark is not one of this list", ErrInvalid)
		}
		args = append(args, after.Xid, after.ID)
	case PlaceLog:
		statement = r.sql.listLog
		if after.ID == 0 {
			after.ID = math.MaxInt64
		}
		args = append(args, after.ID)
	case PlaceDelayed, PlaceWaiting, PlaceRefused, PlaceDead:
		args = append(args, string(filter.Place), after.ID)
	default:
		return nil, nil, fmt.Errorf("operator: list messages: %w: there is no place %.20q to list", ErrInvalid, filter.Place)
	}
	read := r.read
	switch {
	case filter.Place == PlaceLog && (filter.Key != "" || filter.MessageID != ""):
		read = r.readBySearch
	case filter.Place == PlaceStored || filter.Place == PlaceLog:
		read = r.readByIndex
	}
	var mark MessageMark
	err = read(ctx, func(tx pgx.Tx) error {
		all = nil
		rows, _ := tx.Query(ctx, statement, append(args, limit)...)
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m OutboxMessage, err error) {
			err = scanOutboxMessage(row, &m, &mark.Xid)
			mark.ID = m.ID
			return m, err
		})
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("operator: list messages: %w", sqlschema.Explain(err))
	}
	if len(all) > 0 && len(all) == limit {
		next = &mark
	}
	return all, next, nil
}

// scanOutboxMessage reads the transaction, a message with its blocker, and then what more has room for.
func scanOutboxMessage(row pgx.CollectableRow, m *OutboxMessage, xid *string, more ...any) error {
	var h Blocker
	null := func(s *string) *zeronull.Text { return (*zeronull.Text)(s) }
	at := func(t *time.Time) *zeronull.Timestamptz { return (*zeronull.Timestamptz)(t) }
	targets := []any{xid, &m.ID, &m.MessageID, &m.Place,
		&m.Topic, &m.Type, &m.Scope, &m.Key, &m.Step, &m.N, &m.OrderingKey, &m.CorrelationID, &m.CausationID,
		&m.Size, &m.CreatedAt, at(&m.DueAt), &m.Attempts, &m.Reason, at(&m.RefusedAt),
		&h.ID, null(&h.Topic), null(&h.Scope), null(&h.Key), null(&h.Step), null(&h.N), &h.Attempts, null(&h.Reason), at(&h.RetryAt)}
	if err := row.Scan(append(targets, more...)...); err != nil {
		return err
	}
	if h.ID != 0 {
		m.Behind = &h
	}
	return nil
}

// A StoredMessage is a message of an outbox with its content.
type StoredMessage struct {
	OutboxMessage
	ContentType string
	Headers     json.RawMessage // as stored: an object; nil without headers
	Payload     []byte          // its first bytes, if it is longer than a limit: see Size
}

// ErrNoMessage reports that an outbox does not have a message: it was published and the log was emptied since, or it was
// discarded, or it never existed.
var ErrNoMessage = errors.New("operator: no such message in the outbox")

// GetMessage returns a message of any place with its content, and with the first limit bytes of its payload. Its error is
// an [ErrNoMessage] if there is none.
func (r *Reader) GetMessage(ctx context.Context, id int64, limit int) (m StoredMessage, err error) {
	err = r.readByIndex(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, r.sql.readMessage, id, max(0, limit))
		m, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (m StoredMessage, err error) {
			var xid string
			return m, scanOutboxMessage(row, &m.OutboxMessage, &xid, &m.ContentType, &m.Headers, &m.Payload)
		})
		return err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return m, ErrNoMessage
	case err != nil:
		return m, fmt.Errorf("operator: read message %d: %w", id, sqlschema.Explain(err))
	}
	return m, nil
}

// A WaitingKey is an ordering key whose messages are held up.
type WaitingKey struct {
	OrderingKey string
	Messages    int       // refused and waiting; those that the relay has not read yet are not counted
	Oldest      time.Time // when the first of them was written
	State       Place     // of First: refused or waiting
	First       Blocker   // what the others wait for
}

// ListWaitingKeys lists ordering keys behind after that are held up, in their order: at most limit, and at most [MaxList].
func (r *Reader) ListWaitingKeys(ctx context.Context, after string, limit int) (all []WaitingKey, err error) {
	err = r.read(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, r.sql.listWaitingKeys, after, min(limit, MaxList))
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (k WaitingKey, err error) {
			b := &k.First
			return k, row.Scan(&k.OrderingKey, &k.Messages, &k.Oldest, &k.State, &b.ID, &b.Topic, &b.Scope, &b.Key, &b.Step, &b.N,
				&b.Attempts, &b.Reason, (*zeronull.Timestamptz)(&b.RetryAt))
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("operator: list waiting keys: %w", sqlschema.Explain(err))
	}
	return all, nil
}

// maxSampled is how many of the newest messages a flow or a list of topics reads.
const maxSampled = 10_000

// A Flow says how many messages passed an outbox in the last minute. It is read from the log, so it is too small just
// after the relay has emptied a table of it.
type Flow struct {
	Written   int
	Published int  // of those
	Capped    bool // there were more: only the newest 10,000 are counted
}

// ReadFlow reads the flow of the last minute.
func (r *Reader) ReadFlow(ctx context.Context) (f Flow, err error) {
	var read int
	err = r.readByIndex(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, r.sql.readFlow, maxSampled).Scan(&f.Written, &f.Published, &f.Capped, &read)
	})
	if err != nil {
		return Flow{}, fmt.Errorf("operator: read flow: %w", sqlschema.Explain(err))
	}
	f.Capped = f.Capped && read == maxSampled
	return f, nil
}
