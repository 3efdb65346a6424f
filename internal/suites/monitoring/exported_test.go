package monitoring

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/telemetry"
)

// A nobody is a broker that accepts every message.
type nobody struct{}

func (nobody) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	return make([]error, len(batch))
}

// A teller is a subscriber that tells of its subscriptions, and has none.
type teller struct{ message.Subscriber }

func (teller) Subscription(string) (served bool, cancelled uint64) { return false, 0 }

// exported returns every metric that package telemetry makes, with the labels of its series.
func exported(t *testing.T) map[string]series {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	measureOutbox(t, provider)
	measureSagas(t, provider)
	observeSteps(t, provider)
	observeRequests(t, provider)
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	found := collected(&all)
	for name, s := range found {
		s.fix(name)
	}
	return found
}

// measureOutbox registers a relay, and a consumer with a parked message.
func measureOutbox(t *testing.T, provider *sdkmetric.MeterProvider) {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	relay, err := outbox.NewRelay(pool, nobody{}, &outbox.RelayOptions{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	fail := func(context.Context, pgx.Tx, consumer.Message[struct{}], consumer.Emit) error {
		return errors.New("no")
	}
	steps, err := consumer.New(pool, teller{}, []consumer.Step{{Name: "step", Action: consumer.On("topic", fail)}},
		&consumer.Options{Schema: schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	msg := message.NewMessage("id", []byte("{}"))
	msg.Metadata = message.Metadata{outbox.HeaderKey: "k:step", outbox.HeaderScope: "s", outbox.PropertyType: "topic"}
	if err := steps.Handle(t.Context(), "topic", msg); err != nil {
		t.Fatal(err)
	}
	if _, err := telemetry.RegisterRelay(relay, &telemetry.Options{MeterProvider: provider, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if _, err := telemetry.RegisterConsumer(steps, &telemetry.Options{MeterProvider: provider, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
}

// measureSagas registers an orchestrator.
func measureSagas(t *testing.T, provider *sdkmetric.MeterProvider) {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	step := saga.Step[struct{}]{Name: "step", Do: saga.Tell("topic", func(*struct{}) struct{} { return struct{}{} })}
	o, err := saga.NewOrchestrator(pool, nil, []saga.Plan{saga.Must(saga.Define("saga", 1, step))}, &saga.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := telemetry.RegisterOrchestrator(o, &telemetry.Options{MeterProvider: provider, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
}

// observeSteps tells an observer of one thing of every kind.
func observeSteps(t *testing.T, provider *sdkmetric.MeterProvider) {
	t.Helper()
	o, err := telemetry.NewConsumerObserver(&telemetry.Options{MeterProvider: provider})
	if err != nil {
		t.Fatal(err)
	}
	o.Observe(t.Context(), consumer.Event{
		Delivery: &consumer.Delivery{Step: "step"}, Outcome: consumer.OutcomeRetry, Reason: consumer.ReasonFailed,
		Err: errors.New("no"), Entered: true, Lag: time.Second,
	})
	o.Ended(t.Context(), consumer.Transaction{Messages: 1, Err: errors.New("lost")})
}

// observeRequests does the same to that of the middleware.
func observeRequests(t *testing.T, provider *sdkmetric.MeterProvider) {
	t.Helper()
	o, err := telemetry.NewIdempotencyObserver(&telemetry.Options{MeterProvider: provider})
	if err != nil {
		t.Fatal(err)
	}
	for _, outcome := range []idemkey.Outcome{idemkey.OutcomeKept, idemkey.OutcomeLost, idemkey.OutcomeUnknown} {
		o.Started(t.Context(), "/route")
		o.Observe(t.Context(), idemkey.Event{
			Route: "/route", Result: idemkey.ResultFirst, Outcome: outcome, Attempt: 1, Started: true, TookOver: true, Oversize: true, Begin: 1,
		})
	}
	o.StoreFailed(t.Context(), "/route", idemkey.OpBegin, errors.New("down"))
	o.Swept(t.Context(), 1)
}

// fix adds the values of labels that are one of few, and the labels by which Prometheus or a
// service's own attributes tell processes apart.
func (s series) fix(name string) {
	for label := range s {
		for _, key := range []string{label, strings.SplitAfter(name, "_")[0] + label, name + "_" + label} {
			if values := fixed[key]; values != nil {
				s[label] = values
			}
		}
	}
	s["job"], s["instance"] = nil, nil
	if strings.HasPrefix(name, "sagamill_") {
		s["service"] = nil // of telemetry.Options.Attributes
	}
}

// parkedStates are those of [consumer.Stats].
var parkedStates = []string{"retrying", "calling", "dead"}

// fixed are the values of labels, by name, by the first part of the metric's and theirs, or by both in full.
var fixed = map[string][]string{
	"state": {"stored", "delayed", "waiting", "refused", "dead"},
	"kind":  {"action", "compensation"},
	"leaf":  {"outbox_0", "outbox_1", "outbox_2", "outbox_other"},
	"part":  {"request", "response", "tombstone"},
	"op":    texts(idemkey.OpBegin, idemkey.OpCommit, idemkey.OpReject, idemkey.OpRelease, idemkey.OpRenew),
	"sagamill_outcome": texts(consumer.OutcomeDone, consumer.OutcomeDuplicate, consumer.OutcomeSuperseded, consumer.OutcomeTombstone,
		consumer.OutcomeRetry, consumer.OutcomeDead, consumer.OutcomeUndone, consumer.OutcomeUndecided),
	"reason":                               texts(consumer.Reasons()...),
	"sagamill_parked_messages_state":       parkedStates,
	"sagamill_parked_oldest_seconds_state": parkedStates,
	"sagamill_saga_instances_live_status":  texts(saga.StatusRunning, saga.StatusCompensating, saga.StatusPaused, saga.StatusStuck),
	"sagamill_saga_instances_total_status": texts(saga.StatusCompleted, saga.StatusCompensated, saga.StatusStuck),
	"result": texts(idemkey.ResultFirst, idemkey.ResultAgain, idemkey.ResultKeyless, idemkey.ResultFailOpen, idemkey.ResultReplay,
		idemkey.ResultRecovered, idemkey.ResultInProgress, idemkey.ResultMismatch, idemkey.ResultMissing, idemkey.ResultInvalid,
		idemkey.ResultUnauthorized, idemkey.ResultTooLarge, idemkey.ResultExpired, idemkey.ResultTombstone, idemkey.ResultUnknown,
		idemkey.ResultUnavailable, idemkey.ResultCapacity, idemkey.ResultCorrupt, idemkey.ResultFingerprintUnknown, idemkey.ResultMisconfigured),
	"idemkey_outcome": texts(idemkey.OutcomeKept, idemkey.OutcomeRejected, idemkey.OutcomeFailed, idemkey.OutcomeAmended, idemkey.OutcomeHeld,
		idemkey.OutcomeLost, idemkey.OutcomeUnknown, idemkey.OutcomeUnkept),
}

func texts[T ~string](values ...T) (all []string) {
	for _, v := range values {
		all = append(all, string(v))
	}
	return all
}

var (
	exampleFamily = regexp.MustCompile(`\{Name: "(sagamill_\w+)", Kind: "(gauge|counter|histogram)"`)
	exampleGo     = regexp.MustCompile(`# TYPE (go_\w+) gauge`)
)

// printed returns what the examples print, by its name, with its kind.
func printed(t *testing.T) (kinds map[string]string) {
	t.Helper()
	files, err := filepath.Glob("../../../examples/*/metrics*.go")
	if err != nil || len(files) < 3 {
		t.Fatalf("found %q, %v", files, err)
	}
	files = append(files, "../../../examples/internal/demo/metrics.go")
	kinds = map[string]string{}
	for _, name := range files {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range exampleFamily.FindAllStringSubmatch(string(source), -1) {
			kinds[family[1]] = family[2]
		}
		for _, family := range exampleGo.FindAllStringSubmatch(string(source), -1) {
			kinds[family[1]] = "gauge"
		}
	}
	return kinds
}

// addExamples adds what examples print of their process. What they print of the packages has the
// names that the exporter gives it.
func addExamples(t *testing.T, all map[string]series) {
	t.Helper()
	kinds := printed(t)
	if len(kinds) < 20 {
		t.Fatalf("examples print %v", kinds)
	}
	for name, kind := range kinds {
		switch {
		case kind == "histogram" && all[name+"_bucket"] != nil, kind != "histogram" && all[name] != nil:
		case strings.HasPrefix(name, "go_"):
			all[name] = series{"job": nil, "instance": nil}
		default:
			t.Errorf("an example prints the %s %s, which no package exports by this name", kind, name)
		}
	}
}
