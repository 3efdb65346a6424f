package judge

import (
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// violations spoil a run, each with the invariants that it breaks.
var violations = map[string]struct {
	spoil func(*fake)
	want  string
}{
	"charged twice": {func(f *fake) {
		f.row("payment_gateway.ledger", map[string]any{"id": 9, "kind": "charge", "key": "x", "order_id": id(1), "amount": 100})
	}, "I1 I3 I5"},
	"payment written twice": {func(f *fake) {
		f.change(time.Minute, "payment_service.payment", "INSERT", id(1), "", "charged", "100")
	}, "I1"},
	"two ids for a key": {func(f *fake) { f.ops[1].ID = id(2) }, "I1"},
	"booked twice": {func(f *fake) {
		f.change(40*time.Second, "flight_service.booking", "INSERT", id(4), "n", "held", "1 LH100")
	}, "I1"},
	"two tickets":          {func(f *fake) { f.row("ticketing_service.ticket", map[string]any{"trip_id": id(3)}) }, "I1 I5"},
	"an order lost":        {func(f *fake) { f.rows["order_service.orders"] = f.rows["order_service.orders"][1:] }, "I2"},
	"an order pending":     {func(f *fake) { f.rows["order_service.orders"][0]["status"] = "pending" }, "I2"},
	"an order ended wrong": {func(f *fake) { f.ops[0].Want = cancelled }, "I2"},
	"a trip lost":          {func(f *fake) { f.rows["trip_service.saga"] = f.rows["trip_service.saga"][1:] }, "I2"},
	"a trip stuck":         {func(f *fake) { f.rows["trip_service.saga"][0]["status"] = "stuck" }, "I2"},
	"nobody placed it": {func(f *fake) {
		f.ops = slices.DeleteFunc(f.ops, func(o record.Op) bool { return o.ID == id(2) })
	}, "I2"},
	"never answered": {func(f *fake) {
		f.ops = append(f.ops, record.Op{Saga: record.Order, Method: "POST", Tenant: "t1", Key: "other", Outcome: record.Unknown})
	}, "I2"},
	"not refunded": {func(f *fake) {
		f.rows["payment_gateway.ledger"] = slices.DeleteFunc(f.rows["payment_gateway.ledger"], func(r map[string]any) bool { return r["kind"] == "refund" })
	}, "I3 I5"},
	"a unit lost":          {func(f *fake) { f.rows["flight_service.stock"][0]["free"] = 8 }, "I3"},
	"unbalanced for once":  {func(f *fake) { f.samples[0].Unbalanced = []string{"order 1"} }, "I3"},
	"cancelled, then paid": {func(f *fake) { f.change(50*time.Second, "order_service.orders", "UPDATE", id(2), "t1", "paid", "100") }, "I4"},
	"a step undone before it is done": {func(f *fake) {
		find(f.changes, func(c record.Change) bool { return c.Key == "arrange-shipping" && c.State == "done" }).State = "compensated"
		f.change(50*time.Second, "order_service.order_step", "UPDATE", id(1), "arrange-shipping", "done", "1")
	}, "I4"},
	"a revision missing": {func(f *fake) {
		i := slices.IndexFunc(f.changes, func(c record.Change) bool { return strings.HasPrefix(c.What, "revision 1") })
		f.changes = slices.Delete(f.changes, i, i+1)
	}, "I4"},
	"ended twice": {func(f *fake) {
		f.change(time.Minute, "trip_service.saga", "UPDATE", id(3), "t1|trip:3|", "completed", "revision 3 tries 0")
	}, "I4"},
	"a row run after its void": {func(f *fake) {
		c := find(f.changes, func(c record.Change) bool { return c.Table == "flight_service.inbox" && c.State == compensated })
		f.change(time.Minute, c.Table, "UPDATE", c.Saga, c.Key, "done", "")
	}, "I1 I4 L"},
	"not given back":          {func(f *fake) { f.rows["flight_service.booking"][1]["state"] = "held" }, "I3 I5"},
	"shipped though refunded": {func(f *fake) { f.rows["shipping_service.shipment"][1]["state"] = "arranged" }, "I5"},
	"other bytes":             {func(f *fake) { f.ops[1].Reply = "other" }, "I6 L"},
	"another body accepted":   {func(f *fake) { f.ops[1].Body = "other" }, "I6 L"},
	"its own body refused": {func(f *fake) {
		f.ops[1].Outcome, f.ops[1].Status, f.ops[1].ID = record.Refused, 422, ""
	}, "I6 L"},
	"rejected in a deadline's words": {func(f *fake) { f.compensateFirst("step hotel was rejected: no room within 2 km") }, "I2"},
	"late when nothing struck": {func(f *fake) {
		f.compensateFirst("step hotel: no reply within 15s")
		f.calm()
	}, "I2"},
	"a message held": {func(f *fake) {
		f.row("payment_service.outbox_held", map[string]any{"id": 1, "message_id": "m", "topic": "t", "state": "dead"})
	}, "I7"},
	"a message lost": {func(f *fake) { f.rows["shipping_service.inbox"] = f.rows["shipping_service.inbox"][1:] }, "I9"},
	"a message parked for ever": {func(f *fake) {
		f.rows["shipping_service.inbox"][0]["state"] = "retrying"
	}, "I9"},
	"a message lost beside another step's": {func(f *fake) {
		f.dropRow("order_service", "record-payment", id(1))
	}, "I9"},
	"a compensation that has not undone": {func(f *fake) {
		find(f.changes, func(c record.Change) bool { return c.Table == "payment_service.inbox" && c.State == compensated }).State = "done"
		for _, r := range f.rows["payment_service.inbox"] {
			r["state"] = "done"
		}
	}, "I9"},
	"a loss that was repeated": {func(f *fake) {
		find(f.events, func(e record.Event) bool { return len(e.Repeated) > 0 }).Repeated[0].Written = epoch.Add(-waited)
	}, "I9"},
	"done, removed and done again": {func(f *fake) {
		c := *find(f.changes, func(c record.Change) bool { return c.Table == "shipping_service.inbox" })
		f.change(time.Minute, c.Table, "DELETE", c.Saga, c.Key, "done", "")
		f.change(time.Minute, c.Table, "INSERT", c.Saga, c.Key, "done", "")
	}, "I1 L"},
	"a ghost": {func(f *fake) {
		f.row("car_service.inbox", map[string]any{"scope": "t1", "key": "nobody", "step": "car", "n": "x", "state": "done"})
	}, "I9"},
	"a queue with a rest":  {func(f *fake) { f.final.Queues[0].Unacked = 1 }, "I10"},
	"a queue that is gone": {func(f *fake) { f.final.Queues[0].Absent = true }, "I10"},
	"ticket before flight": {func(f *fake) {
		f.change(39*time.Second, "flight_service.booking", "UPDATE", id(3), "n", "released", "")
	}, "I11"},
	"shipped unpaid": {func(f *fake) {
		for i := range f.changes {
			if f.changes[i].Table == "payment_gateway.ledger" && f.changes[i].Saga == id(1) {
				f.changes[i].Seq = 1 << 40
			}
		}
	}, "I11"},
	"poison swallowed":          {func(f *fake) { f.rows["flight_service.parked"] = nil }, "I12"},
	"poison for another reason": {func(f *fake) { f.rows["flight_service.parked"][0]["reason"] = "terminal" }, "I12"},
	"poison with other bytes":   {func(f *fake) { f.rows["flight_service.parked"][0]["payload"] = "others" }, "I12"},
	"poison that a binding could not take": {func(f *fake) {
		f.rows["flight_service.parked"] = nil // a topic with one queue: without it, the broker refuses the message
		f.events = append(f.events, record.Event{N: 3, At: time.Minute - time.Second, Until: time.Minute + time.Second, Fault: "binding-delete", Target: "flight.book"})
	}, "I12"},
	"poison before its binding went": {func(f *fake) {
		f.injected = append(f.injected, record.Injection{At: 50 * time.Second, Kind: record.Poison, Topic: "payment.processed", MessageID: "poison-2", What: "terminal: x"})
		f.events = append(f.events, record.Event{N: 3, At: time.Minute, Until: time.Minute + time.Second, Fault: "exchange-delete", Target: "payment.processed"})
	}, "I12"},
	"an innocent dead letter": {func(f *fake) {
		f.row("order_service.parked", map[string]any{"state": "dead", "kind": "action", "topic": "payment.processed", "message_id": `\x6d31`})
	}, "I12"},
	"drained late":        {func(f *fake) { f.final.Drained = f.final.Healed + 31*time.Second }, "I13"},
	"never drained":       {func(f *fake) { f.final.Drained = 0 }, "I13"},
	"a process that hung": {func(f *fake) { f.final.Stopped[0].Code = -1 }, "I14"},
	"a process that crashed": {func(f *fake) {
		f.events = append(f.events, record.Event{Fault: record.Exit, Target: "order-1", Args: "by itself, exit status 2"})
	}, "I14"},
	"a process that had to be killed": {func(f *fake) {
		f.events = append(f.events, record.Event{Fault: record.Exit, Target: "order-1", Args: "told to stop: it had to be killed"})
	}, "I14"},
	"a connection left":           {func(f *fake) { f.final.IdleInTx = 1 }, "I14"},
	"a broker's connection left":  {func(f *fake) { f.final.BrokerConnections = 1 }, "I14"},
	"goroutines that pile up":     {func(f *fake) { f.final.Goroutines[1]["order-1"] = 91 }, "I14"},
	"goroutines not counted":      {func(f *fake) { f.final.Goroutines = f.final.Goroutines[:1] }, "I14"},
	"a replay that did something": {func(f *fake) { f.final.Effects[1] = "abd" }, "R"},
	"created twice":               {func(f *fake) { f.ops[1].Replay = false }, "L"},
	"a password in a log": {func(f *fake) {
		f.output["order-1.log"] = append(f.output["order-1.log"], "cannot reach postgres://x:"+record.DatabasePassword+"@y")
	}, "S"},
	"a password in the broker's log": {func(f *fake) {
		f.output[record.BrokerLog] = append(f.output[record.BrokerLog], "login refused: "+record.BrokerPassword)
	}, "S"},
	"a card in the database's log": {func(f *fake) { f.output["postgres.log"] = []string{"STATEMENT: INSERT " + record.Card} }, "S"},
	"a card in a metric":           {func(f *fake) { f.output["order-1.metrics"] = []string{`x{card="` + record.Card + `"} 1`} }, "S"},
	"a card in an answer":          {func(f *fake) { f.ops[0].Leak = "a card" }, "S"},
	"a card in a session":          {func(f *fake) { f.samples[2].Leak = "a card" }, "S"},
	"no output":                    {func(f *fake) { f.output = nil }, "S"},
	"a card in a failure":          {func(f *fake) { f.rows["flight_service.parked"][0]["error"] = "no such card: " + record.Card }, "S"},
	"a card in kept headers": {func(f *fake) {
		f.rows["flight_service.parked"][0]["header_values"] = []string{"\\x" + hex.EncodeToString([]byte(record.Card))}
	}, "S"},
	"a password in a decision": {func(f *fake) {
		f.row("trip_service.saga_journal", map[string]any{"id": 1, "why": record.BrokerPassword})
	}, "S"},
	"done before it was sent": {func(f *fake) {
		find(f.changes, func(c record.Change) bool { return c.Table == "shipping_service.inbox" }).At = epoch
	}, "L"},
}
