package judge

import (
	"cmp"
	"slices"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// A placed saga is the clients' knowledge of one key.
type placed struct {
	key
	kind   string
	want   string // required final status; empty: any
	amount int64
	ids    []string // ids in the clients' answers, each once
	began  record.Op
	posts  []record.Op // in the order of their calls
	cancel []record.Op // DELETEs
}

// An order is all evidence of one order.
type order struct {
	*placed
	id       string
	row      *orderRow
	steps    []stepRow
	payments []paymentRow
	shipped  []shipmentRow
	ledger   []ledgerRow
	changes  []change
}

// A trip is all evidence of one trip.
type trip struct {
	*placed
	id          string
	row         *tripRow
	saga        *sagaRow
	bookings    map[string][]bookingRow
	tickets     int
	mails       int // mails sent
	itineraries int
	changes     []change
}

func (p *placed) offender(id string) Offender {
	o := Offender{Saga: id}
	if p != nil {
		o.Key = p.key.String()
	}
	return o
}

func (o *order) offender() Offender { return o.placed.offender(o.id) }
func (t *trip) offender() Offender  { return t.placed.offender(t.id) }

// gatherRequests assigns operations, changes and rows to their orders and trips.
func (c *run) gatherRequests() {
	c.gatherOps()
	c.gatherOrders()
	c.gatherTrips()
}

func (c *run) gatherOps() {
	c.keys, c.byID = map[key]*placed{}, map[string]*placed{}
	slices.SortFunc(c.ops, func(a, b record.Op) int { return cmp.Compare(a.Call, b.Call) })
	for i, op := range c.ops {
		c.returned = append(c.returned, op.Return)
		if i > 0 {
			c.returned[i] = max(op.Return, c.returned[i-1])
		}
		k := key{op.Saga, op.Tenant, op.Key}
		p := c.keys[k]
		if p == nil {
			p = &placed{key: k, kind: op.Kind, want: op.Want, amount: op.Amount, began: op}
			c.keys[k] = p
		}
		switch op.Method {
		case "POST":
			p.posts = append(p.posts, op)
		case "DELETE":
			p.cancel = append(p.cancel, op)
		}
		if op.Method == "POST" && op.ID != "" && !slices.Contains(p.ids, op.ID) {
			p.ids = append(p.ids, op.ID)
			c.byID[op.ID] = p
		}
	}
}

func (c *run) gatherOrders() {
	all := map[string]*order{}
	of := func(id string) *order {
		if all[id] == nil {
			all[id] = &order{id: id, placed: c.byID[id], changes: c.changes[id]}
			c.orders = append(c.orders, all[id])
		}
		return all[id]
	}
	for i, row := range c.rows.orders {
		of(row.ID).row = &c.rows.orders[i]
	}
	for _, row := range c.rows.steps {
		o := of(row.OrderID)
		o.steps = append(o.steps, row)
	}
	for _, row := range c.rows.payments {
		o := of(row.OrderID)
		o.payments = append(o.payments, row)
	}
	for _, row := range c.rows.shipments {
		o := of(row.OrderID)
		o.shipped = append(o.shipped, row)
	}
	for _, row := range c.rows.ledger {
		o := of(row.OrderID)
		o.ledger = append(o.ledger, row)
	}
	for id, p := range c.byID {
		if p.saga == record.Order {
			of(id)
		}
	}
}

func (c *run) gatherTrips() {
	all := map[string]*trip{}
	of := func(id string) *trip {
		if all[id] == nil {
			all[id] = &trip{id: id, placed: c.byID[id], changes: c.changes[id], bookings: map[string][]bookingRow{}}
			c.trips = append(c.trips, all[id])
		}
		return all[id]
	}
	for i, row := range c.rows.trips {
		of(row.ID).row = &c.rows.trips[i]
	}
	for i, row := range c.rows.sagas {
		of(row.ID).saga = &c.rows.sagas[i]
	}
	for service, rows := range c.rows.bookings {
		for _, row := range rows {
			t := of(row.TripID)
			t.bookings[service] = append(t.bookings[service], row)
		}
	}
	for _, row := range c.rows.tickets {
		of(row.TripID).tickets++
	}
	for _, row := range c.rows.mails {
		if row.State == "sent" {
			of(row.TripID).mails++
		}
	}
	for _, row := range c.rows.itineraries {
		of(row.TripID).itineraries++
	}
	for id, p := range c.byID {
		if p.saga == record.Trip {
			of(id)
		}
	}
}

// answered reports whether a DELETE was answered with status.
func (p *placed) answered(status int) bool {
	return p != nil && slices.ContainsFunc(p.cancel, func(op record.Op) bool { return op.Outcome != record.Unknown && op.Status == status })
}
