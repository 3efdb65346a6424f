package signing_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
	"github.com/sagamill/sagamill/signing"
)

// A wiretap is a publisher that keeps copies of what goes out.
type wiretap struct {
	*rabbitmq.Publisher
	mu     sync.Mutex
	copies []*message.Message
}

func (w *wiretap) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	w.mu.Lock()
	for _, p := range batch {
		w.copies = append(w.copies, p.Message.Copy())
	}
	w.mu.Unlock()
	return w.Publisher.PublishBatch(ctx, batch)
}

// seen returns one of the copies, counted from the last one if i is negative.
func (w *wiretap) seen(i int) *message.Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i < 0 {
		i += len(w.copies)
	}
	msg := w.copies[i].Copy()
	msg.Metadata.Set(repeated, "yes")
	return msg
}

// A deployment is a service that sends itself messages by way of RabbitMQ.
type deployment struct {
	*testing.T
	pool   *pgxpool.Pool
	schema string
	writer *outbox.Writer
	wire   *wiretap
	sub    message.Subscriber
	mended atomic.Bool // the handler of the message late does not fail any more

	absorbed atomic.Int32 // repeated messages that were duplicates
}

// repeated is a header of repeated messages. It is not covered, and does not matter.
const repeated = "x-repeated"

// Observe counts repeated messages.
func (d *deployment) Observe(_ context.Context, e consumer.Event) {
	if e.Outcome == consumer.OutcomeDuplicate && e.Delivery.Metadata.Get(repeated) != "" {
		d.absorbed.Add(1)
	}
}

func (d *deployment) Enter(context.Context, *consumer.Delivery) consumer.Entry { return nil }
func (d *deployment) Ended(context.Context, consumer.Transaction)              {}

func deploy(t *testing.T) *deployment {
	t.Helper()
	pool, schema := pgtest.Schema(t, "CREATE TABLE {schema}.effect (id bigserial PRIMARY KEY, what text NOT NULL)")
	prefix := rabbittest.Name()
	cfg, err := rabbitmq.NewConfig(rabbittest.URL(), "payments", &rabbitmq.ConfigOptions{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "pay"); err != nil {
		t.Fatal(err)
	}
	queue := cfg.Queue.GenerateName("pay")
	rabbittest.Delete(t, []string{queue, queue + ".dead"}, []string{prefix + "pay"})
	d := &deployment{T: t, pool: pool, schema: schema, wire: &wiretap{}}
	if d.wire.Publisher, err = rabbitmq.NewPublisher(cfg, nil); err != nil {
		t.Fatal(err)
	}
	sub, err := rabbitmq.NewSubscriber(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = d.wire.Close(), sub.Close() })
	d.sub = sub
	if d.writer, err = outbox.NewWriter(&outbox.WriterOptions{Schema: schema}); err != nil {
		t.Fatal(err)
	}
	return d
}

// run runs something until the test or stop ends it.
func (d *deployment) run(do func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			d.Errorf("Run = %v", err)
		}
	})
	d.Cleanup(stop)
	return stop
}

