// Package fault strikes a site: [PlanFaults] draws a schedule from a seed, [CarryOut] carries
// one out, and [PlanFuses] arms the processes.
//
//	sigkill                     a process dies
//	sigstop                     a process hangs with its connections open
//	rolling-restart             the two processes of a service are told to stop, one after the other
//	pg-terminate                the sessions of a service, or all, are ended
//	pg-crash                    PostgreSQL ends without any good order
//	commit-lost                 the server does not hear of COMMITs
//	commit-reply-lost           clients do not hear of COMMITs that were carried out
//	link-slow, link-narrow      latency; little bandwidth
//	link-swallow                a peer that has vanished
//	link-reset, link-cut        connections are reset; none is accepted
//	broker-close                the broker closes all connections
//	broker-restart, broker-kill it is stopped in good order, or killed
//	broker-alarm                its memory alarm
//	queue-delete                all queues of a topic are deleted, with what is in them
//	binding-delete              all bindings of a topic
//	exchange-delete             a topic's exchange, with all bindings
//	lock-inbox, lock-lease      a table, or the row that relays share, is locked
//	lock-rows                   the rows that were written last
//	deadlock                    two tables in the other order
//	gateway-error, gateway-lost, gateway-slow
//	                            the payment gateway refuses, does and does not say so, takes its time
//
// An Event's Hits are what a fault has met: processes, sessions, connections, COMMITs,
// requests, the messages and consumers of a queue, the rows or the waiting sessions of a
// lock. Without any it has struck nothing.
//
// # Nothing is lost by an operator's hand
//
// Who deletes a queue loses what is in it, and what is published until the service
// has declared it again, if the exchange has another queue. That is no bug of
// anybody's, so the harness puts right what it has done: once the queue is there
// again, it writes those messages of the topic to the outbox once more that the
// inbox of a service does not have as settled. A topic is chosen only if an inbox can
// tell ([site.Topic].Steps). The bindings of a topic, or its exchange, are deleted
// only all at once: what is published then is refused. As that is not one moment for a
// topic with several queues, it is put right in the same way.
// What was written once more is in the record.Event: a message that the services had lost
// long before would be healed as well, and the judge sees by its age that it was one.
package fault
