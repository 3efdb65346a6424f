package telemetry_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/telemetry"
)

// A service sets OpenTelemetry's providers first. Then it observes its writer, its relay and its
// consumer, all with the same options. Messages that its handlers emit need no further writer.
func Example() {
	opts := &telemetry.Options{System: "rabbitmq", Attributes: []attribute.KeyValue{attribute.String("service", "payment")}}
	observe := func(db *pgxpool.Pool, broker *inproc.Broker, steps []consumer.Step) (*outbox.Relay, *consumer.Consumer, error) {
		relay, err := outbox.NewRelay(db, broker, &outbox.RelayOptions{Observer: telemetry.NewOutboxTracer(opts)})
		if err != nil {
			return nil, nil, err
		}
		observer, err := telemetry.NewConsumerObserver(opts)
		if err != nil {
			return nil, nil, err
		}
		c, err := consumer.New(db, broker.Subscriber("payment"), steps, &consumer.Options{Observer: observer, Wake: relay.Wake})
		if err != nil {
			return nil, nil, err
		}
		if _, err := telemetry.RegisterRelay(relay, opts); err != nil {
			return nil, nil, err
		}
		_, err = telemetry.RegisterConsumer(c, opts)
		return relay, c, err
	}
	_ = observe

	// Where requests are handled:
	if _, err := outbox.NewWriter(&outbox.WriterOptions{Tracer: telemetry.NewOutboxTracer(opts)}); err != nil {
		log.Fatal(err)
	}
}

// A service passes its meter provider, or nil for the global one, and gives the observer to the
// middleware.
func ExampleNewIdempotencyObserver() {
	reader := sdkmetric.NewManualReader()
	observer, err := telemetry.NewIdempotencyObserver(&telemetry.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	if err != nil {
		panic(err)
	}
	store, err := idemkey.NewMemory(nil)
	if err != nil {
		panic(err)
	}
	idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Observer: observer, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	req := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("{}"))
	idem.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), req)

	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		panic(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
			result, _ := p.Attributes.Value("result")
			fmt.Println(m.Name, result.AsString(), p.Value)
		}
	}
	// Output: idemkey.requests missing 1
}

// A service registers its relay before it runs it.
func ExampleRegisterRelay() {
	serve := func(ctx context.Context, db *pgxpool.Pool, pub outbox.Publisher, provider *sdkmetric.MeterProvider) error {
		relay, err := outbox.NewRelay(db, pub, nil)
		if err != nil {
			return err
		}
		registration, err := telemetry.RegisterRelay(relay, &telemetry.Options{MeterProvider: provider})
		if err != nil {
			return err
		}
		defer registration.Unregister()
		return relay.Run(ctx)
	}
	_ = serve
}

// Each message that is written and published has a span in the trace of the request.
func ExampleNewOutboxTracer() {
	tracer := telemetry.NewOutboxTracer(&telemetry.Options{System: "rabbitmq"})
	_ = &outbox.WriterOptions{Tracer: tracer}
	_ = &outbox.RelayOptions{Observer: tracer}
}

// A service registers its orchestrator before it runs it. It registers the orchestrator's consumer
// too, for the replies that are parked.
func ExampleRegisterOrchestrator() {
	serve := func(ctx context.Context, orchestrator *saga.Orchestrator, provider *sdkmetric.MeterProvider) error {
		opts := &telemetry.Options{MeterProvider: provider}
		sagas, err := telemetry.RegisterOrchestrator(orchestrator, opts)
		if err != nil {
			return err
		}
		defer sagas.Unregister()
		replies, err := telemetry.RegisterConsumer(orchestrator.Consumer(), opts)
		if err != nil {
			return err
		}
		defer replies.Unregister()
		return orchestrator.Run(ctx)
	}
	_ = serve
}
