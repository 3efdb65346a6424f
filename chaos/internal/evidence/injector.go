package evidence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/backoff"
)

// The amounts and limits of injections.
const (
	poisonShare  = 0.05 // poison, as a part of the rate of sagas
	maxPoison    = 300  // in a run
	maxLarge     = 2    // messages over the size limit, among them
	reusedShare  = 8    // one poison of so many is another payload under a step's identity
	duplicates   = 25   // a second
	injectEvery  = 250 * time.Millisecond
	injectLimit  = 10 * time.Second // for one look at the database
	lastInsist   = 30 * time.Second // for poison without a confirmation when the storm is over
	insistPause  = 300 * time.Millisecond
	maxDuplicate = 64 // at once, after an outage of the broker or database
)

// InjectorOptions configure an [Injector]. All are required.
type InjectorOptions struct {
	DB     *pgxpool.Pool
	Broker Broker
	Seed   uint64
	Run    record.Options // Storm and Sagas
	Out    *record.Writer[record.Injection]
	Now    func() record.At
}

// An Injector publishes messages that the services have not published, or not now.
//
// No service can handle poison: it must end as a dead letter of each service that gets it, and touch no saga.
// The injector publishes it until the broker has confirmed it, and then records it.
//
// A duplicate is an old message that every listening service has in its inbox. It must change nothing. It is
// recorded if it was confirmed.
type Injector struct {
	opts InjectorOptions
	rand *rand.Rand
	raw  raw
	pub  publishers

	large    int
	mu       sync.Mutex
	served   map[string][]string // ids of the poison of each topic
	poisoned atomic.Int64
	doubled  atomic.Int64
	handled  atomic.Int64
}

// NewInjector returns an Injector. It starts nothing: call [Injector.Run].
func NewInjector(o InjectorOptions) (*Injector, error) {
	if o.DB == nil || o.Broker.Namespace == nil || o.Out == nil || o.Now == nil || o.Run.Storm <= 0 {
		return nil, errors.New("evidence: NewInjector needs DB, Broker, Run.Storm, Out and Now")
	}
	pub, err := o.Broker.publishers()
	if err != nil {
		return nil, err
	}
	return &Injector{opts: o, rand: rand.New(rand.NewPCG(o.Seed, 0)), raw: raw{broker: o.Broker}, pub: pub, served: map[string][]string{}}, nil
}

// An Injected counts the messages that an Injector has published.
type Injected struct {
	Poison     int
	Duplicates int
	Handled    int // duplicates whose step every service had ended before
}

// Injected returns the counts so far. It may be called during Run.
func (in *Injector) Injected() Injected {
	return Injected{int(in.poisoned.Load()), int(in.doubled.Load()), int(in.handled.Load())}
}

// Run injects until ctx ends, and then returns nil. If a server is down, an injection is made later or left
// out. Run may be called once.
func (in *Injector) Run(ctx context.Context) error {
	defer in.raw.dropChannel()
	defer in.pub.closePublishers()
	storm := in.opts.Run.Storm.Seconds()
	rate := min(poisonShare*float64(in.opts.Run.Sagas), maxPoison) / storm
	var poison, copies float64 // due injections
	for last := time.Now(); backoff.Sleep(ctx, injectEvery) == nil; {
		elapsed := time.Since(last).Seconds()
		last = time.Now()
		for poison += rate * elapsed; poison >= 1 && in.poisoned.Load() < maxPoison && ctx.Err() == nil; poison-- {
			in.injectPoison(ctx)
		}
		copies = min(copies+duplicates*elapsed, maxDuplicate)
		copies -= float64(in.injectDuplicates(ctx, int(copies)))
	}
	return nil
}

// injectPoison chooses a poison and publishes it.
func (in *Injector) injectPoison(ctx context.Context) {
	p := brewPoison(in.rand, in.large < maxLarge)
	if in.rand.IntN(reusedShare) == 0 {
		if forged, ok := in.reuseKey(ctx); ok {
			p = forged
		}
	}
	if p.reason == tooLarge {
		in.large++
	}
	in.publishPoison(ctx, p)
}

// publishPoison publishes p until it is confirmed. If ctx ends first, it retries for lastInsist. It records p
// in any case, because a queue may have it.
func (in *Injector) publishPoison(ctx context.Context, p poison) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastInsist, cancel) })()
	exchange := in.opts.Broker.exchange(p.saga, p.topic)
	err := in.raw.publishRaw(late, exchange, p.message)
	for err != nil && backoff.Sleep(late, insistPause) == nil {
		err = in.raw.publishRaw(late, exchange, p.message)
	}
	in.mu.Lock()
	in.served[p.topic] = append(in.served[p.topic], p.message.MessageId)
	in.mu.Unlock()
	in.poisoned.Add(1)
	in.opts.Out.AddRecord(record.Injection{
		At: in.opts.Now(), Kind: record.Poison, Topic: p.topic, MessageID: p.message.MessageId,
		Scope: p.of.Scope, Key: p.of.Key, Step: p.of.Step, N: p.of.N,
		Payload: record.DigestOf(p.message.Body), What: p.reason + ": " + p.how, Unconfirmed: err != nil,
	})
}

// sqlCountUnburied counts the messages without a dead letter.
const sqlCountUnburied = `
SELECT count(*) FROM unnest($1::text[]) m (id)
WHERE NOT EXISTS (SELECT FROM {schema}.parked p WHERE p.state = 'dead' AND p.message_id = convert_to(m.id, 'UTF8'))`

