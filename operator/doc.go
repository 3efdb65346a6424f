// Package operator is for a person outside of the services: the command sagamill and package console are
// built on it. It reads and changes tables. It is never in the path of a message, and needs neither a broker nor a
// running consumer, relay or orchestrator: those see each change.
//
//   - [DeadLetters] lists, previews, redrives, buries and discards the dead letters of the inbox
//     or of the outbox, and edits those of the inbox.
//   - [Replayer] publishes messages of the log again.
//   - [Locator] finds the steps and messages of one saga.
//   - [Instances] shows saga instances and applies a [Decision] to one, or to all that a filter picks.
//     [Instances.Choices] says which decisions one would take.
//   - [Keys] lists requests whose outcome is unknown, and stores an answer for one or lets it run again.
//   - [Explain] says in sentences where a saga is waiting, over the schemas of several databases.
//   - [ReadOverview] returns the state of each schema of a database, and its problems.
//   - [Instances.ReadPace], [ListProcesses] and [ListSchemas] are for pages that show a whole database.
//   - [Reader] lists messages of the outbox, ordering keys that wait, topics, idempotency keys and what people have done,
//     and finds what a key or an id names.
//   - [ReadJournal] shows the changes that operators have made to messages.
//
// Monitoring needs none of this: outbox.ReadStats, consumer.ReadStats and saga.ReadStats count.
//
// # After an error and after a crash
//
// A call that changes messages works in batches. Each batch is one transaction, which also writes a row of the
// journal. So a crash loses at most the batch in hand, and the journal has exactly the changes that have
// committed. After an error that does not come from the server it is unknown whether the batch in hand has
// committed. Repeat the call: it skips the work that is done. A replay is the exception: it may then publish
// that batch twice, which steps treat as duplicates. A decision about an instance is one transaction with one
// entry of the journal of that instance, also if it is one of many.
//
// Previews, lists and locators take no lock. Changes take the locks of the rows that they
// change, in the order in which consumers and relays take them, for at most one batch. A process
// that is suspended in a transaction loses its session, and with it its locks, after 30 s; on
// the outbox after 10 s.
//
// # Files
//
// options.go has the options of all constructors. batch.go is the engine that all verbs share: it pages, bounds the
// time, keeps a rate, and writes and reads the journal of what operators have done to messages.
//
// deadletter.go: [DeadLetters] for both sides. inbox.go and outbox.go implement a side each. groups.go groups them, and has
// the fingerprint of an error.
// outcome.go decides what a redrive does with a letter, by the state machine of the consumer;
// redrive.go does it under locks, preview.go without changing anything. edit.go changes a letter.
//
// locate.go: the rows of one saga. explain.go reads them from all schemas: explainfind.go finds what the saga waits
// for, explaintrace.go follows a message, explainadvice.go names the commands that help. replay.go: copies of messages at
// the end of the log.
//
// instances.go lists instances, timeline.go shows one and says what a cancellation would compensate. decide.go applies
// a decision to one, decideall.go to many, choices.go tries them. overview.go reads the status of whole schemas, pace.go
// how many instances begin and end.
//
// keys.go decides about requests whose outcome is unknown, by the statement that package idempg uses.
//
// messages.go has [Reader] with the messages of the outbox, topics.go the topics, requests.go idempotency keys, activity.go
// both journals, search.go what an id names.
//
// The statements are in sqlinbox.go, sqloutbox.go, sqlinstances.go, sqlkeys.go and sqlreader.go.
package operator
