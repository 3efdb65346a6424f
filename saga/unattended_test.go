package saga_test

import (
	"testing"
	"time"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A silent instance whose compensation cannot be made does not keep the others from
// being looked after.
func TestASilentInstanceHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	broken := book("flight")
	broken.Undo = saga.Remote[trip, request, any]("flight.cancel", func(*trip) request { panic("the body of a compensation") }, nil)
	d := saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "both", All: []saga.Step[trip]{broken, book("hotel")}}))
	p.orchestrate(&saga.Options{Patience: time.Second, HousekeepPoll: 20 * time.Millisecond}, d)
	silent := p.broker.Subscriber("silent")
	for _, topic := range []string{"flight.book", "hotel.book"} {
		if err := silent.SubscribeInitialize(topic); err != nil {
			t.Fatal(err)
		}
		p.drain(silent, topic)
	}
	start(p, d, "first", trip{Item: "x"})
	start(p, d, "second", trip{Item: "x"})
	p.publish(outbox.Message{Topic: saga.Topic("trip"), Type: saga.TypeReply, Step: "test", Key: "first", N: "2.1.d", Payload: []byte(`{"outcome":"rejected"}`)})
	p.until("first", saga.StatusCompensating)
	if reason := p.until("second", saga.StatusStuck); reason != "step flight: no reply for 1s" {
		t.Errorf("reason %q", reason)
	}
	p.until("first", saga.StatusCompensating) // as it was
}
