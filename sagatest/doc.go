// Package sagatest tests sagas, without a database and without a broker.
//
// # One run
//
// [Start] runs an instance in memory. The test stands for all participants, and for the clock:
//
//	run := sagatest.Start(t, trip, "key-1", Trip{Guest: "Ada"})
//	run.ExpectCommand("flight", Request{Guest: "Ada"})
//	run.Reply("flight", Flight{Number: "LH1"})
//	run.Reject("hotel", "no rooms")
//	run.Undone("flight")
//	run.ExpectStatus(saga.StatusCompensated)
//
// A run has no goroutine, and moves only when the test calls it, so two runs are the same. Time passes in
// [Run.Advance], which fires the timers that are due, in order. The code of package saga makes the decisions.
//
// # All runs
//
// [Explore] takes the definition and the participants' handlers. It runs them through every order in which messages can
// arrive, with up to a number of faults: duplicates, crashes, errors and deadlines, at every place.
//
//	sagatest.Explore(t, sagatest.Model[World, Trip]{
//		Saga:  func(*World) *saga.Definition[Trip] { return trip },
//		State: Trip{Guest: "Ada"},
//		Steps: func(w *World) []consumer.Step { return []consumer.Step{saga.Participant(w.flight()), saga.Participant(w.hotel())} },
//		Rest:  func(w *World, o sagatest.Outcome[Trip]) error { return w.balanced() },
//	}, nil)
//
// Handlers that run SQL get Tx of the Model, a transaction that the test begins and rolls back: see the example of
// [Model]. Without it their tx is nil. It is a failure if a handler or a local step panics, or gives up without an
// injected error, unless the Model sets DeadLetters. It is also a failure if no schedule ends completed or compensated.
//
// Explore reports the smallest schedule that breaks a rule: a numbered line for each event, and a text for [Replay].
// Four faults in a saga of three steps take a second or two. Handlers with a database take a hundred times as long:
// try one or two faults there.
//
// These parts run unchanged: the definition, the handlers, [consumer.Step.Unhandled], and the state machines of the
// inbox and of sagas. These are modelled: the broker, which keeps no order and loses nothing; the relay; the clock,
// which stands still until a deadline passes, so that two deadlines pass in order; the tables of package saga and of
// the inbox; attempts, parked messages and dead letters.
//
// These are not in the model: several sagas at once, other traffic on the same rows, two handlers at the same time,
// errors at COMMIT only, redrives, the verbs of a person except cancel, [consumer.Step.Ordered] and
// [consumer.Step.Settle].
package sagatest
