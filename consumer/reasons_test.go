package consumer

import (
	"os"
	"strings"
	"testing"
)

// A person who finds a dead letter looks its reason up: docs/operating.md has each.
func TestEveryReasonIsInTheOperatingGuide(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "\n### Why a message is a dead letter\n")
	table, _, _ = strings.Cut(table, "\n### ")
	for _, r := range Reasons() {
		if !strings.Contains(table, "`"+string(r)+"`") {
			t.Errorf("docs/operating.md: the table of reasons lacks %s", r)
		}
	}
}
