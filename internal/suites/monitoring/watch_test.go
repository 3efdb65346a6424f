package monitoring

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	histogramPart = regexp.MustCompile(`_(bucket|sum|count)$`)
	metricName    = regexp.MustCompile(`\b(?:sagamill|idemkey|go)_\w+`)
)

// docs/operations.md says of each metric what it should be, and names none that there is not.
func TestWhatIsExportedIsExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(docs + "operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## What to watch\n")
	section, _, found := strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("operations.md has no section What to watch, or none behind it")
	}
	explained := map[string]bool{}
	for line := range strings.Lines(section) {
		if cell, row := strings.CutPrefix(line, "| "); row {
			cell, _, _ = strings.Cut(cell, " | ")
			for _, name := range metricName.FindAllString(cell, -1) {
				explained[name] = true
			}
		}
	}
	all := exported(t)
	addExamples(t, all)
	families := map[string]bool{}
	for name := range all {
		families[histogramPart.ReplaceAllString(name, "")] = true
	}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		if !explained[name] {
			t.Errorf("%s is exported, and no row of What to watch begins with it", name)
		}
	}
	for _, name := range metricName.FindAllString(string(text), -1) {
		if !families[histogramPart.ReplaceAllString(name, "")] {
			t.Errorf("operations.md has %s, which is not exported", name)
		}
	}
}
