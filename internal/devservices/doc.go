// Package devservices finds the servers that the tests and the demo need, or
// starts them, so that a fresh machine needs nothing but Go.
//
// For each service the ways below are tried in order; the first that works is
// used, and one line says which it was. SAGAMILL_SERVICES=private,inproc
// restricts each service to those of its ways that are named, if any is.
//
//	env      DATABASE_URL, AMQP_URL, REDIS_URL, NATS_URL; set but unreachable is an error
//	found    running on this machine at the default port, for example by docker compose up
//	private  started from installed binaries, on free ports, for this run only
//	npm      PostgreSQL binaries from an npm package, then as private
//	debian   RabbitMQ of a newer Debian, unpacked into the user's cache where we are root, then as private
//	apt      installed with apt-get where we are root, then as private
//	inproc   the broker only: none, the program brings its own
//	none     Redis and NATS only: none, and what needs it is not tested
//
// Before something is installed or fetched, one line says what, why, and how to forbid it. SAGAMILL_INSTALL=no forbids
// npm, debian and apt: these ways then count as absent. A test installs nothing, because `go test` hides that line.
//
// SAGAMILL_POSTGRES=14 uses PostgreSQL of that major version, from installed binaries or from npm, and never
// a running server. SAGAMILL_POSTGRES=/usr/pgsql-17/bin starts private servers from that directory.
//
// SAGAMILL_RABBITMQ=4.3 does the same for RabbitMQ, from installed binaries or, for 4.3 and 4.0, from unpacked
// packages. These need a newer C library, so their usr takes the place of /usr in a mount namespace of the server's
// own. The kernel unmounts it when the server has ended, even if it was killed.
//
// With [Options].Own, which the tests ask for, private comes before found.
//
// NATS is used if it is named, found or installed. It is never fetched.
//
// With [Options].Pooler a pgbouncer in transaction mode stands before the database.
//
// # What is left behind
//
// A private server ends with the run: [Services.Close] kills it by pid and removes its files. If the program
// is killed before that, Linux kills the server with it. On other systems the next Start kills it. The next
// Start also removes the files. A run locks its directory as long as it lives, so that the next run knows
// which runs are dead.
//
// On a shared server, the run gets a private database, and Close drops it. If a run was killed, another run
// drops its database two days later.
package devservices
