package signing_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/signing"
)

// The senders of a saga of two participants. One of them has two steps.
var senders = map[string][]signing.Sender{
	"payment.take": {{Producer: "orders"}},
	"shipping.go":  {{Producer: "orders"}},
	"saga.order": {
		{Producer: "payment", Types: []string{"saga.reply"}, Steps: []string{"payment"}},
		{Producer: "shipping", Types: []string{"saga.reply"}, Steps: []string{"pack", "ship"}},
	},
	"news": {
		{Producer: "orders", Types: []string{"placed"}},
		{Producer: "shipping", Types: []string{"shipped"}}, {Producer: "shipping", Steps: []string{"track"}},
	},
}

// A sent is what a sender is judged by.
type sent struct{ producer, topic, typ, step string }

// may reports whether senders lets it through, told in another way than they tell it.
func (s sent) may() bool {
	switch s.topic {
	case "payment.take", "shipping.go":
		return s.producer == "orders"
	case "saga.order":
		return s.typ == "saga.reply" && slices.Contains(map[string][]string{"payment": {"payment"}, "shipping": {"pack", "ship"}}[s.producer], s.step)
	case "news":
		return s.producer == "orders" && s.typ == "placed" || s.producer == "shipping" && (s.typ == "shipped" || s.step == "track")
	}
	return false
}

func (s sent) message() *message.Message {
	msg := command()
	msg.Metadata[outbox.PropertyType] = s.typ
	msg.Metadata[outbox.HeaderKey] = "order-42:" + s.step + "#1.1.d"
	return msg
}

// Every producer signs, with each of its keys, messages of every type and step to every
// topic: those are verified that it may send, and no other.
func TestForgeries(t *testing.T) {
	t.Parallel()
	keys := map[string][]signing.Key{
		"orders": {key("orders-1", "orders"), key("orders-2", "orders")}, "payment": {key("payment-1", "payment"), key("payment-2", "payment")},
		"shipping": {key("shipping-1", "shipping")}, "stranger": {key("stranger-1", "stranger")},
	}
	var all []signing.Key
	for _, of := range keys {
		all = append(all, of...)
	}
	v, err := signing.NewVerifier(all, senders)
	if err != nil {
		t.Fatal(err)
	}
	verified, refused := 0, 0
	for producer, of := range keys {
		for _, topic := range []string{"payment.take", "shipping.go", "saga.order", "news", "elsewhere"} {
			for _, typ := range []string{"saga.reply", "saga.revoke", "placed", "shipped", ""} {
				for _, step := range []string{"payment", "pack", "ship", "track", "", "PAYMENT", "payment:"} {
					for _, k := range of {
						s := sent{producer, topic, typ, step}
						msg := s.message()
						if err := signer(t, k).Sign(topic, msg); err != nil {
							t.Fatal(err)
						}
						err := v.Verify(topic, msg)
						if s.may() {
							verified++
							if err != nil {
								t.Errorf("%+v, by %s: %v", s, k.ID, err)
							}
							continue
						}
						refused++
						expectNotAllowed(t, s, k, err)
					}
				}
			}
		}
	}
	t.Logf("%d verified, %d refused", verified, refused)
}

// expectNotAllowed sees that the error tells whose key it was, and what was sent where.
func expectNotAllowed(t *testing.T, s sent, k signing.Key, err error) {
	t.Helper()
	if !errors.Is(err, signing.ErrNotAllowed) {
		t.Errorf("%+v, by %s: %v, want %v", s, k.ID, err, signing.ErrNotAllowed)
		return
	}
	step := s.step
	if strings.Trim(step, "abcdefghijklmnopqrstuvwxyz") != "" { // not one
		step = ""
	}
	for _, part := range []string{k.ID, k.Producer, s.topic, fmt.Sprintf("%q", s.typ), fmt.Sprintf("step %q", step)} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%+v, by %s: %v, want %q in it", s, k.ID, err, part)
		}
	}
}

// A message that its own sender may send is refused under any other topic, type or step:
// they are signed.
func TestAllowedIsWhatWasSigned(t *testing.T) {
	t.Parallel()
	k := key("payment-1", "payment")
	v, err := signing.NewVerifier([]signing.Key{k}, senders)
	if err != nil {
		t.Fatal(err)
	}
	own := sent{"payment", "saga.order", "saga.reply", "payment"}
	msg := sent{"payment", "saga.order", "saga.reply", "ship"}.message()
	if err := signer(t, k).Sign(own.topic, msg); err != nil {
		t.Fatal(err)
	}
	msg.Metadata[outbox.HeaderKey] = own.message().Metadata[outbox.HeaderKey]
	if err := v.Verify(own.topic, msg); !errors.Is(err, signing.ErrInvalid) {
		t.Errorf("with another step in it: %v, want %v", err, signing.ErrInvalid)
	}
}

func TestSendersAreChecked(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]signing.Sender{
		"no producer": {Steps: []string{"ship"}},
		"no step":     {Producer: "shipping", Steps: []string{""}},
		"a step key":  {Producer: "shipping", Steps: []string{"order-42:ship"}},
	} {
		_, err := signing.NewVerifier([]signing.Key{key("a", "shipping")}, map[string][]signing.Sender{"saga.order": {s}})
		if err == nil || !strings.Contains(err.Error(), "saga.order") {
			t.Errorf("%s: %v, want an error that names the topic", name, err)
		}
	}
}
