// Command relay compares the outbox with other ways to move messages from a table to RabbitMQ. The servers are
// private and end with the command.
//
// Absolute rates say more about the machine than about the code. So ways that are compared run alternately, in
// slices of one run. Each round gives one ratio, and the command prints the median of the rounds. Measurements
// with commits run twice: on the native disk, and on one where each sync takes a millisecond more, as in most
// data centres.
//
//	drain     how fast a backlog gets into a quorum queue: ours, raw confirms without
//	          a database as the ceiling, watermill's forwarder, claims with a lease
//	hold      the relay's time on the database's processors while a transaction
//	          elsewhere holds a snapshot open
//	latency   from commit to consumer, on an idle system
//	producer  what an outbox row costs the business transaction that writes it
//	stall     what a stalled topic with a million held messages costs another topic,
//	          and how fast it gets into its queue when that is back; -held sets the
//	          number of messages
//	memory    how much memory the process of a relay takes, with payloads of 1 kB and
//	          of 1 MB, and a broker that does not answer at first
//
// The last lines are one for each target: target NAME VALUE GOAL ok|short. The
// exit status is 0 in any case: a busy machine is no reason to fail a build.
package main
