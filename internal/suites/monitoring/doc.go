// Package monitoring tests that docs/monitoring fits the code. Every metric in the dashboard and the alert
// rules is exported, with these labels and values. Every exported metric is in one of the two. Each alert has
// its section in docs/runbook.md, and docs/monitoring.md says of each metric what it should be.
//
// Each expression is PromQL, by a grammar no wider than that of promtool 2.42. The dashboard follows the
// rules of Grafana's schema version 39. The test needs neither program.
//
// The exported metrics come from package telemetry at work. Their names become Prometheus' by the rules of
// OpenTelemetry's exporter (go.opentelemetry.io/otel/exporters/prometheus with the translation
// UnderscoreEscapingWithSuffixes, its default since v0.69). Names that examples print
// are read from their source.
package monitoring
