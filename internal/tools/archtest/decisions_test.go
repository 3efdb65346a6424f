package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each decision has a page, which says what was rejected, and a row of the index.
func TestDecisions(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob(filepath.Join(root, "docs", "decisions", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for _, name := range names {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pages[filepath.Base(name)] = string(page)
	}
	index := pages["README.md"]
	delete(pages, "README.md")
	for _, wrong := range checkDecisions(index, pages) {
		t.Error(wrong)
	}
}

func TestCheckDecisions(t *testing.T) {
	t.Parallel()
	const (
		one    = "# 001. One\n\nStatus: accepted\n\n## Decision\n\nSo.\n\n## Rejected alternatives\n\nOtherwise.\n"
		two    = "# 002. Two\n\nStatus: superseded by [001](001-one.md)\n\n## Rejected alternatives\n\n- Otherwise.\n"
		rowOne = "| [001](001-one.md) | One | accepted |\n"
		rowTwo = "| [002](002-two.md) | Two | superseded by [001](001-one.md) |\n"
		header = "# Decisions\n\n| | decision | status |\n|---|---|---|\n"
	)
	both := func(one, two string) map[string]string {
		return map[string]string{"001-one.md": one, "002-two.md": two}
	}
	for name, tt := range map[string]struct {
		index string
		pages map[string]string
		want  string
	}{
		"as they should be":      {rowOne + rowTwo, both(one, two), ""},
		"no pages":               {"", nil, "no decisions"},
		"no rejected section":    {rowOne + rowTwo, both(one, strings.Replace(two, "Rejected", "Other", 1)), "002-two.md: does not say"},
		"an empty section":       {rowOne + rowTwo, both(one, strings.Replace(two, "- Otherwise.", "## Evidence", 1)), "002-two.md: does not say"},
		"a gap":                  {rowOne, map[string]string{"001-one.md": one, "003-two.md": strings.Replace(two, "002", "003", 1)}, "003-two.md: the next number is 002"},
		"a number twice":         {rowOne, map[string]string{"001-one.md": one, "001-two.md": strings.Replace(two, "002", "001", 1)}, "001-two.md: the next number is 002"},
		"another number in it":   {rowOne, both(one, strings.Replace(two, "002", "003", 1)), "# 002. Title"},
		"a name without number":  {rowOne, map[string]string{"001-one.md": one, "two.md": two}, "two.md: want a name"},
		"no status":              {rowOne, both(one, strings.Replace(two, "Status", "State", 1)), "'Status: …'"},
		"another status":         {rowOne + rowTwo, both(strings.Replace(one, "accepted", "proposed", 1), two), `001-one.md: status "proposed"`},
		"superseded by nothing":  {rowOne, both(one, strings.Replace(two, "001-one.md", "001-else.md", 1)), "links to no page"},
		"superseded by another":  {rowOne, both(one, strings.Replace(two, "[001]", "[003]", 1)), "links to no page"},
		"a page without a row":   {rowOne, both(one, two), "lacks the row | [002]"},
		"a row with another end": {rowOne + strings.Replace(rowTwo, "superseded by [001](001-one.md)", "accepted", 1), both(one, two), "lacks the row | [002]"},
		"a row without a page":   {rowOne + rowTwo, map[string]string{"001-one.md": one}, "no page has the row | [002]"},
		"rows in another order":  {rowTwo + rowOne, both(one, two), "order of the pages"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(checkDecisions(header+tt.index, tt.pages), "; ")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("checkDecisions = %q, want %q", got, tt.want)
			}
		})
	}
}
