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
//   - A message the broker refuses (unroutable, nacked, against a rule of the
//     broker) or closes the connection over, or would (too large, not to be
//     expressed in AMQP): an [outbox.ErrRefused], for this message alone. Others
//     in the batch go through.
//   - An exchange that may not be declared or written to: its messages are
//     refused; other topics do not notice.
//   - Broker blocked by an alarm: [ErrBlocked] at once, until it unblocks.
//   - Connection, channel, consumer or queue lost while consuming: the
//     Subscriber connects again, declares what is missing and goes on. Messages
//     in hand stay usable; their acks are dropped, because the broker has
//     already given the messages back, and they come again.
//   - Exchange or binding deleted: the Publisher declares its exchange again as
//     soon as the broker misses it, a Subscriber its binding within
//     [SubscriberOptions].TopologyInterval; in between, messages are refused as
//     unroutable, not lost.
//
// Attempts are not counted here. The queues' delivery limit, 1,000, is for a message
// that the AMQP client cannot even read: it closes the connection over it. The
// Subscriber then gives the topic a connection of its own, with one message at a
// time, until the broker has moved that message to the dead-letter queue; and it
// logs an error as long as there is something in that queue. Its other topics may
// have to do with one message at a time too, for a TopologyInterval, or up to ten where
// messages are few or take long. Nothing is dropped.
//
// Each delivery counts for the limit, also of a message about which nothing can be decided
// while the database is away: a package such as consumer takes its time between two of
// them, so that hours of that are no thousand.
package rabbitmq
