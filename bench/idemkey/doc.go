// Command idemkey measures the cost of the middleware on a private PostgreSQL server and a private Redis, which
// end with the command. Without redis-server it leaves out the parts that need Redis.
//
// Absolute rates say more about the machine than about the code. So all measurements run alternately, in
// slices. Each round gives one ratio, and the command prints the median of the rounds. It calls handlers
// directly: HTTP costs the same with and without the middleware, and would hide the difference.
//
// The last lines are one for each target: target NAME VALUE GOAL ok|short. The
// exit status is 0 in any case: a busy machine is no reason to fail a build.
package main
