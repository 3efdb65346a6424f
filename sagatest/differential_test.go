package sagatest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A tour is the state of the sagas that both sides run.
type tour struct {
	Stops []string `json:"stops"`
}

func (t *tour) stop(s string) { t.Stops = append(t.Stops, s) }

func visit(name string, attempts int) saga.Step[tour] {
	return saga.Step[tour]{
		Name: name, Retry: saga.Retry{Attempts: attempts, Base: time.Millisecond},
		Do:   saga.Remote(name, func(t *tour) tour { return *t }, func(t *tour, s string) { t.stop(s) }),
		Undo: saga.Remote[tour, tour, any](name+".undo", func(t *tour) tour { return *t }, nil),
	}
}

func differentialTour() *saga.Definition[tour] {
	inner := saga.Must(saga.Define("inner", 1, visit("bern", 1), saga.Step[tour]{Name: "alps", All: []saga.Step[tour]{visit("lech", 1), visit("ischl", 1)}}))
	note := saga.Local(func(_ context.Context, _ pgx.Tx, turn saga.Turn, t *tour) error {
		t.stop(turn.Step)
		turn.Emit(outbox.Message{Topic: "notes", Step: "note", N: fmt.Sprint(turn.Undo), Payload: []byte("{}")})
		return nil
	})
	last := visit("wien", 2)
	last.Undo = saga.Action[tour]{}
	last.Pivot = true
	return saga.Must(saga.Define("outer", 1,
		visit("genf", 1),
		saga.Step[tour]{Name: "both", All: []saga.Step[tour]{
			visit("basel", 1),
			{Name: "inner", Do: saga.Nested(inner, func(t *tour) tour { return *t }, func(t *tour, c tour) { t.Stops = c.Stops })},
		}},
		saga.Step[tour]{Name: "note", Do: note, Undo: note, When: func(t *tour) bool { return len(t.Stops) > 3 }},
		last))
}

// A twin is the same instance twice: in memory, and in package saga with its tables.
type twin struct {
	t       *testing.T
	host    *host
	o       *saga.Orchestrator
	db      *pgxpool.Pool
	schema  string
	key     string
	id      string           // of the instance in package saga, whose mark its messages have
	pending []outbox.Message // sent by both and not answered
	sent    chan string      // by package saga
}

// PublishBatch implements [outbox.Publisher].
func (w *twin) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	for _, p := range batch {
		m := p.Message.Metadata
		key := strings.Replace(m[outbox.HeaderKey], "#"+flow.Mark(m[outbox.PropertyCorrelation], ""), "#", 1)
		w.sent <- fmt.Sprint(p.Topic, " ", m[outbox.PropertyType], " ", key, " ", m[outbox.HeaderScope], " ",
			m[saga.HeaderReplyTo], " ", string(p.Message.Payload))
	}
	return make([]error, len(batch))
}

// text is what PublishBatch makes of m.
func text(m outbox.Message) string {
	key := stepkey.Key{Key: m.Key, Step: m.Step, N: m.N}.String()
	return fmt.Sprint(m.Topic, " ", m.Type, " ", key, " ", m.Scope, " ", m.Headers[saga.HeaderReplyTo], " ", string(m.Payload))
}

