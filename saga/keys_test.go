package saga_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// Two services run sagas of their own under the key of one request, with one
// participant: it does the step of each, and undoes that of the one which asks.
func TestTwoServicesUseOneKey(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d, other := saga.Must(saga.Define("trip", 1, book("flight"))), saga.Must(saga.Define("insurance", 1, book("flight"), book("car")))
	p.orchestrate(nil, d)
	p.participate(p.booking("flight"), p.booking("car"))
	start(p, d, "k", trip{Item: "x"})
	p.until("k", saga.StatusCompleted)

	db, schema := pgtest.Schema(t)
	relay, err := outbox.NewRelay(db, p.broker, &outbox.RelayOptions{Schema: schema, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	p.run(relay.Run)
	sub := p.broker.Subscriber("other")
	o, err := saga.NewOrchestrator(db, sub, []saga.Plan{other}, &saga.Options{Schema: schema, Logger: quiet, Wake: relay.Wake})
	if err != nil {
		t.Fatal(err)
	}
	p.serve(sub, o.Topics(), o.Run)
	s, err := saga.NewStarter(other, &saga.StarterOptions{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, err := s.Start(t.Context(), tx, saga.ID{Scope: "tenant", Key: "k"}, trip{Item: "no car"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	second := &place{t: t, db: db, schema: schema}
	if reason := second.until("k", saga.StatusCompensated); reason != "step car was rejected: there is none" {
		t.Errorf("reason %q", reason)
	}
	if got := p.effects("k"); got != "[flight flight no flight]" {
		t.Errorf("effects %s, want two flights, and one of them undone", got)
	}
}

// A key is used again after its instance was removed: that is another saga, with
// steps of its own, and a late reply for the first is not taken for one of its.
func TestAKeyIsUsedAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	o := p.orchestrate(nil, d)
	p.participate(p.booking("flight"), p.booking("hotel"))
	start(p, d, "k", trip{Item: "x"})
	p.until("k", saga.StatusCompleted)
	late := message.NewMessage("late", []byte(`{"outcome":"rejected"}`))
	late.Metadata = message.Metadata{
		outbox.HeaderKey: "k:flight#" + p.marked("k", "1.1.dlate"), outbox.HeaderScope: "tenant", outbox.PropertyType: saga.TypeReply,
	}
	p.exec("DELETE FROM {schema}.saga") // as after Retention
	busy, err := p.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Rollback(context.WithoutCancel(t.Context()))
	if _, err := busy.Exec(t.Context(), "LOCK TABLE "+p.schema+".effect IN SHARE MODE"); err != nil { // the second flight is not booked yet
		t.Fatal(err)
	}
	start(p, d, "k", trip{Item: "x"})
	if err := o.Consumer().Handle(t.Context(), saga.Topic("trip"), late); err != nil {
		t.Fatal(err)
	}
	if got := p.status("k"); got != saga.StatusRunning || o.Counters().Late != 1 {
		t.Fatalf("the instance is %s after a reply for the first, of which %d were late", got, o.Counters().Late)
	}
	if err := busy.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.until("k", saga.StatusCompleted)
	if got := p.effects("k"); got != "[flight hotel flight hotel]" {
		t.Errorf("effects %s, want the steps of both", got)
	}
}
