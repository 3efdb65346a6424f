// Package relaystorm holds a fault test of the outbox's relay on real servers.
// It has no code but its test.
//
// Two relay processes publish the messages that writers commit. In each round one fault strikes: a relay is
// killed, hangs, leaves or dies at a named point; the broker is restarted, killed, blocked, full or loses a
// queue; the link to it is cut; PostgreSQL crashes, ends its sessions or loses a COMMIT. PostgreSQL and
// RabbitMQ are private servers.
//
// After every fault these must hold:
//
//   - every committed message arrives, and none that was rolled back, also when
//     the writer did not learn the outcome;
//   - the first arrivals of each key are in the order of its commits;
//   - no message is published twice, except for as many windows of messages as the
//     fault's entry allows: one if it takes a relay or its link to the broker
//     away, none if a message is refused or a relay leaves in good order;
//   - one relay publishes at a time, except for a while after a fault that takes
//     the lead from a relay without its notice;
//   - a refusal of some messages does not delay the others;
//   - the outbox is empty again within a bound after the fault.
//
// A normal test is one round for each fault, in random order, with two of the
// deaths at points. A long one draws more:
//
//	go test -race -tags=failpoints -count=1 -timeout=30m -v ./internal/suites/relaystorm -storm.rounds=100
//
// The seed, which each run prints, fixes the order of the faults and the work of the writers, but not how
// they interleave. -storm.seed=N repeats a run. -storm.only=NAME takes only the faults whose names contain
// NAME.
package relaystorm
