// Package lineartest proves of a store under package idemkey, as seen by HTTP
// clients, that each key takes effect once whatever dies or hangs meanwhile.
//
// [Storm] runs several instances of a service as processes on one store, kills
// and stops them at random and at named points, and lets clients send the same
// keys to all of them at once. What the clients saw is the history. [Check]
// asks porcupine whether the history is that of one cell per key which
//
//   - is bound to the first request that claims it,
//   - is created once,
//   - from then on answers that request with the created response's bytes,
//   - and refuses any other request.
//
// A client that timed out, lost its connection or got a 5xx knows nothing: its
// request may have taken effect, may yet do so, or never will. [Audit] compares
// the business rows, which no unique key protects, with the records.
//
// A store whose owners are kept by a lease alone promises less: one that hung for
// longer may have been overtaken. [ServeWatched] marks the answers of a process that
// hung, [CheckLeased] lets those and only those be nobody else's, and [AuditLeased]
// counts the effects, which nothing rolls back.
//
// A run in which some fault or some answer did not occur proves nothing about
// it. [Report.Missing] names those, and Storm goes on for them until its limit.
package lineartest
