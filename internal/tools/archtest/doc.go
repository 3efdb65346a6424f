// Package archtest holds the rules about this repository that a compiler does
// not check: who may import whom, and what has bitten once and is not to come
// back. Its tests parse every Go file of the module; go.mod and CI's workflow
// have rules of their own.
//
// A rule that is wrong is changed here, with the reason in the commit; there
// are no exceptions in the code.
package archtest
