package journal_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/internal/journal"
)

// Text that PostgreSQL would refuse, or that is too long, does not fail the insert.
func TestArgsAreFitToBeStored(t *testing.T) {
	t.Parallel()
	what := journal.What("key", "a\x00b", "step", "", "error", strings.Repeat("e", 2000))
	got := journal.Args(" ann\x00 ", strings.Repeat("w", 2000), "dead redrive", what, []int64{7})
	want := []any{"ann\ufffd", "dead redrive", `{"error":"` + strings.Repeat("e", 1000) + `","key":"a�b"}`, []int64{7}, strings.Repeat("w", 1000)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Args (-want +got):\n%s", diff)
	}
	if by := journal.Args(strings.Repeat("b", 200), "", "v", nil, nil)[0]; len(by.(string)) != 128 {
		t.Errorf("a name of 200 bytes is stored as %q", by)
	}
}
