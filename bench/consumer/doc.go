// Command consumer measures the way from a queue over a transaction to the ack: a
// message is recorded as handled, writes one business row and one follow-up message,
// and is acked. The servers are its own and end with it.
//
// Absolute rates say more of the machine than of the code. So what is compared is
// measured in one run, in slices that take turns; each round gives one ratio, and
// what is printed is the median of the rounds. A slice starts from empty tables, a
// queue that holds all of its messages and a checkpoint. When it is over, every
// message must have had its effect once, or there are no figures.
//
//	raw             takes and acks: the broker's ceiling
//	plain-1         a handler as people write it by hand, on watermill-amqp's subscriber
//	                and pgx, in six round trips: begin, look the key up, business row,
//	                outbox row, key, commit
//	plain-8         the same with eight subscriptions
//	ours-single     package consumer, a transaction for each message
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
