// Package lineartest proves of a store under package idemkey that each key takes
// effect once, even if processes die or hang. It looks with the eyes of HTTP clients.
//
// [Storm] runs several instances of a service as processes on one store. It kills
// and stops them at random and at named points, and lets clients send the same
// keys to all of them at once. The clients' answers are the history. [Check]
// asks porcupine whether the history is that of one cell for each key, which
//
//   - is bound to the first request that claims it,
//   - is created once,
//   - from then on answers that request with the created response's bytes,
//   - and refuses any other request.
//
// A client that timed out, lost its connection or got a 5xx knows nothing: its
// request may have taken effect, may do so later, or never will. [Audit] compares
// the business rows, which no unique key protects, with the records.
//
// A store whose owners are kept by a lease alone promises less: an owner that hung for
// longer may have been overtaken. [ServeWatched] marks the answers of a process that
// hung. [CheckLeased] accepts those, and only those, with a response that no other client
// gets. [AuditLeased] counts the effects, which are never rolled back.
//
// A run proves nothing about a fault or an answer that did not occur in it.
// [Report.Missing] names those, and Storm goes on for them until its limit.
package lineartest
