// Package private starts the servers that a benchmark measures on, and ends them
// with it: RabbitMQ, a PostgreSQL on the disk as it is, and one where each sync
// takes a millisecond more, as in most data centres. Others' load on servers that
// are shared would be part of every figure.
package private
