package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A trips is an orchestrator in one schema and a participant, flights, in
// another; there is no hotel. The test moves each message itself: what relays publish lies
// in the post until it is delivered.
type trips struct {
	t             *testing.T
	db            *pgxpool.Pool
	home, flights string // schemas
	post          post
	definition    *saga.Definition[trip]
	orchestrator  *saga.Orchestrator
	participant   *consumer.Consumer
	handler, undo atomic.Pointer[func() (any, error)]
	log           *slog.Logger
	ctx           context.Context
	running       sync.WaitGroup
}

type trip struct {
	Item string `json:"item"`
}

// A post keeps what is published.
type post struct {
	mu      sync.Mutex
	letters map[string][]*message.Message // by topic
	refuses string                        // a topic
}

// PublishBatch implements [outbox.Publisher].
func (p *post) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	results := make([]error, len(batch))
	for i, b := range batch {
		if b.Topic == p.refuses {
			results[i] = fmt.Errorf("%w: no route", outbox.ErrRefused)
			continue
		}
		p.letters[b.Topic] = append(p.letters[b.Topic], b.Message)
	}
	return results
}

func (p *post) refuse(topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = topic
}

func (p *post) take(topic string) []*message.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	letters := p.letters[topic]
	delete(p.letters, topic)
	return letters
}

// An idleBroker never delivers anything.
type idleBroker struct{ noBroker }

func (idleBroker) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	none := make(chan *message.Message)
	go func() {
		<-ctx.Done()
		close(none)
	}()
	return none, nil
}

func newTrips(t *testing.T) *trips {
	t.Helper()
	return newTripsWith(t, func(s consumer.Step) consumer.Step { return s })
}

// newTripsWith lets wrap have the participant's step.
func newTripsWith(t *testing.T, wrap func(consumer.Step) consumer.Step) *trips {
	t.Helper()
	f := &trips{t: t, log: slog.New(slog.DiscardHandler), post: post{letters: map[string][]*message.Message{}}}
	f.db, f.home = pgtest.Schema(t)
	_, f.flights = pgtest.Schema(t)
	var stop context.CancelFunc
	f.ctx, stop = context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		f.running.Wait()
	})
	remote := func(name string) saga.Step[trip] {
		ask := func(s *trip) trip { return *s }
		return saga.Step[trip]{
			Name: name, Deadline: time.Hour, Do: saga.Remote(name+".reserve", ask, func(s *trip, r trip) { s.Item += r.Item }),
			Undo: saga.Remote[trip, trip, any](name+".cancel", ask, nil),
		}
	}
	f.definition = saga.Must(saga.Define("trip", 1, remote("flight"), remote("hotel")))
	f.orchestrate(f.definition)
	f.participate(wrap)
	return f
}

func (f *trips) run(do func(context.Context) error) {
	f.running.Go(func() {
		if err := do(f.ctx); err != nil {
			f.t.Errorf("Run: %v", err)
		}
	})
}

func (f *trips) orchestrate(plans ...saga.Plan) {
	f.t.Helper()
	var err error
	f.orchestrator, err = saga.NewOrchestrator(f.db, idleBroker{}, plans, &saga.Options{Schema: f.home, Logger: f.log, TimerPoll: 10 * time.Millisecond})
	if err != nil {
		f.t.Fatal(err)
	}
	f.run(f.orchestrator.Run)
	f.eventually("the orchestrator is ready", f.orchestrator.Ready)
}

// participate runs reserve-flight, which does as handler and undo say. Unless wrap makes
// it, it does not answer for dead letters.
func (f *trips) participate(wrap func(consumer.Step) consumer.Step) {
	f.t.Helper()
	f.answer(func() (any, error) { return trip{"!"}, nil })
	undo := func() (any, error) { return nil, nil }
	f.undo.Store(&undo)
	step := consumer.Step{
		Name: "reserve-flight", RetryBase: time.Hour, RetryCap: time.Hour,
		Action: saga.On("flight.reserve", func(context.Context, pgx.Tx, consumer.Message[trip]) (any, error) { return (*f.handler.Load())() }),
		Compensation: saga.OnUndo("flight.cancel", func(context.Context, pgx.Tx, consumer.Message[trip]) error {
			_, err := (*f.undo.Load())()
			return err
		}),
	}
	var err error
	f.participant, err = consumer.New(f.db, idleBroker{}, []consumer.Step{wrap(step)}, &consumer.Options{Schema: f.flights, Logger: f.log, ParkedPoll: 20 * time.Millisecond})
	if err != nil {
		f.t.Fatal(err)
	}
	f.run(f.participant.Run)
}

