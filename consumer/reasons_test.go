package consumer

import (
	"os"
	"strings"
	"testing"
)

// A person who finds a dead letter looks its reason up: docs/operations.md has each.
func TestEveryReasonIsInTheOperationsGuide(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "\nWhy a message is there, by its reason:\n")
	table, _, _ = strings.Cut(table, "\nRedriving is safe")
	for _, r := range Reasons() {
		if !strings.Contains(table, "`"+string(r)+"`") {
			t.Errorf("docs/operations.md: the table of reasons lacks %s", r)
		}
	}
}
