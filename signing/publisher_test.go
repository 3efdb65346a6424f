package signing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/signing"
)

// A recorder keeps the batches that it gets, and answers with results.
type recorder struct {
	batches [][]outbox.Publication
	results []error
}

func (r *recorder) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	r.batches = append(r.batches, batch)
	return r.results
}

func batchOf(n int, topic string) []outbox.Publication {
	batch := make([]outbox.Publication, n)
	for i := range batch {
		msg := command()
		msg.UUID = fmt.Sprint("id", i)
		batch[i] = outbox.Publication{Topic: topic, Message: msg}
	}
	return batch
}

// The publisher below gets each batch as a whole and signed, and its results, one
// for each message, are the answer.
func TestPublisherKeepsBatchesAndResults(t *testing.T) {
	t.Parallel()
	k := key("orders-1", "orders")
	refused := fmt.Errorf("%w: no", outbox.ErrRefused)
	below := &recorder{results: []error{nil, refused, context.DeadlineExceeded}}
	pub := signer(t, k).Publisher(below)
	batch := batchOf(3, "pay")
	batch[0].Message.Metadata[signing.Header] = "of before"
	if got := pub.PublishBatch(t.Context(), batch); !slices.Equal(got, below.results) {
		t.Errorf("results %v, want %v", got, below.results)
	}
	if len(below.batches) != 1 || len(below.batches[0]) != 3 {
		t.Fatalf("batches %v, want one of three", below.batches)
	}
	for _, p := range below.batches[0] {
		if err := verifier(t, k).Verify(p.Topic, p.Message); err != nil {
			t.Errorf("message %s: %v", p.Message.UUID, err)
		}
	}
}

// With an expired key nothing goes out, and nothing is refused: the messages stay
// where they are.
func TestPublisherWithAnExpiredKey(t *testing.T) {
	t.Parallel()
	k := key("orders-1", "orders")
	k.NotAfter = time.Now()
	below := &recorder{}
	results := signer(t, k).Publisher(below).PublishBatch(t.Context(), batchOf(2, "pay"))
	if len(below.batches) != 0 || len(results) != 2 {
		t.Fatalf("%d batches went out with %d results, want none and 2", len(below.batches), len(results))
	}
	for _, err := range results {
		if !errors.Is(err, signing.ErrExpired) || errors.Is(err, outbox.ErrRefused) {
			t.Errorf("result %v, want an ErrExpired that is no refusal", err)
		}
	}
}

// The lanes of a relay sign at once.
func TestSigningConcurrently(t *testing.T) {
	t.Parallel()
	k := key("orders-1", "orders")
	s, v := signer(t, k), verifier(t, k)
	var lanes sync.WaitGroup
	for lane := range 8 {
		lanes.Go(func() {
			for _, p := range batchOf(200, "pay") {
				p.Message.Payload = fmt.Append(nil, lane, p.Message.UUID)
				if err := errors.Join(s.Sign(p.Topic, p.Message), v.Verify(p.Topic, p.Message)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	lanes.Wait()
}

// nothing publishes nothing, at once.
type nothing struct{ results []error }

func (n nothing) PublishBatch(context.Context, []outbox.Publication) []error { return n.results }

// One operation is a message, in batches of 512, with a payload of 1 KiB.
func BenchmarkPublisher(b *testing.B) {
	batch := batchOf(512, "pay")
	for _, p := range batch {
		p.Message.Payload = make([]byte, 1<<10)
	}
	below := nothing{make([]error, len(batch))}
	for name, pub := range map[string]outbox.Publisher{"signed": signer(b, key("orders-1", "orders")).Publisher(below), "unsigned": below} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; n < b.N; n += len(batch) {
				pub.PublishBatch(b.Context(), batch)
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	k := key("orders-1", "orders")
	v, msg := verifier(b, k), command()
	msg.Payload = make([]byte, 1<<10)
	if err := signer(b, k).Sign("pay", msg); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := v.Verify("pay", msg); err != nil {
			b.Fatal(err)
		}
	}
}
