package main

import (
	"io"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

// good is a result in which everything holds: an order that was completed,
// and one that was cancelled after its payment.
func good() *result {
	completed := &placed{Placement: demo.Placement{ID: "a", Replies: [][]byte{[]byte("x"), []byte("x"), []byte("x")}}, kind: &kinds[1], amount: 5}
	completed.last.Status = "completed"
	refunded := &placed{Placement: demo.Placement{ID: "b", Replies: [][]byte{[]byte("y")}}, kind: &kinds[3], amount: 7}
	refunded.last.Status = "cancelled"
	return &result{
		orders: []*placed{completed, refunded},
		ledger: []entry{{"charge", "1", "a", 5}, {"charge", "2", "b", 7}, {"refund", "3", "b", 7}},
	}
}

// Each invariant must be able to fail, and a sound result must pass.
func TestInvariantsSeeWhatIsWrong(t *testing.T) {
	t.Parallel()
	if n := good().judgeDemo(io.Discard); n != 0 {
		t.Errorf("%d violations in a sound result", n)
	}
	for name, tt := range map[string]struct {
		spoil func(*result)
		says  string
	}{
		"other reply":    {func(r *result) { r.orders[0].Replies[2] = []byte("z") }, "same reply"},
		"shared id":      {func(r *result) { r.orders[1].ID = "a" }, "share an id"},
		"still open":     {func(r *result) { r.orders[0].last.Status = "paid" }, "every saga ended"},
		"never seen":     {func(r *result) { r.orders[0].last.Status = "" }, "every saga ended"},
		"wrong end":      {func(r *result) { r.orders[1].last.Status = "completed" }, "every saga ended"},
		"not charged":    {func(r *result) { r.ledger = r.ledger[1:] }, "money is conserved"},
		"wrong amount":   {func(r *result) { r.ledger[0].Amount = 6 }, "money is conserved"},
		"not refunded":   {func(r *result) { r.ledger = r.ledger[:2] }, "money is conserved"},
		"charged twice":  {func(r *result) { r.ledger = append(r.ledger, r.ledger[0]) }, "charged twice"},
		"refunded twice": {func(r *result) { r.ledger = append(r.ledger, r.ledger[1], r.ledger[2]) }, "charged twice"},
		"unknown order":  {func(r *result) { r.ledger = append(r.ledger, entry{"charge", "9", "ghost", 1}) }, "knows no other"},
		"dead letter":    {func(r *result) { r.left = []string{"dead 1"} }, "nothing is left"},
	} {
		r := good()
		tt.spoil(r)
		var out strings.Builder
		n := r.judgeDemo(&out)
		found := false
		for line := range strings.Lines(out.String()) {
			found = found || strings.Contains(line, "VIOLATED") && strings.Contains(line, tt.says)
		}
		if n == 0 || !found {
			t.Errorf("%s: %d violations, none that says %q:\n%s", name, n, tt.says, out.String())
		}
	}
}

func TestASmallLoadHasEveryKind(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range newLoad("", len(kinds)).Items {
		seen[p.kind.name] = true
	}
	total := 0
	for _, k := range kinds {
		total += k.share
	}
	if len(seen) != len(kinds) || total != 100 {
		t.Errorf("%d kinds of %d, shares sum to %d", len(seen), len(kinds), total)
	}
}
