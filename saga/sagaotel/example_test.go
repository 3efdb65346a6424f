package sagaotel_test

import (
	"context"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sagamill/sagamill/consumer/consumerotel"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/saga/sagaotel"
)

// A service registers its orchestrator at the meter provider, or with nil at the global
// one, before it runs it; and the orchestrator's consumer, for what is parked of its replies.
func ExampleRegister() {
	serve := func(ctx context.Context, orchestrator *saga.Orchestrator, provider *sdkmetric.MeterProvider) error {
		sagas, err := sagaotel.Register(orchestrator, &sagaotel.Options{MeterProvider: provider})
		if err != nil {
			return err
		}
		defer sagas.Unregister()
		replies, err := consumerotel.Register(orchestrator.Consumer(), &consumerotel.RegisterOptions{MeterProvider: provider})
		if err != nil {
			return err
		}
		defer replies.Unregister()
		return orchestrator.Run(ctx)
	}
	_ = serve
}
