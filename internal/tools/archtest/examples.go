package archtest

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
)

// isPublic reports whether users may import the package of f.
func (f *file) isPublic() bool {
	return f.ast.Name.Name != "main" && !slices.ContainsFunc(strings.Split(f.packagePath(), "/"), func(element string) bool {
		return slices.Contains([]string{"internal", "cmd", "examples", "bench", "chaos", "model"}, element)
	})
}

// checkExamples returns the exported functions of public packages that no Example of their package uses. It
// ignores methods, because an Example of the constructor shows the receiver.
func checkExamples(all []*file) (wrong []string) {
	missing := make(map[string]string) // the place, by package and function
	for _, f := range all {
		if f.isTest() || !f.isPublic() {
			continue
		}
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.IsExported() {
				missing[f.packagePath()+" "+f.ast.Name.Name+"."+fn.Name.Name] = f.placeOf(fn)
			}
		}
	}
	for _, f := range all {
		for _, shown := range f.examples() {
			ast.Inspect(shown, func(node ast.Node) bool {
				if s, ok := node.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok {
						delete(missing, f.packagePath()+" "+x.Name+"."+s.Sel.Name)
					}
				}
				return true
			})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		wrong = append(wrong, fmt.Sprintf("%s: no Example of its package uses %s", missing[name], name[strings.Index(name, " ")+1:]))
	}
	return wrong
}

// examples returns the Examples in f that are outside of their package, where users are. In a file without
// tests the Examples include all other code.
func (f *file) examples() (found []ast.Node) {
	if !f.isTest() || !strings.HasSuffix(f.ast.Name.Name, "_test") {
		return nil
	}
	tests := false
	for _, decl := range f.ast.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		switch {
		case !ok || fn.Recv != nil:
		case strings.HasPrefix(fn.Name.Name, "Example"):
			found = append(found, fn)
		case strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz"):
			tests = true
		}
	}
	if len(found) > 0 && !tests {
		return []ast.Node{f.ast}
	}
	return found
}
