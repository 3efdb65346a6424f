// Package flow carries out what package machine decides: it asks conditions,
// makes the bodies of commands, runs local steps and puts results into an
// instance's state. It knows no tables and no broker: where commands go, and in
// which transaction, is its caller's to say. Package saga is one caller, which has
// a database; package sagatest is another, which has none.
package flow
