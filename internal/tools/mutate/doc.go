// Package mutate has a list of mutants. Most change lines of the product that carry a claim of
// docs/guarantees.md, and name a test of that claim. The others are bugs: the thirteen mistakes that a library of
// this kind is most likely to make, each with directed tests. Every test of a mutant must fail.
//
// Command run makes the changes one mutant at a time, in an overlay of the go command and never in the tree, so that no
// file of the product holds wrong code. It reports which tests fail.
//
// A claim is only as good as a test that fails when the code is wrong. That a test would fail is
// not seen from its being green.
package mutate
