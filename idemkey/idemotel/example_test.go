package idemotel_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemotel"
)

// A service hands its meter provider, or nil for the global one, to New, and the
// observer to the middleware.
func ExampleNew() {
	reader := sdkmetric.NewManualReader()
	observer, err := idemotel.New(&idemotel.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
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
