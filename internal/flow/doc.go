// Package flow is what package saga, which has a database, and package sagatest, which has none, do alike with
// an instance. A [Flow] is a definition with its functions. A [Run] takes events and says what work follows; its
// caller does that work in its own transaction. Package machine decides; flow calls the definition's functions.
//
// flow.go has definitions and instances. identity.go numbers the steps and attempts in messages, and wire.go has the
// bodies of replies. run.go takes an event, work.go finds the work that follows, and local.go runs local steps.
package flow
