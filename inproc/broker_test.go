package inproc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// keyed returns a message with a step key.
func keyed(id, scope, key string) *message.Message {
	msg := message.NewMessage(id, message.Payload(id))
	msg.Metadata[outbox.HeaderScope], msg.Metadata[outbox.HeaderKey] = scope, key
	return msg
}

func batchOf(messages ...*message.Message) []outbox.Publication {
	var batch []outbox.Publication
	for _, msg := range messages {
		batch = append(batch, outbox.Publication{Topic: "orders", Message: msg})
	}
	return batch
}

func subscribe(t *testing.T, b *inproc.Broker, service string) <-chan *message.Message {
	t.Helper()
	messages, err := b.Subscriber(service).Subscribe(context.WithoutCancel(t.Context()), "orders")
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

// publish publishes in the background.
func publish(ctx context.Context, b *inproc.Broker, messages ...*message.Message) <-chan []error {
	done := make(chan []error, 1)
	go func() { done <- b.PublishBatch(ctx, batchOf(messages...)) }()
	return done
}

func TestPublishUnroutable(t *testing.T) {
	t.Parallel()
	b := inproc.New(nil)
	defer b.Close()
	err := b.Publish("orders", keyed("1", "s", "k:a"))
	if !errors.Is(err, inproc.ErrUnroutable) || !errors.Is(err, outbox.ErrRefused) {
		t.Errorf("Publish = %v, want ErrUnroutable, an ErrRefused", err)
	}
}

// A message is published when every service has acked its copy, not before.
func TestPublishAcksThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inproc.New(nil)
		defer b.Close()
		payment, shipping := subscribe(t, b, "payment"), subscribe(t, b, "shipping")
		done := publish(t.Context(), b, keyed("1", "s", "k:a"))
		(<-payment).Ack()
		synctest.Wait()
		select {
		case <-done:
			t.Error("published before shipping acked")
		default:
		}
		(<-shipping).Ack()
		if results := <-done; results[0] != nil {
			t.Errorf("results = %v, want nil", results)
		}
	})
}

// A message that waits for its service to subscribe is kept.
func TestSubscribeInitialize(t *testing.T) {
	t.Parallel()
	b := inproc.New(nil)
	defer b.Close()
	if err := b.Subscriber("payment").SubscribeInitialize("orders"); err != nil {
		t.Fatal(err)
	}
	done := publish(t.Context(), b, keyed("1", "s", "k:a"))
	(<-subscribe(t, b, "payment")).Ack()
	if results := <-done; results[0] != nil {
		t.Errorf("results = %v, want nil", results)
	}
}

// Messages of one identity are handled one at a time, for any step; all others at once.
func TestOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inproc.New(nil)
		defer b.Close()
		first, second := subscribe(t, b, "payment"), subscribe(t, b, "payment") // share the work
		done := publish(t.Context(), b,
			keyed("a1", "s", "a:1:pay"), keyed("a2", "s", "a:1:ship"), keyed("b1", "s", "a:2:pay"),
			keyed("c1", "other", "a:1:pay"), keyed("n1", "", ""), keyed("n2", "", ""), keyed("a3", "s", "a:1:pay"))
		take := func() *message.Message {
			synctest.Wait()
			select {
			case msg := <-first:
				return msg
			case msg := <-second:
				return msg
			default:
				return nil
			}
		}
		inHand := map[string]*message.Message{}
		for msg := take(); msg != nil; msg = take() {
			inHand[msg.UUID] = msg
		}
		if diff := cmp.Diff([]string{"a1", "b1", "c1", "n1", "n2"}, sorted(inHand)); diff != "" {
			t.Errorf("in hand at once (-want +got):\n%s", diff)
		}
		inHand["a1"].Nack()
		for msg := take(); msg != nil; msg = take() {
			t.Errorf("%s came while a1 was held back", msg.UUID)
		}
		time.Sleep(time.Second) // of the bubble's clock
		for _, want := range []string{"a1", "a2", "a3"} {
			msg := take()
			if msg == nil || msg.UUID != want || (msg.Metadata[outbox.PropertyRedelivered] == "true") != (want == "a1") {
				t.Fatalf("got %+v, want %s", msg, want)
			}
			msg.Ack()
		}
		for _, msg := range inHand {
			msg.Ack()
		}
		if err := errors.Join(<-done...); err != nil {
			t.Errorf("PublishBatch: %v", err)
		}
	})
}

