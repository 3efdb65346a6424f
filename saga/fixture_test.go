package saga_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// patience is how long a test waits for something that must happen.
const patience = time.Minute

// A place is the services of a test in one schema, with a broker in the process.
type place struct {
	t      testing.TB
	db     *pgxpool.Pool
	schema string
	broker *inproc.Broker
	relay  *outbox.Relay
	stop   context.CancelFunc
	wg     sync.WaitGroup
	ctx    context.Context
}

func newPlace(t testing.TB) *place {
	t.Helper()
	db, schema := pgtest.Schema(t)
	p := &place{t: t, db: db, schema: schema, broker: inproc.New(nil)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	publishing, stopRelay := context.WithCancel(p.ctx)
	var published sync.WaitGroup
	t.Cleanup(func() {
		stopRelay() // first: what it has handed over is acked by those that still run
		published.Wait()
		p.stop()
		p.wg.Wait()
	})
	_, err := db.Exec(t.Context(), "CREATE TABLE "+schema+".effect (at bigint GENERATED ALWAYS AS IDENTITY, key text, what text)")
	if err != nil {
		t.Fatal(err)
	}
	p.relay, err = outbox.NewRelay(db, p.broker, &outbox.RelayOptions{Schema: schema, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	published.Go(func() {
		if err := p.relay.Run(publishing); err != nil {
			t.Errorf("relay: %v", err)
		}
	})
	return p
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// run runs do until the test ends.
func (p *place) run(do func(context.Context) error) {
	p.wg.Go(func() {
		if err := do(p.ctx); err != nil {
			p.t.Errorf("Run: %v", err)
		}
	})
}

// orchestrate runs an orchestrator of plans.
func (p *place) orchestrate(opts *saga.Options, plans ...saga.Plan) *saga.Orchestrator {
	p.t.Helper()
	o := saga.Options{}
	if opts != nil {
		o = *opts
	}
	o.Schema, o.Logger, o.Wake = p.schema, quiet, p.relay.Wake
	sub := p.broker.Subscriber("orchestrator")
	orchestrator, err := saga.NewOrchestrator(p.db, sub, plans, &o)
	if err != nil {
		p.t.Fatal(err)
	}
	p.serve(sub, orchestrator.Topics(), orchestrator.Run)
	return orchestrator
}

// participate runs steps.
func (p *place) participate(steps ...consumer.Step) {
	p.t.Helper()
	for i := range steps {
		steps[i] = saga.Participant(steps[i])
	}
	sub := p.broker.Subscriber("participant")
	c, err := consumer.New(p.db, sub, steps, &consumer.Options{Schema: p.schema, Logger: quiet, Wake: p.relay.Wake})
	if err != nil {
		p.t.Fatal(err)
	}
	p.serve(sub, c.Topics(), c.Run)
}

// serve declares the queues of topics before anything is published to them, and
// runs do.
func (p *place) serve(sub *inproc.Subscriber, topics []string, do func(context.Context) error) {
	p.t.Helper()
	for _, topic := range topics {
		if err := sub.SubscribeInitialize(topic); err != nil {
			p.t.Fatal(err)
		}
	}
	p.run(do)
}

// A request is the body of the tests' commands.
type request struct {
	Item string `json:"item"`
}

// An answer is the result of the tests' steps.
type answer struct {
	Number string `json:"number"`
}

// booking is a step that notes what it does, and answers with its name and the
// key; of items that are "no "+name it wants nothing.
func (p *place) booking(name string) consumer.Step {
	note := func(ctx context.Context, tx pgx.Tx, key, what string) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, $2)", key, what)
		return err
	}
	return consumer.Step{
		Name: name,
		Action: saga.On(name+".book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) (answer, error) {
			if in.Body.Item == "no "+name {
				return answer{}, saga.Reject("there is none")
			}
			return answer{Number: name + " for " + in.Key}, note(ctx, tx, in.Key, name)
		}),
		Compensation: saga.OnUndo(name+".cancel", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) error {
			return note(ctx, tx, in.Key, "no "+name)
		}),
	}
}

// A trip is the state of the tests' saga.
type trip struct {
	Item    string   `json:"item"`
	Numbers []string `json:"numbers,omitempty"`
}

func (t *trip) request() request { return request{Item: t.Item} }

func (t *trip) booked(a answer) { t.Numbers = append(t.Numbers, a.Number) }

// book is a remote step of a definition.
func book(name string) saga.Step[trip] {
	return saga.Step[trip]{
		Name: name,
		Do:   saga.Remote(name+".book", (*trip).request, (*trip).booked),
		Undo: saga.Tell(name+".cancel", (*trip).request),
	}
}

// start starts an instance of d.
func start[S any](p *place, d *saga.Definition[S], key string, state S) saga.Started {
	p.t.Helper()
	s, err := saga.NewStarter(d, &saga.StarterOptions{Schema: p.schema})
	if err != nil {
		p.t.Fatal(err)
	}
	var started saga.Started
	err = pgx.BeginFunc(p.t.Context(), p.db, func(tx pgx.Tx) (err error) {
		started, err = s.Start(p.t.Context(), tx, saga.ID{Scope: "tenant", Key: key}, state)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.relay.Wake()
	return started
}

// effects are what was done for a key, in order.
func (p *place) effects(key string) string {
	p.t.Helper()
	rows, _ := p.db.Query(p.t.Context(), "SELECT what FROM "+p.schema+".effect WHERE key = $1 ORDER BY at", key)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprint(all)
}

// until waits until the outermost instance of a key has a status, and returns why it has.
func (p *place) until(key string, want saga.Status) (reason string) {
	p.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var status saga.Status
	for timeout := time.After(patience); ; {
		err := p.db.QueryRow(p.t.Context(), "SELECT status, reason FROM "+p.schema+".saga WHERE key = $1 AND path = ''", key).Scan(&status, &reason)
		if err != nil {
			p.t.Fatal(err)
		}
		if status == want {
			return reason
		}
		select {
		case <-tick.C:
		case <-timeout:
			p.t.Fatalf("the instance of %s is %s (%s), want %s", key, status, reason, want)
		}
	}
}

// status returns that of the outermost instance of a key.
func (p *place) status(key string) (status saga.Status) {
	p.t.Helper()
	if err := p.db.QueryRow(p.t.Context(), "SELECT status FROM "+p.schema+".saga WHERE key = $1 AND path = ''", key).Scan(&status); err != nil {
		p.t.Fatal(err)
	}
	return status
}

// await waits until something is so.
func (p *place) await(what string, done func() bool) {
	p.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); !done(); {
		select {
		case <-tick.C:
		case <-timeout:
			p.t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
