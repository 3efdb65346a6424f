// Package idemkeytest is the suite that every [idemkey.Store] passes. It goes
// through each transition of a record's states, and through what races and
// crashes do to them.
package idemkeytest
