package planted_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/planted"
)

func TestNothingIsPlantedWithoutATag(t *testing.T) {
	t.Parallel()
	for _, b := range planted.Bugs() {
		if b.Planted {
			t.Errorf("%s is in this build: its tags are among GOFLAGS, or those of the test", b.Name)
		}
	}
}

// Each bug has its pair of files, and nothing else has.
func TestEveryBugHasItsTag(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_o*.go")
	if want := 2 * len(planted.Bugs()); err != nil || len(files) != want {
		t.Errorf("%d files with tags, %v; want %d", len(files), err, want)
	}
	for _, b := range planted.Bugs() {
		file := strings.TrimPrefix(b.Tag(), "plant_")
		constant := lower(goName(b.Name))
		for name, want := range map[string]string{
			file + "_on.go":  "//go:build " + b.Tag() + "\n\npackage planted\n\nconst " + constant + " = true\n",
			file + "_off.go": "//go:build !" + b.Tag() + "\n\npackage planted\n\nconst " + constant + " = false\n",
		} {
			if got, err := os.ReadFile(name); err != nil || string(got) != want {
				t.Errorf("%s is %q, %v; want %q", name, got, err, want)
			}
		}
	}
}

// The name of a bug and its constant are the same words, and the product asks for it.
func TestEveryBugIsPlanted(t *testing.T) {
	t.Parallel()
	list := read(t, "planted.go")
	product := read(t, "../../*/*.go", "../../idemkey/*/*.go", "../*/*.go")
	for _, b := range planted.Bugs() {
		constant := goName(b.Name)
		if !strings.Contains(list, `{"`+b.Name+`", `+constant+`}`) || !strings.Contains(list, "\t"+constant+" = "+lower(constant)+"\n") {
			t.Errorf("bug %s is not %s", b.Name, constant)
		}
		if !regexp.MustCompile(`\bplanted\.` + constant + `\b`).MatchString(product) {
			t.Errorf("planted.%s is used nowhere", constant)
		}
	}
}

// goName turns bug-of-a-kind into BugOfAKind.
func goName(name string) string {
	var words strings.Builder
	for word := range strings.SplitSeq(name, "-") {
		words.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return words.String()
}

func lower(name string) string { return strings.ToLower(name[:1]) + name[1:] }

// read returns the text of the files that match, tests aside.
func read(t *testing.T, patterns ...string) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(names), err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}
