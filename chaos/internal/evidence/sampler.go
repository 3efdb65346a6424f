package evidence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/outbox"
)

const (
	sampleEvery   = time.Second
	idleShare     = 10               // the invariants take one of so many parts of the time
	sampleTimeout = 10 * time.Second // for all of one sample

	// restFactor is the pause after a query of the invariants, as a multiple of its duration. The query thus
	// occupies one connection for a sixteenth of the time at most, even with many sagas.
	restFactor = 15
)

// SamplerOptions configure a [Sampler]. All are required except Processes.
type SamplerOptions struct {
	DB        *pgxpool.Pool
	Broker    Broker
	Out       *record.Writer[record.Sample]
	Now       func() record.At
	Processes func() int // returns the number of live processes; default: not known
}

// A Sampler takes samples of the site.
type Sampler struct {
	opts  SamplerOptions
	gauge gauge

	rested time.Time     // when the invariants may be queried again
	took   time.Duration // duration of the invariants' query, if this sample made it
	money  int64         // as of the last query
	done   int
}

// NewSampler returns a Sampler. It starts nothing: call [Sampler.Run].
func NewSampler(o SamplerOptions) (*Sampler, error) {
	if o.DB == nil || o.Broker.Namespace == nil || o.Out == nil || o.Now == nil {
		return nil, errors.New("evidence: NewSampler needs DB, Broker, Out and Now")
	}
	return &Sampler{opts: o, gauge: gauge{broker: o.Broker}}, nil
}

// Run writes a Sample every second until ctx ends, and then returns nil. As the tables grow, samples become
// rarer, so that the invariants take a tenth of the time at most. Waiting in vain, for example for a broker
// that is down, does not make them rarer.
func (s *Sampler) Run(ctx context.Context) error {
	defer s.gauge.dropChannel()
	for {
		sample := s.takeSample(ctx)
		if ctx.Err() != nil {
			return nil // ctx ended during the sample
		}
		s.opts.Out.AddRecord(sample)
		if backoff.Sleep(ctx, max(sampleEvery, (idleShare-1)*s.took)) != nil {
			return nil
		}
	}
}

// takeSample takes one sample. A part that fails adds an error to it.
func (s *Sampler) takeSample(ctx context.Context) record.Sample {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	r := record.Sample{At: s.opts.Now(), Backlog: map[string]int{}, Ready: map[string]int{}}
	if s.opts.Processes != nil {
		r.Processes = s.opts.Processes()
	}
	// The invariants come first: a broker that is down may take all of the time.
	err := errors.Join(s.sampleBalance(ctx, &r), s.sessions(ctx, &r), s.sampleBacklog(ctx, &r), s.sampleQueues(ctx, &r))
	if err != nil {
		r.Err = err.Error()
	}
	r.Money, r.Done = s.money, s.done
	return r
}

func (s *Sampler) sessions(ctx context.Context, r *record.Sample) error {
	var shown []byte
	if err := s.opts.DB.QueryRow(ctx, sqlSessions).Scan(&r.Connections, &r.IdleInTx, &shown); err != nil {
		return fmt.Errorf("sessions: %w", err)
	}
	r.Leak = strings.Join(record.LeakedNames(shown), " and ")
	return nil
}

func (s *Sampler) sampleBacklog(ctx context.Context, r *record.Sample) error {
	for _, name := range speaking() {
		stats, err := outbox.ReadStats(ctx, s.opts.DB, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if n := stats.Stored + stats.Delayed + stats.Waiting + stats.Refused; n > 0 {
			r.Backlog[name] = n
		}
	}
	return nil
}

func (s *Sampler) sampleQueues(ctx context.Context, r *record.Sample) error {
	all, err := s.gauge.readDepths(ctx)
	for _, q := range all {
		if q.Ready > 0 {
			r.Ready[q.Name] = q.Ready
		}
	}
	return err
}

// sampleBalance queries the invariants in one snapshot of all services, unless the last query is too recent for
// its duration.
func (s *Sampler) sampleBalance(ctx context.Context, r *record.Sample) error {
	s.took = 0
	if time.Now().Before(s.rested) {
		return nil
	}
	began := time.Now()
	batch := &pgx.Batch{}
	batch.Queue(sqlMoney).QueryRow(func(row pgx.Row) error { return row.Scan(&s.money) })
	batch.Queue(sqlDone).QueryRow(func(row pgx.Row) error { return row.Scan(&s.done) })
	for _, i := range invariants {
		batch.Queue(i.against + "\nLIMIT " + shown).Query(func(rows pgx.Rows) error {
			bad, err := pgx.CollectRows(rows, pgx.RowTo[string])
			for _, b := range bad {
				r.Unbalanced = append(r.Unbalanced, i.says+": "+b)
			}
			return err
		})
	}
	err := pgx.BeginTxFunc(ctx, s.opts.DB, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		r.Unbalanced = nil
		s.rested = time.Now().Add(time.Since(began))
		return fmt.Errorf("balance: %w", err)
	}
	r.Asked, s.took = true, time.Since(began)
	s.rested = time.Now().Add(restFactor * s.took)
	return nil
}