// relay runs one that signs with k.
func (d *deployment) relay(k signing.Key) (stop func()) {
	d.Helper()
	r, err := outbox.NewRelay(d.pool, signer(d, k).Publisher(d.wire), &outbox.RelayOptions{Schema: d.schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		d.Fatal(err)
	}
	return d.run(r.Run)
}

// consumer runs one that knows keys.
func (d *deployment) consumer(keys ...signing.Key) (stop func()) {
	d.Helper()
	step := consumer.Step{Name: "process-payment", MaxAttempts: 1_000_000, RetryBase: 10 * time.Millisecond, RetryCap: 10 * time.Millisecond,
		Action: consumer.On("pay", func(ctx context.Context, tx pgx.Tx, in consumer.Message[struct{}], _ consumer.Emit) error {
			if in.Key == "late" && !d.mended.Load() {
				return errors.New("not yet")
			}
			_, err := tx.Exec(ctx, "INSERT INTO "+d.schema+".effect (what) VALUES ($1)", in.Key)
			return err
		})}
	c, err := consumer.New(d.pool, d.sub, []consumer.Step{step}, &consumer.Options{
		Schema: d.schema, Verify: verifier(d, keys...).Verify, Observer: d, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		d.Fatal(err)
	}
	return d.run(c.Run)
}

// write stores a message for each key.
func (d *deployment) write(keys ...string) {
	d.Helper()
	err := pgx.BeginFunc(d.Context(), d.pool, func(tx pgx.Tx) error {
		for _, key := range keys {
			m := outbox.Message{Topic: "pay", Scope: "acme", Key: key, Step: "process-payment", Payload: []byte("{}")}
			if err := d.writer.Write(d.Context(), tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		d.Fatal(err)
	}
}

// inject publishes to the topic like an attacker with the broker's password.
func (d *deployment) inject(msgs ...*message.Message) {
	d.Helper()
	if err := d.wire.Publish("pay", msgs...); err != nil {
		d.Fatal(err)
	}
}

// texts returns the only column of a query.
func (d *deployment) texts(query string) []string {
	d.Helper()
	rows, _ := d.pool.Query(d.Context(), strings.ReplaceAll(query, "{schema}", d.schema))
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.Fatalf("%s: %v", query, err)
	}
	return all
}

// await waits until something is so.
func (d *deployment) await(what string, done func() bool) {
	d.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(60 * time.Second); !done(); {
		select {
		case <-tick.C:
		case <-timeout:
			d.Fatalf("not within a minute: %s", what)
		}
	}
}

// awaitRows waits until a query returns as many rows.
func (d *deployment) awaitRows(query string, want int) {
	d.Helper()
	d.await(fmt.Sprint(query, ": ", want, " rows"), func() bool { return len(d.texts(query)) == want })
}

// some returns n keys.
func some(what string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint(what, i))
	}
	return keys
}

// Keys are replaced while messages are written, published and consumed, and an attacker forges and repeats
// messages. Each genuine message takes effect once, also one that was parked while its key was known, and no
// other does.
func TestRotation(t *testing.T) {
	t.Parallel()
	const n = 100
	first, second := key("orders-1", "orders"), key("orders-2", "orders")
	thief := first
	thief.Secret = second.Secret
	d := deploy(t)
	stopConsumer, stopRelay := d.consumer(first), d.relay(first)

	// Forged messages are there before the genuine ones, under their keys.
	unsigned, forged, moved := command(), command(), command()
	unsigned.Metadata[outbox.HeaderKey], forged.Metadata[outbox.HeaderKey], moved.Metadata[outbox.HeaderKey] = "a0:process-payment", "a1:process-payment", "a2:process-payment"
	if err := errors.Join(signer(t, thief).Sign("pay", forged), signer(t, first).Sign("elsewhere", moved)); err != nil {
		t.Fatal(err)
	}
	d.inject(unsigned, forged, moved, unsigned.Copy(), forged.Copy())
	const refused = "SELECT error FROM {schema}.parked WHERE state = 'dead' AND reason = 'unverified' AND kind = 'unknown'"
	d.awaitRows(refused, 5)

	d.write(slices.Concat(some("a", n), []string{"late"})...)
	d.awaitRows("SELECT key FROM {schema}.parked WHERE state = 'retrying'", 1)
	d.write(some("b", n)...)
	stopConsumer()
	stopConsumer = d.consumer(first, second) // 1: verifiers learn the new key
	stopRelay()
	d.relay(second) // 2: the signer uses it, also for what is stored already
	d.write(some("c", n)...)
	d.awaitRows("SELECT what FROM {schema}.effect", 3*n)
	d.inject(d.wire.seen(0), d.wire.seen(0)) // as it went out, under the first key
	d.await("repeated messages are duplicates", func() bool { return d.absorbed.Load() >= 2 })
	stopConsumer()
	d.consumer(second) // 3: verifiers forget the old one
	d.mended.Store(true)
	d.inject(d.wire.seen(0)) // now it is of an unknown key
	d.write(some("d", n)...)

	d.awaitRows("SELECT what FROM {schema}.effect", 4*n+1)
	d.await("the message of the removed key is refused", func() bool { // and one of before, if its ack was lost at the stop
		return len(d.texts(refused+" AND header_names @> ARRAY['"+repeated+"'::bytea] AND error LIKE '%unknown key: orders-1'")) > 0
	})
	want := slices.Sorted(slices.Values(slices.Concat(some("a", n), some("b", n), some("c", n), some("d", n), []string{"late"})))
	if got := slices.Sorted(slices.Values(d.texts("SELECT what FROM {schema}.effect"))); !slices.Equal(got, want) {
		t.Errorf("effects %q, want %q", got, want)
	}
	if left := d.texts("SELECT concat_ws(' ', state, kind, reason, error) FROM {schema}.parked WHERE reason <> 'unverified'"); len(left) != 0 {
		t.Errorf("parked %q, want none", left)
	}
	if last := d.wire.seen(-1).Metadata.Get(signing.Header); !strings.HasPrefix(last, "v1;orders-2;") {
		t.Errorf("the last message is signed %q, want it under the second key", last)
	}
}
