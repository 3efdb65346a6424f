package archtest

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// securityItems is the number of items about package idemkey in docs/security.md. The items of its other
// sections have a letter, and their number is free.
const securityItems = 28

var (
	securityRow = regexp.MustCompile(`(?m)^\| (\d+) \|.*\| ([^|]+) \|$`)
	sectionRow  = regexp.MustCompile(`(?m)^\| ([A-Z])(\d+) \|.*\| ([^|]+) \|$`)
	testName    = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
)

// checkSecurity returns the mistakes in docs/security.md. Every item must have its row, in order, and every
// row must name existing tests.
func checkSecurity(doc string, tests map[string]bool) []string {
	var wrong []string
	rows := securityRow.FindAllStringSubmatch(doc, -1)
	if len(rows) != securityItems {
		wrong = append(wrong, fmt.Sprintf("docs/security.md: %d rows, want %d", len(rows), securityItems))
	}
	for i, row := range rows {
		if row[1] != fmt.Sprint(i+1) {
			wrong = append(wrong, fmt.Sprintf("docs/security.md: row %d is item %s", i+1, row[1]))
		}
		wrong = append(wrong, checkNamed(row[1], row[2], tests)...)
	}
	count := make(map[string]int)
	for _, row := range sectionRow.FindAllStringSubmatch(doc, -1) {
		if count[row[1]]++; row[2] != fmt.Sprint(count[row[1]]) {
			wrong = append(wrong, fmt.Sprintf("docs/security.md: row %d of section %s is item %s", count[row[1]], row[1], row[2]))
		}
		wrong = append(wrong, checkNamed(row[1]+row[2], row[3], tests)...)
	}
	return wrong
}

// checkNamed returns the mistakes in the tests that an item names in cell.
func checkNamed(item, cell string, tests map[string]bool) []string {
	var wrong []string
	named := testName.FindAllStringSubmatch(cell, -1)
	if len(named) == 0 {
		wrong = append(wrong, fmt.Sprintf("docs/security.md: item %s names no test", item))
	}
	for _, name := range named {
		if !tests[name[1]] {
			wrong = append(wrong, fmt.Sprintf("docs/security.md: item %s names %s, which does not exist", item, name[1]))
		}
	}
	return wrong
}

// namesOfTests returns the names of the test functions in files.
func namesOfTests(files []*file) map[string]bool {
	names := make(map[string]bool)
	for _, f := range files {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && f.isTest() && fn.Recv == nil && testName.MatchString("`"+fn.Name.Name+"`") {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}

// httpHandlers are the exported functions of idemkey that may return a handler. Only code reads and removes
// records, never an HTTP request.
var httpHandlers = []string{"Handler", "Outer", "PolicyHandler", "HandleTx"}

// checkHandlers returns all other functions of idemkey that return a handler.
func checkHandlers(f *file) []string {
	if f.isTest() || !isWithin(f.packagePath(), "idemkey") || isWithin(f.packagePath(), "idemkey/idemkeytest") {
		return nil
	}
	var wrong []string
	for _, decl := range f.ast.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || !fn.Name.IsExported() || fn.Type.Results == nil || slices.Contains(httpHandlers, fn.Name.Name) {
			continue
		}
		for _, result := range fn.Type.Results.List {
			if selector, ok := result.Type.(*ast.SelectorExpr); ok && strings.HasPrefix(selector.Sel.Name, "Handler") {
				wrong = append(wrong, fmt.Sprintf("%s: %s returns a handler: no record may be read or removed over HTTP", f.placeOf(fn), fn.Name.Name))
			}
		}
	}
	return wrong
}

// comparesInConstantTime reports whether a method of f compares by crypto/subtle or crypto/hmac.
func comparesInConstantTime(f *file, method string) (found, ok bool) {
	for _, decl := range f.ast.Decls {
		fn, isFunc := decl.(*ast.FuncDecl)
		if !isFunc || fn.Name.Name != method || fn.Recv == nil {
			continue
		}
		found = true
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			selector, is := n.(*ast.SelectorExpr)
			ok = ok || is && (selectsName(selector, "subtle", "ConstantTimeCompare") || selectsName(selector, "hmac", "Equal"))
			return true
		})
	}
	return found, ok
}
