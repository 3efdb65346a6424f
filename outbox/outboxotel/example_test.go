package outboxotel_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/outbox/outboxotel"
)

// A service registers its relay at the meter provider, or with nil at the global
// one, before it runs it.
func ExampleRegister() {
	serve := func(ctx context.Context, db *pgxpool.Pool, pub outbox.Publisher, provider *sdkmetric.MeterProvider) error {
		relay, err := outbox.NewRelay(db, pub, nil)
		if err != nil {
			return err
		}
		registration, err := outboxotel.Register(relay, &outboxotel.Options{MeterProvider: provider})
		if err != nil {
			return err
		}
		defer registration.Unregister()
		return relay.Run(ctx)
	}
	_ = serve
}

// A span for each message that is written and published, in the trace of the request.
func ExampleNewTracer() {
	tracer := outboxotel.NewTracer(&outboxotel.TracerOptions{System: "rabbitmq"})
	_ = &outbox.WriterOptions{Tracer: tracer}
	_ = &outbox.RelayOptions{Observer: tracer}
}
