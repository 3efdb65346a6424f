// Command scale measures how throughput grows with the number of processes and with concurrency within one. The
// servers are private and end with the command. Workers are processes of this program.
//
//	consumers      1, 2 and 4 processes with a consumer each, on one queue and one schema: a
//	               message is recorded as handled, writes one business row and one follow-up
//	lanes          one such process whose consumer has 1, 2 and 4 lanes
//	outboxes       1, 2 and 4 outboxes, schemas of one database, each with a relay in a
//	               separate process; all publish to one quorum queue
//	relay-lanes    one outbox whose relay has 1, 2 and 4 lanes
//	relay-standby  one outbox with 1, 2 and 4 relays, of which one is active
//	sagas          1, 2 and 4 processes, each with the relays and consumers of three services
//	               and its share of the clients: choreographed sagas of three steps
//
// Variants that are compared run alternately, within seconds. Each round gives a ratio, and the command prints
// the median of the rounds. A slice has a number of messages. It begins when all workers are connected, and
// ends when they have reported as many commits, or confirms. Then every message must have had its effect once. A slice of
// sagas is seven times as long, and its first two sevenths are not counted: they warm the connections of each process up.
//
// A line of the table shows the cost of one message. Columns are the processor time of the workers, of
// PostgreSQL and of RabbitMQ, and the round trips to PostgreSQL. They are followed by its commits, its syncs of
// the write-ahead log and the bytes in that. The last columns show saturation: how many processors the
// benchmark kept busy, and how many other programs did. If the sum is all processors of the machine, more
// workers cannot be faster.
//
// The last lines are one for each target: target NAME VALUE GOAL ok|short. The
// exit status is 0 if some are short: a busy machine is no reason to fail a build.
package main
