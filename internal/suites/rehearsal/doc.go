// Package rehearsal is the test that what docs/operations.md says of a database that was
// set back is so. A private PostgreSQL archives its WAL, services work on it, the server is
// destroyed and recovered to a restore point, or lost to a standby that is behind, and relay
// and consumers start anew. Or the standby is synchronous: services under load lose their
// primary, or it hangs, and find the standby by their URL.
package rehearsal
