package saga_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/guardtest"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A mine is the functions of a saga of which one goes wrong, once.
type mine struct {
	at, way              string
	armed, blown, failed atomic.Bool
}

func (m *mine) step(function string) {
	if m.at == function && m.armed.Load() && m.blown.CompareAndSwap(false, true) {
		guardtest.Ways[m.way]()
	}
}

func (m *mine) Trace(context.Context) (string, string) {
	m.step("StarterOptions.Tracer.Trace")
	return "", ""
}

// A cargo is a state, whose codec may go wrong.
type cargo struct {
	Mine string
	Item string
}

var mines sync.Map // by name: a state has no pointers

type plainCargo cargo

func (c cargo) MarshalJSON() ([]byte, error) {
	if m, ok := mines.Load(c.Mine); ok {
		m.(*mine).step("MarshalJSON")
	}
	return json.Marshal(plainCargo(c))
}

func (c *cargo) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, (*plainCargo)(c)); err != nil {
		return err
	}
	if m, ok := mines.Load(c.Mine); ok {
		m.(*mine).step("UnmarshalJSON")
	}
	return nil
}

// minedFunctions are those of a definition, of a participant and of an orchestrator.
var minedFunctions = []string{
	"Step.When", "Remote.body", "Remote.result", "Tell.body", "Local.do", "Local.undo", "Local.do in a timer", "Nested.begin", "Nested.end",
	"MarshalJSON", "UnmarshalJSON", "On", "OnUndo", "Options.Wake", "Options.Logger", "OnEnd",
	"Codec.ContentType", "Codec.Encode",
}

// A minedCodec writes JSON.
type minedCodec struct{ m *mine }

func (c minedCodec) ContentType() string { c.m.step("Codec.ContentType"); return "text/mined" }

func (c minedCodec) Encode(body any) ([]byte, error) {
	c.m.step("Codec.Encode")
	return json.Marshal(body)
}

func (minedCodec) Reads(media string) bool { return media == "text/mined" }

func (minedCodec) Decode(payload []byte, into any) error { return json.Unmarshal(payload, into) }

// codecRows are the functions of the codecs of actions. The first two are mined; a participant, who calls the others,
// takes a panic as an error of the payload: consumer.TestTheContentTypeDecidesTheCodec.
func codecRows(rows map[string]bool) {
	for _, function := range []string{"ContentType", "Encode", "Reads", "Decode"} {
		for _, field := range []string{"Step.Do", "Step.Undo", "Action"} {
			rows[field+".Codec."+function] = true
		}
	}
}

// definition is a saga that calls every function, and ends compensated.
func (m *mine) definition() *saga.Definition[cargo] {
	body := func(function string) func(*cargo) request {
		return func(c *cargo) request { m.step(function); return request{Item: c.Item} }
	}
	local := func(function string, fails *atomic.Bool) saga.Action[cargo] {
		return saga.Local(func(context.Context, pgx.Tx, saga.Turn, *cargo) error {
			m.step(function)
			if fails.CompareAndSwap(false, true) {
				return errors.New("the next attempt is a timer's")
			}
			m.step(function + " in a timer")
			return nil
		})
	}
	soon := saga.Retry{Attempts: 5, Base: time.Millisecond}
	flight := saga.Remote("flight.book", body("Remote.body"), func(*cargo, answer) {
		m.step("Remote.result")
		if m.at == "Options.Logger" && m.failed.CompareAndSwap(false, true) {
			panic("to be logged")
		}
	})
	flight.Codec = minedCodec{m}
	inner := saga.Must(saga.Define("inner", 1, book("hotel")))
	return saga.Must(saga.Define("mined", 1,
		saga.Step[cargo]{Name: "first", Do: saga.Tell("first.book", body(""))},
		saga.Step[cargo]{Name: "local", Do: local("Local.do", new(atomic.Bool)), Undo: local("Local.undo", new(atomic.Bool)), Retry: soon, UndoRetry: soon},
		saga.Step[cargo]{Name: "flight", When: func(*cargo) bool { m.step("Step.When"); return true },
			Do: flight, Undo: saga.Tell("flight.cancel", body("Tell.body"))},
		saga.Step[cargo]{Name: "nested", Do: saga.Nested(inner,
			func(*cargo) trip { m.step("Nested.begin"); return trip{} }, func(*cargo, trip) { m.step("Nested.end") })},
		saga.Step[cargo]{Name: "car", Do: saga.Tell("car.book", func(*cargo) request { return request{Item: "no car"} })},
	)).OnEnd(func(context.Context, pgx.Tx, saga.Turn, *cargo, saga.Status, string) error {
		m.step("OnEnd")
		return nil
	})
}

