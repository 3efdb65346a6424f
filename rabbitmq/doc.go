// Package rabbitmq publishes to and consumes from RabbitMQ without losing or
// looping a message. [Publisher] and [Subscriber] are watermill's interfaces,
// and Publisher is an [outbox.Publisher] besides. Both take the Config of
// watermill-amqp, so exchange, queue and binding settings carry over; nothing
// else of that package is used.
//
// # What is authoritative
//
// A message is published if the broker has confirmed it and has not returned it; anything less is
// an error. Only the broker knows which deliveries are settled: a delivery that was not acked on
// the channel it came on is redelivered, on another channel and flagged so.
//
// # The stages
//
//   - connect.go, connect_dial.go, connect_tls.go, connect_addresses.go, connect_request.go: a link
//     has a connection to one of several brokers, leaves one that is lost, blocked or suspect, and
//     bounds every request.
//   - publish.go, publish_letter.go, publish_destinations.go: a [Publisher] packs a batch, checks each
//     message, declares exchanges and sends again what a lost channel leaves open.
//   - confirm.go: a confirmChannel sends a window of messages and collects confirms and returns.
//   - subscribe.go, subscribe_channels.go, subscribe_pause.go: a [Subscriber] hands over the messages of topics. A
//     subscription is one topic, from one consumer channel after the other, with pauses in between.
//   - consume.go, consume_intake.go, consume_lanes.go: a consumer channel is an AMQP channel with one consumer. Its
//     deliveries wait in lanes, by key, until they are handed over.
//   - settle_acks.go: acks are collected and sent together.
//
// config.go makes a Config and its topology, topology.go gives its permissions and deletes it,
// marshal.go is the form on the wire, errors.go the errors.
//
// # Failures
//
//   - Connection or channel lost while publishing: the outcome of messages that were not yet
//     confirmed is unknown. It is reported as [ErrUnavailable]. Publish them again under the
//     same id.
//   - A message that the broker refuses (unroutable, against a rule of the broker), or closes the
//     connection over: an [outbox.ErrRefused], for this message alone. Others in the batch go
//     through. A message that is too large, or cannot be expressed in AMQP, is refused unsent.
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
//     destination, the process's subscriptions leave the first broker too. A subscription
//     stays if a message was delivered on its connection since, or is in a handler's hands.
//   - A login that some of several brokers refuse: the others are used. It is an error once
//     every broker refuses.
//   - Connection, channel, consumer or queue lost while consuming: the
//     Subscriber connects again, declares missing parts and goes on. Messages in hand
//     stay usable. Their acks are dropped, because the broker has already given the
//     messages back, and they are redelivered.
//   - A quorum queue without a majority, or one whose requests are not answered, while consuming:
//     its subscription waits and tries again, at several brokers if the Config names them. It has
//     its own connection, because RabbitMQ closes the connection over it. Its messages
//     arrive once the queue answers; other subscriptions do not notice.
//   - A declaration that is not answered, as while a node of the cluster stands still: it costs
//     its own channel. Consuming goes on.
//   - A node that is cut off from its cluster and keeps its clients: with several addresses, a subscription that
//     receives nothing declares its topology every 5 s, and goes to another node if it gets no answer within 3 s.
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
// topic then has one message at a time until the broker has moved that message to the
// dead-letter queue. Where messages are few or take long, that lasts up to ten times
// TopologyInterval longer. The Subscriber logs an error as long as there is something in that queue.
// Other topics do not notice, and nothing is dropped.
//
// A delivery counts for the limit if its consumer died or lost its connection before the ack. Before
// RabbitMQ 4.3, a nack counts too. A process that loses its database pauses its topics
// ([Subscriber.Pause]), so an outage costs at most one delivery for each hand-over.
package rabbitmq
