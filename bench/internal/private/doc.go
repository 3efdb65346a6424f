// Package private starts a benchmark's servers and ends them with it. They are RabbitMQ, a PostgreSQL on the
// native disk, and one where each sync takes a millisecond more, as in most data centres. On shared servers,
// other load would be part of every figure.
package private
