package consumer

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/guardtest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/outbox"
)

// A charge goes wrong once.
type charge struct {
	way   string
	blown atomic.Bool
}

func (c *charge) blow() {
	if c.blown.CompareAndSwap(false, true) {
		guardtest.Ways[c.way]()
	}
}

// An explosive is an Observer, and an Entry, of which one method goes wrong.
type explosive struct {
	*charge
	method string
}

func (e explosive) at(method string) {
	if e.method == method {
		e.blow()
	}
}

func (e explosive) Enter(context.Context, *Delivery) Entry      { e.at("Enter"); return e }
func (e explosive) Observe(context.Context, Event)              { e.at("Observe") }
func (e explosive) Ended(context.Context, Transaction)          { e.at("Ended") }
func (e explosive) Context(ctx context.Context) context.Context { e.at("Context"); return ctx }
func (e explosive) Trace() (string, string)                     { e.at("Trace"); return "", "" }
func (e explosive) Swept(context.Context, Swept)                { e.at("Swept") }

// armed is a body whose decoder goes wrong.
type armed struct{}

var decoding atomic.Pointer[charge] // of the only test that decodes one

func (a *armed) UnmarshalJSON([]byte) error { decoding.Load().blow(); return nil }

// A plant is a consumer with a function that goes wrong once.
type plant struct {
	opts Options
	step Step
	dead bool // a message is a dead letter for it: a panic there is the message's
	pair bool // it is called for batches alone

	foreign bool // it is called for messages without headers of sagamill
}

// plants are the functions of the user's that Run calls.
var plants = map[string]func(f *fixture, c *charge) plant{
	"Options.Verify": func(f *fixture, c *charge) plant {
		verify := func(string, *message.Message) error { c.blow(); return nil }
		return plant{opts: Options{Verify: verify}, step: f.step(f.effect("paid"), nil), dead: true}
	},
	"Options.Open": func(f *fixture, c *charge) plant {
		open := func(*message.Message) error { c.blow(); return nil }
		return plant{opts: Options{Open: open}, step: f.step(f.effect("paid"), nil), dead: true}
	},
	"Options.Identity": func(f *fixture, c *charge) plant {
		identity := func(msg *message.Message) (string, string, string, error) {
			c.blow()
			return "tenant", msg.UUID, "", nil
		}
		return plant{opts: Options{Identity: identity}, step: f.step(f.effect("paid"), nil), dead: true, foreign: true}
	},
	"Options.Observer.Enter":   observed("Enter"),
	"Options.Observer.Observe": observed("Observe"),
	"Options.Observer.Ended":   observed("Ended"),
	"Entry.Context":            observed("Context"),
	"Entry.Trace":              observed("Trace"),
	"Options.Wake": func(f *fixture, c *charge) plant {
		return plant{opts: Options{Wake: c.blow}, step: f.step(f.emitting(), nil)}
	},
	"Options.Logger": func(f *fixture, c *charge) plant {
		failed := &charge{}
		handler := func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
			if failed.blown.CompareAndSwap(false, true) {
				return errors.New("to be logged")
			}
			return f.effect("paid")(ctx, tx, in, emit)
		}
		return plant{opts: Options{Logger: guardtest.Log(c.blow)}, step: f.step(handler, nil)}
	},
	"Step.Unhandled": func(f *fixture, c *charge) plant {
		failed := &charge{}
		handler := func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
			if in.Key == "first" && failed.blown.CompareAndSwap(false, true) {
				return Terminal(errors.New("a dead letter"))
			}
			return f.effect("paid")(ctx, tx, in, emit)
		}
		step := f.step(handler, nil)
		step.Unhandled = func(Unhandled, Emit) { c.blow() }
		return plant{step: step, dead: true}
	},
	"Step.Prepare": func(f *fixture, c *charge) plant {
		step := f.step(f.effect("paid"), nil)
		step.Prepare = NewPreparer(func(ctx context.Context, _ pgx.Tx, _ []*Delivery) (context.Context, error) {
			c.blow()
			return ctx, nil
		})
		return plant{step: step, pair: true}
	},
	"On": func(f *fixture, c *charge) plant {
		return plant{step: f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
			err := f.effect("paid")(ctx, tx, in, emit)
			c.blow()
			return err
		}, nil)}
	},
	"UnmarshalJSON": func(f *fixture, c *charge) plant {
		decoding.Store(c)
		handler := func(ctx context.Context, tx pgx.Tx, in Message[armed], emit Emit) error {
			return f.effect("paid")(ctx, tx, Message[payment]{Delivery: in.Delivery, Body: payment{1}}, emit)
		}
		return plant{step: Step{Name: "process-payment", Action: On("pay", handler)}, dead: true}
	},
	"Effect.call":   effected("call"),
	"Effect.verify": effected("verify"),
	"Effect.record": effected("record"),
}