// Unburied describes the poison that has no dead letter yet. Poison in a deleted queue stays in this list.
func (in *Injector) Unburied(ctx context.Context) (left []string, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, l := range Listeners {
		if len(in.served[l.Topic]) == 0 {
			continue
		}
		var n int
		if err := in.opts.DB.QueryRow(ctx, bindSchema(l.Schema, sqlCountUnburied), in.served[l.Topic]).Scan(&n); err != nil {
			return nil, fmt.Errorf("evidence: dead letters: %w", err)
		}
		if n > 0 {
			left = append(left, fmt.Sprintf("%s: %d messages of %s that were to be dead letters", l.Schema, n, l.Topic))
		}
	}
	return left, nil
}

// injectDuplicates publishes up to n messages of one service again, in no order, and returns how many it has
// tried.
func (in *Injector) injectDuplicates(ctx context.Context, n int) (tried int) {
	if n < 1 {
		return 0
	}
	look, cancel := context.WithTimeout(ctx, injectLimit)
	defer cancel()
	s := in.pickSchema()
	past, err := in.pastMessages(look, s, n)
	if err != nil {
		return 0 // the database is down
	}
	if len(past) == 0 {
		return n // no message was sent yet
	}
	messages := make([]stored, len(past))
	for i := range past {
		messages[i] = past[i].stored
	}
	for i, err := range in.pub.publishStored(look, s.saga, messages) {
		if err != nil {
			continue
		}
		r := injection(in.opts.Now(), record.Duplicate, &messages[i])
		r.Handled = past[i].ended
		in.opts.Out.AddRecord(r)
		in.doubled.Add(1)
		if r.Handled {
			in.handled.Add(1)
		}
	}
	return len(past)
}

// pickSchema returns a schema with messages.
func (in *Injector) pickSchema() schema {
	for {
		if s := schemas[in.rand.IntN(len(schemas))]; !s.quiet {
			return s
		}
	}
}

// reuseKey makes poison of a handled message: another payload under its identity. It uses a trip's message only
// after the saga has ended, because a participant reports the dead letter to the saga.
func (in *Injector) reuseKey(ctx context.Context) (poison, bool) {
	look, cancel := context.WithTimeout(ctx, injectLimit)
	defer cancel()
	s := in.pickSchema()
	past, err := in.pastMessages(look, s, 8)
	if err != nil {
		return poison{}, false
	}
	for _, m := range past {
		if !m.ended || !in.sagaEnded(look, s.saga, m.stored) {
			continue
		}
		p, err := forgePoison(in.rand, s.saga, m.stored)
		return p, err == nil
	}
	return poison{}, false
}

// sagaEnded reports whether the saga of m has ended.
func (in *Injector) sagaEnded(ctx context.Context, saga string, m stored) (over bool) {
	if saga == record.Order {
		return true // an order's services do not report dead letters
	}
	err := in.opts.DB.QueryRow(ctx, "SELECT ended_at IS NOT NULL FROM trip_service.saga WHERE scope = $1 AND key = $2 AND parent IS NULL", m.Scope, m.Key).Scan(&over)
	return err == nil && over
}

// A past message was written some time ago and is in the inbox of every listening service.
type past struct {
	stored
	ended bool // each of these services has ended its step
}

const (
	sqlLastMessage = `SELECT last_value FROM {schema}.outbox_id_seq`

	// sqlReadListened returns whether a step's inbox has a message, and whether it has ended it. The digest
	// distinguishes a compensation from its action.
	sqlReadListened = `
SELECT count(*) > 0, count(*) FILTER (WHERE {ended}) > 0
FROM {schema}.inbox WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND {digest} = sha256($5)`
)

// pastMessages returns up to n messages of a schema, chosen at random.
func (in *Injector) pastMessages(ctx context.Context, s schema, n int) (found []past, err error) {
	var last int64
	if err := in.opts.DB.QueryRow(ctx, bindSchema(s.name, sqlLastMessage)).Scan(&last); err != nil {
		return nil, fmt.Errorf("evidence: last message: %w", err)
	}
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = 1 + in.rand.Int64N(last)
	}
	messages, err := readMessages(ctx, in.opts.DB, s, ids)
	if err != nil {
		return nil, err
	}
	in.rand.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })
	return listened(ctx, in.opts.DB, messages)
}

// listened returns the messages that all their listening services have in their inboxes.
func listened(ctx context.Context, db *pgxpool.Pool, messages []stored) (all []past, err error) {
	batch := &pgx.Batch{}
	had := make([]int, len(messages))
	ended := make([]int, len(messages))
	for i := range messages {
		m := &messages[i]
		for _, l := range listening(m.Topic, m.Type) {
			statement := strings.NewReplacer("{schema}", l.Schema, "{digest}", l.digestColumn(), "{ended}", l.endedStates()).Replace(sqlReadListened)
			batch.Queue(statement, m.Scope, m.Key, l.Step, m.N, m.Payload).QueryRow(func(row pgx.Row) error {
				var has, has2 bool
				err := row.Scan(&has, &has2)
				had[i] += countTrue(has)
				ended[i] += countTrue(has2)
				return err
			})
		}
	}
	if err := db.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("evidence: read the inboxes of the listeners: %w", err)
	}
	for i, m := range messages {
		if n := len(listening(m.Topic, m.Type)); n > 0 && had[i] == n {
			all = append(all, past{m, ended[i] == n})
		}
	}
	return all, nil
}

func countTrue(b bool) int {
	if b {
		return 1
	}
	return 0
}
