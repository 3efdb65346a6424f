// Command saga measures sagas of three steps, from the transaction that places an order to the one that
// completes it: payment, shipping, completion. The servers are private and end with the command.
//
// All kinds do the same work. A client starts a saga with one transaction that inserts the order's row. Each
// step inserts one business row into a table whose key is the order, so a doubled effect is a visible error.
// The last of these rows completes the order. All commits wait for the disk; messages go through quorum queues
// and are confirmed. Everything runs in one process: 32 clients and all services.
//
//	dbos                  a workflow of DBOS Transact with three steps, on the same server.
//	                      It has no messages. The insert is a step, which DBOS checks for
//	                      before and checkpoints after; the order's row is inserted ahead of
//	                      the workflow. It runs where it is started: a queue of DBOS's polls
//	                      once a second
//	dbos-transaction      the same with RunAsTransaction on DBOS's own pool: the row and the
//	                      checkpoint are one transaction, which DBOS advises for one database
//	river                 three chained jobs of River, on the same server, without messages.
//	                      A step's row, the next job and the job's completion are one
//	                      transaction, as are the order's row and the first job
//	plain                 the saga as people write it by hand: services with an outbox, a
//	                      polling relay, watermill-amqp and a table of messages handled
//	good-hand             the saga as an experienced engineer writes it by hand: a relay that
//	                      commits wake, batches with their confirms on one channel, 8 channels
//	                      with a prefetch for each step, a message in three round trips
//	choreographed         packages outbox, consumer and rabbitmq at their defaults, services
//	                      with a schema each, an INSERT in each handler
//	choreographed-queued  the same with the INSERT queued by the handler, and the start in
//	                      one round trip
//	orchestrated          package saga: payment and shipping are commands, completion is a
//	                      local step; two participants with an INSERT in each handler
//	orchestrated-queued   the same with the INSERTs queued, and the start in one round trip
//
// Absolute rates say more about the machine than about the code. So kinds that are compared run alternately, in
// slices of one run. Each round gives one ratio, and the command prints the median of the rounds. A slice
// starts from empty tables, empty queues and a checkpoint. A fifth of its sagas runs before it, with the same
// load, so that connections and plans are warm. If some saga did not have each effect exactly once, the command
// prints no figures. A kind whose services poll runs them only during its own slices.
//
//	throughput  a number of sagas, started as fast as the clients can with as many in
//	            flight as suit the kind, on the disk as it is and on one where each
//	            sync takes a millisecond more
//	latency     from when a start was due until the last step's commit is answered, by
//	            the clock of the process, at two loads: half of the capacity of the
//	            slowest kind, which all kinds sustain, so that they can be compared; and
//	            half of a kind's own. A workflow is over when its caller has the result, for
//	            which DBOS needs one more commit
//	quiet       what a saga costs, and how long it takes, one at a time, at 10, 60 and 150 a
//	            second, at half of a kind's own capacity and saturated; and what idle services
//	            ask of the servers. All kinds have one load before any has the next, in slices
//	            of five seconds. The costs are processor time of client, database and broker,
//	            statements, round trips, transactions and log. Transactions that write
//	            include subtransactions. Autovacuum is on, so this part runs alone: make
//	            bench-quiet. Option -loads picks some of the loads. Option -statements lists
//	            the statements of a saga, and how long the server executed them, as
//	            pg_stat_statements sees them
//	sweep       a kind's rate with 64 to 4,096 sagas in flight, and which number is best.
//	            kinds.go has the result. Option -sweep measures this part alone
//	log         which tables, indexes and kinds of records the log of a saturated saga
//	            consists of. It needs the extension pg_walinspect
//
// The last lines are one for each target: target NAME VALUE GOAL ok|short. The
// exit status is 0 if some are short: a busy machine is no reason to fail a build.
package main