// flight is the participant whose handlers may go wrong.
func (m *mine) flight(p *place) consumer.Step {
	step := consumer.Step{
		Name: "flight", RetryBase: time.Millisecond,
		Action: saga.On("flight.book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) (answer, error) {
			_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, 'flight')", in.Key)
			m.step("On")
			return answer{}, err
		}),
		Compensation: saga.OnUndo("flight.cancel", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) error {
			_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, 'no flight')", in.Key)
			m.step("OnUndo")
			return err
		}),
	}
	step.Action.Codecs = []outbox.Codec{minedCodec{m}}
	return step
}

// Whichever function of a saga, or of a participant, panics or ends its goroutine: the instance
// goes on, with each effect once, and no lock and no connection stays taken.
func TestAPanicInASagaCostsOneAttempt(t *testing.T) {
	t.Parallel()
	rows := map[string]bool{"StarterOptions.Tracer.Trace": true} // TestAPanicInStartReachesItsCaller
	for _, name := range minedFunctions {
		rows[name] = true
	}
	codecRows(rows)
	guardtest.Covered(t, rows, saga.Options{}, saga.Step[cargo]{}, saga.Action[cargo]{}, saga.StarterOptions{}, operator.Options{})
	for _, function := range minedFunctions {
		for way := range guardtest.Ways {
			t.Run(function+"/"+way, func(t *testing.T) {
				t.Parallel()
				m := &mine{at: function, way: way}
				p := newPlace(t)
				mines.Store(p.schema, m)
				d := m.definition()
				sub := p.broker.Subscriber("orchestrator")
				o, err := saga.NewOrchestrator(p.db, sub, []saga.Plan{d}, &saga.Options{
					Schema: p.schema, TimerPoll: time.Millisecond,
					Wake:   func() { p.relay.Wake(); m.step("Options.Wake") },
					Logger: guardtest.Log(func() { m.step("Options.Logger") }),
				})
				if err != nil {
					t.Fatal(err)
				}
				p.participate(p.booking("first"), m.flight(p), p.booking("hotel"), p.booking("car"))
				start(p, d, "k", cargo{Mine: p.schema})
				m.armed.Store(true)
				p.serve(sub, o.Topics(), o.Run)
				if function == "UnmarshalJSON" && way == "panic" {
					p.redriveOne() // as after an error: the state does not fit its type
				}
				p.until("k", saga.StatusCompensated)
				if got, want := p.effects("k"), "[first flight hotel no hotel no flight]"; got != want {
					t.Errorf("effects %s, want %s", got, want)
				}
				if !m.blown.Load() {
					t.Error("the function was not called")
				}
			})
		}
	}
}

// redriveOne redrives the dead letter that there will be.
func (p *place) redriveOne() {
	p.t.Helper()
	letters, err := operator.NewDeadLetters(p.db, operator.Inbox, &operator.Options{Schema: p.schema})
	if err != nil {
		p.t.Fatal(err)
	}
	faulttest.Await(p.t, "a dead letter is redriven", func() bool {
		prospects, err := letters.Redrive(p.t.Context(), operator.Filter{}, nil)
		if err != nil {
			p.t.Fatal(err)
		}
		return prospects.Sent() == 1
	}, nil)
}

// A function that the caller of Start has given is called on the caller's goroutine: its panic goes
// on there, the transaction is rolled back, and the key is free.
func TestAPanicInStartReachesItsCaller(t *testing.T) {
	t.Parallel()
	for _, function := range []string{"StarterOptions.Tracer.Trace", "MarshalJSON", "Remote.body"} {
		for way := range guardtest.Ways {
			t.Run(function+"/"+way, func(t *testing.T) {
				t.Parallel()
				m := &mine{at: function, way: way}
				p := newPlace(t)
				mines.Store(p.schema, m)
				d := saga.Must(saga.Define("mined", 1, saga.Step[cargo]{Name: "flight",
					Do: saga.Tell("flight.book", func(*cargo) request { m.step("Remote.body"); return request{} })}))
				p.orchestrate(nil, d)
				p.participate(m.flight(p))
				s, err := saga.NewStarter(d, &saga.StarterOptions{Schema: p.schema, Tracer: m})
				if err != nil {
					t.Fatal(err)
				}
				begin := func() {
					_ = pgx.BeginFunc(t.Context(), p.db, func(tx pgx.Tx) error {
						started, err := s.Start(t.Context(), tx, saga.ID{Scope: "tenant", Key: "k"}, cargo{Mine: p.schema})
						if err != nil || started.Existed {
							t.Errorf("Start = %+v, %v", started, err)
						}
						return err
					})
				}
				m.armed.Store(true)
				if got, want := guardtest.End(begin), guardtest.Want(way); got != want {
					t.Errorf("Start ended with %v, want %v", got, want)
				}
				begin()
				p.until("k", saga.StatusCompleted)
			})
		}
	}
}
