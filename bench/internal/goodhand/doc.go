// Package goodhand is an outbox and a consumer as an experienced engineer writes them by hand for one program, on pgx
// and amqp091-go. The relay is woken by the commits of its process and publishes batches with their confirms on one
// channel. The consumer has several channels with a prefetch each, and handles a message in three round trips.
//
// Every process that writes to an outbox relays it: SKIP LOCKED divides the rows. So no commit notifies another
// process, which would serialize the commits of the server. A relay also looks once a second, for the rows of a
// process that died.
//
// In contrast to package outbox it keeps no order, retries nothing in the background and gives up no message: an error
// ends the relay, or requeues the delivery.
package goodhand
