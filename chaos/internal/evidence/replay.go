package evidence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// sqlHistory are the messages that a service's transactions have written: those of its log, and
// those that were to be published later.
const sqlHistory = `
	SELECT id, message_id, topic, type, scope, key, step, n, payload FROM {schema}.outbox
	UNION ALL
	SELECT id, message_id, topic, type, scope, key, step, n, payload FROM chaos.delayed WHERE schema = '{schema}'`

const sqlListHistory = `
SELECT id FROM {schema}.outbox
UNION
SELECT id FROM chaos.delayed WHERE schema = '{schema}'`

// A ref names a message.
type ref struct {
	schema int // index of schemas
	id     int64
}

// replayBatch is how many messages are read and published at once.
const replayBatch = 256

// ReplayOptions are what a Replay is told besides.
type ReplayOptions struct {
	Seed uint64                           // of the order
	Out  *record.Writer[record.Injection] // nil: nobody is told
	Now  func() record.At                 // required with Out
}

// Replay publishes every message that the outboxes have ever been given once more, in an order of the
// seed's, and waits until all is drained. It returns how many, of which each was confirmed; it
// publishes again what was not. It remembers 16 bytes for each message. An error says
// that ctx has ended, or what is left.
func Replay(ctx context.Context, db *pgxpool.Pool, b Broker, o ReplayOptions) (n int, err error) {
	all, err := history(ctx, db)
	if err != nil {
		return 0, err
	}
	r := rand.New(rand.NewPCG(o.Seed, uint64(len(all))))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	pub, err := b.publishers()
	if err != nil {
		return 0, err
	}
	defer pub.close()
	for len(all) > 0 {
		size := min(replayBatch, len(all))
		if err := replay(ctx, db, pub, all[:size], o); err != nil {
			return n, err
		}
		n += size
		all = all[size:]
	}
	if left := Drained(ctx, db, b); len(left) > 0 {
		return n, fmt.Errorf("evidence: %d messages were published again, and this is left: %q", n, left)
	}
	return n, nil
}

// history lists all messages.
func history(ctx context.Context, db *pgxpool.Pool) (all []ref, err error) {
	for i, s := range schemas {
		if s.quiet {
			continue
		}
		rows, _ := db.Query(ctx, bind(s.name, sqlListHistory))
		var id int64
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			all = append(all, ref{i, id})
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("evidence: history of %s: %w", s.name, err)
		}
	}
	if len(all) == 0 {
		return nil, errNoHistory
	}
	return all, nil
}

// replay publishes some messages, in their order.
func replay(ctx context.Context, db *pgxpool.Pool, pub publishers, some []ref, o ReplayOptions) error {
	messages, err := read(ctx, db, some)
	if err != nil {
		return err
	}
	for _, saga := range []string{record.Order, record.Trip} {
		var batch []stored
		for i, r := range some {
			if schemas[r.schema].saga == saga {
				batch = append(batch, messages[i])
			}
		}
		if err := insist(ctx, pub, saga, batch, o); err != nil {
			return err
		}
	}
	return nil
}

// insist publishes batch until every message of it is confirmed.
func insist(ctx context.Context, pub publishers, saga string, batch []stored, o ReplayOptions) error {
	for len(batch) > 0 {
		var again []stored
		var last error
		for i, err := range pub.publish(ctx, saga, batch) {
			if err != nil {
				again, last = append(again, batch[i]), err
			} else if o.Out != nil {
				o.Out.Add(injection(o.Now(), record.Replayed, &batch[i]))
			}
		}
		if batch = again; len(batch) > 0 && pause(ctx, replayPause) != nil {
			return fmt.Errorf("evidence: %d messages could not be published again: %w", len(batch), errors.Join(ctx.Err(), last))
		}
	}
	return nil
}

const replayPause = 200 * time.Millisecond

// injection is what is recorded of a message that is published once more.
func injection(at record.At, kind string, m *stored) record.Injection {
	return record.Injection{
		At: at, Kind: kind, Topic: m.Topic, MessageID: m.MessageID.String(),
		Scope: m.Scope, Key: m.Key, Step: m.Step, N: m.N, Payload: record.Digest(m.Payload),
	}
}

// errNotKept reports that a relay has emptied a leaf since the messages in it were listed.
var errNotKept = errors.New("evidence: an outbox does not keep its messages: its relay has no Retention")

// read returns messages in the order of refs. Its error may be errNotKept.
func read(ctx context.Context, db *pgxpool.Pool, refs []ref) ([]stored, error) {
	ids := map[int][]int64{}
	at := map[ref]int{}
	for i, r := range refs {
		ids[r.schema] = append(ids[r.schema], r.id)
		at[r] = i
	}
	found := make([]stored, len(refs))
	for schema, some := range ids {
		messages, err := readMessages(ctx, db, schemas[schema], some)
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			found[at[ref{schema, m.ID}]] = m
		}
	}
	if slices.ContainsFunc(found, func(m stored) bool { return m.ID == 0 }) {
		return nil, errNotKept
	}
	return found, nil
}
