package consumer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// Counters are what a [Consumer] has done since it was made, by Run and by Handle. Outcomes and reasons that have
// not occurred are missing from the maps. The numbers are read one after the other while work goes on: they belong
// to almost the same instant.
type Counters struct {
	InFlight int            // handlers that run, and verify, call and record of Effects
	Steps    []StepCounters // sorted by step, the action before the compensation

	// Rejected are the messages of no step that became dead letters, by reason,
	// and Unburied how often storing one failed: it is redelivered.
	Rejected map[Reason]uint64
	Unburied uint64

	// Transactions tells the time of each transaction in which messages were
	// handled, and Batches how many messages that were. RolledBack of them were
	// rolled back, or ended in a way that is not known. An attempt at an Effect has
	// two.
	Transactions, Batches Histogram
	RolledBack            uint64

	// Paused says that the queues are handed over to other processes, because the database is lost. It is false if the
	// subscriber is no [Pauser].
	Paused bool

	// Subscriptions are sorted by topic. There are none if the subscriber is no
	// [SubscriptionTeller].
	Subscriptions []SubscriptionCounters
}

// SubscriptionCounters are those of the subscription to a topic.
type SubscriptionCounters struct {
	Topic     string
	Served    bool   // messages are delivered at present
	Cancelled uint64 // how often the broker has ended it, as when its queue was deleted
}

// StepCounters are those of a step's action or of its compensation.
type StepCounters struct {
	Step string
	Undo bool

	Outcomes map[Outcome]uint64 // arrivals
	Retries  map[Reason]uint64  // those that were parked to run again
	Dead     map[Reason]uint64  // those that became dead letters
	Handler  Histogram          // seconds in the handler, of an Effect from verify or call to the end of record; its Count is that of the entries
	Lag      Histogram          // seconds from a message's timestamp to the entry, of deliveries; of parked copies there is none
}

// A Histogram says how values are distributed. The zero value has no values.
type Histogram struct {
	Count   uint64
	Sum     float64
	Buckets []Bucket // upwards; a value over the last bound is only in Count
}

// A Bucket counts the values up to AtMost, including those of the smaller buckets.
type Bucket struct {
	AtMost float64
	Count  uint64
}

// The bounds of the histograms: seconds, and messages.
var (
	secondBounds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}
	batchBounds  = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256}
)

// reasons are all of them. Each has its place in an array of counters.
var reasons = [...]Reason{
	ReasonKeyMissing, ReasonKeyMalformed, ReasonScopeMissing, ReasonScopeMalformed, ReasonTypeMissing, ReasonTypeUnknown,
	ReasonTooLarge, ReasonUndecodable, ReasonKeyReused, ReasonTerminal, ReasonExhausted, ReasonActionDead, ReasonWaits,
	ReasonOrder, ReasonFailed, ReasonSuperseded, ReasonCalling, ReasonUnsettled, ReasonParked, ReasonUnavailable, ReasonTooOld,
	ReasonFormatUnknown, ReasonUnverified, ReasonUnopened, ReasonIdentity, ReasonEmitInvalid,
}

// Reasons returns every reason that this version gives.
func Reasons() []Reason { return slices.Clone(reasons[:]) }

// counters count. The way of a message takes no lock for them.
type counters struct {
	inFlight     atomic.Int64
	steps        map[string]*[2]stepCounters // the action's, and the compensation's; complete from the beginning
	rejected     [len(reasons)]atomic.Uint64
	unburied     atomic.Uint64
	rolledBack   atomic.Uint64
	transactions histogram
	batches      histogram
}

type stepCounters struct {
	outcomes     [len(outcomes)]atomic.Uint64
	retries      [len(reasons)]atomic.Uint64
	dead         [len(reasons)]atomic.Uint64
	handler, lag histogram
}

func newCounters() *counters {
	return &counters{
		steps:        map[string]*[2]stepCounters{},
		transactions: newHistogram(secondBounds), batches: newHistogram(batchBounds),
	}
}

// addStep makes room for step.
func (c *counters) addStep(step string) {
	both := new([2]stepCounters)
	for i := range both {
		both[i].handler, both[i].lag = newHistogram(secondBounds), newHistogram(secondBounds)
	}
	c.steps[step] = both
}

