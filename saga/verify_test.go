package saga_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A reply that is not verified is no reply: the instance goes on with the genuine one.
func TestAForgedReplyMovesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := saga.Must(saga.Define("trip", 1, book("flight")))
	verify := func(_ string, msg *message.Message) error {
		if strings.HasPrefix(msg.UUID, "forged") {
			return errors.New("it is forged")
		}
		return nil
	}
	o := p.orchestrate(&saga.Options{Consumer: consumer.Options{Verify: verify}}, d)
	p.participate(p.booking("flight"))
	busy, err := p.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Rollback(context.WithoutCancel(t.Context()))
	if _, err := busy.Exec(t.Context(), "LOCK TABLE "+p.schema+".effect IN SHARE MODE"); err != nil { // the flight is not booked yet
		t.Fatal(err)
	}
	start(p, d, "k", trip{Item: "x"})
	forged := message.NewMessage("forged", []byte(`{"outcome":"rejected","reason":"forged"}`))
	forged.Metadata = message.Metadata{
		outbox.HeaderKey: "k:flight#" + p.marked("k", "1.1.d"), outbox.HeaderScope: "tenant", outbox.PropertyType: saga.TypeReply,
	}
	if err := o.Consumer().Handle(t.Context(), saga.Topic("trip"), forged); err != nil {
		t.Fatal(err)
	}
	if err := busy.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.until("k", saga.StatusCompleted)
	var reason consumer.Reason
	if err := p.db.QueryRow(t.Context(), "SELECT reason FROM "+p.schema+".parked").Scan(&reason); err != nil || reason != consumer.ReasonUnverified {
		t.Errorf("the forged reply is a dead letter %q (%v), want %q", reason, err, consumer.ReasonUnverified)
	}
}
