// Package pg is how sagamill talks to PostgreSQL outside of a user's transaction.
//
//   - own.go: [Own] runs statements that are sagamill's alone. PostgreSQL hides no row from them, and a session that has
//     gone wrong leaves the pool.
//   - session.go: which errors belong to the session, and how hidden rows are told from absent ones.
//   - sequence.go: sequences that are behind their rows.
//   - limitedread.go: transactions that read, with a limit that the server keeps.
//   - away.go, away_wait.go: errors of a server that is unavailable.
package pg
