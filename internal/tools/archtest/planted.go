package archtest

import (
	"path"
	"slices"
	"strings"
)

const planted = "internal/planted"

// plantedIn are the packages that a bug of package planted is built into on demand.
var plantedIn = []string{"idemkey", "idemkey/idempg", "outbox", "consumer", "internal/lazytx", "internal/machine"}

// checkPlanted keeps those bugs where they are looked for, and the tags that plant them
// out of everything else: what is compiled differs by constants alone.
func checkPlanted(f *file) []string {
	if within(f.pkg(), planted) {
		return nil
	}
	wrong := f.importing("a bug is planted in "+strings.Join(plantedIn, ", ")+" alone, and no test knows of one", func(name string) bool {
		return within(name, module+"/"+planted) && (f.test() || !slices.Contains(plantedIn, f.pkg()))
	})
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:build") && strings.Contains(c.Text, "plant_") {
				wrong = append(wrong, f.at(c)+": a file with a bug's tag belongs to package planted")
			}
		}
	}
	return wrong
}

// faults reports whether f is what a package does when a bug is planted in it.
func (f *file) faults() bool { return path.Base(f.path) == "planted.go" }

// checkMakefile makes sure that what is built for users is built without tags: they
// are for tests, and for vet.
func checkMakefile(content string) []string {
	var wrong []string
	for line := range strings.Lines(content) {
		if strings.Contains(line, "-tags") && !strings.Contains(line, " vet ") && !strings.HasPrefix(line, "TESTFLAGS") {
			wrong = append(wrong, "Makefile: only tests and vet have tags: "+strings.TrimSpace(line))
		}
	}
	return wrong
}
