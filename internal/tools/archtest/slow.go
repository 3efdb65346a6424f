package archtest

import (
	"go/ast"
	"strings"
)

// checkSlow keeps tests that -short skips or shortens where make verify finds them: the body of the test calls
// needtest.Slow or needtest.Shortened, with the name t. Nothing else asks for -short, apart from libraries.
func checkSlow(f *file) (wrong []string) {
	found := make(map[*ast.CallExpr]bool)
	for _, decl := range f.ast.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || !f.isTest() || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Body == nil {
			continue
		}
		called := false
		for _, statement := range fn.Body.List {
			if s, ok := statement.(*ast.ExprStmt); ok && isCallOf(s.X, "needtest", "Slow", "Shortened") {
				call := s.X.(*ast.CallExpr)
				name, ok := call.Args[0].(*ast.Ident)
				found[call] = ok && name.Name == "t"
				called = called || found[call]
			}
		}
		ast.Inspect(fn, func(node ast.Node) bool {
			if !called && (isCallOf(node, "rapid", "Check") || isCallOf(node, "tests", "TestPubSub")) {
				wrong = append(wrong, f.placeOf(node)+": the library does less with -short: call needtest.Shortened, so that make verify runs the test too")
			}
			return true
		})
	}
	return append(wrong, inspectNodes(f, func(call *ast.CallExpr) string {
		switch {
		case isCallOf(call, "needtest", "Slow", "Shortened") && !found[call]:
			return "needtest.Slow(t) is a statement of the test itself: make verify finds it nowhere else"
		case isCallOf(call, "testing", "Short") && f.path != "internal/testing/needtest/needtest.go":
			return "a slow test calls needtest.Slow, so that make verify runs it"
		}
		return ""
	})...)
}

// isCallOf reports whether node calls one of the functions of the package called pkg.
func isCallOf(node ast.Node, pkg string, functions ...string) bool {
	call, ok := node.(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	for _, name := range functions {
		if ok && selectsName(s, pkg, name) {
			return true
		}
	}
	return false
}
