// Package sagarow is the row of an instance in the table saga, and what the instance sends. Package saga moves rows
// for messages and timers, package operator for persons; both lock and read them alike.
//
// row.go has the row and its columns, lock.go how it is locked and read, messages.go what it sends.
package sagarow
