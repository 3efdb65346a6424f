// Package devservices finds the servers that the tests and the demo need, or
// starts them, so that a fresh machine needs nothing but Go.
//
// For each service the ways below are tried in order; the first that works is
// used, and one line says which it was. SAGAMILL_SERVICES=private,inproc
// restricts each service to those of its ways that are named, if any is.
//
//	env      DATABASE_URL, AMQP_URL, REDIS_URL, NATS_URL; set but unreachable is an error
//	found    running on this machine at the default port
//	docker   docker compose up, if an engine answers
//	private  started from installed binaries, on free ports, for this run only
//	npm      PostgreSQL binaries from an npm package, then as private
//	apt      installed with apt-get where we are root, then as private
//	inproc   the broker only: none, the program brings its own
//	none     Redis and NATS only: none, and what needs it is not tested
//
// SAGAMILL_POSTGRES=14 has PostgreSQL of that major version, from installed binaries or
// from npm, and never a server that is there already; SAGAMILL_POSTGRES=/usr/pgsql-17/bin
// has private servers started from there.
//
// With [Options].Own, which the tests ask for, private comes before found.
//
// NATS is used where it is named, found or installed, and never fetched.
//
// With [Options].Pooler a pgbouncer in transaction mode stands before the database, whichever
// that is.
//
// # What is left behind
//
// A private server dies with the run: [Services.Close] kills it by pid and
// removes its files. If the program is killed before that, Linux kills the
// server with it; elsewhere the next Start does, as it does the files. Each
// run's directory is locked for as long as the run lives, which is how the
// next one knows which are dead.
//
// On a server that others use as well, the run gets a database of its own,
// dropped by Close. The database of a run that was killed is dropped by another
// run two days later. What docker compose started stays up, so that the next run
// finds it.
package devservices