// countEvent counts e.
func (c *counters) countEvent(e *Event) {
	step := c.steps[e.Delivery.Step]
	switch {
	case step != nil:
		step[kindIndex(e.Delivery.Undo)].countEvent(e)
	case e.Outcome == OutcomeUndecided:
		c.unburied.Add(1)
	default:
		increment(c.rejected[:], reasons[:], e.Reason)
	}
}

func (s *stepCounters) countEvent(e *Event) {
	increment(s.outcomes[:], outcomes[:], e.Outcome)
	switch e.Outcome {
	case OutcomeRetry:
		increment(s.retries[:], reasons[:], e.Reason)
	case OutcomeDead:
		increment(s.dead[:], reasons[:], e.Reason)
	}
	if e.Entered {
		s.handler.addValue(e.Ended.Sub(e.Began).Seconds())
	}
	if e.Lag >= 0 {
		s.lag.addValue(e.Lag.Seconds())
	}
}

func (c *counters) countTransaction(t *Transaction) {
	if t.Err != nil {
		c.rolledBack.Add(1)
	}
	c.transactions.addValue(t.Time.Seconds())
	c.batches.addValue(float64(t.Messages))
}

// kindIndex returns the place of a kind in an array of two.
func kindIndex(undo bool) int {
	if undo {
		return 1
	}
	return 0
}

// increment adds one to the counter of name.
func increment[T comparable](counters []atomic.Uint64, names []T, name T) {
	if i := slices.Index(names, name); i >= 0 {
		counters[i].Add(1)
	}
}

// nonZeroCounts returns the counters that are not 0, by name.
func nonZeroCounts[T comparable](counters []atomic.Uint64, names []T) map[T]uint64 {
	counts := map[T]uint64{}
	for i, name := range names {
		if n := counters[i].Load(); n > 0 {
			counts[name] = n
		}
	}
	return counts
}

// A histogram counts values by size.
type histogram struct {
	bounds []float64
	counts []atomic.Uint64 // the last one counts values over all bounds
	sum    atomic.Int64    // millionths: a time.Duration of many long lags would overflow
}

// millionth is the resolution of a histogram's sum.
const millionth = 1e6

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

func (h *histogram) addValue(value float64) {
	bucket := 0
	for bucket < len(h.bounds) && value > h.bounds[bucket] {
		bucket++
	}
	h.counts[bucket].Add(1)
	h.sum.Add(int64(value * millionth))
}

func (h *histogram) readHistogram() Histogram {
	r := Histogram{Buckets: make([]Bucket, len(h.bounds)), Sum: float64(h.sum.Load()) / millionth}
	for i, bound := range h.bounds {
		r.Count += h.counts[i].Load()
		r.Buckets[i] = Bucket{AtMost: bound, Count: r.Count}
	}
	r.Count += h.counts[len(h.bounds)].Load()
	return r
}

// Counters returns what this Consumer has done. It is cheap, does not use the database, and may be called at any
// time.
func (c *Consumer) Counters() Counters {
	n := c.counters
	all := Counters{
		InFlight: int(n.inFlight.Load()), Paused: c.outage.isPaused(), Rejected: nonZeroCounts(n.rejected[:], reasons[:]), Unburied: n.unburied.Load(),
		Transactions: n.transactions.readHistogram(), Batches: n.batches.readHistogram(), RolledBack: n.rolledBack.Load(),
	}
	for _, name := range slices.Sorted(maps.Keys(n.steps)) {
		for i := range n.steps[name] {
			s := &n.steps[name][i]
			all.Steps = append(all.Steps, StepCounters{
				Step: name, Undo: i == 1,
				Outcomes: nonZeroCounts(s.outcomes[:], outcomes[:]),
				Retries:  nonZeroCounts(s.retries[:], reasons[:]), Dead: nonZeroCounts(s.dead[:], reasons[:]),
				Handler: s.handler.readHistogram(), Lag: s.lag.readHistogram(),
			})
		}
	}
	if teller, ok := c.sub.(SubscriptionTeller); ok {
		for _, topic := range c.topics {
			served, cancelled := teller.Subscription(topic)
			all.Subscriptions = append(all.Subscriptions, SubscriptionCounters{topic, served, cancelled})
		}
	}
	return all
}

