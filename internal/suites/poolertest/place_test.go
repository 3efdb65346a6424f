package poolertest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// patience bounds the wait for sagas to end.
const patience = 60 * time.Second

// sqlCreateEffect is what handlers leave behind.
const sqlCreateEffect = "CREATE TABLE {schema}.effect (key text NOT NULL, what text NOT NULL)"

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// A place is all that sagas need, in one schema, behind a pooler: requests, which start
// them, an orchestrator, a participant and the relay between them.
type place struct {
	t      *testing.T
	direct *pgxpool.Pool // not behind the pooler, for the test itself
	pooled *pgxpool.Pool
	schema string
	relay  *outbox.Relay
	server *httptest.Server
}

// newPlace runs the services until the test ends.
func newPlace(t *testing.T, b *bouncer, mode string) *place {
	t.Helper()
	p := &place{t: t, pooled: b.pool(mode)}
	p.direct, p.schema = pgtest.Schema(t, sqlCreateEffect)
	broker := inproc.New(nil)
	var err error
	p.relay, err = outbox.NewRelay(p.pooled, broker, &outbox.RelayOptions{Schema: p.schema, NoListen: true, Lease: time.Second, Logger: quiet})
	check(t, err)
	plan := p.define()
	orchestrating, taking := broker.Subscriber("orchestrator"), broker.Subscriber("participant")
	orchestrator, err := saga.NewOrchestrator(p.pooled, orchestrating, []saga.Plan{plan}, &saga.Options{Schema: p.schema, Wake: p.relay.Wake, Logger: quiet})
	check(t, err)
	participant, err := consumer.New(p.pooled, taking, []consumer.Step{p.booking("seat"), p.booking("room")},
		&consumer.Options{Schema: p.schema, Wake: p.relay.Wake, Logger: quiet})
	check(t, err)
	for _, topic := range orchestrator.Topics() {
		check(t, orchestrating.SubscribeInitialize(topic))
	}
	for _, topic := range participant.Topics() {
		check(t, taking.SubscribeInitialize(topic))
	}
	p.run(p.relay.Run, orchestrator.Run, participant.Run)
	p.serve(plan)
	return p
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs services until the test ends. The relay ends first: what it has handed over is
// acked by those that still run.
func (p *place) run(relay func(context.Context) error, others ...func(context.Context) error) {
	start := func(run func(context.Context) error) {
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			if err := run(ctx); err != nil {
				p.t.Errorf("Run: %v", err)
			}
		})
		p.t.Cleanup(func() { stop(); running.Wait() })
	}
	for _, run := range others {
		start(run)
	}
	start(relay)
}

// A journey is the state of the sagas, an item the body of their commands.
type (
	journey struct {
		Item, Seat, Room string
	}
	item   struct{ Item string }
	number struct{ Number string }
)

// define returns the plan: a seat and a room side by side, then a local step.
func (p *place) define() *saga.Definition[journey] {
	book := func(name string, booked func(*journey, number)) saga.Step[journey] {
		body := func(j *journey) item { return item{j.Item} }
		return saga.Step[journey]{Name: name, Do: saga.Remote(name+".book", body, booked), Undo: saga.Tell(name+".cancel", body), Deadline: time.Hour}
	}
	return saga.Must(saga.Define("journey", 1,
		saga.Step[journey]{Name: "book", All: []saga.Step[journey]{
			book("seat", func(j *journey, n number) { j.Seat = n.Number }),
			book("room", func(j *journey, n number) { j.Room = n.Number }),
		}},
		saga.Step[journey]{Name: "confirm", Do: saga.Local(func(ctx context.Context, tx pgx.Tx, turn saga.Turn, j *journey) error {
			return p.note(ctx, tx, turn.Key, "confirmed "+j.Seat+" "+j.Room)
		})},
	))
}

// note leaves an effect.
func (p *place) note(ctx context.Context, tx pgx.Tx, key, what string) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, $2)", key, what)
	return err
}

// booking is a step of the participant. Of a flaky item its first attempt fails, and of
// one named after it there is none.
func (p *place) booking(name string) consumer.Step {
	return saga.Participant(consumer.Step{
		Name: name, RetryBase: 10 * time.Millisecond, CancelParked: true,
		Action: saga.On(name+".book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[item]) (number, error) {
			if in.Body.Item == "no "+name {
				return number{}, saga.Reject("there is none")
			}
			if err := p.note(ctx, tx, in.Key, name); err != nil {
				return number{}, err
			}
			if in.Body.Item == "flaky" && in.Attempt == 1 {
				return number{}, fmt.Errorf("the first attempt fails")
			}
			return number{Number: name + "-1"}, nil
		}),
		Compensation: saga.OnUndo(name+".cancel", func(ctx context.Context, tx pgx.Tx, in consumer.Message[item]) error {
			return p.note(ctx, tx, in.Key, "no "+name)
		}),
	})
}

// serve takes requests. Each starts a saga in its transaction.
func (p *place) serve(plan *saga.Definition[journey]) {
	p.t.Helper()
	starter, err := saga.NewStarter(plan, &saga.StarterOptions{Schema: p.schema})
	check(p.t, err)
	store, err := idempg.New(p.pooled, &idempg.Options{Schema: p.schema, Grace: time.Second}) // the wait after a restart
	check(p.t, err)
	idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Logger: quiet})
	check(p.t, err)
	handler := idem.Handler(idempg.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		wanted, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		if _, err := starter.Start(r.Context(), tx, saga.ID{}, journey{Item: string(wanted)}); err != nil {
			return err
		}
		if err := p.note(r.Context(), tx, r.Header.Get("Idempotency-Key"), "ordered"); err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}))
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
		p.relay.Wake()
	}))
	p.t.Cleanup(p.server.Close)
}

// order sends a request until it is accepted, as clients do.
func (p *place) order(key, wanted string) error {
	for deadline := time.Now().Add(patience); ; {
		status, err := p.post(key, wanted)
		switch {
		case status == http.StatusAccepted:
			return nil
		case time.Now().After(deadline) || err == nil && status < 500 && status != http.StatusConflict:
			return fmt.Errorf("order %s: %d, %w", key, status, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (p *place) post(key, wanted string) (status int, err error) {
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.server.URL, strings.NewReader(wanted))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Idempotency-Key", key)
	response, err := p.server.Client().Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// items are what is ordered, each with the effects that the saga leaves.
var items = []struct{ item, effects string }{
	{"plain", "[confirmed seat-1 room-1 ordered room seat]"},
	{"flaky", "[confirmed seat-1 room-1 ordered room seat]"},
	{"no room", "[no seat ordered seat]"},
}

// expect waits until the saga of key has ended, and compares what it has left.
func (p *place) expect(key, effects string) {
	p.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		var ended bool
		err := p.direct.QueryRow(p.t.Context(), "SELECT status IN ('completed', 'compensated') FROM "+p.schema+".saga WHERE key = $1", key).Scan(&ended)
		if err != nil {
			p.t.Fatalf("instance of %s: %v", key, err)
		}
		if ended {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			p.t.Fatalf("the saga of %s has not ended within %v", key, patience)
		}
	}
	rows, _ := p.direct.Query(p.t.Context(), `SELECT what FROM `+p.schema+`.effect WHERE key = $1 ORDER BY what COLLATE "C"`, key)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	check(p.t, err)
	if got := fmt.Sprint(all); got != effects {
		p.t.Errorf("saga of %s has left %s, want %s", key, got, effects)
	}
}
