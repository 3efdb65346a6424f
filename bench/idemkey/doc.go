// Command idemkey measures what the middleware costs, on a PostgreSQL server and
// a Redis of its own that end with it. What needs Redis is left out where there is
// no redis-server.
//
// Absolute rates say more of the machine than of the code. So everything is
// measured in slices that take turns, each round gives one ratio, and what is
// printed is the median of the rounds. Handlers are called directly: HTTP costs
// the same with and without the middleware, and would hide the difference.
//
// The last lines are one for each target: target NAME VALUE GOAL ok|short. The
// exit status is 0 in any case: a busy machine is no reason to fail a build.
package main
