package topology_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sagamill/sagamill/cloudevents"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/asyncapitest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/protobuf"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/topology"
)

type (
	order   struct{ Item string }
	payment struct {
		Item   string `json:"item"`
		Amount int64  `json:"amount"`
	}
	receipt struct {
		Number string `json:"number"`
	}
	visa struct {
		Country string `json:"country"`
	}
	trip struct {
		Guest string `json:"guest"`
		Visa  visa   `json:"visa"`
	}
)

func take[T any](context.Context, pgx.Tx, consumer.Message[T], consumer.Emit) error { return nil }

func do[C, R any](context.Context, pgx.Tx, consumer.Message[C]) (r R, err error) { return r, nil }

func undo[C any](context.Context, pgx.Tx, consumer.Message[C]) error { return nil }

func describe(t *testing.T, name string, steps []consumer.Step, sagas []saga.Plan, opts *topology.Options) *topology.Service {
	t.Helper()
	s, err := topology.Describe(name, steps, sagas, opts)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(s, "", "\t") // as it comes to the command
	if err != nil {
		t.Fatal(err)
	}
	var read topology.Service
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	return &read
}

func encode(t *testing.T, services ...*topology.Service) []byte {
	t.Helper()
	document, err := topology.EncodeAsyncAPI(services, nil)
	if err != nil {
		t.Fatal(err)
	}
	asyncapitest.Check(t, document)
	slices.Reverse(services)
	again, err := topology.EncodeAsyncAPI(services, nil)
	if err != nil || !bytes.Equal(document, again) {
		t.Errorf("another order of services makes another document: %v", err)
	}
	return document
}

// choreographed are two services: each acts on messages of the other.
func choreographed(t *testing.T) []*topology.Service {
	opts := &topology.Options{Version: "v1.2.0", Prefix: "shop.", BrokerURL: "amqps://user:secret@mq.example/vh"}
	shop := *opts
	shop.Emits = []outbox.Output{outbox.OutputOf[order]("order.created")}
	return []*topology.Service{
		describe(t, "shop", []consumer.Step{{Name: "record", Action: consumer.On("payment.made", take[payment])}}, nil, &shop),
		describe(t, "pay", []consumer.Step{{
			Name: "pay", Action: consumer.On("order.created", take[order]), Compensation: consumer.On("order.cancelled", take[order]),
			Emits: []outbox.Output{outbox.OutputOf[payment]("payment.made"), {Topic: "payment.made", Type: "payment.refused"}},
		}}, nil, opts),
	}
}

// orchestrated are a saga with parallel steps and a nested saga, in two versions, and a participant.
func orchestrated(t *testing.T) []*topology.Service {
	opts := &topology.Options{BrokerURL: "amqp://a:5672/,amqp://b:5672/"}
	guest := func(s *trip) string { return s.Guest }
	inner := saga.Must(saga.Define("visa", 1, saga.Step[visa]{
		Name: "ask", Do: saga.Remote("visa.ask", func(v *visa) string { return v.Country }, func(*visa, receipt) {}), Undo: saga.Tell[visa, any]("visa.withdraw", nil),
	}))
	local := saga.Local(func(context.Context, pgx.Tx, saga.Turn, *trip) error { return nil })
	steps := []saga.Step[trip]{
		{Name: "quote", Do: local},
		{Name: "book", All: []saga.Step[trip]{
			{Name: "flight", Do: saga.Remote("flight.book", guest, func(*trip, receipt) {}), Undo: saga.Tell("flight.cancel", guest)},
			{Name: "visa", Do: saga.Nested(inner, func(s *trip) visa { return s.Visa }, nil)},
		}},
	}
	first := saga.Must(saga.Define("trip", 1, steps...))
	mail := saga.Tell("mail.send", func(s *trip) *wrapperspb.StringValue { return wrapperspb.String(s.Guest) })
	mail.Codec = protobuf.Codec
	second := saga.Must(saga.Define("trip", 2, append(steps, saga.Step[trip]{Name: "mail", Do: mail})...))
	letters := consumer.On("mail.send", take[*wrapperspb.StringValue])
	letters.Codecs = []outbox.Codec{protobuf.Codec}
	flights := saga.On("flight.book", do[string, receipt])
	flights.Codecs = []outbox.Codec{protobuf.Codec} // as from Config.Codecs: it cannot encode a string
	return []*topology.Service{
		describe(t, "travel", nil, []saga.Plan{first, second}, opts),
		describe(t, "fly", []consumer.Step{
			saga.Participant(consumer.Step{Name: "flight", Action: flights, Compensation: saga.OnUndo("flight.cancel", undo[string])}),
			saga.Participant(consumer.Step{Name: "letter", Action: letters}),
		}, nil, opts),
	}
}

