// Package handover tests what becomes of the queues of a process that loses PostgreSQL and keeps RabbitMQ. Two consumers
// with a pool and a subscriber each read one queue with a single active consumer. The path of each to the database is a
// proxy, which the tests cut:
//
//   - reset: the connections are gone, and further ones are refused;
//   - black hole: no byte goes either way, and nobody learns of it;
//   - answers lost: the server gets everything, a COMMIT too, and no answer arrives.
//
// The path is cut while a handler runs, so that a COMMIT is in hand. These must hold:
//
//   - the other consumer goes on, while the first is cut off;
//   - each step is executed once, and the messages of each key in their order (G5.6, G9.22);
//   - a consumer without its database is not ready, and consumes again when it has it;
//   - if nobody has the database nobody consumes, and that costs one delivery.
//
// The tests run on the broker of AMQP_URL. `make test-rabbitmq RABBITMQ=4.3 PKG=./internal/suites/handover` runs them on
// RabbitMQ 4.3.
package handover
