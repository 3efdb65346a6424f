package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/stepkey"
)

// A row is a stored or a held message, locked by the pass.
type row struct {
	ID                                            int64
	MessageID                                     uuid.UUID
	Topic, Type, Scope, Key, Step, N, OrderingKey string
	CorrelationID, CausationID, ContentType       string
	Headers                                       []byte
	Payload                                       []byte
	CreatedAt                                     time.Time
	Attempts                                      int
	Held                                          bool
}

// take makes this relay the active one and locks the next batch. It returns
// nothing while another relay is active.
func (r *Relay) take(ctx context.Context, tx pgx.Tx) ([]row, error) {
	if _, err := tx.Exec(ctx, r.sql.limitIdle, strconv.FormatInt(r.limit().Milliseconds(), 10)); err != nil {
		return nil, fmt.Errorf("limit idle time: %w", err)
	}
	var leads bool
	if err := tx.QueryRow(ctx, r.sql.tryLead).Scan(&leads); err != nil {
		return nil, fmt.Errorf("try to lead: %w", err)
	}
	if !leads {
		r.signals.standby.Send(true)
		return nil, nil
	}
	// Held messages get half of the batch at the most: a topic that refuses
	// everything must not hold up the others.
	batch, err := lockRows(ctx, tx, r.sql.lockHeld, max(1, r.opts.Batch/2), maxBatchBytes/2)
	if err != nil {
		return nil, err
	}
	stored, err := lockRows(ctx, tx, r.sql.lockStored, max(1, r.opts.Batch-len(batch)), maxBatchBytes/2)
	if err != nil {
		return nil, err
	}
	batch = append(batch, stored...)
	// A delayed message that is due does not overtake an older one of its key.
	slices.SortFunc(batch, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
	return batch, nil
}

// maxBatchBytes is how many bytes of payload a pass takes into memory, give or
// take a message.
const maxBatchBytes = 64 << 20

func lockRows(ctx context.Context, tx pgx.Tx, statement string, limit, bytes int) ([]row, error) {
	rows, _ := tx.Query(ctx, statement, limit, bytes)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, fmt.Errorf("lock messages: %w", err)
	}
	return found, nil
}

// errHeldBack is the result of a message that was not published because an
// earlier one of its ordering key was not.
var errHeldBack = errors.New("outbox: an earlier message of the ordering key is not published")

// publish hands batch to the broker, one message of each ordering key at a
// time: had two of them been in flight, a refusal of the first would let the
// second overtake it. Most keys have one message in a batch, so that this is
// one call for almost all of it.
func (r *Relay) publish(ctx context.Context, batch []row) []error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.PublishTimeout)
	defer cancel()
	results := make([]error, len(batch))
	blocked := map[string]bool{}
	for left := indexes(batch); len(left) > 0; {
		var wave, later []int
		inFlight := map[string]bool{}
		for _, i := range left {
			switch key := batch[i].OrderingKey; {
			case blocked[key]:
				results[i] = errHeldBack
			case inFlight[key]:
				later = append(later, i)
			default:
				inFlight[key] = true
				wave = append(wave, i)
			}
		}
		r.publishWave(ctx, batch, wave, results)
		for _, i := range wave {
			blocked[batch[i].OrderingKey] = results[i] != nil
		}
		left = later
	}
	return results
}

func (r *Relay) publishWave(ctx context.Context, batch []row, wave []int, results []error) {
	publications := make([]Publication, 0, len(wave))
	sent := make([]int, 0, len(wave))
	for _, i := range wave {
		msg, err := batch[i].message()
		if err != nil { // nothing but a row that somebody wrote by hand
			results[i] = fmt.Errorf("%w: %w", ErrRefused, err)
			continue
		}
		publications = append(publications, Publication{Topic: batch[i].Topic, Message: msg})
		sent = append(sent, i)
	}
	if len(sent) == 0 {
		return
	}
	answers := r.publishSafely(ctx, publications)
	for j, i := range sent {
		if j >= len(answers) {
			results[i] = fmt.Errorf("outbox: publisher gave %d results for %d messages", len(answers), len(sent))
			continue
		}
		results[i] = answers[j]
	}
}

