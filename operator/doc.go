// Package operator is what a person does from outside: the command sagamill and a console are
// built on it. It reads and changes tables. It is never in the path of a message, and needs
// neither a broker nor a running consumer, relay or orchestrator: those see each change.
//
//   - [DeadLetters] lists, previews, redrives, edits, buries and discards dead letters.
//   - [Locator] finds the steps and messages of one saga.
//
// # After an error and after a crash
//
// A change is made in batches, one transaction each, which also writes a row of the journal.
// So a crash loses at most the batch in hand, and the journal has exactly the changes that have
// committed. After an error that does not come from the server it is unknown whether the batch
// in hand has committed. Repeat the call: what is done is left out.
//
// Previews and reads take no lock. Changes take the locks of the rows that they change, in the
// order in which consumers take them, for at most one batch.
//
// # Files
//
//   - options.go, batch.go: options; the engine that commits batches, keeps a rate and writes the journal
//   - deadletter.go: the dead letters of both sides
//   - inbox.go, sqlinbox.go: those of the inbox
//   - outcome.go, redrive.go, preview.go, edit.go: what becomes of a letter
//   - locate.go: the rows of one saga
package operator
