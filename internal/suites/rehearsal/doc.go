// Package rehearsal tests the statements of docs/disaster-recovery.md about a database that was set back. A private
// PostgreSQL archives its WAL, and services work on it. The server is destroyed and recovered to a restore
// point, or lost to a standby that is behind, and relay and consumers start anew. Or the standby is
// synchronous: services under load lose their primary, or it hangs, and find the standby by their URL.
package rehearsal
