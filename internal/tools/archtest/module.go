package archtest

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

const module = "github.com/sagamill/sagamill"

// A file is one parsed Go file of the module.
type file struct {
	path string // within the module, with slashes
	fset *token.FileSet
	ast  *ast.File
}

// parseFile reads src as the file at path.
func parseFile(path string, src []byte) (*file, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &file{path: path, fset: fset, ast: parsed}, nil
}

// parseModule parses every Go file below root that belongs to the module. A directory with a go.mod is
// another module.
func parseModule(root string) ([]*file, error) {
	var all []*file
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != root && isOtherModule(name) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := readFile(root, name)
		all = append(all, f)
		return err
	})
	return all, err
}

// readFile parses the file called name and gives it its path within root.
func readFile(root, name string) (*file, error) {
	relative, err := filepath.Rel(root, name)
	if err != nil {
		return nil, err
	}
	src, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parseFile(filepath.ToSlash(relative), src)
}

// isOtherModule reports whether the go command excludes dir from the module.
func isOtherModule(dir string) bool {
	base := filepath.Base(dir)
	if base == "testdata" || base == "vendor" || base[0] == '.' || base[0] == '_' {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return !errors.Is(err, fs.ErrNotExist)
}

// isTest reports whether only tests compile f.
func (f *file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// packagePath returns the package's directory within the module, "." for its root.
func (f *file) packagePath() string { return path.Dir(f.path) }

// importPaths returns what f imports.
func (f *file) importPaths() []string {
	var all []string
	for _, spec := range f.ast.Imports {
		if name, err := strconv.Unquote(spec.Path.Value); err == nil {
			all = append(all, name)
		}
	}
	return all
}

// ownImports returns the packages of this module that f imports, as
// directories.
func (f *file) ownImports() []string {
	var own []string
	for _, name := range f.importPaths() {
		if name == module {
			own = append(own, ".")
		} else if dir, ok := strings.CutPrefix(name, module+"/"); ok {
			own = append(own, dir)
		}
	}
	return own
}

// placeOf returns the position of node for a message.
func (f *file) placeOf(node ast.Node) string { return f.fset.Position(node.Pos()).String() }

// isWithin reports whether dir is tree or below it.
func isWithin(dir, tree string) bool { return dir == tree || strings.HasPrefix(dir, tree+"/") }
