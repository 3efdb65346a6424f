package signing_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/signing"
)

// A printer stands for a broker's publisher.
type printer struct{}

func (printer) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	for _, p := range batch {
		fmt.Println("published to", p.Topic, "signed:", p.Message.Metadata.Get(signing.Header) != "")
	}
	return make([]error, len(batch))
}

// The relay of the order service signs, and the payment service verifies. The key
// orders-2 is about to replace orders-1.
func Example() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	current := signing.Key{ID: "orders-1", Producer: "order-service", Secret: signing.NewSecret([]byte("32 random bytes of a secret store"))}
	next := signing.Key{ID: "orders-2", Producer: "order-service", Secret: signing.NewSecret([]byte("another 32 bytes or more than that"))}

	signer, err := signing.NewSigner(current)
	must(err)
	publisher := signer.Publisher(printer{}) // for outbox.NewRelay

	verifier, err := signing.NewVerifier([]signing.Key{current, next}, map[string][]signing.Sender{"payment.take": {{Producer: "order-service"}}})
	must(err)
	options := consumer.Options{Verify: verifier.Verify} // for consumer.New

	msg := message.NewMessage("id", []byte(`{"amount":7}`))
	must(publisher.PublishBatch(context.Background(), []outbox.Publication{{Topic: "payment.take", Message: msg}})[0])
	fmt.Println("as it came:", options.Verify("payment.take", msg))

	msg.Payload = []byte(`{"amount":1}`)
	err = options.Verify("payment.take", msg)
	fmt.Println("changed:", err, errors.Is(err, signing.ErrInvalid))
	// Output:
	// published to payment.take signed: true
	// as it came: <nil>
	// changed: signing: the signature is invalid: under key orders-1 of order-service true
}

// Payment and shipping reply to the orchestrator of the saga order: each for its own
// steps. The orchestrator sees to it, by saga.Options.NamedReplies, that a reply is about the step that it names.
func ExampleSender() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	payment := signing.Key{ID: "payment-1", Producer: "payment", Secret: signing.NewSecret([]byte("32 random bytes of a secret store"))}
	shipping := signing.Key{ID: "shipping-1", Producer: "shipping", Secret: signing.NewSecret([]byte("another 32 bytes or more than that"))}
	verifier, err := signing.NewVerifier([]signing.Key{payment, shipping}, map[string][]signing.Sender{
		"saga.order": { // saga.Topic("order")
			{Producer: "payment", Types: []string{"saga.reply"}, Steps: []string{"payment"}},
			{Producer: "shipping", Types: []string{"saga.reply"}, Steps: []string{"pack", "ship"}},
		},
	})
	must(err)

	reply := message.NewMessage("id", []byte(`{"outcome":"done"}`))
	reply.Metadata = message.Metadata{outbox.PropertyType: "saga.reply", outbox.HeaderKey: "order-42:payment#1a2b3c4d-1.1.d"}
	for _, key := range []signing.Key{payment, shipping} {
		signer, err := signing.NewSigner(key)
		must(err)
		must(signer.Sign("saga.order", reply))
		fmt.Println(verifier.Verify("saga.order", reply))
	}
	// Output:
	// <nil>
	// signing: the producer is not allowed to send that: key shipping-1 of shipping, to topic saga.order: type "saga.reply", step "payment"
}
