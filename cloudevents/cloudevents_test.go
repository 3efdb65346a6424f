package cloudevents_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sagamill/sagamill/cloudevents"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/signing"
)

// TestMain leaves no file of a failed check behind: make mutate makes checks fail, in the tree of whoever calls it.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A box keeps what is published.
type box struct{ published []outbox.Publication }

func (b *box) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	b.published = append(b.published, batch...)
	return make([]error, len(batch))
}

// send returns msg as a relay with opts publishes it.
func send(t interface{ Fatal(...any) }, opts cloudevents.Options, msg *message.Message) *message.Message {
	b := &box{}
	p, err := cloudevents.NewPublisher(b, &opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.PublishBatch(context.Background(), []outbox.Publication{{Topic: "orders", Message: msg}})[0]; err != nil {
		t.Fatal(err)
	}
	return b.published[0].Message
}

// order is a message as an outbox has it.
func order() *message.Message {
	msg := message.NewMessage("01980000-0000-7000-8000-000000000001", []byte(`{"amount": 4200, "note":"<&>"}`))
	msg.Metadata = message.Metadata{
		outbox.HeaderKey: "key-1:charge#x.1", outbox.HeaderScope: "acmé", outbox.HeaderCausation: "cause", outbox.HeaderTraceParent: "00-1-2-01",
		outbox.PropertyType: "order.created", outbox.PropertyTimestamp: "2026-11-24T12:00:00.123456Z", outbox.PropertyCorrelation: "correlation",
		outbox.PropertyContentType: "application/json", "x-own": "1", "x-sagamill-reply-to": "saga.trip", "cloudEvents_subject": "order/1",
	}
	return msg
}

var modes = map[string]cloudevents.Options{
	"binary": {Source: "/shop"}, "binary of Kafka": {Source: "/shop", Prefix: "ce_"}, "binary of NATS": {Source: "/shop", Prefix: "ce-"},
	"binary with a colon": {Source: "/shop", Prefix: "cloudEvents:"}, "structured": {Source: "/shop", Structured: true},
}

// Whatever a message is: what a consumer opens is what the relay has published, byte by byte. Opening it again changes
// nothing, and the relay's message is not changed.
func TestEventsCarryMessages(t *testing.T) {
	t.Parallel()
	needtest.Shortened(t)
	for name, opts := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				msg := order()
				msg.Payload = []byte(rapid.OneOf(rapid.String(), rapid.Just(" {}"), rapid.Just("null"), rapid.Just(`{"b":1,"a":[1.0,"\u00e9"]}`), rapid.Just("\xff\x00")).Draw(t, "payload"))
				msg.Metadata[outbox.PropertyContentType] = rapid.SampledFrom([]string{"application/json", "application/vnd.x+json; charset=utf-8", "text/plain", "application/protobuf"}).Draw(t, "content type")
				msg.Metadata["x-own"] = rapid.String().Draw(t, "header")
				before := msg.Copy()
				sent := send(t, opts, msg)
				if !msg.Equals(before) {
					t.Fatalf("the relay's message became %+v", msg)
				}
				for range 2 {
					if err := cloudevents.Open(sent); err != nil {
						t.Fatal(err)
					}
					if sent.UUID != msg.UUID || !bytes.Equal(sent.Payload, msg.Payload) {
						t.Fatalf("%q became %q, id %s", msg.Payload, sent.Payload, sent.UUID)
					}
					if diff := cmp.Diff(msg.Metadata, withoutAttributes(sent.Metadata)); diff != "" {
						t.Fatal(diff)
					}
				}
			})
		})
	}
}

// withoutAttributes removes the attributes that Open adds.
func withoutAttributes(m message.Metadata) message.Metadata {
	own := maps.Clone(m)
	maps.DeleteFunc(own, func(name, _ string) bool {
		return strings.HasPrefix(name, cloudevents.DefaultPrefix) && name != "cloudEvents_subject"
	})
	return own
}

