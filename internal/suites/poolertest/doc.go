// Package poolertest tests all packages together behind pgbouncer in transaction mode, with fewer connections
// to the server than clients. It has no code.
package poolertest
