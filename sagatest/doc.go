// Package sagatest tests sagas, without a database and without a broker.
//
// # One run
//
// [Start] runs an instance in memory. The test stands for all participants, and for
// the clock:
//
//	run := sagatest.Start(t, trip, "key-1", Trip{Guest: "Ada"})
//	run.ExpectCommand("flight", Request{Guest: "Ada"})
//	run.Reply("flight", Flight{Number: "LH1"})
//	run.Reject("hotel", "no rooms")
//	run.Undone("flight")
//	run.ExpectStatus(saga.StatusCompensated)
//
// Nothing in a run happens by itself, there is no goroutine in it, and two runs are the
// same. Time passes in [Run.Advance], which sets off what is due in its order. What is decided
// is decided by the code that package saga runs.
//
// # All runs
//
// [Explore] takes the definition and the participants' own handlers, and runs them through every order
// in which messages can arrive, with duplicates, crashes, errors and deadlines at every place, up to a number of
// them:
//
//	sagatest.Explore(t, sagatest.Model[World, Trip]{
//		Saga:  func(*World) *saga.Definition[Trip] { return trip },
//		State: Trip{Guest: "Ada"},
//		Steps: func(w *World) []consumer.Step { return []consumer.Step{saga.Participant(w.flight()), saga.Participant(w.hotel())} },
//		Rest:  func(w *World, o sagatest.Outcome[Trip]) error { return w.balanced() },
//	}, nil)
//
// Handlers that run SQL are given Tx of the Model, a transaction that the test begins and rolls back: see the example of [Model].
// Without it their tx is nil. A handler or a local step that panics, or gives up with no error injected, is a failure: if it is meant,
// the Model says so, in DeadLetters. It is a failure, too, if no schedule ends completed or compensated.
//
// What breaks something is reported as the smallest schedule that was found, a numbered line for each event, and
// a text by which [Replay] runs it again. Four faults in a saga of three steps take a second or two,
// and handlers with a database a hundred times as long: there, one or two.
//
// What runs as it is: the definition, the handlers, [consumer.Step.Unhandled], the state machine of the inbox and that of
// sagas. What is modelled: the broker, which keeps no order and loses nothing; the relay; the clock, which stands still until a
// deadline passes, so that two deadlines pass in their order; the tables of package saga and of the inbox; attempts, parked
// messages and dead letters. Not in it are: several sagas at once, other traffic on the same rows, two handlers at work at
// the same time, what is seen at COMMIT only, redrives and other decisions of a person than to cancel, and what
// [consumer.Step.Ordered] and [consumer.Step.Settle] do.
package sagatest
