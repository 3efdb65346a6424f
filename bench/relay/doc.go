// Command relay measures the outbox beside other ways to get messages from a table
// to RabbitMQ, on servers of its own that end with it.
//
// Absolute rates say more of the machine than of the code. So what is compared is
// measured in one run, in slices that take turns; each round gives one ratio, and
// what is printed is the median of the rounds. What involves commits is measured
// twice: on the disk as it is, and on one where each sync takes a millisecond more,
// as in most data centres.
//
//	drain     how fast a backlog gets into a quorum queue: ours, raw confirms without
//	          a database as the ceiling, watermill's forwarder, claims with a lease
//	hold      the relay's time on the database's processors while a transaction
//	          elsewhere holds a snapshot open
//	latency   from commit to consumer, on an idle system
//	producer  what an outbox row costs the business transaction that writes it
//
// The last lines are one for each target: target NAME VALUE GOAL ok|short. The
// exit status is 0 in any case: a busy machine is no reason to fail a build.
package main
