// Package consumerstorm holds the tests of what package consumer promises that
// need processes to die: on a real broker and a real database, with consumers
// that are killed, stopped, cut off and restarted. Its code is what these tests
// and those of package consumer judge with: a ledger in which handlers note what
// they do, and a checker of what is left when everything has come to rest.
//
// What must hold, whatever strikes:
//
//   - the action of a step commits at most once, the compensation at most once,
//     never the action after the compensation, never a compensation of nothing;
//   - a message that was taken off the broker has had its effect, need not have
//     any more, is parked or is a dead letter;
//   - a handler is entered at most MaxAttempts times, for each of the two;
//   - what nobody broke is no dead letter.
//
// Longer runs:
//
//	go test -race -tags=failpoints -count=1 -timeout=30m -v ./internal/suites/consumerstorm -storm.rounds=100
//
// The seed that is printed fixes what strikes and what is published, not how it
// interleaves: -storm.seed=N repeats it.
package consumerstorm
