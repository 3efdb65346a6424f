// Package relaystorm holds a fault test of the outbox's relay on real servers.
// It has no code but its test.
//
// Two relay processes publish what writers commit, while in each round one fault
// strikes: a relay is killed, hangs or dies at a named point; the broker is
// restarted, killed, blocked or loses a queue; PostgreSQL crashes. PostgreSQL and
// RabbitMQ are the test's own.
//
// What must hold, whatever strikes:
//
//   - every message that was committed arrives, none that was rolled back;
//   - the first arrivals of each key are in the order of its commits;
//   - a fault that costs the relay its place has at most one window of messages
//     published twice, all others none;
//   - one relay publishes at a time, but for a while after those faults that take
//     a relay's database from it without its knowing;
//   - the outbox is empty again within a bound after the fault.
//
// The normal test has a round for each fault. The long one draws more of them:
//
//	go test -race -tags=failpoints -count=1 -timeout=30m -v ./internal/relaystorm -storm.rounds=100
//
// The seed that it prints fixes the order of the faults and what the writers do,
// not how they interleave: -storm.seed=N repeats it, -storm.only=NAME takes only
// the faults whose names contain NAME.
package relaystorm