func sorted(messages map[string]*message.Message) []string {
	var ids []string
	for _, id := range []string{"a1", "a2", "a3", "b1", "c1", "n1", "n2"} {
		if messages[id] != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// When the publisher gives up, a message that no handler has is withdrawn: it will be published again.
func TestPublishContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inproc.New(&inproc.Options{Prefetch: 1})
		defer b.Close()
		messages := subscribe(t, b, "payment")
		ctx, cancel := context.WithCancel(t.Context())
		done := publish(ctx, b, keyed("1", "s", "k:a"), keyed("2", "s", "k:a"), keyed("3", "s", "l:a"))
		inHand := <-messages
		cancel()
		for i, err := range <-done {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("message %d = %v, want context.Canceled", i, err)
			}
		}
		inHand.Ack()
		next := publish(t.Context(), b, keyed("4", "s", "k:a"))
		msg := <-messages
		if msg.UUID != "4" {
			t.Errorf("got %s, want 4", msg.UUID)
		}
		msg.Ack()
		<-next
	})
}

func TestPublishUnacked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inproc.New(nil)
		messages := subscribe(t, b, "payment")
		done := publish(t.Context(), b, keyed("1", "s", "k:a"))
		msg := <-messages
		if results := <-done; !errors.Is(results[0], inproc.ErrUnacked) {
			t.Errorf("results = %v, want ErrUnacked", results)
		}
		msg.Ack()
		b.Close()
	})
}

// In-hand messages are acked during the drain, and the rest stays with the
// service.
func TestDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inproc.New(nil)
		defer b.Close()
		sub := b.Subscriber("payment")
		messages, err := sub.Subscribe(context.Background(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		var sent []*message.Message
		for i := range 5 {
			sent = append(sent, keyed(fmt.Sprint(i), "s", fmt.Sprintf("k%d:a", i)))
		}
		done := publish(t.Context(), b, sent...)
		inHand := <-messages
		go sub.Close()
		synctest.Wait()
		for range messages {
			t.Error("message after Close")
		}
		if inHand.Context().Err() != nil {
			t.Error("context of a message in hand ended with the subscription")
		}
		inHand.Ack()
		rest := subscribe(t, b, "payment")
		for range 4 {
			(<-rest).Ack()
		}
		if err := errors.Join(<-done...); err != nil {
			t.Errorf("PublishBatch: %v", err)
		}
	})
}

func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inproc.New(nil)
		messages := subscribe(t, b, "payment")
		done := publish(t.Context(), b, keyed("1", "s", "k:a"))
		msg := <-messages
		b.Close()
		if msg.Context().Err() == nil {
			t.Error("context of a message in hand outlived DrainTimeout")
		}
		if results := <-done; !errors.Is(results[0], inproc.ErrClosed) {
			t.Errorf("results = %v, want ErrClosed", results)
		}
		if err := b.Publish("orders", keyed("2", "s", "k:a")); !errors.Is(err, inproc.ErrClosed) {
			t.Errorf("Publish after Close = %v, want ErrClosed", err)
		}
		if _, err := b.Subscriber("payment").Subscribe(context.Background(), "orders"); !errors.Is(err, inproc.ErrClosed) {
			t.Errorf("Subscribe after Close = %v, want ErrClosed", err)
		}
	})
}

func ExampleBroker() {
	broker := inproc.New(nil)
	defer broker.Close()
	orders, _ := broker.Subscriber("payment").Subscribe(context.Background(), "orders")
	go func() {
		for msg := range orders {
			fmt.Printf("payment got %s\n", msg.Payload)
			msg.Ack()
		}
	}()
	err := broker.Publish("orders", message.NewMessage("id", message.Payload("order 7")))
	fmt.Println(err)
	// Output:
	// payment got order 7
	// <nil>
}
