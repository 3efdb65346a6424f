// Command scale measures how throughput grows with processes and with what runs at
// once within one. The servers are its own and end with it; workers are processes of
// this program, one for each of what is counted.
//
//	consumers      1, 2 and 4 processes with a consumer each, on one queue and one schema: a
//	               message is recorded as handled, writes one business row and one follow-up
//	lanes          one such process whose consumer has 1, 2 and 4 lanes
//	outboxes       1, 2 and 4 outboxes, schemas of one database, each with a relay in a
//	               process of its own; all publish to one quorum queue
//	relay-lanes    one outbox whose relay has 1, 2 and 4 lanes
//	relay-standby  one outbox with 1, 2 and 4 relays, of which one is active
//	sagas          1, 2 and 4 processes, each with the relays and consumers of three services
//	               and its share of the clients: choreographed sagas of three steps
//
// What is compared is measured in turns, within seconds; each round gives a ratio,
// and what is printed is the median of the rounds. A slice has a number of messages,
// begins when all workers say that they are connected, and ends when they have told
// of as many commits, or confirms. Then every message must have had its effect once.
//
// A line of the table says what one message costs: processor time of the workers, of
// PostgreSQL and of RabbitMQ, round trips to PostgreSQL, its commits, its syncs of the
// write-ahead log and the bytes in that. The last columns say what saturates:
// how many processors were busy with the benchmark, and how many with anything else.
// Where the sum is all that the machine has, more workers cannot be faster.
//
// The last lines are one for each target: target NAME VALUE GOAL ok|short. The
// exit status is 0 if some are short: a busy machine is no reason to fail a build.
package main
