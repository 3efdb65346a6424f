package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// docs/security.md names a test for each item, and each of them exists.
func TestSecurityDocument(t *testing.T) {
	t.Parallel()
	all, err := parsedModule()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range checkSecurity(string(doc), namesOfTests(all)) {
		t.Error(wrong)
	}
}

func TestCheckSecurity(t *testing.T) {
	t.Parallel()
	row := func(i int, tests string) string { return fmt.Sprintf("| %d | what | where | %s |\n", i, tests) }
	var rows []string
	for i := range securityItems {
		rows = append(rows, row(i+1, "`TestA`, `FuzzB`"))
	}
	exist := map[string]bool{"TestA": true, "FuzzB": true}
	with := func(i int, line string) string {
		changed := append([]string{}, rows...)
		changed[i] = line
		return strings.Join(changed, "")
	}
	for name, tt := range map[string]struct {
		doc  string
		want int
	}{
		"good":       {strings.Join(rows, ""), 0},
		"missing":    {strings.Join(rows[1:], ""), 1 + securityItems - 1}, // and the others are out of order
		"no test":    {with(3, row(4, "none")), 1},
		"gone":       {with(3, row(4, "`TestA`, `TestGone`")), 1},
		"section":    {strings.Join(rows, "") + "| B1 | what | where | `TestA` |\n| T1 | what | where | `FuzzB` |\n", 0},
		"its order":  {strings.Join(rows, "") + "| B2 | what | where | `TestA` |\n", 1},
		"its test":   {strings.Join(rows, "") + "| B1 | what | where | `TestGone` |\n", 1},
		"none there": {strings.Join(rows, "") + "| B1 | what | where | none |\n", 1},
		"two of one": {with(3, row(3, "`TestA`")), 1},
	} {
		if got := checkSecurity(tt.doc, exist); len(got) != tt.want {
			t.Errorf("%s: %q, want %d messages", name, got, tt.want)
		}
	}
}

// idemkey offers no handler that looks into records.
func TestHandlersOfIdemkey(t *testing.T) {
	t.Parallel()
	all, err := parsedModule()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, wrong := range checkHandlers(f) {
			t.Error(wrong)
		}
	}
	admin, err := parseFile("idemkey/a.go", []byte("package p\n\nfunc (m *M) PurgeHandler() http.Handler { return nil }\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := checkHandlers(admin); len(got) != 1 {
		t.Errorf("checkHandlers of an admin handler = %q, want one message", got)
	}
}

// The time a comparison takes tells nothing of a stored fingerprint, or of a signature.
func TestConstantTime(t *testing.T) {
	t.Parallel()
	for path, method := range map[string]string{"idemkey/store.go": "equalsStored", "signing/verifier.go": "hasMade"} {
		f, err := readFile(root, filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if found, ok := comparesInConstantTime(f, method); !found || !ok {
			t.Errorf("%s: %s found %t, in constant time %t", path, method, found, ok)
		}
	}
	naive, err := parseFile("a.go", []byte("package p\n\nfunc (f F) equal(g F) bool { return bytes.Equal(f.Sum, g.Sum) }\n"))
	if err != nil {
		t.Fatal(err)
	}
	if found, ok := comparesInConstantTime(naive, "equal"); !found || ok {
		t.Errorf("a naive comparison: found %t, in constant time %t", found, ok)
	}
}
