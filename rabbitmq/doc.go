// Package rabbitmq publishes to and consumes from RabbitMQ without losing or
// looping a message. [Publisher] and [Subscriber] are watermill's interfaces,
// and Publisher is an [outbox.Publisher] besides. Both take the Config of
// watermill-amqp, so exchange, queue and binding settings carry over; nothing
// else of that package is used.
//
// # What is authoritative
//
// The broker's confirm and its lack of a return, together, say that a message
// is published; anything less is an error. Which deliveries are settled is
// known to the broker alone: a delivery that was not acked on the channel it
// came on comes again, on another channel, flagged as redelivered.
//
// # Failures
//
//   - Connection or channel lost while publishing: the outcome of what was not
//     yet confirmed is unknown. It is reported as [ErrUnavailable], and to be
//     published again under the same id.
//   - A message the broker refuses (unroutable, against a rule of the broker) or closes
//     the connection over, or would (too large, not to be expressed in AMQP): an
//     [outbox.ErrRefused], for this message alone. Others in the batch go through.
//   - A queue that is full, or a quorum queue without a leader or a majority: its topic's
//     messages are nacked or not confirmed, and reported as an [outbox.ErrDeferred]. A
//     nack counts only if a new channel repeats it: RabbitMQ may nack a channel for as
//     long as a dead node is away. Other topics go on, on the same connection.
//   - An exchange that may not be declared or written to: its messages are
//     refused; other topics do not notice.
//   - Broker blocked by an alarm: [ErrBlocked] at once, until it unblocks. If the Config
//     names several brokers, the connection moves to another one after a second. An alarm
//     blocks a whole cluster, so the next move waits 2 s, and each further one longer, up
//     to 30 s.
//   - One of several brokers lost, refusing or silent: the connection moves to another one
//     at once. A broker that accepts connections and does not answer delays a dial by half
//     a second. A pause comes only after a round in which every address has failed.
//   - One of several brokers does not confirm, as on the minority side of a partition: the
//     Publisher moves to another one. When another one confirms a message to the same
//     destination, the process's subscriptions leave the first broker too, unless a message
//     was delivered on their connection since, or is in a handler's hands.
//   - A login that some of several brokers refuse: the others are used. It is an error once
//     every broker refuses.
//   - Connection, channel, consumer or queue lost while consuming: the
//     Subscriber connects again, declares what is missing and goes on. Messages
//     in hand stay usable; their acks are dropped, because the broker has
//     already given the messages back, and they come again.
//   - A quorum queue without a majority, or one whose requests are not answered, while consuming:
//     its subscription waits and tries again, at several brokers if the Config names them. It has
//     a connection of its own, because RabbitMQ closes the connection over it. Its messages
//     arrive once the queue answers; other subscriptions do not notice.
//   - A declaration that is not answered, as while a node of the cluster stands still: it costs
//     its own channel. Consuming goes on.
//   - Large messages: a subscription has at most [SubscriberOptions].PrefetchBytes of payload in
//     this process. A burst of them costs a renewal of the subscription, with redeliveries.
//   - A stream in place of a queue: an [ErrConfig].
//   - Exchange or binding deleted: the Publisher declares its exchange again as
//     soon as the broker misses it, a Subscriber its binding within
//     [SubscriberOptions].TopologyInterval; in between, messages are refused as
//     unroutable, not lost.
//
// Attempts are not counted here. The queues' delivery limit, 1,000, is for a message
// that the AMQP client cannot even read: it closes the connection over it. The
// topic then has one message at a time, until the broker has moved that message to the
// dead-letter queue, and up to ten times TopologyInterval longer where messages are few or
// take long. The Subscriber logs an error as long as there is something in that queue.
// Other topics do not notice, and nothing is dropped.
//
// Each delivery counts for the limit, also of a message about which nothing can be decided
// while the database is away: a package such as consumer takes its time between two of
// them, so that hours of that are no thousand.
package rabbitmq
