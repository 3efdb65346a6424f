package judge

import (
	"slices"
	"strings"
)

// The statuses of an order.
const (
	pending   = "pending"
	paid      = "paid"
	completed = "completed"
	cancelled = "cancelled"
)

// orderGraph holds the allowed changes of an order's status. Messages may arrive in any order.
var orderGraph = map[string][]string{
	"":      {pending},
	pending: {paid, completed, cancelled},
	paid:    {paid, completed, cancelled},
}

// stepGraph holds the allowed changes of an order's step.
var stepGraph = map[string][]string{
	"":        {"pending"},
	"pending": {"done", "rejected", "compensated", "skipped"},
	"done":    {"compensated"},
}

func (c *run) judgeOrders() []*Invariant {
	once := &Invariant{ID: "I1", Says: "an order is charged once at most, refunded once at most, paid, shipped and recorded once"}
	ends := &Invariant{ID: "I2", Says: "every accepted order is there and ends as it should"}
	money := &Invariant{ID: "I3", Says: "money is conserved: charges less refunds are the amount of a completed order, else nothing"}
	graph := &Invariant{ID: "I4", Says: "an order changes along its graph, and a final status is entered once"}
	undone := &Invariant{ID: "I5", Says: "what was charged for a cancelled order is refunded, after the shipment was rejected, and nothing of a completed one"}
	order := &Invariant{ID: "I11", Says: "an order is charged before it is shipped, and shipped before it is refunded"}
	for _, o := range c.orders {
		o.judgeOnce(once)
		o.judgeEnd(ends)
		o.judgeMoney(money)
		o.judgeGraph(graph)
		o.judgeUndone(undone)
		o.judgeOrder(order)
	}
	return []*Invariant{once, ends, money, graph, undone, order}
}

func (o *order) countKind(kind string) (n int, sum int64) {
	for _, e := range o.ledger {
		if e.Kind == kind {
			n++
			sum += e.Amount
		}
	}
	return n, sum
}

// countInserts counts the rows that were ever inserted into a table.
func countInserts(all []change, table string) (n int) {
	for _, ch := range all {
		if ch.table == table && ch.op == "INSERT" {
			n++
		}
	}
	return n
}

func (o *order) judgeOnce(i *Invariant) {
	charges, _ := o.countKind("charge")
	refunds, _ := o.countKind("refund")
	paid, shipped, taken := countInserts(o.changes, "payment_service.payment"), countInserts(o.changes, "shipping_service.shipment"), countInserts(o.changes, "order_service.orders")
	i.checkThat(charges <= 1 && refunds <= 1 && paid <= 1 && shipped <= 1 && taken <= 1, o.offender(),
		"%d charges, %d refunds, %d payments, %d shipments, taken %d times", charges, refunds, paid, shipped, taken)
}

func (o *order) finalStatus() string {
	if o.row == nil {
		return "lost"
	}
	return o.row.Status
}

func (o *order) judgeEnd(i *Invariant) {
	status := o.finalStatus()
	switch final := status == completed || status == cancelled; {
	case o.placed == nil && o.row == nil:
		i.checkThat(false, o.offender(), "something was done for an order that nobody has placed")
	case o.placed == nil: // its client never got a final answer
		i.checkThat(final, o.offender(), "the order is %s", status)
	default:
		i.checkThat(final && (o.want == "" || o.want == status), o.offender(), "the order (%s) is %s, not %s: %s", o.kind, status, o.want, o.finalReason())
	}
}

func (o *order) finalReason() string {
	if o.row == nil {
		return ""
	}
	return o.row.Reason
}

func (o *order) judgeMoney(i *Invariant) {
	_, in := o.countKind("charge")
	_, out := o.countKind("refund")
	var want int64
	if o.finalStatus() == completed {
		want = o.row.Amount
	}
	i.checkThat(in-out == want, o.offender(), "%d charged, %d refunded for an order of %d that is %s", in, out, want, o.finalStatus())
}

// walkStates follows the states of one thing through its changes, and describes the changes that graph does not
// allow.
func walkStates(all []change, table, key string, graph map[string][]string) (wrong string) {
	state := ""
	for _, ch := range all {
		if ch.table != table || ch.key != key || ch.op == "DELETE" {
			continue
		}
		if ch.state == state {
			continue // another column has changed
		}
		if !slices.Contains(graph[state], ch.state) {
			return state + " → " + ch.state
		}
		state = ch.state
	}
	return ""
}

func (o *order) judgeGraph(i *Invariant) {
	wrong := walkStates(o.changes, "order_service.orders", keyColumn(o.changes, "order_service.orders"), orderGraph)
	for _, s := range o.steps {
		if bad := walkStates(o.changes, "order_service.order_step", s.Step, stepGraph); bad != "" {
			wrong = s.Step + ": " + bad
		}
	}
	i.checkThat(wrong == "", o.offender(), "%s", wrong)
}

// keyColumn returns the key of the saga's row in a table that has one row for each saga.
func keyColumn(all []change, table string) string {
	for _, ch := range all {
		if ch.table == table {
			return ch.key
		}
	}
	return ""
}

func (o *order) judgeUndone(i *Invariant) {
	charges, _ := o.countKind("charge")
	refunds, _ := o.countKind("refund")
	rejected := slices.ContainsFunc(o.shipped, func(s shipmentRow) bool { return s.State == "rejected" })
	arranged := slices.ContainsFunc(o.shipped, func(s shipmentRow) bool { return s.State == "arranged" })
	switch o.finalStatus() {
	case completed:
		i.checkThat(charges == 1 && refunds == 0 && arranged, o.offender(), "completed with %d charges, %d refunds, arranged: %t", charges, refunds, arranged)
	case cancelled:
		i.checkThat(charges == refunds && !arranged && rejected == (charges > 0), o.offender(),
			"cancelled with %d charges, %d refunds, shipment arranged: %t, rejected: %t", charges, refunds, arranged, rejected)
	}
}

// position returns the sequence number of the first such change of a table; -1: none.
func position(all []change, table string, is func(change) bool) int64 {
	for _, ch := range all {
		if ch.table == table && is(ch) {
			return ch.seq
		}
	}
	return -1
}

func (o *order) judgeOrder(i *Invariant) {
	inserted := func(ch change) bool { return ch.op == "INSERT" }
	charge := position(o.changes, "payment_gateway.ledger", func(ch change) bool { return strings.HasPrefix(ch.state, "charge") })
	refund := position(o.changes, "payment_gateway.ledger", func(ch change) bool { return strings.HasPrefix(ch.state, "refund") })
	shipment := position(o.changes, "shipping_service.shipment", inserted)
	ok := (shipment < 0 || charge >= 0 && charge < shipment) && (refund < 0 || shipment >= 0 && shipment < refund)
	i.checkThat(ok, o.offender(), "charge at %d, shipment at %d, refund at %d", charge, shipment, refund)
}