func observed(method string) func(*fixture, *charge) plant {
	return func(f *fixture, c *charge) plant {
		return plant{opts: Options{Observer: explosive{c, method}}, step: f.step(f.emitting(), nil)}
	}
}

// emitting is a handler that emits a message, and leaves an effect.
func (f *fixture) emitting() Handler[payment] {
	return func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		emit(outbox.Message{Topic: "t", Step: "s"})
		return f.effect("paid")(ctx, tx, in, emit)
	}
}

func effected(function string) func(*fixture, *charge) plant {
	return func(f *fixture, c *charge) plant {
		e := explosive{c, function}
		step := Step{Name: "process-payment", RetryBase: 1, RetryCap: 1, Settle: 1, AskFirst: true, Timeout: time.Second, Action: Effect("pay",
			func(context.Context, Message[payment], string) (payment, error) { e.at("call"); return payment{1}, nil },
			func(context.Context, Message[payment], string) (payment, bool, error) {
				e.at("verify")
				return payment{}, false, nil
			},
			func(ctx context.Context, tx pgx.Tx, in Message[payment], _ payment, emit Emit) error {
				err := f.effect("paid")(ctx, tx, in, emit)
				e.at("record")
				return err
			})}
		return plant{step: step}
	}
}

// Whichever function of the user's panics, or ends its goroutine: the process lives on, no
// lock and no connection stays taken, and each message has its effect once, or is a dead letter if that was its fault.
func TestAPanicOfTheUsersFunctionsCostsOneAttempt(t *testing.T) {
	needtest.Slow(t)
	rows := map[string]bool{}
	for name := range plants {
		rows[name] = true
	}
	guardtest.Covered(t, rows, Options{}, Step{})
	for name, build := range plants { // not parallel: goroutines are counted
		for way := range guardtest.Ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				f := newFixture(t)
				guardtest.Idle(t, f.pool)
				verify := guardtest.Goroutines(t)
				c := &charge{way: way}
				p := build(f, c)
				p.opts.Lanes, p.opts.ParkedPoll = 1, time.Millisecond
				p.step.MaxAttempts = 100 // leases are short, and a busy machine loses some
				consumer := f.consumer(t, p.opts, p.step)
				consumer.executor.marked, consumer.executor.effects.effectMargin, consumer.retrier.lease = true, time.Millisecond, time.Second
				first, second, next := act("first"), act("second"), act("next")
				if p.foreign {
					first.Metadata, second.Metadata, next.Metadata = nil, nil, nil
				}
				if p.pair {
					guardtest.End(func() { settle(t, consumer, first.Copy(), second.Copy()) })
				}
				f.sub.queue("pay") <- first
				f.sub.queue("pay") <- second
				stop := start(t, consumer)
				p.await(t, f, 2)
				f.sub.queue("pay") <- next
				p.await(t, f, 3)
				stop()
				f.sub.wg.Wait()
				if !c.blown.Load() {
					t.Error("the function was not called")
				}
				if n := consumer.Counters().InFlight; n != 0 {
					t.Errorf("%d handlers are in flight for ever", n)
				}
				guardtest.Idle(t, f.pool)
				verify()
			})
		}
	}
}

// await waits until n messages have had their effect, or are dead letters.
func (p *plant) await(t *testing.T, f *fixture, n int) {
	t.Helper()
	seen := func() (all []string) {
		all = f.texts(t, "SELECT what FROM {schema}.effect")
		if p.dead {
			all = append(all, f.texts(t, "SELECT 'dead ' || reason FROM {schema}.parked WHERE state = 'dead'")...)
		}
		return all
	}
	faulttest.Await(t, "each message has its end", func() bool { return len(seen()) >= n }, func() string {
		return strings.Join(append(seen(), f.parked(t)), "; ")
	})
	if all := seen(); len(all) > n {
		t.Errorf("%d messages have the ends %q", n, all)
	}
}

