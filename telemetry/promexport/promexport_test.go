package promexport_test

import (
	"fmt"
	"net/http/httptest"
	"strings"

	"github.com/sagamill/sagamill/telemetry"
	"github.com/sagamill/sagamill/telemetry/promexport"
)

// A service without OpenTelemetry of its own hands Options to package telemetry, and mounts the Exporter.
func Example() {
	exporter, err := promexport.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer exporter.Close()
	observer, err := telemetry.NewConsumerObserver(exporter.Options().WithAttribute("service", "payment"))
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = observer // as consumer.Options.Observer

	w := httptest.NewRecorder()
	exporter.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	fmt.Println(w.Code, strings.Contains(w.Body.String(), "go_goroutines"))
	// Output: 200 true
}
