package main

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
	"github.com/sagamill/sagamill/examples/order-saga/internal/shipping"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// A refuser refuses the topic refused, and confirms all else.
type refuser struct{}

func (refuser) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	results := make([]error, len(batch))
	for i, p := range batch {
		if p.Topic == "refused" {
			results[i] = outbox.ErrRefused
		}
	}
	return results
}

// telling is a subscriber whose subscriptions are served, and were cancelled once.
type telling struct{ message.Subscriber }

func (telling) Subscription(string) (served bool, cancelled uint64) { return true, 1 }

// newMeasured returns a service of which nothing runs, beside the gateway.
func newMeasured(t *testing.T, pool *pgxpool.Pool, schema string) []*demo.Service {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	relay, err := outbox.NewRelay(pool, refuser{}, &outbox.RelayOptions{Schema: schema, RetryBase: time.Hour, RetryCap: time.Hour, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	sub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	t.Cleanup(func() { _ = sub.Close() })
	steps, err := consumer.New(pool, telling{sub}, shipping.NewService(schema).BuildSteps(), &consumer.Options{Schema: schema, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return []*demo.Service{{Name: "gateway"}, {Name: "shipping", DB: pool, Relay: relay, Consumer: steps}}
}

// sampleLine is a line of Prometheus' text format. What is the process's has no labels.
var sampleLine = regexp.MustCompile(`^(?:(go_[a-z]+)|([a-z_]+)\{service="shipping"(?:,[a-z]+="[^"]+")*\}) [0-9.e+-]+$`)

// histogramSuffix is what the samples of a histogram add to its name.
var histogramSuffix = regexp.MustCompile(`_(?:bucket|sum|count)\{`)

// scrape returns what the app tells, after a look at its form.
func scrape(t *testing.T, services []*demo.Service) string {
	t.Helper()
	var text strings.Builder
	demo.WriteMetrics(t.Context(), &text, services, metrics)
	family, seen := "", map[string]bool{}
	for line := range strings.Lines(text.String()) {
		line = strings.TrimSpace(line)
		if rest, found := strings.CutPrefix(line, "# TYPE "); found {
			family, _, _ = strings.Cut(rest, " ")
		}
		series, _, _ := strings.Cut(line, " ")
		line = histogramSuffix.ReplaceAllString(line, "{")
		if sample := sampleLine.FindStringSubmatch(line); !strings.HasPrefix(line, "#") && (sample == nil || sample[1]+sample[2] != family || seen[series]) {
			t.Errorf("the line %q, after the type of %s", line, family)
		}
		seen[series] = !strings.HasPrefix(line, "#")
	}
	return text.String()
}

func TestMetricsTellOfTheRelay(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	a := newMeasured(t, pool, schema)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = a[1].Relay.Run(ctx) })
	defer running.Wait()
	defer stop()
	w, err := outbox.NewWriter(&outbox.WriterOptions{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	msg := func(topic, key string) outbox.Message {
		return outbox.Message{Topic: topic, Scope: "s", Key: key, Step: "step"}
	}
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return w.Write(t.Context(), tx, msg("t", "a"), msg("refused", "b"), msg("t", "b"))
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`sagamill_outbox_messages{service="shipping",state="waiting"} 1`, `sagamill_outbox_messages{service="shipping",state="refused"} 1`,
		`sagamill_outbox_messages{service="shipping",state="stored"} 0`, `sagamill_outbox_messages{service="shipping",state="dead"} 0`,
		`sagamill_outbox_messages{service="shipping",state="delayed"} 0`, `sagamill_outbox_oldest_seconds{service="shipping",state="stored"} 0`,
		`sagamill_outbox_active{service="shipping"} 1`, `sagamill_outbox_epoch{service="shipping"} 1`,
		`sagamill_outbox_published_total{service="shipping"} 1`, `sagamill_outbox_refusals_total{service="shipping"} 1`,
		`sagamill_outbox_dead_letters_total{service="shipping"} 0`, `sagamill_outbox_unavailable_total{service="shipping"} 0`,
		`sagamill_outbox_confirms_total{service="shipping",le="30"} `, `sagamill_outbox_confirms_total{service="shipping",le="+Inf"} `,
		`sagamill_outbox_confirm_seconds_total{service="shipping"} `, `sagamill_outbox_leaf_bytes{service="shipping",leaf="outbox_0"} `,
		`sagamill_outbox_oldest_writer_seconds{service="shipping"} `,
		`sagamill_parked_messages{service="shipping",state="retrying"} 0`, `sagamill_parked_messages{service="shipping",state="calling"} 0`,
		`sagamill_parked_messages{service="shipping",state="dead"} 0`,
	}
	for end := time.Now().Add(30 * time.Second); ; {
		text, missing := scrape(t, a), ""
		for _, line := range want {
			if !strings.Contains(text, line) {
				missing = line
			}
		}
		if missing == "" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no %q in\n%s", missing, text)
		}
	}
}

// Without its database a service tells what its process knows, and the demo does
// not take it for done.
func TestMetricsWithoutADatabase(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	a := newMeasured(t, pool, schema)
	if got := program.FindUnfinished("shipping", scrape(t, a)); len(got) != 0 {
		t.Errorf("unfinished at the beginning: %q", got)
	}
	pool.Close()
	text := scrape(t, a)
	if !strings.Contains(text, `sagamill_outbox_active{service="shipping"} 0`) || !strings.Contains(text, "# shipping: the database does not answer") ||
		strings.Contains(text, "sagamill_outbox_messages{") {
		t.Errorf("without the database:\n%s", text)
	}
	if got := program.FindUnfinished("shipping", text); len(got) != 1 {
		t.Errorf("unfinished without the database: %q, want that it is not known", got)
	}
}

func TestUnfinishedIsWhatCountsMessages(t *testing.T) {
	t.Parallel()
	const body = `# starting
sagamill_outbox_messages{service="order",state="stored"} 0
sagamill_outbox_messages{service="order",state="dead"} 2
sagamill_outbox_messages{service="payment",state="dead"} 3
sagamill_outbox_active{service="order"} 1
sagamill_parked_messages{service="order",state="retrying"} 1
`
	got := program.FindUnfinished("order", body)
	if len(got) != 2 || !strings.HasSuffix(got[0], "} 2") || !strings.HasSuffix(got[1], "} 1") {
		t.Errorf("unfinished = %q, want the dead letters and the parked message of the service", got)
	}
	if got := program.FindUnfinished("shipping", body); len(got) != 1 {
		t.Errorf("unfinished of a service that tells nothing = %q", got)
	}
	if got := program.FindUnfinished("gateway", body); len(got) != 0 {
		t.Errorf("unfinished of the gateway = %q", got)
	}
}

// What the steps have done is told by step and outcome.
func TestMetricsTellOfTheSteps(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	a := newMeasured(t, pool, schema)
	if err := a[1].Consumer.Handle(t.Context(), event.PaymentProcessed, message.NewMessage("id", nil)); err != nil {
		t.Fatal(err)
	}
	msg := message.NewMessage("id", []byte("{}")) // the step's tables are missing
	msg.Metadata = message.Metadata{outbox.HeaderKey: "k:s", outbox.HeaderScope: "s", outbox.PropertyType: event.PaymentProcessed,
		outbox.PropertyTimestamp: time.Now().Format(time.RFC3339Nano)}
	if err := a[1].Consumer.Handle(t.Context(), event.PaymentProcessed, msg); err != nil {
		t.Fatal(err)
	}
	text := scrape(t, a)
	for _, line := range []string{
		`sagamill_consumer_messages_total{service="shipping",step="arrange-shipping",kind="action",outcome="retry",reason="failed"} 1`,
		`sagamill_consumer_messages_total{service="shipping",outcome="dead",reason="key-missing"} 1`,
		`sagamill_consumer_handler_seconds_bucket{service="shipping",step="arrange-shipping",kind="action",le="+Inf"} 1`,
		`sagamill_consumer_handler_seconds_count{service="shipping",step="arrange-shipping",kind="action"} 1`,
		`sagamill_consumer_lag_seconds_count{service="shipping",step="arrange-shipping",kind="action"} 1`,
		`sagamill_consumer_transaction_seconds_count{service="shipping"} 1`, `sagamill_consumer_batch_bucket{service="shipping",le="1"} 1`,
		`sagamill_consumer_rollbacks_total{service="shipping"} 0`, `sagamill_consumer_inflight{service="shipping"} 0`, `sagamill_consumer_paused{service="shipping"} 0`,
		`sagamill_consumer_subscribed{service="shipping",topic="payment.processed"} 1`, `sagamill_consumer_cancelled_total{service="shipping",topic="payment.processed"} 1`,
		`sagamill_parked_messages{service="shipping",state="retrying"} 1`, `sagamill_parked_messages{service="shipping",state="dead"} 1`,
		`sagamill_parked_oldest_seconds{service="shipping",state="dead"} `, `sagamill_parked_overdue_seconds{service="shipping"} `,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
	if strings.Contains(text, `sagamill_parked_oldest_seconds{service="shipping",state="dead"} 0`+"\n") {
		t.Error("the oldest dead letter has no age")
	}
}
