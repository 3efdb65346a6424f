// Package machine decides what a saga does next. It is pure: no I/O, no clock, no randomness. A [Plan] is the
// definition as data. A [Progress] is how far one instance has come, as data that is stored with it. An [Event] is
// what happened, and when. [Machine.Apply] moves the progress, and [Machine.Next] lists the tasks that follow. The
// caller reports each task by the next event.
//
//	              ┌────────── rejected, tried again at ──────────┐
//	              ▼                                              │
//	idle ──sent──► running ──done──► done ──sent──► undoing ──undone──► undone
//	  │              │  │                             ▲   │
//	  │              │  └─ deadline, cancel ─► unknown   └─failed─► undo-waiting, undo-stuck
//	  │              └─ rejected for good ─► rejected
//	  └─ its condition does not hold ─► skipped
//
// A saga runs forward until a step before the pivot is rejected or misses its deadline, or a person cancels the saga.
// A dead letter at a participant decides nothing: the step is held until its redrive leads to another reply, unless
// the plan says otherwise. A saga that compensates undoes the steps that are done, or whose outcome is not known, in
// reverse order, parallel ones in parallel. A step that still runs delays this until its deadline, unless the saga's
// deadline has passed or a person has cancelled it. A step without a compensation delays nothing. A step that a person
// has skipped is undone, unless it is known that its action did nothing. Once the pivot has been sent nothing is
// compensated unless the pivot is rejected: a step that is rejected then is tried again, and in the end is stuck until
// a person acts.
//
// A plan may have a function for its end, OnEnd. When no step is left, the function is called, and the instance ends in
// the transaction in which the call succeeds. Until then it runs, or compensates: it can be cancelled, pass its
// deadline, and be stuck.
//
// Nothing that was compensated is sent again under the same attempt. So the participant's inbox, which has a row for
// each attempt, sees an action after its compensation only if the action was delayed.
//
// compile.go checks a plan, and plan.go and progress.go are the data. event.go applies an event: reply.go the replies
// and timers, verbs.go the verbs of a person. next.go lists the tasks. end.go ends an instance.
package machine
