package archtest

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The names that users, dashboards and other programs depend on change only together with
// testdata/frozen.txt. RECORD_FROZEN=1 writes it anew, and its diff is the review.
func TestWhatIsFrozenHasNotChanged(t *testing.T) {
	t.Parallel()
	const recorded = "testdata/frozen.txt"
	all, err := parsedModule()
	if err != nil {
		t.Fatal(err)
	}
	lines, err := listFrozen(root, all)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("RECORD_FROZEN") != "" {
		if err := os.WriteFile(recorded, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(strings.TrimSpace(string(want)), "\n"), lines); diff != "" {
		t.Errorf("%s (-recorded +found; RECORD_FROZEN=1 records it):\n%s", recorded, diff)
	}
}

func TestFreezeSeesEachKind(t *testing.T) {
	t.Parallel()
	src := `package p

import "github.com/sagamill/sagamill/internal/failpoint"

const header, metric, other = "x-sagamill-key", "sagamill.outbox.lag_seconds", "sagamill"

const answerHeader, requestMetric = "Idempotency-Key", "idemkey.requests"

var ErrGone, errHere error

func f() { _ = failpoint.Hit("outbox/after-commit") }
`
	f, err := parseFile("p/p.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.MkdirAll(root+"/docs", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(root+"/outbox/testdata", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/docs/guarantees.md", []byte("| claim |\n| G1.1 | x |\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/outbox/testdata/a.json", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := listFrozen(root, []*file{f})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"claim G1.1", "error ErrGone", "failpoint outbox/after-commit",
		"golden a.json e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"header Idempotency-Key", "header x-sagamill-key", "metric idemkey.requests", "metric sagamill.outbox.lag_seconds",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("frozen (-want +got):\n%s", diff)
	}
}
