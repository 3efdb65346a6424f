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

// An unfinished says how many of something there are.
type unfinished struct{ what, statement string }

// sqlCountOpen are cheap: an index leads to the few rows, or the table is small.
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

// sqlCountUnhandled counts messages that a step has not ended: its inbox has no row, or one in
// a state in which the message is not dealt with, and there is no dead letter. The digest tells a compensation
// from its action. Where the compensation came first, the row does not say whether the action
// has come as well: it changes nothing.
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

// FindLeftovers returns what is still to be done anywhere, in words. With none, the run has drained:
// outboxes, queues and parked messages are empty, no request is in progress, all sagas have
// ended, and every message that was ever written has been ended by each step that
// listens to it. Dead letters do not count, those of an outbox neither: it is for
// the judge to say whose they should be.
//
// The last of these reads every message, and is asked only when there is nothing else.
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

// countOpen asks all of sqlCountOpen in one round trip.
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
		return nil, fmt.Errorf("evidence: what is left: %w", err)
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

// The pauses between two looks at what is left.
const (
	minLook = 100 * time.Millisecond
	maxLook = time.Second
)

// AwaitDrained waits until nothing is left, and returns what was left when ctx ended. What cannot be
// looked at, since a server is away, is left as well.
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
		if backoff.Sleep(ctx, max(wait, 2*time.Since(began))) != nil { // a look is work for the database
			return left
		}
	}
}

// errNoHistory reports that there is nothing to publish again.
var errNoHistory = errors.New("evidence: the outboxes hold no message")
