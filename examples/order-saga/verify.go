package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"text/tabwriter"
)

// An entry is a line of the gateway's ledger.
type entry struct {
	Kind    string `json:"kind"`
	Key     string `json:"key"`
	OrderID string `json:"order_id"`
	Amount  int64  `json:"amount"`
}

func fetchLedger(ctx context.Context, url string) ([]entry, error) {
	status, body, err := get(ctx, url+"/ledger")
	if err != nil {
		return nil, fmt.Errorf("GET /ledger: %w", err)
	}
	var ledger []entry
	if err := json.Unmarshal(body, &ledger); err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("GET /ledger: %d %.200s", status, body)
	}
	return ledger, nil
}

// A result is what a demo is judged by.
type result struct {
	orders []*placed
	ledger []entry
	left   []string // metrics of what has not come to an end
}

// An invariant is something that must be true in the end.
type invariant struct {
	says  string
	check func(*result) []string // what contradicts it
}

var invariants = []invariant{
	{"every client of an order got the same reply, byte for byte", sameReplies},
	{"no two orders share an id", distinctIDs},
	{"every saga ended, as its kind should", ended},
	{"money is conserved: charges - refunds = amount if completed, else 0", conserved},
	{"no order was charged twice, and none refunded twice", once},
	{"the ledger knows no other orders", known},
	{"nothing is left in an outbox, parked, or a dead letter", func(r *result) []string { return r.left }},
}

func sameReplies(r *result) (bad []string) {
	for _, p := range r.orders {
		for _, reply := range p.replies {
			if !bytes.Equal(reply, p.replies[0]) {
				bad = append(bad, fmt.Sprintf("order %s: %q and %q", p.id, p.replies[0], reply))
			}
		}
	}
	return bad
}

func distinctIDs(r *result) (bad []string) {
	seen := map[string]bool{}
	for _, p := range r.orders {
		if seen[p.id] {
			bad = append(bad, "order "+p.id)
		}
		seen[p.id] = true
	}
	return bad
}

func ended(r *result) (bad []string) {
	for _, p := range r.orders {
		if p.last.Status != p.kind.outcome {
			bad = append(bad, fmt.Sprintf("order %s (%s) is %q, not %s; steps %+v", p.id, p.kind.name, p.last.Status, p.kind.outcome, p.last.Steps))
		}
	}
	return bad
}

// movements sums the ledger up for each order.
type movements struct {
	charges, refunds int
	balance          int64
}

func (r *result) movements() map[string]movements {
	all := map[string]movements{}
	for _, e := range r.ledger {
		m := all[e.OrderID]
		if e.Kind == "refund" {
			m.refunds++
			m.balance -= e.Amount
		} else {
			m.charges++
			m.balance += e.Amount
		}
		all[e.OrderID] = m
	}
	return all
}

func conserved(r *result) (bad []string) {
	all := r.movements()
	for _, p := range r.orders {
		var want int64
		if p.last.Status == "completed" {
			want = p.amount
		}
		if got := all[p.id].balance; got != want {
			bad = append(bad, fmt.Sprintf("order %s (%s, %s): %d moved, want %d", p.id, p.kind.name, p.last.Status, got, want))
		}
	}
	return bad
}

func once(r *result) (bad []string) {
	for id, m := range r.movements() {
		if m.charges > 1 || m.refunds > 1 {
			bad = append(bad, fmt.Sprintf("order %s: %d charges, %d refunds", id, m.charges, m.refunds))
		}
	}
	return bad
}

func known(r *result) (bad []string) {
	for id := range r.movements() {
		if !slices.ContainsFunc(r.orders, func(p *placed) bool { return p.id == id }) {
			bad = append(bad, "order "+id)
		}
	}
	return bad
}

// shown is how many contradictions of an invariant are printed.
const shown = 5

// print writes the table of outcomes and judges the invariants. It returns how
// many do not hold.
func (r *result) print(w io.Writer) (violations int) {
	all := r.movements()
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nload\torders\tcompleted\tcancelled\topen\tcharges\trefunds\texpected")
	for k := range kinds {
		n := map[string]int{}
		var m movements
		for _, p := range r.orders {
			if p.kind == &kinds[k] {
				n["all"]++
				n[p.last.Status]++
				m.charges += all[p.id].charges
				m.refunds += all[p.id].refunds
			}
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", kinds[k].name, n["all"], n["completed"], n["cancelled"],
			n["all"]-n["completed"]-n["cancelled"], m.charges, m.refunds, kinds[k].expected)
	}
	_ = table.Flush()
	fmt.Fprintln(w, "\ninvariants")
	for _, i := range invariants {
		bad := i.check(r)
		if len(bad) == 0 {
			fmt.Fprintln(w, "  holds     "+i.says)
			continue
		}
		violations++
		fmt.Fprintf(w, "  VIOLATED  %s (%d times)\n", i.says, len(bad))
		for _, b := range bad[:min(shown, len(bad))] {
			fmt.Fprintln(w, "            "+b)
		}
	}
	return violations
}
