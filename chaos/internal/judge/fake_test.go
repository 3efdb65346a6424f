package judge

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// A fake is an invented run: the whole content of a directory, which a test can spoil.
type fake struct {
	run      record.Run
	events   []record.Event
	ops      []record.Op
	injected []record.Injection
	samples  []record.Sample
	changes  []record.Change
	messages []record.Message
	final    record.Final
	points   []string
	rows     map[string][]map[string]any // by table
	output   map[string][]string         // lines, by file
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// good returns a run without any violation: an order with each final status, and a trip.
func good() *fake {
	f := &fake{
		run: record.Run{
			Seed: 7, Began: epoch, Required: []string{"sigkill", "consumer/after-commit=kill"},
			Options: record.Options{Storm: 40 * time.Second, Replays: 1},
		},
		rows: map[string][]map[string]any{},
		final: record.Final{
			Healed: 4 * time.Minute, Drained: 4*time.Minute + 5*time.Second, CommitsLost: 30, RepliesLost: 31,
			Stopped: []record.Stopped{{Name: "order-1", Code: 0}, {Name: "payment-1", Code: 0}},
			Effects: []string{"abc", "abc"}, Goroutines: []map[string]int{{"order-1": 70}, {"order-1": 90}}, Queues: []record.Queue{{Name: "order-saga.order.created.payment"}},
		},
		points: []string{"consumer/after-commit=kill"},
		output: map[string][]string{"order-1.log": {"serving"}, "order-1.metrics": {"go_goroutines 70"}, record.BrokerLog: {"crasher: " + record.Card}},
	}
	for i, phase := range []string{record.Warm, record.Storm, record.Heal, record.Drain, record.Replay, record.Stop, record.Over} {
		at := time.Duration(i) * 40 * time.Second
		if phase == record.Storm {
			at /= 2
		}
		f.events = append(f.events, record.Event{At: at, Fault: record.Phase, Args: phase})
	}
	f.events = append(f.events,
		record.Event{N: 1, At: time.Minute, Fault: "sigkill", Target: "payment-1", Open: 3, Hits: 1},
		record.Event{
			N: 2, At: 70 * time.Second, Until: 71 * time.Second, Fault: "queue-delete", Target: "order.created", Open: 1, Hits: 1,
			Repeated: []record.Repeat{{MessageID: "m1", Written: epoch.Add(10 * time.Second)}},
		},
		record.Event{At: time.Minute, Fault: record.Exit, Target: "payment-1", Args: "killed: signal: killed"},
		record.Event{At: 2 * time.Minute, Fault: record.Exit, Target: "order-1", Args: "by its fuse"},
	)
	for i := range 6 {
		f.samples = append(f.samples, record.Sample{At: 40*time.Second + time.Duration(i)*6*time.Second, Done: i, Asked: true})
	}
	for _, table := range allTables() {
		f.rows[table] = nil
	}
	f.order(1, completed)
	f.order(2, cancelled)
	f.trip(3, completed)
	f.trip(4, compensated)
	f.poison()
	return f
}

func allTables() []string {
	all := []string{
		"order_service.orders", "order_service.order_step", "payment_service.payment", "shipping_service.shipment", "payment_gateway.ledger",
		"trip_service.trip", "trip_service.saga", "trip_service.itinerary", "ticketing_service.ticket", "mail_service.mail",
	}
	for _, h := range holders {
		all = append(all, h+"_service.booking", h+"_service.stock")
	}
	for _, schema := range consumers() {
		all = append(all, schema+".inbox", schema+".parked", schema+".outbox_held")
	}
	return all
}

func id(n int) string { return fmt.Sprintf("00000000-0000-7000-8000-%012d", n) }

func (f *fake) at(d time.Duration) time.Time { return epoch.Add(d) }

// change adds a Change.
func (f *fake) change(d time.Duration, table, op, saga, key, state, what string) {
	n := int64(len(f.changes) + 1)
	f.changes = append(f.changes, record.Change{Seq: n, At: f.at(d), Tx: uint64(n), Table: table, Op: op, Saga: saga, Key: key, State: state, What: what})
}

func (f *fake) row(table string, row map[string]any) { f.rows[table] = append(f.rows[table], row) }

// post adds a client's request that was answered.
func (f *fake) post(d time.Duration, saga, kind, want, k, id, reply string, replayed bool) {
	f.ops = append(f.ops, record.Op{
		Saga: saga, Kind: kind, Want: want, Method: "POST", Tenant: "t1", Key: k, Body: "body", Call: d, Return: d + time.Second,
		Outcome: record.OK, Status: 202, Reply: reply, Replay: replayed, ID: id, Amount: 100,
	})
}

// send adds a message, and the inbox row that it ends in.
func (f *fake) send(d time.Duration, from, topic, k, n, to, step, state string) {
	f.messages = append(f.messages, record.Message{
		Schema: from, ID: int64(len(f.messages) + 1), MessageID: fmt.Sprintf("m%d", len(f.messages)+1), Topic: topic, Scope: "t1", Key: k, Step: step, N: n, At: f.at(d), Tx: 1,
	})
	if to == "" {
		return
	}
	key := strings.Join([]string{"t1", k, step, n}, "|")
	f.change(d+time.Second, to+".inbox", "INSERT", n, key, state, "attempts 1 undo 0")
	f.row(to+".inbox", map[string]any{"scope": "t1", "key": k, "step": step, "n": n, "state": state, "attempts": 1})
}

// undo adds the message that changes the last inbox row of a step to compensated.
func (f *fake) undo(d time.Duration, from, topic, k, n, to, step string) {
	f.send(d, from, topic, k, n, "", step, "")
	f.change(d+time.Second, to+".inbox", "UPDATE", n, strings.Join([]string{"t1", k, step, n}, "|"), compensated, "attempts 1 undo 1")
	for _, row := range f.rows[to+".inbox"] {
		if row["n"] == n && row["step"] == step {
			row["state"] = compensated
		}
	}
}

// order adds an order that is completed, or one that cannot be shipped.
func (f *fake) order(n int, status string) {
	id, k, d := id(n), fmt.Sprint("order:", n), time.Duration(n)*10*time.Second
	mark := strings.ReplaceAll(id, "-", "")
	f.post(d, record.Order, "kind of "+status, status, k, id, "r"+k, false)
	f.post(d+2*time.Second, record.Order, "kind of "+status, status, k, id, "r"+k, true)
	f.change(d, "order_service.orders", "INSERT", id, "t1", "pending", "100")
	f.change(d, "order_service.order_step", "INSERT", id, "process-payment", "pending", "0")
	f.change(d, "order_service.order_step", "INSERT", id, "arrange-shipping", "pending", "0")
	f.send(d, "order_service", "order.created", k, mark, "payment_service", "process-payment", "done")
	f.change(d+1*time.Second, "payment_gateway.ledger", "INSERT", id, "pk"+mark, "charge", "100")
	f.change(d+1*time.Second, "payment_service.payment", "INSERT", id, "", "charged", "100")
	f.send(d+2*time.Second, "payment_service", "payment.processed", k, mark, "order_service", "record-payment", "done")
	f.change(d+3*time.Second, "order_service.orders", "UPDATE", id, "t1", "paid", "100")
	f.change(d+3*time.Second, "order_service.order_step", "UPDATE", id, "process-payment", "done", "1")
	f.rowOnly("shipping_service", k, mark, "arrange-shipping", d+3*time.Second)
	f.row("payment_gateway.ledger", map[string]any{"id": 1, "kind": "charge", "key": "pk" + mark, "order_id": id, "amount": 100})
	payment, shipment, process, arrange := "charged", "arranged", "done", "done"
	if status == completed {
		f.change(d+3*time.Second, "shipping_service.shipment", "INSERT", id, "", "arranged", "book")
		f.send(d+4*time.Second, "shipping_service", "shipment.arranged", k, mark, "order_service", "record-shipment", "done")
		f.change(d+5*time.Second, "order_service.order_step", "UPDATE", id, "arrange-shipping", "done", "1")
	} else {
		payment, shipment, process, arrange = "refunded", "rejected", compensated, "rejected"
		f.change(d+3*time.Second, "shipping_service.shipment", "INSERT", id, "", "rejected", "unshippable")
		f.undo(d+4*time.Second, "shipping_service", "shipment.rejected", k, mark, "payment_service", "process-payment")
		f.rowOnly("order_service", k, mark, "record-rejection", d+5*time.Second)
		f.change(d+5*time.Second, "payment_gateway.ledger", "INSERT", id, "rk"+mark, "refund", "100")
		f.row("payment_gateway.ledger", map[string]any{"id": 2, "kind": "refund", "key": "rk" + mark, "order_id": id, "amount": 100})
		f.send(d+6*time.Second, "payment_service", "payment.refunded", k, mark, "order_service", "record-refund", "done")
		f.change(d+7*time.Second, "order_service.order_step", "UPDATE", id, "process-payment", compensated, "1")
	}
	f.change(d+7*time.Second, "order_service.orders", "UPDATE", id, "t1", status, "100")
	f.row("order_service.orders", map[string]any{"id": id, "tenant": "t1", "status": status, "amount": 100})
	f.row("order_service.order_step", map[string]any{"order_id": id, "step": "process-payment", "state": process})
	f.row("order_service.order_step", map[string]any{"order_id": id, "step": "arrange-shipping", "state": arrange})
	f.row("payment_service.payment", map[string]any{"order_id": id, "state": payment, "amount": 100})
	f.row("shipping_service.shipment", map[string]any{"order_id": id, "state": shipment})
	f.injected = append(f.injected, record.Injection{At: d + 40*time.Second, Kind: record.Duplicate, Handled: true, Topic: "order.created", MessageID: f.messages[0].MessageID, Scope: "t1", Key: k, Step: "process-payment", N: mark})
}

// rowOnly adds an inbox row of a message that another service had, too.
func (f *fake) rowOnly(schema, k, n, step string, d time.Duration) {
	f.change(d, schema+".inbox", "INSERT", n, strings.Join([]string{"t1", k, step, n}, "|"), "done", "attempts 1 undo 0")
	f.row(schema+".inbox", map[string]any{"scope": "t1", "key": k, "step": step, "n": n, "state": "done", "attempts": 1})
}

// trip adds a trip that is completed, or one whose hotel is sold out.
func (f *fake) trip(n int, status string) {
	id, k, d := id(n), fmt.Sprint("trip:", n), time.Duration(n)*10*time.Second
	f.post(d, record.Trip, "kind of "+status, status, k, id, "r"+k, false)
	f.change(d, "trip_service.trip", "INSERT", id, "t1|"+k, "placed", "Ada")
	f.row("trip_service.trip", map[string]any{"id": id, "tenant": "t1", "key": k})
	revision := 0
	saga := func(at time.Duration, op, state string) {
		f.change(at, "trip_service.saga", op, id, "t1|"+k+"|", state, fmt.Sprintf("revision %d tries 0", revision))
		revision++
	}
	saga(d, "INSERT", "running")
	flight, hotel := fmt.Sprintf("%08d-1-flight.0", n), fmt.Sprintf("%08d-1-hotel.0", n)
	f.send(d, "trip_service", "flight.book", k, flight, "flight_service", "flight", "done")
	f.change(d+time.Second, "flight_service.booking", "INSERT", id, flight, "held", "1 LH100")
	hotelState := "done"
	if status == compensated {
		hotelState = "refused"
	}
	f.send(d, "trip_service", "hotel.book", k, hotel, "hotel_service", "hotel", hotelState)
	f.send(d+2*time.Second, "flight_service", "saga.trip", k, flight+".d", "trip_service", "saga-trip", "done")
	f.send(d+2*time.Second, "hotel_service", "saga.trip", k, hotel+".d", "trip_service", "saga-trip", "done")
	saga(d+3*time.Second, "UPDATE", "running")
	if status == completed {
		f.change(d+2*time.Second, "hotel_service.booking", "INSERT", id, hotel, "held", "1 grand")
		f.row("hotel_service.booking", map[string]any{"trip_id": id, "n": hotel, "item": "grand", "state": "held"})
		f.row("hotel_service.stock", map[string]any{"item": "grand", "capacity": 10, "free": 9})
		f.row("flight_service.booking", map[string]any{"trip_id": id, "n": flight, "item": "LH100", "state": "held"})
		f.row("flight_service.stock", map[string]any{"item": "LH100", "capacity": 10, "free": 9})
		f.change(d+5*time.Second, "ticketing_service.ticket", "INSERT", id, "1", "issued", "T1")
		f.row("ticketing_service.ticket", map[string]any{"trip_id": id})
		f.row("mail_service.mail", map[string]any{"trip_id": id, "state": "sent"})
		f.row("trip_service.itinerary", map[string]any{"trip_id": id})
	} else {
		saga(d+3*time.Second, "UPDATE", "compensating")
		f.undo(d+4*time.Second, "trip_service", "flight.cancel", k, flight, "flight_service", "flight")
		f.change(d+5*time.Second, "flight_service.booking", "UPDATE", id, flight, "released", "1 LH100")
		f.row("flight_service.booking", map[string]any{"trip_id": id, "n": flight, "item": "LH100", "state": "released"})
	}
	saga(d+8*time.Second, "UPDATE", status)
	f.row("trip_service.saga", map[string]any{"scope": "t1", "key": k, "path": "", "id": id, "root": id, "status": status, "revision": revision})
}

// compensateFirst makes the trip that was to complete end compensated, for a reason.
func (f *fake) compensateFirst(reason string) {
	trip := id(3)
	f.rows["trip_service.saga"][0]["status"], f.rows["trip_service.saga"][0]["reason"] = compensated, reason
	last := find(f.changes, func(c record.Change) bool { return c.Saga == trip && c.State == completed })
	last.State = compensated
	for i := range f.changes {
		if c := &f.changes[i]; c.Saga == trip && strings.HasSuffix(c.Table, ".ticket") {
			c.Table = "trip_service.trip" // there was none
		}
	}
	for _, table := range []string{"ticketing_service.ticket", "mail_service.mail", "trip_service.itinerary"} {
		f.rows[table] = nil
	}
	for _, h := range holders {
		for _, b := range f.rows[h+"_service.booking"] {
			b["state"] = "released"
		}
		for _, s := range f.rows[h+"_service.stock"] {
			s["free"] = s["capacity"]
		}
	}
}

// calm moves the storm and all its faults behind the end of the sagas.
func (f *fake) calm() {
	for i := range f.events {
		if e := &f.events[i]; e.Args != record.Warm {
			e.At += 10 * time.Minute
			e.Until += 10 * time.Minute
		}
	}
	f.final.Healed += 10 * time.Minute
	f.final.Drained += 10 * time.Minute
}

// dropRow removes the inbox row of a step.
func (f *fake) dropRow(schema, step, saga string) {
	n := strings.ReplaceAll(saga, "-", "")
	f.rows[schema+".inbox"] = slices.DeleteFunc(f.rows[schema+".inbox"], func(r map[string]any) bool { return r["step"] == step && r["n"] == n })
}

// poison adds an unreadable message and its dead letter.
func (f *fake) poison() {
	f.injected = append(f.injected, record.Injection{At: time.Minute, Kind: record.Poison, Topic: "flight.book", MessageID: "poison-1", What: "undecodable: cut off", Payload: "bytes"})
	f.injected = append(f.injected, record.Injection{At: 3 * time.Minute, Kind: record.Replayed, Topic: "order.created", MessageID: "m1"})
	f.row("flight_service.parked", map[string]any{"state": "dead", "kind": "unknown", "topic": "flight.book", "reason": "undecodable", "payload": "bytes", "message_id": `\x` + hex.EncodeToString([]byte("poison-1"))})
}

// save writes f as a run's directory.
func (f *fake) save(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(record.WriteJSON(dir, record.RunFile, f.run))
	must(record.WriteJSON(dir, record.FinalFile, f.final))
	write[record.Planned](t, dir, record.ScheduleFile, nil)
	write(t, dir, record.EventsFile, f.events)
	write(t, dir, record.ClientFile, f.ops)
	write(t, dir, record.InjectedFile, f.injected)
	write(t, dir, record.SamplesFile, f.samples)
	write(t, dir, record.ChangesFile, f.changes)
	write(t, dir, record.OutboxFile, f.messages)
	for table, rows := range f.rows {
		write(t, dir, filepath.Join(record.TablesDir, table+".jsonl.gz"), rows)
	}
	must(writeLines(filepath.Join(dir, record.FailpointsFile), f.points))
	must(os.MkdirAll(filepath.Join(dir, record.OutputDir), 0o755))
	for name, lines := range f.output {
		must(writeLines(filepath.Join(dir, record.OutputDir, name), lines))
	}
	return dir
}

func write[T any](t *testing.T, dir, name string, all []T) {
	t.Helper()
	w, err := record.CreateFile[T](dir, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		w.AddRecord(r)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
