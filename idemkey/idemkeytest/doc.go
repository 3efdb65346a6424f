// Package idemkeytest is the suite that every [idemkey.Store] passes. It tests
// each transition of a record's states, under races and crashes too.
package idemkeytest