func (f *trips) answer(do func() (any, error)) { f.handler.Store(&do) }

// relay runs a relay of a schema from now on.
func (f *trips) relay(schema string) {
	f.t.Helper()
	r, err := outbox.NewRelay(f.db, &f.post, &outbox.RelayOptions{Schema: schema, Logger: f.log, RetryBase: 50 * time.Millisecond, RetryCap: 50 * time.Millisecond, MaxAttempts: 1000})
	if err != nil {
		f.t.Fatal(err)
	}
	f.run(r.Run)
}

func (f *trips) start(key string) { f.startID(saga.ID{Scope: "acme", Key: key}) }

func (f *trips) startID(id saga.ID) {
	f.t.Helper()
	s, err := saga.NewStarter(f.definition, &saga.StarterOptions{Schema: f.home})
	if err != nil {
		f.t.Fatal(err)
	}
	err = pgx.BeginFunc(f.t.Context(), f.db, func(tx pgx.Tx) error {
		_, err := s.Start(f.t.Context(), tx, id, trip{"x"})
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// deliver hands over what lies in the post for a topic, and waits for it if there is none yet.
func (f *trips) deliver(topic string) {
	f.t.Helper()
	c := f.participant
	if strings.HasPrefix(topic, "saga.") {
		c = f.orchestrator.Consumer()
	}
	var letters []*message.Message
	f.eventually("there is post for "+topic, func() bool {
		letters = f.post.take(topic)
		return len(letters) > 0
	})
	for _, l := range letters {
		if err := c.Handle(f.t.Context(), topic, l); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *trips) eventually(what string, is func() bool) {
	f.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(20 * time.Second); !is(); {
		select {
		case <-tick.C:
		case <-timeout:
			f.t.Fatalf("not so: %s", what)
		}
	}
}

// command runs sagamill, on the schema of the instances, and returns what it prints.
func (f *trips) command(code int, args ...string) string {
	f.t.Helper()
	var out bytes.Buffer
	if !slices.Contains(args, "-schema") {
		args = append(args, "-schema", f.home)
	}
	if !slices.Contains(args, "-database") {
		args = append(args, "-database", pgtest.URL())
	}
	if got := run(f.t.Context(), args, &out, &out); got != code {
		f.t.Errorf("sagamill %s: exit %d, want %d: %s", strings.Join(args, " "), got, code, out.String())
	}
	return out.String()
}

// why runs sagamill why until it prints want.
func (f *trips) why(key, want string) string {
	f.t.Helper()
	var out bytes.Buffer
	ok := func() bool {
		out.Reset()
		code := run(f.t.Context(), []string{"why", key, "-database", pgtest.URL(), "-schema", f.both()}, &out, &out)
		return code == 0 && strings.Contains(f.plain(out.String()), want)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(10 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-timeout:
			f.t.Fatalf("why %s says\n%swant %s", key, f.plain(out.String()), want)
		}
	}
	return f.plain(out.String())
}

// both are the schemas of the services.
func (f *trips) both() string { return f.home + "," + f.flights }

// plain gives schemas the names of the services.
func (f *trips) plain(s string) string {
	return markOf.ReplaceAllString(strings.NewReplacer(f.home, "trips", f.flights, "flights").Replace(s), "#")
}

// markOf is the mark of an instance in a step key.
var markOf = regexp.MustCompile("#[0-9a-f]{8}-")

func (f *trips) exec(sql string, args ...any) {
	f.t.Helper()
	sql = strings.NewReplacer("{home}", f.home, "{flights}", f.flights).Replace(sql)
	if _, err := f.db.Exec(f.t.Context(), sql, args...); err != nil {
		f.t.Fatal(err)
	}
}

var errFull = errors.New("it is full")
