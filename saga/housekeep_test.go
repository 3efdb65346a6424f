package saga_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// A step without an answer becomes stuck, and a late reply frees the saga.
func TestASilentStepIsStuckAndALateReplyFreesIt(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	silent := p.broker.Subscriber("silent")
	if err := silent.SubscribeInitialize("flight.book"); err != nil {
		t.Fatal(err)
	}
	p.drain(silent, "flight.book")
	d := saga.Must(saga.Define("trip", 1, book("flight")))
	p.orchestrate(&saga.Options{Patience: time.Second, HousekeepPoll: 20 * time.Millisecond}, d)
	start(p, d, "k", trip{})
	if reason := p.until("k", saga.StatusStuck); reason != "step flight: no reply for 1s" {
		t.Errorf("reason %q", reason)
	}
	p.publish(outbox.Message{Topic: saga.Topic("trip"), Type: saga.TypeReply, Key: "k", Step: "flight", N: "1.1.d", Payload: []byte(`{"outcome":"done","result":{"number":"LH1"}}`)})
	p.until("k", saga.StatusCompleted)
}

// Instances are kept for a while after their end, nested ones as long as the outermost.
func TestEndedInstancesAreRemovedAfterTheirRetention(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := nestedTour(t, "car")
	p.participate(p.booking("flight"), p.booking("hotel"), p.booking("car"))
	o := p.orchestrate(&saga.Options{HousekeepPoll: 10 * time.Millisecond}, d)
	start(p, d, "old", tour{Item: "x"})
	p.until("old", saga.StatusCompleted)
	start(p, d, "young", tour{Item: "x"})
	p.until("young", saga.StatusCompleted)
	count := func(key string) (n int) {
		err := p.db.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM "+p.schema+".saga WHERE key = $1) + (SELECT count(*) FROM "+p.schema+".saga_journal WHERE key = $1)", key).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	_, err := p.db.Exec(t.Context(), "INSERT INTO "+p.schema+".saga_journal (scope, key, path, verb, who, why) SELECT scope, key, '', 'pause', 'w', 'y' FROM "+p.schema+".saga WHERE path = ''")
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.db.Exec(t.Context(), "UPDATE "+p.schema+".saga SET ended_at = ended_at - interval '31 days' WHERE key = 'old' OR path <> ''")
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(20 * time.Second); count("old") > 0; {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("the old instance is still there")
		}
	}
	if n := count("young"); n != 3 {
		t.Errorf("%d rows are left of the young instance, want 3", n)
	}
	_ = o
}

// silence makes topics' messages disappear.
func (p *place) silence(topics ...string) {
	p.t.Helper()
	silent := p.broker.Subscriber("silent")
	for _, topic := range topics {
		if err := silent.SubscribeInitialize(topic); err != nil {
			p.t.Fatal(err)
		}
		p.drain(silent, topic)
	}
}

// A silent step that is given up leads to what always fails: that is stuck, and is not
// tried again unseen at each look.
func TestWhatFollowsFromSilenceFails(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.silence("flight.book", "flight.cancel")
	flight := book("flight")
	flight.Undo = saga.Remote[trip, request, any]("flight.cancel", func(*trip) request { panic("no request") }, nil)
	d := saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "both", All: []saga.Step[trip]{flight, book("hotel")}}))
	p.orchestrate(&saga.Options{Patience: time.Second, HousekeepPoll: 20 * time.Millisecond, TimerPoll: soon}, d)
	p.participate(p.booking("hotel"))
	start(p, d, "k", trip{Item: "no hotel"})
	p.untilSQL("k", "reason LIKE '%no request%'")
}

// The answer of a nested saga is a dead letter, or the order to undo it is: the saga around
// it does not wait unseen for ever.
func TestANestedSagaIsNotHeard(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]string{"answer": saga.TypeReply, "order": saga.TypeRevoke} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.orchestrate(&saga.Options{Patience: time.Second, HousekeepPoll: 20 * time.Millisecond, TimerPoll: soon}, nestedTour(t, "car"))
			p.participate(p.booking("flight"), p.booking("hotel"), p.booking("car"))
			item := map[string]string{saga.TypeReply: "x", saga.TypeRevoke: "no car"}[lost]
			p.startWithout(lost, map[string]string{saga.TypeReply: "1.1.d", saga.TypeRevoke: "1.1"}[lost], tour{Item: item})
			want := map[string]string{saga.TypeReply: "step trip: no reply for 1s", saga.TypeRevoke: "compensation of step trip: no reply for 1s"}[lost]
			if reason := p.until("k", saga.StatusStuck); !strings.HasPrefix(reason, want) {
				t.Errorf("reason %q, want %q", reason, want)
			}
		})
	}
}

// startWithout starts a tour of which the message of a type and an n becomes a dead letter of the
// orchestrator's: its key was used for another.
func (p *place) startWithout(kind, n string, state tour) {
	p.t.Helper()
	s, err := saga.NewStarter(nestedTour(p.t, "car"), &saga.StarterOptions{Schema: p.schema})
	if err != nil {
		p.t.Fatal(err)
	}
	step := map[string]string{saga.TypeReply: "saga-tour", saga.TypeRevoke: "revoke-trip"}[kind]
	err = pgx.BeginFunc(p.t.Context(), p.db, func(tx pgx.Tx) error {
		started, err := s.Start(p.t.Context(), tx, saga.ID{Scope: "tenant", Key: "k"}, state)
		if err == nil {
			_, err = tx.Exec(p.t.Context(), "INSERT INTO "+p.schema+".inbox (scope, key, step, n, state, digest) VALUES ('tenant', 'k', $1, $2, 'done', decode(repeat('00', 32), 'hex'))",
				step, flow.Mark(started.ID, n))
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.relay.Wake()
}

// Housekeeping does not lock an instance that waits with good reason, and so delays no other transaction.
func TestADeadlineThatIsLongerThanPatience(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.silence("flight.book", "hotel.book")
	patient := book("flight")
	patient.Deadline = time.Hour
	long, short := saga.Must(saga.Define("long", 1, patient)), saga.Must(saga.Define("short", 1, book("hotel")))
	start(p, long, "a", trip{})
	start(p, short, "b", trip{})
	tx, err := p.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM "+p.schema+".saga WHERE key = 'a' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	p.orchestrate(&saga.Options{Patience: time.Second, HousekeepPoll: 20 * time.Millisecond}, long, short)
	p.until("b", saga.StatusStuck)
}
