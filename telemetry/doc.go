// Package telemetry exports metrics and traces of the other packages through OpenTelemetry.
// No other package of the product imports OpenTelemetry, so a program without this one does not
// compile it.
//
// A service sets OpenTelemetry's providers first. Then it registers what is read at each
// collection, and passes observers to what reports as things happen:
//
//   - idemkey: [NewIdempotencyObserver], as idemkey.Options.Observer and idemkey.SweeperOptions.Observer
//   - outbox: [RegisterRelay], and [NewOutboxTracer] as outbox.WriterOptions.Tracer and outbox.RelayOptions.Observer
//   - consumer: [RegisterConsumer], and [NewConsumerObserver] as consumer.Options.Observer
//   - saga: [RegisterOrchestrator], and RegisterConsumer for saga.Orchestrator.Consumer, whose replies may be parked
//
// An exporter to Prometheus turns the name sagamill.outbox.published into
// sagamill_outbox_published_total, and idemkey.handler_seconds into idemkey_handler_seconds. It
// adds no unit to a name that has one.
//
// # Metrics of requests
//
// Each process counts its requests; take the sum over processes.
//
//	idemkey.requests          {request}  http.route, result  every covered request
//	idemkey.outcomes          {outcome}  http.route, outcome  every handler that ran
//	idemkey.takeovers         {request}  http.route  ran, or was recovered, after the owner of the key had vanished
//	idemkey.inflight          {request}  http.route  handlers that run now
//	idemkey.lease_lost        {request}  http.route  ran to its end after another owner had taken over
//	idemkey.commit_ambiguous  {commit}   http.route  the result of COMMIT was lost and not found
//	idemkey.handler_seconds   s          http.route  time in the handler
//	idemkey.begin_seconds     s          http.route  time of the claim
//	idemkey.stored_bytes      By         http.route  size of the stored bodies
//	idemkey.oversize          {request}  http.route, part  a body over its limit: request and response were rejected, tombstone was sent and not stored
//	idemkey.store_errors      {error}    http.route, op  the store failed; op is begin, commit, reject, release or renew
//	idemkey.gc_deleted        {record}   expired records removed, by an idemkey.Sweeper with this observer
//
// The label http.route is the pattern under which a router mounted the handler. It is missing if
// the middleware is outside of the mux, or of a router that has not routed yet.
//
// # Metrics of the outbox
//
// A collection reads these from the database. Each process with a relay reports the same value:
// take the maximum, never the sum.
//
//	sagamill.outbox.messages               {message}  state  stored: to be published next; delayed: not due yet; waiting: behind a
//	                                                         refused one; refused: retrying; dead: a dead letter, for a person.
//	                                                         Each counts up to outbox.CountLimit
//	sagamill.outbox.oldest_seconds         s          age of the oldest stored message; 0 without one
//	sagamill.outbox.epoch                  {tenure}   how often the active relay has changed
//	sagamill.outbox.leaf_bytes             By         leaf  each table of the log, with indexes
//	sagamill.outbox.oldest_writer_seconds  s          age of the oldest open transaction that holds the log back; 0 without one
//
// These are of this process's relay:
//
//	sagamill.outbox.active           {relay}    1 if the relay is the active one, else 0: the sum over all processes is 1
//	sagamill.outbox.published        {message}  confirmed and not returned
//	sagamill.outbox.refusals         {refusal}  by the broker
//	sagamill.outbox.dead_letters     {message}  became dead letters
//	sagamill.outbox.queued           {message}  held behind a refused or deferred message
//	sagamill.outbox.stalled          {topic}    topics that the broker takes no messages of, while it takes others
//	sagamill.outbox.deferred         {message}  put aside because the topic took none
//	sagamill.outbox.unavailable      {call}     calls of the publisher without an answer for some message
//	sagamill.outbox.confirms         {call}     le  calls of the publisher that took at most le seconds; le="+Inf" is all of them
//	sagamill.outbox.confirm_seconds  s          time in those calls
//
// Confirms has the form of a Prometheus histogram: histogram_quantile takes
// rate(sagamill_outbox_confirms_total[5m]). OpenTelemetry has no histogram that is read at a
// collection, and package outbox does not know OpenTelemetry.
//
// The command sagamill outbox status names the holder of the lease, topics and keys; no label does.
//
// # Metrics of consumers
//
// A [ConsumerObserver] counts these; take the sum over processes.
//
//	sagamill.consumer.messages             {message}  step, kind, outcome, reason  deliveries, by outcome
//	sagamill.consumer.attempts             {attempt}  step, kind, error.type  runs of handlers, and attempts at Effects; without error.type: successful
//	sagamill.consumer.handler_seconds      s          step, kind  time in the handler; of an Effect from verify or call to the end of record
//	sagamill.consumer.lag_seconds          s          step, kind  from a message's timestamp to its first attempt, delays included; not of parked copies
//	sagamill.consumer.transaction_seconds  s          from BEGIN to the answer to COMMIT or ROLLBACK
//	sagamill.consumer.batch                {message}  messages in a transaction; an Effect has two transactions for each attempt
//	sagamill.consumer.rollbacks            {transaction}  rolled back, or ended with an unknown result
//
// [RegisterConsumer] reads these from memory. Paused stays 0 with a subscriber that is no [consumer.Pauser]. The last two need a subscriber that is a
// [consumer.SubscriptionTeller], such as that of package rabbitmq:
//
//	sagamill.consumer.inflight             {attempt}  handlers that run, and verify, call and record of Effects
//	sagamill.consumer.paused               {consumer}  1 while the queues are handed over, because this process has lost its database, else 0
//	sagamill.consumer.subscribed           {subscription}  topic  1 while the broker delivers messages of the topic, else 0
//	sagamill.consumer.cancelled            {subscription}  topic  ended by the broker because the queue was deleted
//
// And these from the database. Each process reports the same value: take the maximum, never the
// sum.
//
//	sagamill.parked.messages         {message}  state, step, kind, reason  state is retrying, calling, or dead: a dead letter, for a person
//	sagamill.parked.oldest_seconds   s          state, step, kind, reason  since the first of them was parked
//	sagamill.parked.overdue_seconds  s          how long the oldest due message has waited for a consumer; 0 without one
//
// The state calling is that of an Effect whose call is under way, or whose process died in it.
// In the latter case the Effect resumes when its lease ends.
//
// Steps and topics are the program's. Kind is action or compensation. Outcomes and reasons are
// fixed. error.type is panic, terminal, parked, timeout, canceled, unsettled (verify found
// nothing, but too early), a SQLSTATE of PostgreSQL, or _OTHER. A message that could not be read
// has no step and no kind.
//
// # Metrics of sagas
//
// A collection reads these from the database. Each process with an orchestrator of the schema
// reports the same value: take the maximum, never the sum.
//
//	sagamill.saga.instances_live        {instance}  status  running, compensating, paused by a person, or stuck: a person is
//	                                                        needed. Includes nested ones; counts up to outbox.CountLimit of each
//	sagamill.saga.oldest_stuck_seconds  s           longest time that a stuck instance has not changed; 0 without one
//	sagamill.saga.oldest_held_seconds   s           the same of an instance held by a dead letter at a participant
//	sagamill.saga.overdue_seconds       s           how long the instance that is next has been due; 0 without one
//
// These are of this process's orchestrator; take the sum over processes:
//
//	sagamill.saga.instances     {instance}  status  completed and compensated: ended so; stuck: times that an instance became stuck
//	sagamill.saga.late_replies  {reply}     replies that no instance waited for
//
// Alert on instances_live with the status stuck: the alert stays until somebody has looked.
//
// The command sagamill saga list names definitions, keys and scopes; no label does.
//
// # Traces of requests
//
// The span that is active in the request's context gets one event, idemkey.decision. Its attributes are result,
// attempt, outcome, code and status, and took_over and oversize if they are true. So tracing goes outside of
// the middleware. The middleware starts no span and leaves the span's status alone.
//
// # Traces of messages
//
// An [OutboxTracer] stores the trace of the context in which a message is written. It travels in
// the headers traceparent and tracestate, which stay the same on the whole way, also if the
// message is published or delivered twice. These spans are children of the writer's span:
//
//	publish <topic>    producer  one attempt to publish, up to the broker's confirm
//	process <step>     consumer  one attempt of the action, or a delivery that entered no handler
//	compensate <step>  consumer  the same of the compensation
//	process <topic>    consumer  a message that could not be read
//
// Exceptions:
//
//   - A duplicate, and an action whose compensation came first, has a short span in a new
//     trace, with a link to the writer's span. It has none if the writer's span was not sampled.
//     So the saga's trace shows each step once, however late a duplicate arrives.
//   - A message without a trace starts one when it enters its handler. If it enters none, it has
//     no span. It has no publish span either.
//   - If the context of the delivery has a span, such as that of a router's middleware, that span
//     is the parent. The writer's span is then a link.
//   - A trace that is not sampled has no publish spans.
//
// The span of an Effect's attempt contains verify, call and record. Their contexts have it, so
// requests of an instrumented client and messages that record emits are its children. Messages
// that a handler emits are children of its span: the next step, and a compensation that it asks for.
//
// The span of a compensation is also linked to the span of its action. It finds that span in the
// member sagamill of the message's tracestate, which lists the last nine actions on the way that
// can be compensated. Messages from a timer, a person or an outbox.Writer have no such list.
//
// A consumer's span ends when its handler has returned. sagamill.commit_seconds is the time from
// then until the outcome was known, and sagamill.batch the number of messages in the transaction,
// or in the publisher's call. A transaction has no span, because it would belong to many traces.
//
// Other attributes are those of OpenTelemetry's conventions for messaging, version 1.43, and
// sagamill.step, sagamill.type, sagamill.attempt, sagamill.kind, sagamill.outcome, sagamill.reason,
// sagamill.parked and sagamill.redelivered. The saga's correlation ID is
// messaging.message.conversation_id. On a failure the span has the status Error, and error.type
// has its class: those above, for a message that entered no handler its reason, and when
// publishing refused, or unknown if the broker did not answer.
//
// # What is left out
//
// No label and no span has a payload, a header or an error's text. No label has a key or a scope,
// because callers choose them; only the consumer's spans have them, if [Options].Keys is set.
package telemetry
