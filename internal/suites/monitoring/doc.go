// Package monitoring is the test that docs/monitoring fits the code. Whatever its dashboard
// and its alert rules ask Prometheus for is exported, with these labels and values; whatever
// is exported is in one of the two; and each alert has its place in the playbook of
// docs/operations.md, which says of each metric what it should be. Each expression is PromQL, and
// the dashboard one that Grafana shows as it is meant, as far as that can be told without either: a
// grammar no wider than what promtool 2.42 takes, and the rules of schema version 39.
//
// The exported metrics come from package telemetry at work. Their names become Prometheus' by the rules of
// OpenTelemetry's exporter (go.opentelemetry.io/otel/exporters/prometheus with the translation
// UnderscoreEscapingWithSuffixes, its default since v0.69). Names that examples print
// are read from their source.
package monitoring
