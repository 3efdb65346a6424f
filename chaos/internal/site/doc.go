// Package site is the target of a chaos run: a private PostgreSQL and a private RabbitMQ, the order and the
// trip example as two processes of each service, and the links between them.
//
//	process      PostgreSQL                    RabbitMQ
//	SERVICE-1    over a link (toxiproxy)       over a link (toxiproxy)
//	SERVICE-2    over a proxy that loses       directly
//	             COMMITs or their replies
//
// The payment services reach the two gateways over an HTTP proxy, which can answer for them, lose their answers
// or delay them. The site restarts a dead process at once. All processes end with the harness, even if that is
// killed.
package site