// The instances of a run, and what they send, are those of package saga with a database.
func TestHostIsPackageSaga(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	db, schema := pgtest.Schema(t)
	quiet := slog.New(slog.DiscardHandler)
	o, err := saga.NewOrchestrator(db, nil, []saga.Plan{differentialTour()}, &saga.Options{Schema: schema, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	w := &twin{t: t, o: o, db: db, schema: schema, sent: make(chan string, 1000)}
	relay, err := outbox.NewRelay(db, w, &outbox.RelayOptions{Schema: schema, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- relay.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for seed := range uint64(15) {
		w.run(differentialTour(), fmt.Sprint("key-", seed), rand.New(rand.NewPCG(seed, 0)))
	}
}

func (w *twin) run(d *saga.Definition[tour], key string, random *rand.Rand) {
	w.t.Helper()
	w.key, w.pending, w.host = key, nil, &host{rows: map[string]*instance{}}
	starter, err := saga.NewStarter(d, &saga.StarterOptions{Schema: w.schema})
	if err != nil {
		w.t.Fatal(err)
	}
	err = pgx.BeginFunc(w.t.Context(), w.db, func(tx pgx.Tx) error {
		started, err := starter.Start(w.t.Context(), tx, saga.ID{Scope: "test", Key: key}, tour{})
		w.id = started.ID
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := w.host.beginOutermost(w.t.Context(), nil, flow.FlowOfPlan(d), "test", key, &tour{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.host.commitRows(s)
	w.compare(s.sent)
	for len(w.pending) > 0 {
		i := random.IntN(len(w.pending))
		m := w.pending[i]
		w.pending = slices.Delete(w.pending, i, i+1)
		if m.Type != saga.TypeReply && m.Type != saga.TypeRevoke {
			if m.Headers[saga.HeaderReplyTo] == "" {
				continue // it is for nobody
			}
			m = replyTo(m, random)
		}
		w.deliver(m)
	}
}

// replyTo answers a command.
func replyTo(m outbox.Message, random *rand.Rand) outbox.Message {
	undo := m.Topic != m.Step
	r := flow.ReplyBody{Outcome: flow.OutcomeDone, Result: encodeJSON(m.Step)}
	switch n := random.IntN(8); {
	case undo && n == 0:
		r = flow.ReplyBody{Outcome: flow.OutcomeFailed, Reason: "given up"}
	case undo:
		r = flow.ReplyBody{Outcome: flow.OutcomeUndone}
	case n == 0:
		r = flow.ReplyBody{Outcome: flow.OutcomeRejected, Reason: "no"}
	case n == 1:
		r = flow.ReplyBody{Outcome: flow.OutcomeFailed, Reason: "given up"}
	}
	return outbox.Message{
		Topic: m.Headers[saga.HeaderReplyTo], Type: saga.TypeReply, Step: m.Step, N: flow.ReplyN(m.N, undo, ""),
		Scope: m.Scope, Key: m.Key, Payload: encodeJSON(r),
	}
}

// deliver gives a message to both.
func (w *twin) deliver(m outbox.Message) {
	w.t.Helper()
	msg := message.NewMessage(deterministicID(text(m)), m.Payload)
	msg.Metadata = message.Metadata{
		outbox.HeaderKey: stepkey.Key{Key: m.Key, Step: m.Step, N: flow.Mark(w.id, m.N)}.String(), outbox.HeaderScope: m.Scope, outbox.PropertyType: m.Type,
	}
	if err := w.o.Consumer().Handle(w.t.Context(), m.Topic, msg); err != nil {
		w.t.Fatal(err)
	}
	sys := &system{ctx: w.t.Context()}
	h := &handling{system: sys, e: envelope{letter: &letter{Message: m}}}
	path, event, err := h.parseEvent()
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := w.host.moveRow(w.t.Context(), nil, path, event)
	if err != nil {
		w.compare(nil) // late
		return
	}
	w.host.commitRows(s)
	w.compare(s.sent)
}

// compare looks whether both have sent the same, and are in the same place.
func (w *twin) compare(sent []posting) {
	w.t.Helper()
	var want, got []string
	for _, p := range sent {
		if p.ran != nil {
			continue // a local step, and no message
		}
		want = append(want, text(p.Message))
		w.pending = append(w.pending, p.Message)
	}
	for range want {
		select {
		case m := <-w.sent:
			got = append(got, m)
		case <-time.After(20 * time.Second):
			w.t.Fatalf("%s: package saga has sent %q, want %q", w.key, got, want)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.t.Fatalf("%s: package saga has sent\n%q\nin memory it is\n%q", w.key, got, want)
	}
	rows, _ := w.db.Query(w.t.Context(), "SELECT path || ' ' || status || ' ' || reason || ' ' || state FROM "+w.schema+".saga WHERE key = $1 ORDER BY path", w.key)
	there, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	var here []string
	for _, path := range w.host.sortedPaths() {
		i := w.host.rows[path]
		here = append(here, fmt.Sprint(path, " ", statusOf(&i.Progress), " ", i.flow.Machine.Why(&i.Progress), " ", string(i.State)))
	}
	if !slices.Equal(here, there) {
		w.t.Fatalf("%s: package saga is at\n%q\nin memory it is\n%q", w.key, there, here)
	}
}
