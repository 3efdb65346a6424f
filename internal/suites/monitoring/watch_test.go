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

// docs/monitoring.md says of each metric what it should be. It and docs/runbook.md name no metric that there is not.
func TestWhatIsExportedIsExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(docs + "monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile(docs + "runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Metrics\n")
	if !found {
		t.Fatal("monitoring.md has no section Metrics")
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
			t.Errorf("%s is exported, and no row of monitoring.md begins with it", name)
		}
	}
	for _, name := range metricName.FindAllString(string(text)+string(runbook), -1) {
		if !families[histogramPart.ReplaceAllString(name, "")] {
			t.Errorf("monitoring.md or runbook.md has %s, which is not exported", name)
		}
	}
}
