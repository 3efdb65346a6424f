// Package demo is the harness of the examples order-saga and trip-saga: settings, brokers,
// processes, HTTP servers, metrics, and the demo's load and judgement. The code that a user of
// sagamill would write is in the examples themselves.
//
// A [Program] describes an example. Its command serve reads [Settings] and runs an [App], which
// opens each [Service], serves its HTTP interface and runs its loops until its context ends. Its
// command demo launches a [Fleet], places a [Load] on it, and checks invariants.
package demo
