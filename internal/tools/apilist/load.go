package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// A listedPackage is the description of a package by go list.
type listedPackage struct {
	ImportPath, Name, Export string
	Module                   *struct {
		Path string
		Main bool
	}
	IgnoredGoFiles []string
}

// listModule lists all packages of the module in the working directory that users can import. It reads the
// compiler's export data, which go vet has already built, and no source.
func listModule() ([]string, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Name,Export,Module,IgnoredGoFiles", "./...")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	export, module := map[string]string{}, ""
	var public []string
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		export[p.ImportPath] = p.Export
		if p.Module == nil || !p.Module.Main || !isPublic(p.Module.Path, p.ImportPath, p.Name) {
			continue
		}
		module, public = p.Module.Path, append(public, p.ImportPath)
		for _, name := range p.IgnoredGoFiles {
			if !strings.HasSuffix(name, "_test.go") {
				return nil, fmt.Errorf("%s has %s, which is not built here: the API would be that of one platform", p.ImportPath, name)
			}
		}
	}
	if len(public) == 0 {
		return nil, errors.New("the module has no public packages: is this its root?")
	}
	return listPackages(module, public, export)
}

// isPublic excludes examples: they are programs.
func isPublic(module, path, name string) bool {
	rest := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
	elements := strings.Split(rest, "/")
	return name != "main" && !slices.Contains(elements, "internal") && elements[0] != "examples" && elements[0] != "cmd"
}

func listPackages(module string, paths []string, export map[string]string) (lines []string, err error) {
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(export[path]) })
	for _, path := range paths {
		pkg, err := imp.Import(path)
		if err != nil {
			return nil, fmt.Errorf("import %s: %w", path, err)
		}
		lines = append(lines, list(module, pkg)...)
	}
	slices.Sort(lines)
	return lines, nil
}
