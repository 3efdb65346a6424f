package evidence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/outbox"
)

// An unfinished counts one sort of unfinished work.
type unfinished struct{ what, statement string }

// sqlCountOpen returns cheap statements: each reads a few rows by an index, or a small table.
func sqlCountOpen() (all []unfinished) {
	all = append(all,
		unfinished{"orders that have not ended", "SELECT count(*) FROM order_service.orders WHERE status IN ('pending', 'paid')"},
		unfinished{"trips that have not ended", "SELECT count(*) FROM trip_service.saga WHERE ended_at IS NULL"})
	for _, name := range speaking() {
		all = append(all, unfinished{name + ": parked messages", bindSchema(name, "SELECT count(*) FROM {schema}.parked WHERE state = 'retrying'")})
	}
	for _, s := range schemas {
		if s.name == "order_service" || s.name == "trip_service" || s.quiet {
			all = append(all, unfinished{s.name + ": requests in progress",
				bindSchema(s.name, "SELECT count(*) FROM {schema}.idempotency_key WHERE state = 1 AND lease_until > clock_timestamp()")})
		}
	}
	return all
}

// sqlCountUnhandled counts messages that a step has not settled: no dead letter exists, and the inbox has no
// row, or one in an unsettled state. The digest distinguishes a compensation from its action. If the
// compensation came first, the row does not show whether the action came too, which changes nothing.
const sqlCountUnhandled = `
SELECT count(*), coalesce(min(m.id), 0)
FROM ({messages}) m
WHERE m.topic = $1 AND m.type = $2
	AND NOT EXISTS (
		SELECT FROM {schema}.inbox i
		WHERE i.scope = m.scope AND i.key = m.key AND i.step = $3 AND i.n = m.n AND i.{ended}
			AND (i.{digest} = sha256(m.payload) OR i.state = 'void' AND NOT $4))
	AND NOT EXISTS (
		SELECT FROM {schema}.parked p
		WHERE p.scope = m.scope AND p.key = m.key AND p.step = $3 AND p.n = m.n AND p.state = 'dead' AND p.message_id = convert_to(m.message_id::text, 'UTF8'))`

// FindLeftovers describes all unfinished work. Without any, the run has drained: outboxes, queues and parked
// messages are empty, no request is in progress, and all sagas have ended. Each listening step has then settled
// every message ever written. Dead letters of inboxes and outboxes do not count: the judge decides whether they
// are expected.
//
// The check of every message reads all of them, so it runs only if the others find nothing.
func FindLeftovers(ctx context.Context, db *pgxpool.Pool, b Broker) (left []string, err error) {
	for _, name := range speaking() {
		s, err := outbox.ReadStats(ctx, db, name)
		if err != nil {
			return nil, fmt.Errorf("evidence: %w", err)
		}
		if n := s.Stored + s.Delayed + s.Waiting + s.Refused; n > 0 {
			left = append(left, fmt.Sprintf("%s: messages to be published: %d stored, %d delayed, %d waiting, %d refused", name, s.Stored, s.Delayed, s.Waiting, s.Refused))
		}
	}
	open, err := countOpen(ctx, db)
	if err != nil {
		return nil, err
	}
	queues, err := b.queueDepths(ctx)
	if err != nil {
		return nil, err
	}
	left = append(left, open...)
	for _, q := range queues {
		if q.Ready+q.Unacked > 0 {
			left = append(left, fmt.Sprintf("queue %s: %d ready, %d unacked", q.Name, q.Ready, q.Unacked))
		}
	}
	if len(left) > 0 {
		return left, nil
	}
	return countUnhandled(ctx, db)
}

// countOpen executes all of sqlCountOpen in one round trip.
func countOpen(ctx context.Context, db *pgxpool.Pool) (left []string, err error) {
	batch := &pgx.Batch{}
	for _, u := range sqlCountOpen() {
		batch.Queue(u.statement).QueryRow(func(row pgx.Row) error {
			var n int
			if err := row.Scan(&n); err != nil {
				return fmt.Errorf("%s: %w", u.what, err)
			}
			if n > 0 {
				left = append(left, fmt.Sprintf("%s: %d", u.what, n))
			}
			return nil
		})
	}
	if err := db.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("evidence: count the unfinished work: %w", err)
	}
	return left, nil
}

func countUnhandled(ctx context.Context, db *pgxpool.Pool) (left []string, err error) {
	for _, l := range Listeners {
		var messages []string
		for _, from := range l.from {
			messages = append(messages, bindSchema(from, sqlHistory))
		}
		statement := strings.NewReplacer("{messages}", strings.Join(messages, " UNION ALL "), "{digest}", l.digestColumn(), "{ended}", l.endedStates(), "{schema}", l.Schema).Replace(sqlCountUnhandled)
		var n, first int64
		if err := db.QueryRow(ctx, statement, l.Topic, l.Type, l.Step, l.Undo).Scan(&n, &first); err != nil {
			return nil, fmt.Errorf("evidence: messages of %s: %w", l.Topic, err)
		}
		if n > 0 {
			left = append(left, fmt.Sprintf("%s: step %s has not ended %d messages of %s, such as %d", l.Schema, l.Step, n, l.Topic, first))
		}
	}
	return left, nil
}

// The pauses between two checks.
const (
	minLook = 100 * time.Millisecond
	maxLook = time.Second
)

// AwaitDrained waits until all work is done, and returns the work left when ctx ended. An unreachable server
// counts as work left.
func AwaitDrained(ctx context.Context, db *pgxpool.Pool, b Broker) (left []string) {
	for wait := minLook; ; wait = min(wait*2, maxLook) {
		began := time.Now()
		now, err := FindLeftovers(ctx, db, b)
		switch {
		case ctx.Err() != nil && left != nil:
			return left
		case err != nil:
			left = []string{err.Error()}
		case len(now) == 0:
			return nil
		default:
			left = now
		}
		if backoff.Sleep(ctx, max(wait, 2*time.Since(began))) != nil { // a check costs the database time
			return left
		}
	}
}

// errNoHistory reports that no message can be published again.
var errNoHistory = errors.New("evidence: the outboxes hold no message")