// Stats describe the parked messages of a schema. They are read from the database, so that every process of a
// service sees the same numbers. At most [outbox.CountLimit] messages of a state are counted: the retrying ones that
// are due first, and the oldest dead letters.
type Stats struct {
	Retrying int // will run again
	Calling  int // calls of an Effect are under way, or ended with their process and go on when their lease is over
	Dead     int // dead letters; a person is needed

	// Overdue is how long the message that runs next has been due: for
	// that time no worker was free for it. 0 if none is due.
	Overdue time.Duration

	Parked []ParkedStats // the same messages by step, kind, state and reason; sorted so
}

// ParkedStats are those of one step's messages that are parked for one reason.
type ParkedStats struct {
	Step     string // empty: the messages belong to no step
	Undo     bool   // they are compensations
	Dead     bool
	Reason   Reason
	Messages int
	Oldest   time.Duration // since the first of them was parked
}

// State is dead, calling or retrying, as in [Stats].
func (p *ParkedStats) State() string {
	switch {
	case p.Dead:
		return "dead"
	case p.Reason == ReasonCalling:
		return "calling"
	}
	return "retrying"
}

// sqlReadStats counts parked messages by step, kind, state and reason. It takes no lock. The two lists come in the
// order of their indexes, so that the limit ($1) bounds what is read. The index of the dead letters has all these columns.
// Rows are counted by their columns, and the groups then get the form of the result: so nothing is computed for each row.
const sqlReadStats = `
WITH parked AS (
	SELECT step, kind, false AS dead, reason, count(*), min(first_at) AS first_at, min(due_at) FILTER (WHERE isfinite(due_at)) AS due_at
	FROM (SELECT step, kind, reason, first_at, due_at FROM {schema}.parked WHERE state = 'retrying' ORDER BY due_at LIMIT $1) r
	GROUP BY step, kind, reason
	UNION ALL
	SELECT step, kind, true, reason, count(*), min(first_at), NULL
	FROM (SELECT step, kind, reason, first_at FROM {schema}.parked WHERE state = 'dead' ORDER BY last_at LIMIT $1) d
	GROUP BY step, kind, reason
)
SELECT coalesce(step, ''), kind = 'compensation', dead, reason, sum(count)::bigint,
	(extract(epoch FROM clock_timestamp() - min(first_at)) * 1000000)::bigint,
	coalesce(extract(epoch FROM clock_timestamp() - min(due_at)) * 1000000, 0)::bigint
FROM parked
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4`

// ReadStats reads the Stats of schema, by default sagamill. It needs no [Consumer].
func ReadStats(ctx context.Context, db *pgxpool.Pool, schema string) (Stats, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if err := sqlschema.Check(schema); err != nil {
		return Stats{}, fmt.Errorf("consumer: %w", err)
	}
	return countParked(ctx, pg.NewOwn(db), sqlschema.Bind(schema, sqlReadStats))
}

// Stats reads the Stats. They are of one instant.
func (c *Consumer) Stats(ctx context.Context) (Stats, error) {
	return countParked(ctx, c.executor.database.db, c.executor.sql.readStats)
}

func countParked(ctx context.Context, db pg.Own, statement string) (s Stats, err error) {
	err = db.InTx(ctx, pg.BeginLimitedRead(ctx, ""), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, pg.PlanByIndex); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, statement, outbox.CountLimit)
		var p ParkedStats
		var oldest, due int64
		_, err := pgx.ForEachRow(rows, []any{&p.Step, &p.Undo, &p.Dead, &p.Reason, &p.Messages, &oldest, &due}, func() error {
			p.Oldest = max(time.Duration(oldest)*time.Microsecond, 0)
			s.addParked(p, time.Duration(due)*time.Microsecond)
			return nil
		})
		return err
	})
	if err != nil {
		return Stats{}, fmt.Errorf("consumer: read stats: %w", sqlschema.Explain(err))
	}
	return s, nil
}

func (s *Stats) addParked(p ParkedStats, due time.Duration) {
	switch p.State() {
	case "dead":
		s.Dead += p.Messages // which are never due
	case "calling":
		s.Calling += p.Messages
	default:
		s.Retrying += p.Messages
	}
	s.Overdue = max(s.Overdue, due)
	s.Parked = append(s.Parked, p)
}
