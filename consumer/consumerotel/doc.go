// Package consumerotel tells OpenTelemetry what a consumer does.
//
// # Metrics of this process's consumer
//
// An [Observer] makes these as things happen; take the sum over processes.
//
//	sagamill.consumer.messages             {message}  step, kind, outcome, reason  arrivals, by what became of them
//	sagamill.consumer.attempts             {attempt}  step, kind, error.type  entries into handlers, and attempts at Effects; no error.type: it succeeded
//	sagamill.consumer.handler_seconds      s          step, kind  time in the handler; of an Effect from verify or call to the end of record
//	sagamill.consumer.lag_seconds          s          step, kind  from a message's timestamp to its first entry, delays included; not of parked copies
//	sagamill.consumer.transaction_seconds  s          from BEGIN to the answer to COMMIT or ROLLBACK
//	sagamill.consumer.batch                {message}  messages in a transaction; an Effect has two for each attempt
//	sagamill.consumer.rollbacks            {transaction}  rolled back, or ended in a way that is not known
//
// And [Register] these, read when metrics are collected; the last two of a subscriber that
// is a [consumer.SubscriptionTeller], as that of package rabbitmq:
//
//	sagamill.consumer.inflight             {attempt}  handlers that run, and verify, call and record of Effects
//	sagamill.consumer.subscribed           {subscription}  topic  1 while the broker delivers what comes to the topic, else 0
//	sagamill.consumer.cancelled            {subscription}  topic  ended by the broker, as when a queue is deleted with what it holds
//
// # Metrics of the parked messages
//
// [Register] reads these from the database. Each process reports the same, so that a
// dashboard takes their maximum, never their sum.
//
//	sagamill.parked.messages         {message}  state, step, kind, reason  state is retrying, calling, or dead: a person is needed
//	sagamill.parked.oldest_seconds   s          state, step, kind, reason  since the first of them was parked
//	sagamill.parked.overdue_seconds  s          how long one has been due that nobody has run; 0 if there is none
//
// The state calling is that of an Effect's call which is under way, or has ended with its
// process and goes on when its lease is over.
//
// An exporter to Prometheus makes sagamill_consumer_messages_total,
// sagamill_consumer_handler_seconds and so on of these names.
//
// # Labels
//
// Steps are the program's; kind is action or compensation; outcomes and
// reasons are fixed. error.type is panic, terminal, parked, timeout, canceled, unsettled (verify
// found nothing, but too early), a SQLSTATE of PostgreSQL, or _OTHER. A message that could not be read has no step and no kind.
// Topics are those that the steps listen to. Keys and scopes are no labels.
//
// # Traces
//
// A message's traceparent is that of its writer (see package outboxotel), and stays the same
// however often it arrives. So these spans, of kind consumer, are in the trace of
// the request that began the saga, as children of the writer's span, but for those of duplicates:
//
//	process <step>     an entry of the action's handler; or a short one, for an arrival that was not let in
//	compensate <step>  the same of the compensation
//	process <topic>    a message that could not be read
//
// Each attempt has a span of its own, with sagamill.attempt. That of an Effect is around verify,
// call and record, whose contexts carry it: a request that an instrumented client makes of them
// belongs to it, and so does what record emits. What happens once is one trace; what comes again
// is linked to it: a duplicate, and an action whose compensation has come first, has a short span in a trace of
// its own, however late it arrives, with a link to its writer's span, if that was sampled.
// What a handler emits has its span's context: the next
// step's spans, and those of a compensation that it asks for, are its children. A
// compensation is linked to the span of the action that it undoes as well, if that is one of the last nine
// on the way to it that can be undone, as the member sagamill of its tracestate tells; messages that a timer, a person or
// a Writer of package outbox has written have no such way. A message
// without a trace begins one when its handler is entered; an arrival that is not let in
// begins none. Where the context that is given to the consumer has a span already, such as
// one of a router's middleware, that is the parent, and the writer's is a link.
//
// A span ends when its handler has returned. sagamill.commit_seconds is how long it took from
// then until the outcome was known; sagamill.batch how many messages were in the
// transaction, which is no span: it would belong to as many traces.
//
// Other attributes are those of OpenTelemetry's conventions for messaging, version 1.43, and
// sagamill.step, sagamill.type, sagamill.kind, sagamill.outcome, sagamill.reason, sagamill.parked
// and sagamill.redelivered. The saga's correlation id is messaging.message.conversation_id. A
// failure sets the status Error with the class that is error.type. Error texts, payloads and headers are in no
// span, keys and scopes only with Options.Keys.
package consumerotel
