// Package shop is the services and the load of a chaos run on a cluster of RabbitMQ, in one
// process: cheap enough for hundreds of orders a second beside three brokers and a database.
//
//	load ► outbox ► relay ► order.created ► payment ► order.paid ► shipping ► order.shipped ► notification
//	                      ► red ► red
//	                      ► blue ► blue
//
// The load writes orders and messages for the topics red and blue, each in a transaction
// with the message that sets off the first step. One relay publishes for all. Each step
// adds a row to a table without a unique key, so a step that runs twice leaves two rows.
// The orders of one ordering key bear a running sequence.
package shop
