package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// The page that explains each dead letter, and the packages that give their reasons.
const (
	faqPage       = "docs/faq.md"
	reasonPackage = "consumer" // of the dead letters of steps: constants of type Reason
	refusalError  = "ErrRefused"
)

// reasonHeading matches the heading of an entry about a reason: a code span, and nothing besides.
var reasonHeading = regexp.MustCompile("(?m)^#+ `([^`]+)`$")

// checkReasons returns the differences between the page of questions and the code: reasons without an entry, entries
// about no reason, and words of the outbox's refusals that the page lacks.
func checkReasons(page string, all []*file) (wrong []string) {
	reasons, refusals := findReasons(all)
	if len(reasons) == 0 || len(refusals) == 0 {
		return []string{fmt.Sprintf("found the reasons %q and the refusals %q: checkReasons looks in the wrong places", reasons, refusals)}
	}
	var entries []string
	for _, heading := range reasonHeading.FindAllStringSubmatch(page, -1) {
		if slices.Contains(entries, heading[1]) {
			wrong = append(wrong, fmt.Sprintf("%s: two entries about %s", faqPage, heading[1]))
		}
		entries = append(entries, heading[1])
		if !slices.Contains(reasons, heading[1]) {
			wrong = append(wrong, fmt.Sprintf("%s: no dead letter has the reason %s", faqPage, heading[1]))
		}
	}
	for _, reason := range reasons {
		if !slices.Contains(entries, reason) {
			wrong = append(wrong, fmt.Sprintf("%s: no entry about the reason %s", faqPage, reason))
		}
	}
	for _, refusal := range refusals {
		if !strings.Contains(page, "| `"+refusal+"` |") {
			wrong = append(wrong, fmt.Sprintf("%s: no row about a message that was refused with %q", faqPage, refusal))
		}
	}
	return wrong
}

// findReasons returns the reasons of the dead letters of steps. For those of the outbox it returns the words of the errors
// that refuse a message.
func findReasons(all []*file) (reasons, refusals []string) {
	for _, f := range all {
		if f.isTest() || strings.HasPrefix(f.path, "internal/") {
			continue
		}
		for _, declared := range f.ast.Decls {
			values, ok := declared.(*ast.GenDecl)
			if !ok || values.Tok != token.CONST && values.Tok != token.VAR {
				continue
			}
			for _, spec := range values.Specs {
				value := spec.(*ast.ValueSpec)
				switch {
				case values.Tok == token.VAR:
					refusals = append(refusals, refusalsOf(value)...)
				case f.packagePath() == reasonPackage:
					reasons = append(reasons, reasonsOf(value)...)
				}
			}
		}
	}
	return reasons, refusals
}

// reasonsOf returns the values of constants of type Reason.
func reasonsOf(value *ast.ValueSpec) (reasons []string) {
	if typ, ok := value.Type.(*ast.Ident); !ok || typ.Name != "Reason" {
		return nil
	}
	for _, v := range value.Values {
		if literal, ok := v.(*ast.BasicLit); ok {
			reasons = append(reasons, literalValue(literal))
		}
	}
	return reasons
}

// refusalsOf returns the words of errors that wrap outbox.ErrRefused: fmt.Errorf("package: words: %w", …) or
// fmt.Errorf("%w: words %d …", …).
func refusalsOf(value *ast.ValueSpec) (refusals []string) {
	for _, v := range value.Values {
		call, ok := v.(*ast.CallExpr)
		if !ok || len(call.Args) < 2 || !slices.ContainsFunc(call.Args[1:], namesRefusal) {
			continue
		}
		literal, ok := call.Args[0].(*ast.BasicLit)
		if !ok {
			continue
		}
		_, words, _ := strings.Cut(literalValue(literal), ": ")
		words, _, _ = strings.Cut(words, "%")
		refusals = append(refusals, strings.TrimRight(words, ": "))
	}
	return refusals
}

func namesRefusal(argument ast.Expr) bool {
	switch a := argument.(type) {
	case *ast.Ident:
		return a.Name == refusalError
	case *ast.SelectorExpr:
		return a.Sel.Name == refusalError
	}
	return false
}
