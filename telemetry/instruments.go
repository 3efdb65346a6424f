package telemetry

import "go.opentelemetry.io/otel/metric"

// Bounds of the histograms. OpenTelemetry's defaults are for milliseconds.
var (
	requestBounds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}
	stepBounds    = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}
	batchBounds   = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256}
	byteBounds    = []float64{0, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
)

// instruments makes the instruments of one meter. It keeps the first error, so that a caller
// checks once.
type instruments struct {
	meter    metric.Meter
	observed []metric.Observable // read at each collection
	err      error
}

func (i *instruments) addCounter(c *metric.Int64Counter, name, unit, about string) {
	made, err := i.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
	*c = made
	i.keepError(err)
}

func (i *instruments) addUpDownCounter(c *metric.Int64UpDownCounter, name, unit, about string) {
	made, err := i.meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(about))
	*c = made
	i.keepError(err)
}

func (i *instruments) addSeconds(h *metric.Float64Histogram, bounds []float64, name, about string) {
	made, err := i.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about),
		metric.WithExplicitBucketBoundaries(bounds...))
	*h = made
	i.keepError(err)
}

func (i *instruments) addSizes(h *metric.Int64Histogram, bounds []float64, name, unit, about string) {
	made, err := i.meter.Int64Histogram(name, metric.WithUnit(unit), metric.WithDescription(about),
		metric.WithExplicitBucketBoundaries(bounds...))
	*h = made
	i.keepError(err)
}

func (i *instruments) observeGauge(g *metric.Int64ObservableGauge, name, unit, about string) {
	made, err := i.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(about))
	*g = made
	i.keepObserved(made, err)
}

func (i *instruments) observeSecondsGauge(g *metric.Float64ObservableGauge, name, about string) {
	made, err := i.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(about))
	*g = made
	i.keepObserved(made, err)
}

func (i *instruments) observeCounter(c *metric.Int64ObservableCounter, name, unit, about string) {
	made, err := i.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(about))
	*c = made
	i.keepObserved(made, err)
}

func (i *instruments) observeSecondsCounter(c *metric.Float64ObservableCounter, name, about string) {
	made, err := i.meter.Float64ObservableCounter(name, metric.WithUnit("s"), metric.WithDescription(about))
	*c = made
	i.keepObserved(made, err)
}

func (i *instruments) keepObserved(made metric.Observable, err error) {
	i.observed = append(i.observed, made)
	i.keepError(err)
}

func (i *instruments) keepError(err error) {
	if i.err == nil {
		i.err = err
	}
}
