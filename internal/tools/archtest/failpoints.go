package archtest

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/internal/failpoint"
)

// sharedPoints are the points that several places hit, each with the reason why it is one point.
var sharedPoints = map[string]string{
	"consumer/after-dead-letter": "a dead letter is written over a handler's end, without a handler, and unread",
}

// checkFailpoints returns the differences between the calls of failpoint.Hit and the list of points. The
// tests use the list: they would never strike at a call that the list lacks.
func checkFailpoints(all []*file, points []failpoint.Point) []string {
	var wrong []string
	calls := make(map[string][]string)
	for _, f := range all {
		ast.Inspect(f.ast, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			hit, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !selectsName(hit, "failpoint", "Hit") || len(call.Args) != 1 {
				return true
			}
			switch name := literalValue(call.Args[0]); {
			case name == "":
				wrong = append(wrong, f.placeOf(call)+": the name of a failpoint is a literal")
			case f.isTest() && !strings.HasPrefix(name, failpoint.OfTests):
				wrong = append(wrong, fmt.Sprintf("%s: %s: a test's own point is called %s…", f.placeOf(call), name, failpoint.OfTests))
			case !f.isTest():
				calls[name] = append(calls[name], f.placeOf(call))
			}
			return true
		})
	}
	for _, p := range points {
		if n := len(calls[p.Name]); n != 1 && (n == 0 || sharedPoints[p.Name] == "") {
			wrong = append(wrong, fmt.Sprintf("failpoint %s is hit in %d places, want 1 (or the reason in sharedPoints): %s", p.Name, n, strings.Join(calls[p.Name], " ")))
		}
		delete(calls, p.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		wrong = append(wrong, fmt.Sprintf("%s: failpoint %s is not in internal/failpoint/points.go", calls[name][0], name))
	}
	return wrong
}
