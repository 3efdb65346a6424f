// Package flow is what package saga, which has a database, and package sagatest, which has none, do alike with
// an instance. A [Flow] is a definition with its functions. A [Run] takes events and says what work follows; its
// caller does that work in its own transaction. Package machine decides; flow calls the definition's functions.
//
// flow.go has definitions and instances, identity.go the numbers of steps and attempts in messages, wire.go the
// bodies of replies, run.go how an event is taken, work.go what follows from it, and local.go local steps.
package flow
