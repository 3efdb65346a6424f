package evidence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/outboxsql"
)

// sqlHistory returns the messages that a service's transactions have written: those of its log, and delayed
// ones. A delayed message that became due is in both.
const sqlHistory = `
	SELECT id, message_id, topic, ` + outboxsql.LoggedType + ` AS type, scope, key, step, n, payload FROM {schema}.outbox m
	UNION ALL
	SELECT id, message_id, topic, type, scope, key, step, n, payload FROM chaos.delayed WHERE schema = '{schema}'`

// sqlListHistory lists each message once: one that was moved into the log as it was published.
const sqlListHistory = `
SELECT DISTINCT ON (message_id) id FROM (
	SELECT id, message_id FROM {schema}.outbox
	UNION ALL
	SELECT id, message_id FROM chaos.delayed WHERE schema = '{schema}') written
ORDER BY message_id, id DESC`

// A ref names a message.
type ref struct {
	schema int // index of schemas
	id     int64
}

const (
	replayBatch   = 256    // messages in a batch
	replayWorkers = 3      // batches published at the same time
	replayReady   = 20_000 // with more messages in the queues, the replay waits for the consumers
	replayPause   = 200 * time.Millisecond
	lookEvery     = 8 // batches between two reads of the queues' depths
)

// ReplayOptions configure ReplayHistory.
type ReplayOptions struct {
	Seed uint64                           // determines the order
	Out  *record.Writer[record.Injection] // nil: not recorded
	Now  func() record.At                 // required with Out
}

// ReplayHistory publishes again every message that the outboxes have ever had, in an order drawn from the seed,
// and waits until all work is done. It repeats a message until it is confirmed, and returns the number of
// confirmed ones. It needs 16 bytes of memory for each message. An error reports that ctx has ended, or which
// work is left.
func ReplayHistory(ctx context.Context, db *pgxpool.Pool, b Broker, o ReplayOptions) (n int, err error) {
	all, err := readHistory(ctx, db)
	if err != nil {
		return 0, err
	}
	r := rand.New(rand.NewPCG(o.Seed, uint64(len(all))))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	pub, err := b.publishers()
	if err != nil {
		return 0, err
	}
	defer pub.closePublishers()
	p := player{db: db, pub: pub, gauge: gauge{broker: b}, opts: o}
	if n, err = p.playMessages(ctx, all); err != nil {
		return n, err
	}
	if left := AwaitDrained(ctx, db, b); len(left) > 0 {
		return n, fmt.Errorf("evidence: %d messages were published again; unfinished work: %q", n, left)
	}
	return n, nil
}

// readHistory lists all messages.
func readHistory(ctx context.Context, db *pgxpool.Pool) (all []ref, err error) {
	for i, s := range schemas {
		if s.quiet {
			continue
		}
		rows, _ := db.Query(ctx, bindSchema(s.name, sqlListHistory))
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

// A player publishes a history.
type player struct {
	db    *pgxpool.Pool
	pub   publishers
	gauge gauge
	opts  ReplayOptions
}

// playMessages publishes all batches, in no order, and returns the number of messages. It goes no faster than
// the consumers, because the queues would fill the broker's memory.
func (p *player) playMessages(ctx context.Context, all []ref) (n int, err error) {
	defer p.gauge.dropChannel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	batches := make(chan []ref)
	var published atomic.Int64
	var workers sync.WaitGroup
	for range replayWorkers {
		workers.Go(func() {
			for some := range batches {
				if err := p.publishSome(ctx, some); err != nil {
					stop(err) // the first error counts
				} else {
					published.Add(int64(len(some)))
				}
			}
		})
	}
	for i := 0; len(all) > 0 && ctx.Err() == nil; i++ {
		if i%lookEvery == 0 {
			p.awaitTurn(ctx)
		}
		size := min(replayBatch, len(all))
		batches <- all[:size]
		all = all[size:]
	}
	close(batches)
	workers.Wait()
	return int(published.Load()), context.Cause(ctx)
}

// awaitTurn waits until the queues have room. While the broker is down there is none.
func (p *player) awaitTurn(ctx context.Context) {
	for {
		ready, err := 0, ctx.Err()
		var queues []record.Queue
		if err == nil {
			queues, err = p.gauge.readDepths(ctx)
		}
		for _, q := range queues {
			ready += q.Ready
		}
		if err == nil && ready < replayReady || backoff.Sleep(ctx, replayPause) != nil {
			return
		}
	}
}

// publishSome publishes some messages and returns when each is confirmed.
func (p *player) publishSome(ctx context.Context, some []ref) error {
	messages, err := readStored(ctx, p.db, some)
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
		if err := publishUntilDone(ctx, p.pub, saga, batch, p.opts); err != nil {
			return err
		}
	}
	return nil
}

// publishUntilDone publishes batch until every message of it is confirmed.
func publishUntilDone(ctx context.Context, pub publishers, saga string, batch []stored, o ReplayOptions) error {
	for len(batch) > 0 {
		var again []stored
		var last error
		for i, err := range pub.publishStored(ctx, saga, batch) {
			if err != nil {
				again, last = append(again, batch[i]), err
			} else if o.Out != nil {
				o.Out.AddRecord(injection(o.Now(), record.Replayed, &batch[i]))
			}
		}
		if batch = again; len(batch) > 0 && backoff.Sleep(ctx, replayPause) != nil {
			return fmt.Errorf("evidence: %d messages could not be published again: %w", len(batch), errors.Join(ctx.Err(), last))
		}
	}
	return nil
}

// injection returns the record of a message that is published again.
func injection(at record.At, kind string, m *stored) record.Injection {
	return record.Injection{
		At: at, Kind: kind, Topic: m.Topic, MessageID: m.MessageID.String(),
		Scope: m.Scope, Key: m.Key, Step: m.Step, N: m.N, Payload: record.DigestOf(m.Payload),
	}
}

// errNotKept reports that a relay has emptied a leaf since the messages in it were listed.
var errNotKept = errors.New("evidence: an outbox does not keep its messages: its relay has no Retention")

// readStored returns messages in the order of refs. Its error may be errNotKept.
func readStored(ctx context.Context, db *pgxpool.Pool, refs []ref) ([]stored, error) {
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
