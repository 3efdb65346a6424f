package judge

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/evidence"
	"github.com/sagamill/sagamill/chaos/internal/record"
)

func writeLines(path string, lines []string) error {
	return os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

func judged(t *testing.T, f *fake) *Verdict {
	t.Helper()
	v, err := Judge(f.save(t))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// broken lists the invariants that do not hold.
func broken(v *Verdict) (all []string) {
	for _, i := range v.Invariants {
		if i.Count > 0 {
			all = append(all, i.ID)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func explain(v *Verdict) string {
	var b strings.Builder
	for _, i := range v.Invariants {
		for _, o := range i.Offenders {
			b.WriteString("\n  " + i.ID + " " + o.Saga + " " + o.Key + ": " + o.What)
		}
	}
	return b.String()
}

func TestAGoodRunIsGreen(t *testing.T) {
	t.Parallel()
	v := judged(t, good())
	if v.Outcome != Green {
		t.Errorf("it is %s, missing %v%s", v.Outcome, v.Missing, explain(v))
	}
	for _, i := range v.Invariants {
		if i.Checked == 0 && i.ID != "I7" {
			t.Errorf("%s (%s) has looked at nothing", i.ID, i.Says)
		}
	}
}

func find[T any](all []T, is func(T) bool) *T {
	return &all[slices.IndexFunc(all, is)]
}

// Each thing that may go wrong makes its invariant fail. Others that the same thing
// concerns may fail too.
func TestWhatIsWrongIsSeen(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
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
			f.rows["flight_service.parked"] = nil // a topic with one queue: what finds none is refused
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
		"a card in a metric":  {func(f *fake) { f.output["order-1.metrics"] = []string{`x{card="` + record.Card + `"} 1`} }, "S"},
		"a card in an answer": {func(f *fake) { f.ops[0].Leak = "a card" }, "S"},
		"no output":           {func(f *fake) { f.output = nil }, "S"},
		"a card in a failure": {func(f *fake) { f.rows["flight_service.parked"][0]["error"] = "no such card: " + record.Card }, "S"},
		"a card in kept headers": {func(f *fake) {
			f.rows["flight_service.parked"][0]["header_values"] = []string{"\\x" + hex.EncodeToString([]byte(record.Card))}
		}, "S"},
		"a password in a decision": {func(f *fake) {
			f.row("trip_service.saga_journal", map[string]any{"id": 1, "why": record.BrokerPassword})
		}, "S"},
		"done before it was sent": {func(f *fake) {
			find(f.changes, func(c record.Change) bool { return c.Table == "shipping_service.inbox" }).At = epoch
		}, "L"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := good()
			tt.spoil(f)
			v := judged(t, f)
			got := broken(v)
			for _, want := range strings.Fields(tt.want) {
				if !slices.Contains(got, want) {
					t.Errorf("%s is not broken, %v are%s", want, got, explain(v))
				}
			}
			if v.Outcome != Red {
				t.Errorf("the run is %s", v.Outcome)
			}
			for _, i := range v.Invariants {
				for _, o := range i.Offenders {
					if (o.Saga != "" || strings.HasPrefix(o.Key, "t1/")) && len(v.Timelines) == 0 {
						t.Errorf("%s %s has no timeline", o.Saga, o.Key)
					}
				}
			}
		})
	}
}

// A trip whose deadline passes while faults strike need not complete.
func TestATripMayBeLateWhileFaultsStrike(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"step hotel: no reply within 15s", "the saga's deadline of 1m30s has passed"} {
		f := good()
		f.compensateFirst(reason)
		if v := judged(t, f); v.Outcome != Green {
			t.Errorf("%q: it is %s, missing %v%s", reason, v.Outcome, v.Missing, explain(v))
		}
		f.rows["trip_service.saga"][0]["status"] = completed // whatever else is wrong with it
		if got := figure(t, judged(t, f), "trips-completed-percent").Value; got != 100 {
			t.Errorf("%q: %v%% of the trips that must have completed", reason, got)
		}
	}
}

// A run may be given more time to drain, and no more than that.
func TestADrainHasTheTimeThatItWasGiven(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]Outcome{90 * time.Second: Green, 91 * time.Second: Red} {
		f := good()
		f.run.Options.Drain, f.final.Drained = 90*time.Second, f.final.Healed+took
		if v := judged(t, f); v.Outcome != want {
			t.Errorf("a drain of %s is %s, want %s%s", took, v.Outcome, want, explain(v))
		}
	}
}

func figure(t *testing.T, v *Verdict, name string) Figure {
	t.Helper()
	i := slices.IndexFunc(v.Figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("there is no figure %q", name)
	}
	return v.Figures[i]
}

func TestFiguresCountWhatTheySay(t *testing.T) {
	t.Parallel()
	f := good()
	f.injected = append(f.injected,
		record.Injection{At: time.Second, Kind: record.Duplicate, Handled: true}, // before the storm
		record.Injection{At: time.Minute, Kind: record.Duplicate},                // perhaps under way
		record.Injection{At: 3 * time.Minute, Kind: record.Replayed, Handled: true},
	)
	f.compensateFirst("step hotel: no reply within 15s")
	f.final.Drained = 0
	direct := 0 // to the broker, by nobody's relay
	for _, i := range f.injected {
		if i.Kind != record.Replayed {
			direct++
		}
	}
	f.final.Received = 2*len(f.messages) + direct
	v := judged(t, f)
	if p := figure(t, v, "publishes-per-message"); p.Value != 2 || p.OK {
		t.Errorf("publishes: %+v, want 2 a message, which is too many", p)
	}
	for name, want := range map[string]float64{"duplicates-absorbed": 2, "replayed": 2, "trips-completed-percent": 0} {
		if got := figure(t, v, name).Value; got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if drain := figure(t, v, "drain-seconds"); drain.OK {
		t.Errorf("a run that has never drained has %+v", drain)
	}
}

// A run that is as large as a preset must do what that is for; a small one by hand need
// not.
func TestAMissedGoalMakesALargeRunVoid(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		options record.Options
		want    Outcome
	}{
		"short":     {record.Options{Storm: 175 * time.Second, KillEvery: 180 * time.Millisecond, Sagas: 20_500}, Void},
		"long":      {record.Options{Storm: 30 * time.Minute, KillEvery: 160 * time.Millisecond, Sagas: 303_000}, Void},
		"few sagas": {record.Options{Storm: 175 * time.Second, KillEvery: 180 * time.Millisecond, Sagas: 500}, Green},
		"few kills": {record.Options{Storm: 175 * time.Second, KillEvery: time.Second, Sagas: 20_500}, Green},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := good()
			f.run.Options = tt.options
			for i := range mostAsked {
				f.samples = append(f.samples, record.Sample{At: 41*time.Second + time.Duration(i)*time.Second, Asked: true})
			}
			v := judged(t, f)
			if v.Outcome != tt.want || (tt.want == Void) != slices.Contains(v.Missing, "the goal of sigkills") {
				t.Errorf("it is %s, missing %v%s", v.Outcome, v.Missing, explain(v))
			}
		})
	}
}

