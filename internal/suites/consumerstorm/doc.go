// Package consumerstorm tests the promises of package consumer that need processes to die, on a real broker
// and a real database. Its consumers are killed, stopped, cut off and restarted. Its code judges the results,
// also for the tests of package consumer: a ledger in which handlers note their work, and a checker of the
// state after everything has come to rest.
//
// After every fault these must hold:
//
//   - the action of a step commits at most once, the compensation at most once,
//     never the action after the compensation, never a compensation of nothing;
//   - a message that was taken off the broker has had its effect, is superseded,
//     is parked or is a dead letter;
//   - a handler is entered at most MaxAttempts times, for each of the two;
//   - a message without a planted fault never becomes a dead letter.
//
// Longer runs:
//
//	go test -race -tags=failpoints -count=1 -timeout=30m -v ./internal/suites/consumerstorm -storm.rounds=100
//
// -storm.seed=N repeats a run. The seed, which each run prints, fixes the faults and the messages, but not
// how they interleave.
package consumerstorm
