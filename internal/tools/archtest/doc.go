// Package archtest holds the rules of this repository that a compiler does not check: the directions of
// imports, and mistakes that must not happen again. Its tests parse every Go file of the module. Other rules
// check go.mod and CI's workflow.
//
// Change a wrong rule here, with the reason in the commit. The code has no exceptions.
package archtest
