// Command consumer measures the way of a message from the queue through a transaction to the ack. The consumer
// records the message as handled, writes one business row and one follow-up message, and acks. The servers are
// private and end with the command.
//
// Absolute rates say more about the machine than about the code. So kinds that are compared run alternately, in
// slices of one run. Each round gives one ratio, and the command prints the median of the rounds. A slice
// starts from empty tables, a queue with all of its messages, and a checkpoint. If some message did not have
// its effect exactly once, the command prints no figures.
//
//	raw             takes and acks: the broker's ceiling
//	plain-1         a handler as people write it by hand, on watermill-amqp's subscriber
//	                and pgx, in six round trips: begin, look the key up, business row,
//	                outbox row, key, commit
//	plain-8         the same with eight subscriptions
//	ours-single     package consumer, a transaction for each message
//	ours-service    the consumer that package sagamill makes, with metrics and traces
//	ours-batch      with its defaults
//	ours-queued     the same, with the business row queued by the handler
//
//	throughput  how fast a backlog is dealt with, on the disk as it is and on one
//	            where each sync takes a millisecond more
//	wal         what one message adds to the write-ahead log
//	latency     from publish to ack at half of the capacity of ours-batch
//	rows        ours-batch with ten million rows in its inbox beside an empty one
//
// The last lines are one for each target: target NAME VALUE GOAL ok|short. The
// exit status is 0 if some are short: a busy machine is no reason to fail a build.
package main