// publishSafely survives a publisher that panics over a message: the others go
// out one by one, and the culprit is refused.
func (r *Relay) publishSafely(ctx context.Context, publications []Publication) (answers []error) {
	defer func() {
		value := recover()
		switch {
		case value == nil:
		case len(publications) == 1:
			answers = []error{fmt.Errorf("%w: the publisher panicked: %v", ErrRefused, value)}
		default:
			answers = nil
			for _, p := range publications {
				answers = append(answers, r.publishSafely(ctx, []Publication{p})...)
			}
		}
	}()
	return r.pub.PublishBatch(ctx, publications)
}

func indexes(batch []row) []int {
	all := make([]int, len(batch))
	for i := range all {
		all[i] = i
	}
	return all
}

// message renders m as it goes over the wire. The step key is derived here
// from the stored parts.
func (m *row) message() (*message.Message, error) {
	msg := message.NewMessage(m.MessageID.String(), m.Payload)
	if len(m.Headers) > 0 {
		if err := json.Unmarshal(m.Headers, &msg.Metadata); err != nil {
			return nil, fmt.Errorf("outbox: stored headers of message %s: %w", msg.UUID, err)
		}
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[HeaderKey] = stepkey.Key{Key: m.Key, Step: m.Step, N: m.N}.String()
	msg.Metadata[HeaderScope] = m.Scope
	if m.CausationID != "" {
		msg.Metadata[HeaderCausation] = m.CausationID
	}
	msg.Metadata[PropertyType] = m.Type
	msg.Metadata[PropertyTimestamp] = m.CreatedAt.UTC().Format(time.RFC3339Nano)
	msg.Metadata[PropertyCorrelation] = m.CorrelationID
	msg.Metadata[PropertyContentType] = m.ContentType
	return msg, nil
}

// settle records what the broker answered. n counts the messages that were
// published or refused; unavailable is an error of the rest, if any, which
// stay where they are and spend no attempt.
func (r *Relay) settle(ctx context.Context, tx pgx.Tx, batch []row, results []error) (n int, unavailable, err error) {
	var stored, held []int64
	for i := range batch {
		switch err := results[i]; {
		case err == nil && batch[i].Held:
			held = append(held, batch[i].ID)
		case err == nil:
			stored = append(stored, batch[i].ID)
		case errors.Is(err, ErrRefused):
			if err := r.hold(ctx, tx, &batch[i], err); err != nil {
				return 0, nil, err
			}
		case errors.Is(err, errHeldBack):
			continue
		default:
			unavailable = err
			continue
		}
		n++
	}
	if err := forget(ctx, tx, r.sql.deleteStored, stored); err != nil {
		return 0, nil, err
	}
	return n, unavailable, forget(ctx, tx, r.sql.deleteHeld, held)
}

func forget(ctx context.Context, tx pgx.Tx, statement string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, statement, ids); err != nil {
		return fmt.Errorf("forget published messages: %w", err)
	}
	return nil
}

// maxReason is how many bytes of a refusal's text are kept.
const maxReason = 1000

// hold keeps a refused message aside until it is due again, or, with its
// attempts used up, as a dead letter.
func (r *Relay) hold(ctx context.Context, tx pgx.Tx, m *row, refusal error) error {
	attempts := m.Attempts + 1
	state, wait, level := "refused", r.retry.Wait(attempts), r.opts.Logger.WarnContext
	if attempts >= r.opts.MaxAttempts {
		state, wait, level = "dead", 0, r.opts.Logger.ErrorContext
	}
	level(ctx, "outbox: message refused by the broker", "schema", r.opts.Schema, "state", state,
		"message_id", m.MessageID, "topic", m.Topic, "step", m.Step, "attempts", attempts, "error", refusal)
	statement := r.sql.holdStored
	if m.Held {
		statement = r.sql.holdAgain
	}
	if _, err := tx.Exec(ctx, statement, m.ID, state, wait.Microseconds(), cleantext.Clip(refusal.Error(), maxReason)); err != nil {
		return fmt.Errorf("hold refused message: %w", err)
	}
	return nil
}
