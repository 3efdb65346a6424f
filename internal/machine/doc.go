// Package machine decides what a saga does next. It is pure: no I/O, no clock,
// no randomness. A [Plan] is what a saga's author has defined, as data; a
// [Progress] is how far one instance has come, as data that is stored with it;
// an [Event] is what has happened, and when. [Machine.Apply] moves the progress,
// [Machine.Next] says what is to be done now. Whoever does it reports back with
// the next event.
//
//	              ┌────────── rejected, tried again at ──────────┐
//	              ▼                                              │
//	idle ──sent──► running ──done──► done ──sent──► undoing ──undone──► undone
//	  │              │  │                             ▲   │
//	  │              │  └─ deadline, failed, cancel ─► unknown   └─failed─► undo-waiting, undo-stuck
//	  │              └─ rejected for good ─► rejected
//	  └─ its condition does not hold ─► skipped
//
// A saga runs forward until a step before the pivot is rejected, its outcome is
// not known in time, or somebody cancels it. Then it compensates: the steps that
// are done, or whose outcome is not known, are undone in reverse order, parallel
// ones in parallel. A step that still runs is waited for until its deadline, unless
// the saga's own has passed or somebody has cancelled it; one that has no
// compensation is not waited for. A step that a person has passed for done is
// undone, unless it is known that its action has done nothing. Once the pivot has
// been sent nothing is compensated unless it is rejected: what fails then is tried
// again, and in the end stuck, which is for a person to look at.
//
// Nothing that has once been compensated is sent again under the same attempt, so that
// the participant's inbox, which has a row for each attempt, never sees an action
// after its compensation but as one that comes late.
package machine
