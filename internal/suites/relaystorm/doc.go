// Package relaystorm holds a fault test of the outbox's relay on real servers.
// It has no code but its test.
//
// Two relay processes publish what writers commit, while in each round one fault
// strikes: a relay is killed, hangs, leaves or dies at a named point; the broker is
// restarted, killed, blocked, full or loses a queue; the link to it is cut;
// PostgreSQL crashes, ends its sessions or loses a COMMIT. PostgreSQL and RabbitMQ
// are the test's own.
//
// What must hold, whatever strikes:
//
//   - every message that was committed arrives, none that was rolled back, also
//     when the writer was never told which of the two it was;
//   - the first arrivals of each key are in the order of its commits;
//   - no message is published twice, but for as many windows of messages as the
//     fault's entry allows: one if it takes a relay or its link to the broker
//     away, none if a message is refused or a relay leaves in good order;
//   - one relay publishes at a time, but for a while after a fault that takes the
//     lead from a relay without its knowing;
//   - what a refusal does not concern is published meanwhile;
//   - the outbox is empty again within a bound after the fault.
//
// A normal test is one round for each fault, in random order, with two of the
// deaths at points. A long one draws more:
//
//	go test -race -tags=failpoints -count=1 -timeout=30m -v ./internal/suites/relaystorm -storm.rounds=100
//
// The seed that is printed fixes the order of the faults and what the writers do, not
// how they interleave: -storm.seed=N repeats it. -storm.only=NAME takes only the
// faults whose names contain NAME.
package relaystorm
