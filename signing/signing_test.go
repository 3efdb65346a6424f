package signing_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/signing"
)

// key returns a key of a producer, with a new secret.
func key(id, producer string) signing.Key {
	return signing.Key{ID: id, Producer: producer, Secret: signing.NewSecret(secretOf(id))}
}

func secretOf(id string) []byte { return bytes.Repeat([]byte(id+"."), 32)[:32] }

func signer(t testing.TB, k signing.Key) *signing.Signer {
	t.Helper()
	s, err := signing.NewSigner(k)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// verifier returns one for which the producers orders may send to topic pay, and
// shop to topic unpay.
func verifier(t testing.TB, keys ...signing.Key) *signing.Verifier {
	t.Helper()
	v, err := signing.NewVerifier(keys, map[string][]signing.Sender{"pay": {{Producer: "orders"}}, "unpay": {{Producer: "shop"}}})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// command returns a message with all that a signature covers.
func command() *message.Message {
	msg := message.NewMessage("0192f0c1-2233-7000-8000-000000000001", []byte(`{"amount":7}`))
	msg.Metadata = message.Metadata{
		outbox.PropertyType: "pay.v1", outbox.HeaderKey: "order-42:process-payment#2", outbox.HeaderScope: "acme",
		outbox.PropertyCorrelation: "0192f0c1-2233-7000-8000-000000000000", outbox.HeaderCausation: "cause",
		outbox.PropertyTimestamp: "2026-11-21T16:24:37.123456Z", outbox.PropertyContentType: "application/json",
		outbox.HeaderFormat: "1", "x-sagamill-reply-to": "replies",
		outbox.HeaderTraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "x-own": "own",
	}
	return msg
}

// signed returns command as it goes out to topic pay.
func signed(t testing.TB, k signing.Key) *message.Message {
	t.Helper()
	msg := command()
	if err := signer(t, k).Sign("pay", msg); err != nil {
		t.Fatal(err)
	}
	return msg
}

// uncovered are the headers that may be changed on the way.
var uncovered = []string{outbox.HeaderTraceParent, outbox.HeaderTraceState, "x-own", "x-death", outbox.PropertyRedelivered}

// The value of the header is as it always was, so that what one release signs the
// next one verifies.
func TestSignatureIsAsItWas(t *testing.T) {
	t.Parallel()
	const want = "v1;orders-1;Zuub2O2DymfDey8_HpPaUj0bR6CNICuScrE4lB02fQM"
	msg := signed(t, key("orders-1", "orders"))
	if got := msg.Metadata[signing.Header]; got != want {
		t.Errorf("signature %q, want %q", got, want)
	}
	if err := verifier(t, key("orders-1", "orders")).Verify("pay", msg); err != nil {
		t.Error(err)
	}
}

// A message is refused if any covered byte has changed, or if it has lost or got a field.
func TestEachByteCounts(t *testing.T) {
	t.Parallel()
	v := verifier(t, key("orders-1", "orders"))
	refused := func(what string, change func(msg *message.Message)) {
		t.Helper()
		msg := signed(t, key("orders-1", "orders"))
		change(msg)
		if err := v.Verify("pay", msg); err == nil {
			t.Errorf("%s: it is verified", what)
		}
	}
	for name, value := range signed(t, key("orders-1", "orders")).Metadata {
		if slices.Contains(uncovered, name) {
			continue
		}
		for i := range value {
			for _, mask := range []byte{1, 0x80, 0xff} {
				refused(fmt.Sprint(name, " byte ", i), func(msg *message.Message) {
					b := []byte(value)
					b[i] ^= mask
					msg.Metadata[name] = string(b)
				})
			}
			refused(fmt.Sprint(name, " without byte ", i), func(msg *message.Message) { msg.Metadata[name] = value[:i] + value[i+1:] })
		}
		refused(name+" missing", func(msg *message.Message) { delete(msg.Metadata, name) })
		refused(name+" longer", func(msg *message.Message) { msg.Metadata[name] += "A" })
	}
	for i := range command().Payload {
		refused(fmt.Sprint("payload byte ", i), func(msg *message.Message) { msg.Payload[i] ^= 1 })
	}
	for i := range command().UUID {
		refused(fmt.Sprint("message id byte ", i), func(msg *message.Message) {
			b := []byte(msg.UUID)
			b[i] ^= 1
			msg.UUID = string(b)
		})
	}
	for _, name := range []string{"x-sagamill-edited", "x-sagamill-", "x-sagamill-signatures"} {
		refused("added "+name, func(msg *message.Message) { msg.Metadata[name] = "" })
	}
	refused("renamed header", func(msg *message.Message) {
		delete(msg.Metadata, "x-sagamill-reply-to")
		msg.Metadata["x-sagamill-reply"] = "replies"
	})
	refused("moved text", func(msg *message.Message) {
		msg.Metadata[outbox.HeaderScope], msg.Metadata[outbox.PropertyCorrelation] = "acm", "e"+msg.Metadata[outbox.PropertyCorrelation]
	})
}

// Uncovered fields may change. A missing timestamp is the same as an empty one.
func TestWhatIsNotCovered(t *testing.T) {
	t.Parallel()
	v := verifier(t, key("orders-1", "orders"))
	msg := signed(t, key("orders-1", "orders"))
	for _, name := range uncovered {
		msg.Metadata[name] = "changed"
	}
	if err := v.Verify("pay", msg); err != nil {
		t.Error(err)
	}
	bare := message.NewMessage("", nil)
	bare.Metadata = nil
	if err := signer(t, key("orders-1", "orders")).Sign("pay", bare); err != nil {
		t.Fatal(err)
	}
	bare.Metadata[outbox.PropertyTimestamp] = ""
	if err := v.Verify("pay", bare); err != nil {
		t.Error(err)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	first, second, shop := key("orders-1", "orders"), key("orders-2", "orders"), key("shop-1", "shop")
	past, future := first, first
	past.NotAfter, future.NotAfter = time.Now(), time.Now().Add(time.Hour)
	stolen := first
	stolen.Secret = second.Secret
	for name, tt := range map[string]struct {
		keys  []signing.Key
		by    signing.Key
		topic string
		want  error
	}{
		"current key":           {[]signing.Key{first}, first, "pay", nil},
		"before the rotation":   {[]signing.Key{first, second}, first, "pay", nil},
		"after the rotation":    {[]signing.Key{first, second}, second, "pay", nil},
		"removed key":           {[]signing.Key{second}, first, "pay", signing.ErrUnknownKey},
		"expired key":           {[]signing.Key{past, second}, first, "pay", signing.ErrExpired},
		"key that will expire":  {[]signing.Key{future}, first, "pay", nil},
		"other secret":          {[]signing.Key{first}, stolen, "pay", signing.ErrInvalid},
		"other producer's key":  {[]signing.Key{first, shop}, shop, "pay", signing.ErrNotAllowed},
		"other topic":           {[]signing.Key{first, shop}, first, "unpay", signing.ErrInvalid},
		"topic nobody knows":    {[]signing.Key{first}, first, "refund", signing.ErrInvalid},
		"id of another secret":  {[]signing.Key{stolen}, first, "pay", signing.ErrInvalid},
		"name of a known owner": {[]signing.Key{first}, signing.Key{ID: "orders-1", Producer: "orders", Secret: shop.Secret}, "pay", signing.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			msg := signed(t, tt.by)
			if err := verifier(t, tt.keys...).Verify(tt.topic, msg); !errors.Is(err, tt.want) {
				t.Errorf("Verify = %v, want %v", err, tt.want)
			}
		})
	}
}

// A topic that no producer is named for is closed, also to who signs for it.
func TestATopicIsClosedToWhoIsNotNamed(t *testing.T) {
	t.Parallel()
	k := key("orders-1", "orders")
	for _, topic := range []string{"unpay", "refund"} {
		msg := command()
		if err := signer(t, k).Sign(topic, msg); err != nil {
			t.Fatal(err)
		}
		if err := verifier(t, k).Verify(topic, msg); !errors.Is(err, signing.ErrNotAllowed) {
			t.Errorf("topic %s: %v, want %v", topic, err, signing.ErrNotAllowed)
		}
	}
}

func TestMalformedSignatures(t *testing.T) {
	t.Parallel()
	v := verifier(t, key("orders-1", "orders"))
	good := signed(t, key("orders-1", "orders")).Metadata[signing.Header]
	mac := good[strings.LastIndexByte(good, ';')+1:]
	for value, want := range map[string]error{
		"": signing.ErrMissing, "v1": signing.ErrInvalid, "v1;": signing.ErrInvalid, "v1;orders-1;": signing.ErrInvalid, ";;": signing.ErrInvalid,
		"v2;orders-1;" + mac: signing.ErrInvalid, "v1;ORDERS-1;" + mac: signing.ErrInvalid, "v1;;" + mac: signing.ErrInvalid,
		"v1;" + strings.Repeat("a", 33) + ";" + mac: signing.ErrInvalid, "v1;shop-1;" + mac: signing.ErrUnknownKey,
		good + "=": signing.ErrInvalid, good + ";": signing.ErrInvalid, " " + good: signing.ErrInvalid, good + "\n": signing.ErrInvalid,
		good[:len(good)-1]: signing.ErrInvalid, good[:len(good)-1] + "\n": signing.ErrInvalid,
	} {
		msg := signed(t, key("orders-1", "orders"))
		msg.Metadata[signing.Header] = value
		if err := v.Verify("pay", msg); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", value, err, want)
		}
	}
}

// A signer whose key has expired signs nothing.
func TestAnExpiredKeyDoesNotSign(t *testing.T) {
	t.Parallel()
	k := key("orders-1", "orders")
	k.NotAfter = time.Now()
	msg := command()
	if err := signer(t, k).Sign("pay", msg); !errors.Is(err, signing.ErrExpired) {
		t.Errorf("Sign = %v, want %v", err, signing.ErrExpired)
	}
	if !maps.Equal(msg.Metadata, command().Metadata) {
		t.Errorf("the message has changed: %v", msg.Metadata)
	}
}

func TestKeysAreChecked(t *testing.T) {
	t.Parallel()
	good := key("a", "orders")
	for name, change := range map[string]func(k *signing.Key){
		"no id":         func(k *signing.Key) { k.ID = "" },
		"long id":       func(k *signing.Key) { k.ID = strings.Repeat("a", 33) },
		"id of others":  func(k *signing.Key) { k.ID = "a;b" },
		"no producer":   func(k *signing.Key) { k.Producer = "" },
		"line break":    func(k *signing.Key) { k.Producer = "a\nb" },
		"short secret":  func(k *signing.Key) { k.Secret = signing.NewSecret(secretOf("a")[:31]) },
		"no secret":     func(k *signing.Key) { k.Secret = signing.Secret{} },
		"long producer": func(k *signing.Key) { k.Producer = strings.Repeat("a", 129) },
	} {
		k := good
		change(&k)
		if _, err := signing.NewSigner(k); err == nil {
			t.Errorf("%s: NewSigner takes it", name)
		}
		if _, err := signing.NewVerifier([]signing.Key{k}, nil); err == nil {
			t.Errorf("%s: NewVerifier takes it", name)
		}
	}
	same := key("b", "shop")
	same.Secret = good.Secret
	filled := key("b", "shop")
	filled.Secret = signing.NewSecret(append(secretOf("a"), 0))
	for name, keys := range map[string][]signing.Key{"none": nil, "the same to HMAC": {good, filled}, "twice": {good, {ID: "a", Producer: "x", Secret: key("c", "").Secret}}, "same secret": {good, same}} {
		if _, err := signing.NewVerifier(keys, nil); err == nil {
			t.Errorf("keys %s: NewVerifier takes them", name)
		}
	}
}

// A caller who changes what he has given changes nothing.
func TestKeysAreCopied(t *testing.T) {
	t.Parallel()
	k, secret := key("orders-1", "orders"), secretOf("orders-1")
	k.Secret = signing.NewSecret(secret)
	steps := []string{"process-payment"}
	allowed := map[string][]signing.Sender{"pay": {{Producer: "orders", Steps: steps}}}
	v, err := signing.NewVerifier([]signing.Key{k}, allowed)
	if err != nil {
		t.Fatal(err)
	}
	s := signer(t, k)
	clear(secret)
	steps[0], allowed["pay"][0].Producer = "other", "shop"
	msg := command()
	if err := errors.Join(s.Sign("pay", msg), v.Verify("pay", msg)); err != nil {
		t.Error(err)
	}
	k.Secret = signing.NewSecret(secret)
	if v.Verify("pay", signed(t, k)) == nil {
		t.Error("a key of zeros is verified")
	}
}
