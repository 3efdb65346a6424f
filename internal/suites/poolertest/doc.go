// Package poolertest holds the tests of everything together behind pgbouncer in
// transaction mode, with fewer connections to the server than there are users of them.
// It has no code.
package poolertest