// Who listens to what is known in two places: here, where nothing is imported that a run
// consists of, and where it is compared with the examples.
func TestListenersAreThoseOfTheExamples(t *testing.T) {
	t.Parallel()
	for _, l := range evidence.Listeners {
		if !slices.Contains(listeners, listener{l.Schema, l.Topic, l.Step, l.Undo}) {
			t.Errorf("%+v is not known", l)
		}
	}
	if len(listeners) != len(evidence.Listeners) {
		t.Errorf("there are %d, want %d", len(listeners), len(evidence.Listeners))
	}
}

// Who deletes a queue discards what is in it, poison too.
func TestPoisonInADeletedQueueIsNotExpected(t *testing.T) {
	t.Parallel()
	f := good()
	f.rows["flight_service.parked"] = nil
	f.events = append(f.events, record.Event{N: 2, At: time.Minute + time.Second, Until: time.Minute + 2*time.Second, Fault: "queue-delete", Target: "flight.book"})
	if v := judged(t, f); v.Outcome != Green {
		t.Errorf("it is %s%s", v.Outcome, explain(v))
	}
}

// A run in which something was never struck proves nothing about it.
func TestWhatHasNotStruckMakesARunVoid(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*fake){
		"a fault":            func(f *fake) { f.run.Required = append(f.run.Required, "broker-kill") },
		"an idle fault":      func(f *fake) { find(f.events, func(e record.Event) bool { return e.Fault == "sigkill" }).Open = 0 },
		"a failed fault":     func(f *fake) { find(f.events, func(e record.Event) bool { return e.Fault == "sigkill" }).Err = "no" },
		"a failpoint":        func(f *fake) { f.points = nil },
		"a lost COMMIT":      func(f *fake) { f.final.CommitsLost = 0 },
		"a swallowed answer": func(f *fake) { f.final.RepliesLost = 0 },
		"a fault on nobody":  func(f *fake) { find(f.events, func(e record.Event) bool { return e.Fault == "sigkill" }).Hits = 0 },
		"samples":            func(f *fake) { f.samples = f.samples[:3] },
		"samples that asked": func(f *fake) {
			for i := range f.samples {
				f.samples[i].Asked = i < 3
			}
		},
		"samples of the storm": func(f *fake) {
			for i := range f.samples {
				f.samples[i].At += time.Minute
			}
		},
		"replayed messages": func(f *fake) {
			f.injected = slices.DeleteFunc(f.injected, func(i record.Injection) bool { return i.Kind == record.Replayed })
		},
		"the replay": func(f *fake) { f.final.Effects = f.final.Effects[:1] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := good()
			spoil(f)
			if v := judged(t, f); v.Outcome != Void || len(v.Missing) == 0 {
				t.Errorf("it is %s, missing %v%s", v.Outcome, v.Missing, explain(v))
			}
		})
	}
}

// Half a file is no evidence.
func TestARunThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		record.RunFile, record.FinalFile, record.EventsFile, record.ClientFile, record.ChangesFile, record.OutboxFile, record.SamplesFile, record.InjectedFile,
		"tables/order_service.orders.jsonl.gz", "tables/flight_service.parked.jsonl.gz",
	} {
		dir := good().save(t)
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := Judge(dir); err == nil {
			t.Errorf("without %s it is judged", name)
		}
	}
}
