package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
	"github.com/sagamill/sagamill/examples/order-saga/internal/order"
	"github.com/sagamill/sagamill/examples/order-saga/internal/payment"
	"github.com/sagamill/sagamill/examples/order-saga/internal/shipping"
	"github.com/sagamill/sagamill/internal/testing/asyncapitest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/topology"
)

// The services describe themselves as AsyncAPI wants it, and leave out no topic.
func TestServicesAreDescribed(t *testing.T) {
	t.Parallel()
	steps := map[string][]consumer.Step{
		"order":    (&order.Service{}).BuildSteps(),
		"payment":  payment.NewService(nil, "payment_service", payment.Gateway{}).BuildSteps(),
		"shipping": shipping.NewService("shipping_service").BuildSteps(),
	}
	emits := map[string][]outbox.Output{"order": {outbox.OutputOf[event.Order](event.OrderCreated)}}
	var services []*topology.Service
	for name, of := range steps {
		s, err := topology.Describe(name, of, nil, &topology.Options{Prefix: "order-saga.", BrokerURL: "amqp://127.0.0.1/", Emits: emits[name]})
		if err != nil {
			t.Fatal(err)
		}
		services = append(services, s)
		var listens, publishes []string
		for _, m := range s.Emits {
			publishes = append(publishes, m.Topic)
		}
		for _, step := range s.Steps {
			listens = append(listens, step.Action.Topic)
			if step.Compensation != nil {
				listens = append(listens, step.Compensation.Topic)
			}
			for _, m := range step.Emits {
				publishes = append(publishes, m.Topic)
			}
		}
		slices.Sort(listens)
		slices.Sort(publishes)
		if diff := cmp.Diff(program.Listens[name], listens); diff != "" {
			t.Errorf("%s listens to: %s", name, diff)
		}
		if diff := cmp.Diff(program.Publishes[name], publishes); diff != "" {
			t.Errorf("%s publishes: %s", name, diff)
		}
	}
	document, err := topology.EncodeAsyncAPI(services, nil)
	if err != nil {
		t.Fatal(err)
	}
	asyncapitest.Check(t, document)
}
