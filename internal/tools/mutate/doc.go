// Package mutate has a list of mutants. Most mutants change lines of the product that a claim of
// docs/guarantees.md depends on, and name a test of that claim. The others are bugs: the thirteen mistakes
// that a library of this kind is most likely to make, each with directed tests. Every test of a mutant must
// fail.
//
// Command run makes the changes of one mutant at a time, in an overlay of the go command and never in the
// tree: no file of the product holds wrong code. It reports which tests fail.
//
// A claim is only as good as a test that fails when the code is wrong. A passing test does not show that it
// would fail.
package mutate
