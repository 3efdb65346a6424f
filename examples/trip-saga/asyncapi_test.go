package main

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/booking"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/mail"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/ticketing"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/trip"
	"github.com/sagamill/sagamill/internal/testing/asyncapitest"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/topology"
)

// The services describe themselves as AsyncAPI wants it. Commands are described alike by the saga that sends them and
// by the participants, all of which reply.
func TestServicesAreDescribed(t *testing.T) {
	t.Parallel()
	definition, err := trip.DefineSaga("trip_service", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	steps := map[string][]consumer.Step{
		"trip": nil, "ticketing": ticketing.NewService(nil, "ticketing_service").BuildSteps(), "mail": mail.NewService(nil, "mail_service").BuildSteps(),
	}
	for _, name := range []string{command.Flight, command.Hotel, command.Car} {
		steps[name] = booking.NewService(nil, name, name+"_service").BuildSteps()
	}
	var services []*topology.Service
	sent, taken := map[string]topology.Message{}, map[string]topology.Message{}
	for name, of := range steps {
		var sagas []saga.Plan
		if name == "trip" {
			sagas = []saga.Plan{definition}
		}
		s, err := topology.Describe(name, of, sagas, &topology.Options{Prefix: "trip-saga.", BrokerURL: "amqp://127.0.0.1/"})
		if err != nil {
			t.Fatal(err)
		}
		services = append(services, s)
		for _, step := range s.Steps {
			for _, in := range []*topology.Input{&step.Action, step.Compensation} {
				if in == nil {
					continue
				}
				taken[in.Topic] = in.Message
				if in.Reply == nil {
					t.Errorf("%s: step %s does not reply", name, step.Name)
				}
			}
		}
		for _, d := range s.Sagas {
			for _, c := range d.Commands {
				sent[c.Message.Topic] = *c.Message
			}
		}
	}
	if diff := cmp.Diff(sent, taken); diff != "" {
		t.Errorf("what the saga sends, and what participants take: %s", diff)
	}
	if topics := program.Publishes["trip"]; len(sent) != len(topics) || slices.ContainsFunc(topics, func(topic string) bool { return sent[topic].Topic == "" }) {
		t.Errorf("the saga sends %v, and should send to %v", sent, topics)
	}
	document, err := topology.EncodeAsyncAPI(services, nil)
	if err != nil {
		t.Fatal(err)
	}
	asyncapitest.Check(t, document)
}
