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
// An Event's Hits count what the fault has struck: processes, sessions, connections, COMMITs, requests, the
// messages and consumers of a queue, the rows of a lock, or the sessions that wait for it. Without any hit the
// fault has struck nothing.
//
// # A fault of an operator must lose nothing
//
// Deleting a queue discards its messages. It also discards messages published before the service has declared
// the queue again, if the exchange has another queue. That is no bug of the product, so the harness repairs it.
// Once the queue is back, the harness writes to the outbox again each message of the topic that a service's
// inbox does not show as settled. It chooses only topics whose inboxes can show that ([site.Topic].Steps). The
// bindings of a topic, or its exchange, are deleted all together, so that the broker refuses messages in the
// meantime. For a topic with several queues that takes more than one moment, so the repair is the same. The
// record.Event names the repeated messages. A message that the services had lost long before would be healed
// too; the judge recognizes it by its age.
package fault
