package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each decision says what was rejected.
func TestDecisions(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join(root, "docs/design.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range checkDecisions(string(doc)) {
		t.Error(wrong)
	}
}

func TestCheckDecisions(t *testing.T) {
	t.Parallel()
	const one, two = "### 1. One\n\n*Decision.* So.\n\n*Rejected.* Otherwise.\n", "\n### 2. Two\n\nSo.\n\n*Rejected, measured.* Otherwise.\n"
	for name, tt := range map[string]struct{ doc, want string }{
		"as they should be":     {one + two, ""},
		"none":                  {"", "no decisions"},
		"nothing was rejected":  {one + strings.Replace(two, "*Rejected", "*Left", 1), `"2. Two" does not say`},
		"in the next one alone": {strings.Replace(one, "*Rejected", "*Left", 1) + two, `"1. One" does not say`},
		"a number is left out":  {one + strings.Replace(two, "2.", "3.", 1), `"3. Two" is decision 2`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(checkDecisions("# Design\n\n## Decisions\n\n"+tt.doc), "; ")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("checkDecisions = %q, want %q", got, tt.want)
			}
		})
	}
}
