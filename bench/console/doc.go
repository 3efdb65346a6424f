// Command console measures the pages of the console on large tables. The servers are private and end with the command.
//
// The tables have a million instances of a saga of five steps, some ten million rows of the inbox, 100,000 dead letters of
// both sides, a million idempotency keys, and the messages of the last hour in the log. The service runs for a moment and
// makes a sample of each state: completed, compensated, failing, parked, stuck, undoing and paused. All other rows are
// copies of these, with other keys, ids and times. So each row has the form that the product writes. Filling takes two
// minutes, and some 6 GB.
//
//	pages     all lists and look-ups, beside a load of the service on the same tables. Each visit is to a console that
//	          has nothing in memory: a person who comes later waits less. A page that is called live is the first part
//	          that its stream sends. All pages are measured in three rounds, and the medians of the rounds are printed.
//	browsers  what browsers cost that have pages open. First without a load: the statements for one browser and for five
//	          on one page, and the processor time of five on five pages. Then the throughput of the service with five
//	          browsers and without, in slices that alternate, and what the console uses of the machine meanwhile. The
//	          throughput of two slices can differ by a tenth without any browser. The processor time of the console is
//	          exact: it is the browsers', and that of the console's connections to the database.
//	river     what the pages of River UI ask for, on its table with a job for each instance and each dead letter. It has no
//	          counterpart to the rows of the inbox.
//
// The last lines are one for each target: target NAME VALUE GOAL ok|short. The exit status is 0 if some are short: a busy
// machine is no reason to fail a build.
package main