// The documents are as in testdata, where they can be read. RECORD_GOLDEN=1 writes them anew.
func TestDocumentsAreAsRecorded(t *testing.T) {
	t.Parallel()
	for name, services := range map[string][]*topology.Service{"choreographed": choreographed(t), "orchestrated": orchestrated(t)} {
		got, file := encode(t, services...), "testdata/"+name+".json"
		if os.Getenv("RECORD_GOLDEN") != "" {
			if err := os.WriteFile(file, got, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
		if strings.Contains(string(got), "secret") || strings.Contains(string(got), "user") {
			t.Errorf("%s has the credentials of the broker", file)
		}
	}
}

// A document that says something else than the services, or that AsyncAPI forbids, is found.
func TestBrokenDocumentsAreFound(t *testing.T) {
	t.Parallel()
	good := encode(t, choreographed(t)...)
	for _, change := range []struct{ from, to, says string }{
		{`"asyncapi": "3.0.0"`, `"asyncapi": "2.6.0"`, "asyncapi"},
		{`"version": "v1.2.0",`, ``, "version"},
		{`"action": "receive"`, `"action": "take"`, "operations"},
		{`"type": "integer"`, `"type": "number of cents"`, "components"},
		{`"is": "routingKey"`, `"is": "fanout"`, "channels"},
		{`"location": "$message.header#/correlation-id"`, `"location": "correlation-id"`, "correlationIds"},
		{`"channel": {
        "$ref": "#/channels/shop.order.created"`, `"channel": {
        "$ref": "#/channels/shop.order.createt"`, "there is no #/channels/shop.order.createt"},
		{`"$ref": "#/channels/shop.payment.made/messages/payment.made"`, `"$ref": "#/channels/shop.order.created/messages/order.created"`, "not one of the channel"},
	} {
		broken := strings.Replace(string(good), change.from, change.to, 1)
		if broken == string(good) {
			t.Errorf("the document does not have %s", change.from)
		}
		if err := asyncapitest.Validate([]byte(broken)); err == nil || !strings.Contains(err.Error(), change.says) {
			t.Errorf("%s: %v, want %q", change.to, err, change.says)
		}
	}
}

// A message has the payload and the content type that are in the envelope.
func TestStructuredCloudEvents(t *testing.T) {
	t.Parallel()
	events := &cloudevents.Options{Source: "/shop", Structured: true}
	steps := []consumer.Step{
		{Name: "a", Action: consumer.On("a", take[order])},
		{Name: "b", Action: consumer.OnBytes("b", take[[]byte])},
		{Name: "c", Action: consumer.On("c", take[order]), Emits: []outbox.Output{{Topic: "d", ContentType: "image/png"}}},
	}
	document := string(encode(t, describe(t, "shop", steps, nil, &topology.Options{CloudEvents: events})))
	for text, count := range map[string]int{
		`"contentType": "application/cloudevents+json"`: 4, `"data": {`: 2, `"data_base64": {`: 1, `"const": "image/png"`: 1, `"sagamill`: 0,
	} {
		if got := strings.Count(document, text); got != count {
			t.Errorf("%d times %s, want %d\n%s", got, text, count, document)
		}
	}
	binary := describe(t, "shop", steps, nil, &topology.Options{CloudEvents: &cloudevents.Options{Source: "/shop"}})
	if got := string(encode(t, binary)); strings.Contains(got, "cloudevents") {
		t.Errorf("binary mode changes payloads:\n%s", got)
	}
}

// What two services say differently of one type stays apart, and names that AsyncAPI cannot hold do not run together.
func TestNamesOfADocument(t *testing.T) {
	t.Parallel()
	shop := describe(t, "shop", nil, nil, &topology.Options{Emits: []outbox.Output{
		outbox.OutputOf[order]("order/created"), outbox.OutputOf[payment]("order created"), {Topic: "same", Type: "order/created"},
	}})
	mail := describe(t, "mail", []consumer.Step{
		{Name: "send", Action: consumer.On("order/created", take[payment])},
		consumer.FromWatermillHandler("copy", "order created", "copied", func(*message.Message) ([]*message.Message, error) { return nil, nil }),
		consumer.FromWatermill("print", "copied", func(*message.Message) error { return nil }),
	}, nil, nil)
	var document struct {
		Channels, Operations map[string]json.RawMessage
		Components           struct {
			Messages map[string]struct{ Payload json.RawMessage }
		}
	}
	if err := json.Unmarshal(encode(t, shop, mail), &document); err != nil {
		t.Fatal(err)
	}
	for what, names := range map[string][2][]string{
		"channels":   {keysOf(document.Channels), {"copied", "order_created", "order_created-2", "same"}},
		"operations": {keysOf(document.Operations), {"mail.copy", "mail.print", "mail.send", "mail.send.copied", "shop.send.order_created", "shop.send.order_created-2", "shop.send.same"}},
		"messages":   {keysOf(document.Components.Messages), {"copied", "copied-2", "order_created", "order_created-2", "order_created-3", "order_created-4", "order_created-5"}},
	} {
		if diff := cmp.Diff(names[1], names[0]); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
}

func keysOf[V any](m map[string]V) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// An error names the part that cannot be used, and no password.
func TestWhatCannotBeDescribed(t *testing.T) {
	t.Parallel()
	for says, opts := range map[string]*topology.Options{
		"option BrokerURL: URL 2 is not one of RabbitMQ": {BrokerURL: "amqp://u:secret@a,amqp://u:secret%zz@b"},
		"option BrokerURL: URL 1 is not one of RabbitMQ": {BrokerURL: "http://u:secret@a"},
		"option Emits: one has no Topic":                 {Emits: []outbox.Output{{Type: "order"}}},
	} {
		_, err := topology.Describe("shop", nil, nil, opts)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %q", err, says)
		}
	}
	_, unnamed := topology.Describe("", nil, nil, nil)
	_, unmade := topology.Describe("shop", []consumer.Step{{Name: "pay"}}, nil, nil)
	_, unplanned := topology.Describe("shop", nil, []saga.Plan{nil}, nil)
	_, none := topology.EncodeAsyncAPI(nil, nil)
	_, empty := topology.EncodeAsyncAPI([]*topology.Service{nil}, nil)
	_, untyped := topology.EncodeAsyncAPI([]*topology.Service{{Name: "shop", Emits: []topology.Message{{Topic: "a"}}}}, nil)
	_, twice := topology.EncodeAsyncAPI([]*topology.Service{{Name: "shop"}, {Name: "shop"}}, nil)
	for says, err := range map[string]error{
		"no name": unnamed, `step "pay": its Action was not made`: unmade, "a definition is nil": unplanned, "there is no description": none,
		"a description is nil": empty, "service shop: a message has no topic or no type": untyped, "two descriptions of service shop": twice,
	} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}
