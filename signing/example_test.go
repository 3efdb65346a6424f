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
	current := signing.Key{ID: "orders-1", Producer: "order-service", Secret: []byte("32 random bytes of a secret store")}
	next := signing.Key{ID: "orders-2", Producer: "order-service", Secret: []byte("another 32 bytes or more than that")}

	signer, err := signing.NewSigner(current)
	must(err)
	publisher := signer.Publisher(printer{}) // for outbox.NewRelay

	verifier, err := signing.NewVerifier([]signing.Key{current, next}, map[string][]string{"payment.take": {"order-service"}})
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
