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