// The SDK of the CloudEvents project reads what is sent, and takes it for valid.
func TestTheSDKReadsEvents(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(t *testing.T) event.Event{
		"structured": func(t *testing.T) (e event.Event) {
			if err := json.Unmarshal(send(t, modes["structured"], order()).Payload, &e); err != nil {
				t.Fatal(err)
			}
			return e
		},
		"binary": func(t *testing.T) event.Event {
			sent := send(t, modes["binary"], order())
			version := spec.WithPrefix("cloudEvents_").Version(sent.Metadata["cloudEvents_specversion"])
			e := event.Event{Context: version.NewContext()}
			for name, value := range sent.Metadata {
				if err := version.SetAttribute(e.Context, name, value); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			e.SetDataContentType(sent.Metadata[outbox.PropertyContentType])
			e.DataEncoded = sent.Payload
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := read(t)
			if err := e.Validate(); err != nil {
				t.Fatal(err)
			}
			got := []string{e.ID(), e.Source(), e.Type(), e.Subject(), e.Time().Format(time.RFC3339Nano), e.DataContentType(), string(e.Data())}
			want := []string{"01980000-0000-7000-8000-000000000001", "/shop", "order.created", "order/1", "2026-11-24T12:00:00.123456Z", "application/json", `{"amount": 4200, "note":"<&>"}`}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(map[string]any{
				"sagamillkey": "key-1:charge#x.1", "sagamillscope": "acmé", "causationid": "cause", "correlationid": "correlation",
				"traceparent": "00-1-2-01", "sagamillreplyto": "saga.trip",
			}, e.Extensions()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Open reads what the SDK writes, with each kind of data.
func TestEventsOfTheSDKAreOpened(t *testing.T) {
	t.Parallel()
	for contentType, c := range map[string]struct {
		data any
		want string
	}{
		"application/json": {map[string]int{"amount": 7}, `{"amount":7}`},
		"text/plain":       {"a text", "a text"},
		"image/png":        {[]byte("\x89PNG"), "\x89PNG"},
	} {
		e := event.New()
		e.SetID("A 1")
		e.SetSource("https://shop.example/orders")
		e.SetType("order.created")
		e.SetTime(time.Date(2026, 11, 24, 12, 0, 0, 5000, time.UTC))
		e.SetExtension("attempt", 3)
		e.SetExtension("test", true)
		if err := e.SetData(contentType, c.data); err != nil {
			t.Fatal(err)
		}
		document, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		msg := message.NewMessage("of the broker", document)
		msg.Metadata[outbox.PropertyContentType] = "application/cloudevents+json; charset=utf-8"
		if err := cloudevents.Open(msg); err != nil {
			t.Fatal(err)
		}
		want := message.Metadata{
			outbox.PropertyType: "order.created", outbox.PropertyTimestamp: "2026-11-24T12:00:00.000005Z", outbox.PropertyContentType: contentType,
			"cloudEvents_specversion": "1.0", "cloudEvents_id": "A 1", "cloudEvents_source": "https://shop.example/orders", "cloudEvents_type": "order.created",
			"cloudEvents_time": "2026-11-24T12:00:00.000005Z", "cloudEvents_attempt": "3", "cloudEvents_test": "true",
		}
		if diff := cmp.Diff(want, msg.Metadata); diff != "" || string(msg.Payload) != c.want || msg.UUID != "A 1" {
			t.Errorf("%s: %s %q\n%s", contentType, msg.UUID, msg.Payload, diff)
		}
		scope, key, n, err := cloudevents.Identity("events")(msg)
		if err != nil || scope != "events" || len(key) != 64 || n != "" {
			t.Errorf("identity %s %s %s: %v", scope, key, n, err)
		}
	}
}

// What is no event is left alone, and what breaks the specification is an error that says how, and is left alone too.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	const good = `"specversion":"1.0","id":"1","source":"/s","type":"t"`
	for document, want := range map[string]string{
		"":   "JSON",
		"[]": "cannot unmarshal",
		"{}": `specversion is ""`,
		"{" + strings.Replace(good, "1.0", "0.3", 1) + "}":               `specversion is "0.3"`,
		"{" + strings.Replace(good, `"id":"1",`, "", 1) + "}":            "attribute id",
		"{" + strings.Replace(good, `"/s"`, `""`, 1) + "}":               "attribute source",
		"{" + strings.Replace(good, `"t"`, `null`, 1) + "}":              "attribute type",
		"{" + good + `,"id":"2"}`:                                        "twice",
		"{" + good + `,"extension":{}}`:                                  `attribute "extension"`,
		"{" + good + `,"Bad-Name":"x"}`:                                  `attribute "Bad-Name"`,
		"{" + good + `,"data":1,"data_base64":"eA=="}`:                   "both",
		"{" + good + `,"data_base64":"?"}`:                               "data_base64",
		"{" + good + `,"data_base64":7}`:                                 "data_base64 is no string",
		"{" + good + `,"datacontenttype":"text/plain","data":{"not":1}}`: "no string",
	} {
		msg := message.NewMessage("id", []byte(document))
		msg.Metadata[outbox.PropertyContentType] = cloudevents.StructuredType
		before := msg.Copy()
		if err := cloudevents.Open(msg); !errors.Is(err, cloudevents.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", document, err, want)
		}
		if !msg.Equals(before) {
			t.Errorf("%s: the message became %+v", document, msg)
		}
	}
	for contentType, refused := range map[string]bool{"": false, "application/json": false, "; ;": false, "application/cloudevents-batch+json": true, "application/cloudevents+avro": true} {
		msg := message.NewMessage("id", []byte("[]"))
		msg.Metadata[outbox.PropertyContentType] = contentType
		before := msg.Copy()
		if err := cloudevents.Open(msg); errors.Is(err, cloudevents.ErrInvalid) != refused || !msg.Equals(before) {
			t.Errorf("%q: %v", contentType, err)
		}
		if _, _, _, err := cloudevents.Identity("events")(msg); err == nil {
			t.Errorf("%q: a message that is no event has an identity", contentType)
		}
	}
}

// A signature is that of the message, whatever the envelope.
func TestSignedEvents(t *testing.T) {
	t.Parallel()
	key := signing.Key{ID: "k", Producer: "shop", Secret: signing.NewSecret([]byte("32 random bytes of a secret store"))}
	signer, err := signing.NewSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := signing.NewVerifier([]signing.Key{key}, map[string][]signing.Sender{"orders": {{Producer: "shop"}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, opts := range modes {
		b := &box{}
		p, err := cloudevents.NewPublisher(b, &opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := signer.Publisher(p).PublishBatch(t.Context(), []outbox.Publication{{Topic: "orders", Message: order()}})[0]; err != nil {
			t.Fatal(err)
		}
		msg := b.published[0].Message
		if err := cloudevents.Open(msg); err != nil {
			t.Fatal(err)
		}
		if err := verifier.Verify("orders", msg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a message carries can be anything: another event, JSON that no document can hold, headers that look like attributes.
// It arrives as it was signed, opened once or twice, and no header becomes another one.
func TestEventsCarryWhatLooksLikeAnEvent(t *testing.T) {
	t.Parallel()
	key := signing.Key{ID: "k", Producer: "shop", Secret: signing.NewSecret([]byte("32 random bytes of a secret store"))}
	signer, err := signing.NewSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := signing.NewVerifier([]signing.Key{key}, map[string][]signing.Sender{"orders": {{Producer: "shop"}}})
	if err != nil {
		t.Fatal(err)
	}
	const inner = `{"specversion":"1.0","id":"inner","source":"/inner","type":"inner","data":{}}`
	for what, change := range map[string]func(msg *message.Message){
		"an event": func(msg *message.Message) {
			msg.Metadata[outbox.PropertyContentType], msg.Payload = cloudevents.StructuredType, []byte(inner)
		},
		"no event, by its content type": func(msg *message.Message) { msg.Metadata[outbox.PropertyContentType] = cloudevents.StructuredType },
		"events": func(msg *message.Message) {
			msg.Metadata[outbox.PropertyContentType], msg.Payload = "application/cloudevents-batch+json", []byte("["+inner+"]")
		},
		"a member twice": func(msg *message.Message) { msg.Payload = []byte(`{"a":1,"a":2}`) },
		"deep nesting":   func(msg *message.Message) { msg.Payload = []byte(strings.Repeat("[", 128) + strings.Repeat("]", 128)) },
		"no one value":   func(msg *message.Message) { msg.Payload = []byte("1,2") },
		"attributes of a handled event": func(msg *message.Message) {
			for _, name := range []string{"specversion", "id", "source", "type", "time", "datacontenttype", "sagamillkey", "sagamillscope", "sagamillreplyto", "sagamillreplayed", "sagamillsignature", "causationid", "correlationid"} {
				msg.Metadata["cloudEvents_"+name], msg.Metadata["CE-"+name] = "of the other", "of another"
			}
			delete(msg.Metadata, "x-sagamill-reply-to")
			delete(msg.Metadata, outbox.HeaderCausation)
			delete(msg.Metadata, outbox.PropertyTimestamp)
		},
	} {
		for name, opts := range modes {
			msg, b := order(), &box{}
			change(msg)
			p, err := cloudevents.NewPublisher(b, &opts)
			if err != nil {
				t.Fatal(err)
			}
			if err := signer.Publisher(p).PublishBatch(t.Context(), []outbox.Publication{{Topic: "orders", Message: msg}})[0]; err != nil {
				t.Fatal(err)
			}
			sent := b.published[0].Message
			for range 2 {
				if err := errors.Join(cloudevents.Open(sent), verifier.Verify("orders", sent)); err != nil {
					t.Errorf("%s, %s: %v", what, name, err)
				}
				if sent.Metadata["cloudEvents_subject"] != "order/1" || sent.Metadata["cloudEvents_source"] != "/shop" {
					t.Errorf("%s, %s: the metadata became %v", what, name, sent.Metadata)
				}
			}
		}
	}
}

// Of two headers for one attribute the same one always counts.
func TestTwoHeadersForOneAttribute(t *testing.T) {
	t.Parallel()
	for range 20 {
		msg := message.NewMessage("id", nil)
		msg.Metadata = message.Metadata{
			"cloudEvents_specversion": "1.0", "cloudEvents_source": "/s", "cloudEvents_type": "t",
			"cloudEvents_id": "first", "CLOUDEVENTS_ID": "upper", "cloudEvents:id": "colon", "ce_id": "kafka", "ce-id": "nats",
		}
		if err := cloudevents.Open(msg); err != nil || msg.UUID != "first" {
			t.Fatalf("opened as %q: %v", msg.UUID, err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for field, opts := range map[string]*cloudevents.Options{
		"Source": nil, "option Source": {Source: "%zz"}, "Prefix": {Source: "/s", Prefix: "x-"},
	} {
		if _, err := cloudevents.NewPublisher(&box{}, opts); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := cloudevents.NewPublisher(nil, &cloudevents.Options{Source: "/s"}); err == nil {
		t.Error("a publisher around nothing")
	}
}

// Any document: it is an error and the message is as it was, or the message has id, type and source.
func FuzzOpen(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1}}`), true, "application/json")
	f.Add([]byte("{}"), false, "1.0")
	f.Fuzz(func(t *testing.T, payload []byte, structured bool, value string) {
		msg := message.NewMessage("id", payload)
		msg.Metadata[outbox.PropertyContentType] = cloudevents.StructuredType
		if !structured {
			msg.Metadata = message.Metadata{outbox.PropertyContentType: value, "CE_specversion": "1.0", "ce-id": value, "cloudEvents:source": "/s", "ce_type": value, "ce_": value}
		}
		before := msg.Copy()
		switch err := cloudevents.Open(msg); {
		case err != nil && !msg.Equals(before):
			t.Fatalf("%v changed the message to %+v", err, msg)
		case err == nil && (msg.UUID == "" || msg.Metadata[outbox.PropertyType] == "" || msg.Metadata["cloudEvents_source"] == ""):
			t.Fatalf("opened as %+v", msg)
		}
	})
}

// The relay's publisher sends CloudEvents, and consumer.Options.Open reads them.
func Example() {
	b := &box{} // stands for a broker
	publisher, err := cloudevents.NewPublisher(b, &cloudevents.Options{Source: "/shop/orders", Structured: true})
	if err != nil {
		panic(err)
	}
	msg := message.NewMessage("01980000-0000-7000-8000-000000000001", []byte(`{"amount":7}`))
	msg.Metadata[outbox.PropertyType], msg.Metadata[outbox.HeaderKey] = "order.created", "key-1:charge"
	publisher.PublishBatch(context.Background(), []outbox.Publication{{Topic: "order.created", Message: msg}})
	received := b.published[0].Message
	fmt.Println(string(received.Payload))
	fmt.Println(cloudevents.Open(received), string(received.Payload), received.Metadata[outbox.HeaderKey])
	// Output:
	// {"id":"01980000-0000-7000-8000-000000000001","sagamillkey":"key-1:charge","source":"/shop/orders","specversion":"1.0","type":"order.created","data":{"amount":7}}
	// <nil> {"amount":7} key-1:charge
}

// A step handles the events of a publisher that knows nothing of sagamill.
func ExampleIdentity() {
	_ = consumer.Options{Open: cloudevents.Open, Identity: cloudevents.Identity("events")}
}
