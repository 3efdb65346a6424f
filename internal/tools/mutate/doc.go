// Package mutate has a list of mutants: lines of the product that carry a claim of
// docs/guarantees.md, each with what is made of it to break that claim, and with
// the test that must fail then. Command run breaks them one at a time, in an
// overlay and never in the tree, and tells which tests have noticed.
//
// A test that fails when the code is wrong is all that a claim rests on; that it does is not
// seen from its being green.
package mutate
