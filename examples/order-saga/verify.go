package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"text/tabwriter"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

// An entry is a line of the gateway's ledger.
type entry struct {
	Kind    string `json:"kind"`
	Key     string `json:"key"`
	OrderID string `json:"order_id"`
	Amount  int64  `json:"amount"`
}

func fetchLedger(ctx context.Context, url string) ([]entry, error) {
	status, body, err := demo.FetchURL(ctx, url+"/ledger")
	if err != nil {
		return nil, fmt.Errorf("GET /ledger: %w", err)
	}
	var ledger []entry
	if err := json.Unmarshal(body, &ledger); err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("GET /ledger: %d %.200s", status, body)
	}
	return ledger, nil
}

// A result is the data by which a demo is judged.
type result struct {
	orders []*placed
	ledger []entry
	left   []string // metrics of unfinished messages
}

var invariants = []demo.Invariant[*result]{
	{Says: "every client of an order got the same reply, byte for byte", Check: func(r *result) []string { return program.FindDifferentReplies(r.listPlacements()) }},
	{Says: "no two orders share an id", Check: func(r *result) []string { return program.FindSharedIDs(r.listPlacements()) }},
	{Says: "every saga ended, as its kind should", Check: checkEnds},
	{Says: "money is conserved: charges - refunds = amount if completed, else 0", Check: checkBalances},
	{Says: "no order was charged twice, and none refunded twice", Check: checkRepeatedCharges},
	{Says: "the ledger knows no other orders", Check: checkUnknownOrders},
	{Says: "nothing is left in an outbox, parked, or a dead letter", Check: func(r *result) []string { return r.left }},
}

func (r *result) listPlacements() (all []*demo.Placement) {
	for _, p := range r.orders {
		all = append(all, &p.Placement)
	}
	return all
}

func checkEnds(r *result) (bad []string) {
	for _, p := range r.orders {
		if p.last.Status != p.kind.outcome {
			bad = append(bad, fmt.Sprintf("order %s (%s) is %q, not %s; steps %+v", p.ID, p.kind.name, p.last.Status, p.kind.outcome, p.last.Steps))
		}
	}
	return bad
}

// movements are the sums of the ledger's entries for one order.
type movements struct {
	charges, refunds int
	balance          int64
}

func (r *result) sumMovements() map[string]movements {
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

func checkBalances(r *result) (bad []string) {
	all := r.sumMovements()
	for _, p := range r.orders {
		var want int64
		if p.last.Status == "completed" {
			want = p.amount
		}
		if got := all[p.ID].balance; got != want {
			bad = append(bad, fmt.Sprintf("order %s (%s, %s): %d moved, want %d", p.ID, p.kind.name, p.last.Status, got, want))
		}
	}
	return bad
}

func checkRepeatedCharges(r *result) (bad []string) {
	for id, m := range r.sumMovements() {
		if m.charges > 1 || m.refunds > 1 {
			bad = append(bad, fmt.Sprintf("order %s: %d charges, %d refunds", id, m.charges, m.refunds))
		}
	}
	return bad
}

func checkUnknownOrders(r *result) (bad []string) {
	for id := range r.sumMovements() {
		if !slices.ContainsFunc(r.orders, func(p *placed) bool { return p.ID == id }) {
			bad = append(bad, "order "+id)
		}
	}
	return bad
}

// judgeDemo prints the table of outcomes and the invariants. It returns how many do not hold.
func (r *result) judgeDemo(w io.Writer) (violations int) {
	r.printOutcomes(w)
	return demo.JudgeResult(w, r, invariants)
}

func (r *result) printOutcomes(w io.Writer) {
	all := r.sumMovements()
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nload\torders\tcompleted\tcancelled\topen\tcharges\trefunds\texpected")
	for k := range kinds {
		n := map[string]int{}
		var m movements
		for _, p := range r.orders {
			if p.kind == &kinds[k] {
				n["all"]++
				n[p.last.Status]++
				m.charges += all[p.ID].charges
				m.refunds += all[p.ID].refunds
			}
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", kinds[k].name, n["all"], n["completed"], n["cancelled"],
			n["all"]-n["completed"]-n["cancelled"], m.charges, m.refunds, kinds[k].expected)
	}
	_ = table.Flush()
}