// A subscriber whose methods go wrong.
type explosiveSubscriber struct {
	*queueSubscriber
	explosive
}

func (s explosiveSubscriber) MarksRedelivered() bool { s.at("MarksRedelivered"); return true }
func (s explosiveSubscriber) Subscription(string) (bool, uint64) {
	s.at("Subscription")
	return true, 0
}

func (s explosiveSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.at("Subscribe")
	return s.queueSubscriber.Subscribe(ctx, topic)
}

// callerRows are functions of the user's that are called on the goroutine of who calls the
// product: a panic reaches that one unchanged, and no lock and no connection stays taken.
var callerRows = map[string]func(t *testing.T, f *fixture, c *charge){
	"RedeliveryMarker": func(t *testing.T, f *fixture, c *charge) {
		_, _ = New(f.pool, explosiveSubscriber{f.sub, explosive{c, "MarksRedelivered"}}, []Step{f.step(f.effect("paid"), nil)}, nil)
	},
	"SubscriptionTeller": func(t *testing.T, f *fixture, c *charge) {
		consumer := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
		consumer.sub = explosiveSubscriber{f.sub, explosive{c, "Subscription"}}
		consumer.Counters()
	},
}

func TestAPanicReachesTheCallerOfHandle(t *testing.T) {
	for name, call := range callerRows {
		for way := range guardtest.Ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				handle(t, f.consumer(t, Options{}, f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error {
					return Terminal(errors.New("a dead letter"))
				}, nil)), act("k"))
				c := &charge{way: way}
				if got, want := guardtest.End(func() { call(t, f, c) }), guardtest.Want(way); got != want {
					t.Errorf("the call ended with %v, want %v", got, want)
				}
				guardtest.Idle(t, f.pool)
				if _, err := f.desk(t).Redrive(t.Context()); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		}
	}
}

// A subscriber whose Subscribe panics is one that cannot subscribe: Run ends, and all that it
// has started.
func TestAPanicInSubscribeEndsRun(t *testing.T) {
	f := newFixture(t) // not parallel: goroutines are counted
	guardtest.Idle(t, f.pool)
	verify := guardtest.Goroutines(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	c.sub = explosiveSubscriber{f.sub, explosive{&charge{way: "panic"}, "Subscribe"}}
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "subscribe to pay") || !strings.Contains(err.Error(), guardtest.Value) {
		t.Errorf("Run = %v, want an error that names the topic and the panic", err)
	}
	guardtest.Idle(t, f.pool)
	verify()
}

// A sweeper goes on after a pass whose observer, or whose logger, has panicked.
func TestAPanicDoesNotEndASweeper(t *testing.T) {
	t.Parallel()
	guardtest.Covered(t, map[string]bool{"SweeperOptions.Observer.Swept": true, "SweeperOptions.Logger": true}, SweeperOptions{})
	f := newFixture(t)
	passes := make(chan struct{}, 100)
	observer := sweepFunc(func() {
		select {
		case passes <- struct{}{}:
		default:
		}
		panic(guardtest.Value)
	})
	s, err := NewSweeper(f.pool, &SweeperOptions{Schema: f.schema, Interval: time.Millisecond, Observer: observer, Logger: guardtest.Log(guardtest.Ways["panic"])})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-passes
	<-passes
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
	guardtest.Idle(t, f.pool)
}

type sweepFunc func()

func (s sweepFunc) Swept(context.Context, Swept) { s() }

// A handler that ends its transaction by SQL, and then panics, is not done: what it has committed
// is for a person to look at.
func TestAHandlerThatCommitsAndPanicsIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
		if _, err := tx.Conn().Exec(ctx, "COMMIT"); err != nil {
			t.Error(err)
		}
		panic(guardtest.Value)
	}, nil))
	handle(t, c, act("k"))
	if got, want := f.parked(t), "dead action terminal 1"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}
