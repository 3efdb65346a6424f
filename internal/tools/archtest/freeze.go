package archtest

import (
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var (
	metricName  = regexp.MustCompile(`^(sagamill(\.[a-z_]+)+|idemkey)\.[a-z_]+$`)
	headerName  = regexp.MustCompile(`^(x-sagamill-[a-z-]+|Idempotency-[A-Za-z-]+)$`)
	pointName   = regexp.MustCompile(`^[a-z0-9]+/[a-z0-9-]+$`)
	frozenClaim = regexp.MustCompile(`(?m)^\| (G[0-9]+\.[0-9]+) \|`)
)

// goldenTrees are the testdata folders whose bytes other programs depend on: wire
// format, step keys, traces of the state machine.
var goldenTrees = []string{"outbox/testdata", "internal/stepkey/testdata", "internal/machine/testdata", "idemkey/testdata"}

// listFrozen lists, one sorted line each, the things that a change of structure must not touch: the names of
// failpoints, metrics, headers and sentinel errors, the claims of docs/guarantees.md, and digests of golden
// files. A name is listed without its package, so that it may move.
func listFrozen(root string, all []*file) ([]string, error) {
	lines := map[string]bool{}
	for _, f := range all {
		if f.isTest() || isWithin(f.packagePath(), "internal/tools") || isWithin(f.packagePath(), "internal/testing") || isWithin(f.packagePath(), "internal/suites") {
			continue
		}
		ast.Inspect(f.ast, func(node ast.Node) bool {
			addFrozen(lines, node)
			return true
		})
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs/guarantees.md"))
	if err != nil {
		return nil, err
	}
	for _, claim := range frozenClaim.FindAllStringSubmatch(string(doc), -1) {
		lines["claim "+claim[1]] = true
	}
	for _, tree := range goldenTrees {
		if err := freezeGolden(lines, filepath.Join(root, tree)); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(lines)), nil
}

// addFrozen adds the frozen names in node.
func addFrozen(lines map[string]bool, node ast.Node) {
	switch n := node.(type) {
	case *ast.BasicLit:
		switch value := literalValue(n); {
		case metricName.MatchString(value):
			lines["metric "+value] = true
		case headerName.MatchString(value):
			lines["header "+value] = true
		}
	case *ast.CallExpr:
		if s, ok := n.Fun.(*ast.SelectorExpr); ok && selectsName(s, "failpoint", "Hit") && len(n.Args) == 1 && pointName.MatchString(literalValue(n.Args[0])) {
			lines["failpoint "+literalValue(n.Args[0])] = true
		}
	case *ast.GenDecl:
		if n.Tok != token.VAR {
			return
		}
		for _, spec := range n.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if strings.HasPrefix(name.Name, "Err") && name.IsExported() {
					lines["error "+name.Name] = true
				}
			}
		}
	}
}

// freezeGolden adds the digests of the files below folder.
func freezeGolden(lines map[string]bool, folder string) error {
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil || d.IsDir() {
			if d != nil && d.Name() == "fuzz" {
				return filepath.SkipDir
			}
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil {
			lines[fmt.Sprintf("golden %s %x", d.Name(), sha256.Sum256(content))] = true
		}
		return err
	})
}
