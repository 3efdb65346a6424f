package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/operator"
)

// What the traces of three orders are, whose services are a process each. What
// leads to something is its parent; siblings stand in the order of their names. The
// message of the completed one was published twice.
var wantTraces = map[string]string{
	"completed": `order:POST /orders
  order:publish order.created
  order:publish order.created
  payment:process process-payment done
    order:process record-payment done
    payment:POST /charges
      gateway:POST /charges
    payment:publish payment.processed
    shipping:process arrange-shipping done
      order:process record-shipment done
      shipping:publish shipment.arranged
`,
	"declined": `order:POST /orders
  order:publish order.created
  payment:process process-payment done
    order:process record-decline done
    payment:POST /charges
      gateway:POST /charges
    payment:publish payment.declined
`,
	"undone": `order:POST /orders
  order:publish order.created
  payment:process process-payment done
    order:process record-payment done
    payment:POST /charges
      gateway:POST /charges
    payment:publish payment.processed
    shipping:process arrange-shipping done
      order:process record-rejection done
      payment:compensate process-payment done
        order:process record-refund done
        payment:POST /refunds
          gateway:POST /refunds
        payment:publish payment.refunded
      shipping:publish shipment.rejected
`,
}

// An order is one trace over all processes, declined or undone or neither. A message
// that comes again is in none of them, but linked to the one in which it was written. A
// compensation is in it, below what asked for it, and linked to the action that it undoes.
func TestAnOrderIsOneTraceOverAllProcesses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "spans")
	s := &settings{trace: file, Settings: demo.Settings{
		Program: program, Services: program.Services, StartTimeout: time.Minute, Namespace: pgtest.Name(),
		DatabaseURL: smallPool(t, database(t)), AMQPURL: brokerURL(),
	}}
	environ := func(env []string) []string {
		return append(env, "ORDER_SAGA_MAIN=1", "DATABASE_URL="+s.DatabaseURL, "AMQP_URL="+s.AMQPURL)
	}
	f, err := newLaunch(s, false, environ).Start(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.RemoveQueues(t.Output()) })
	running := &site{url: f.URLs["order"], t: t}
	for kind, body := range map[string]string{
		"completed": book, "declined": strings.ReplaceAll(book, "tok_ok", "tok_declined"), "undone": strings.ReplaceAll(book, "book", "unshippable"),
	} {
		running.end("acme", running.place("acme", kind, body))
	}
	again(t, s, f, "completed")
	if err := f.Stop(); err != nil { // each process writes what it has yet
		t.Fatal(err)
	}

	all := readSpans(t, file)
	roots := map[string]string{} // kind by trace
	for kind, want := range wantTraces {
		of := slices.IndexFunc(all, func(s spanLine) bool { return s.Name == "POST /orders" && drawTrace(all, s.Trace) == want })
		if of < 0 {
			for _, s := range all {
				if s.Name == "POST /orders" {
					t.Errorf("the trace of %s (-want +got):\n%s", kind, cmp.Diff(want, drawTrace(all, s.Trace)))
				}
			}
			continue
		}
		roots[all[of].Trace] = kind
	}
	var links []string
	for _, s := range all {
		for _, to := range s.Links {
			at := slices.IndexFunc(all, func(a spanLine) bool { return a.Trace == to.Trace && a.Span == to.Span })
			if at < 0 {
				t.Errorf("%s:%s is linked to %v, which is nothing", s.Service, s.Name, to)
				continue
			}
			links = append(links, fmt.Sprintf("%s:%s %v -> %s:%s of %s", s.Service, s.Name, s.Attributes["sagamill.outcome"], all[at].Service, all[at].Name, roots[to.Trace]))
		}
	}
	slices.Sort(links)
	want := []string{
		"payment:compensate process-payment done -> payment:process process-payment of undone",
		"payment:process process-payment duplicate -> order:POST /orders of completed",
	}
	if diff := cmp.Diff(want, links); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}

// again has the order service's messages of a key published once more, and waits until
// the payment service has absorbed them.
func again(t *testing.T, s *settings, f *demo.Fleet, key string) {
	t.Helper()
	db := pgtest.Pool(t, s.DatabaseURL)
	replayer, err := operator.NewReplayer(db, &operator.Options{Schema: program.Schemas["order"]})
	if err != nil {
		t.Fatal(err)
	}
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		kept, err := replayer.Replay(t.Context(), tx, operator.ReplayFilter{Scope: "acme", Key: key})
		if len(kept) != 1 {
			t.Errorf("%d messages are kept, want that of the order", len(kept))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; _ = backoff.Sleep(t.Context(), 20*time.Millisecond) {
		_, metrics, err := demo.FetchURL(t.Context(), f.URLs["payment"]+"/metrics")
		if err == nil && strings.Contains(string(metrics), `outcome="duplicate"`) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no duplicate has come: %v\n%s", err, metrics)
		}
	}
}

func readSpans(t *testing.T, file string) []spanLine {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	l := &lines{}
	_, _ = l.Write(text)
	return l.spans(t)
}

// drawTrace draws the spans of a trace, each under its parent.
func drawTrace(all []spanLine, trace string) string {
	var b strings.Builder
	var draw func(parent, indent string)
	draw = func(parent, indent string) {
		var children []string
		ids := map[string][]string{}
		for _, s := range all {
			if s.Trace != trace || s.Parent != parent {
				continue
			}
			line := s.Service + ":" + s.Name
			if outcome, ok := s.Attributes["sagamill.outcome"]; ok {
				line += fmt.Sprint(" ", outcome)
			}
			children, ids[line] = append(children, line), append(ids[line], s.Span)
		}
		slices.Sort(children)
		for _, line := range children {
			fmt.Fprintf(&b, "%s%s\n", indent, line)
			id := ids[line][0]
			ids[line] = ids[line][1:]
			draw(id, indent+"  ")
		}
	}
	draw("", "")
	return b.String()
}
