package fault

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
)

// A journal is what a site has logged.
type journal struct {
	mu     sync.Mutex
	events []record.Event
}

func (j *journal) add(e record.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

// openSite builds the programs and starts a site.
func openSite(t *testing.T) (*site.Site, *journal) {
	t.Helper()
	programs, err := site.BuildPrograms(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp("", "chaos-") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(work) })
	if err := os.Chmod(work, 0o755); err != nil {
		t.Fatal(err)
	}
	j := &journal{}
	s, err := site.OpenSite(t.Context(), site.Options{Dir: t.TempDir(), Work: work, Programs: programs, Log: j.add, Fuses: PlanFuses(1)})
	if errors.Is(err, site.ErrAbsent) {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.StartProcesses(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, j
}

// each returns a plan with every fault once, except the broker's restarts, which take longest: a brief storm
// has them as well.
func each() (plan []record.Planned) {
	const apart = 300 * time.Millisecond
	r := randomStream(1, faultStream)
	add := func(d draft) {
		d.N, d.At, d.For = len(plan)+1, time.Duration(len(plan))*apart, min(d.For, time.Second)
		plan = append(plan, d.Planned)
	}
	add(draft{Planned: record.Planned{Fault: Kill, Target: "order-1"}})
	for i := range kinds {
		if kinds[i].takes != brokerBoot {
			add(kinds[i].drawFault(r, shortStorm))
		}
	}
	return plan
}

// Every fault can be carried out on a real site, and healed.
func TestEveryFaultIsCarriedOutAndHealed(t *testing.T) {
	t.Parallel()
	s, j := openSite(t)
	plan := each()
	if err := CarryOut(t.Context(), s, plan, func() int { return 1 }); err != nil {
		t.Fatal(err)
	}
	if err := s.HealAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := map[string]record.Event{}
	for _, e := range j.events {
		if e.N > 0 {
			done[e.Fault] = e
		}
		if e.Fault == record.Exit && strings.HasPrefix(e.Args, "by itself") {
			t.Errorf("%+v", e)
		}
	}
	for _, p := range plan {
		switch e, ok := done[p.Fault]; {
		case !ok:
			t.Errorf("%s was not carried out", p.Fault)
		case e.Err != "" || e.N != p.N || e.Target != p.Target || e.Open != 1 || e.Until < e.At:
			t.Errorf("%+v was carried out as %+v", p, e)
		default:
			t.Logf("%s %s (%s) struck %d in %s", e.Fault, e.Target, e.Args, e.Hits, (e.Until - e.At).Round(time.Millisecond))
		}
	}
	if want := len(plan); len(done) != want {
		t.Errorf("carried out: %v, want %d faults", slices.Sorted(maps.Keys(done)), want)
	}
	ordersOutliveTheirQueue(t, s)
	for _, stopped := range s.StopProcesses(t.Context()) {
		if stopped.Code != 0 {
			t.Errorf("%s ended with %d after %s", stopped.Name, stopped.Code, stopped.Took)
		}
	}
}

// ordersOutliveTheirQueue deletes the queue of the payment services while it holds orders, and while suspended
// services hold more of them unacked.
func ordersOutliveTheirQueue(t *testing.T, s *site.Site) {
	t.Helper()
	payments := []string{"payment-1", "payment-2"}
	for _, name := range payments {
		if ok, err := s.SuspendProcess(name); !ok || err != nil {
			t.Fatalf("suspend %s: %v, %v", name, ok, err)
		}
	}
	orders := 0
	await(t, "the services have their hands full", func() bool {
		placeOrder(t, s.OrderURLs()[orders%2], fmt.Sprint("order-", orders))
		orders++
		return ready(t, s, "chaos-order.order.created.payment") > 0
	})
	if err := CarryOut(t.Context(), s, []record.Planned{{Fault: QueueDelete, Target: "order.created"}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range payments {
		if _, err := s.ResumeProcess(name); err != nil {
			t.Fatal(err)
		}
	}
	completed := 0
	await(t, "all orders are completed", func() bool {
		err := s.DatabasePool().QueryRow(t.Context(), "SELECT count(*) FROM order_service.orders WHERE status = 'completed'").Scan(&completed)
		if err != nil {
			t.Fatal(err)
		}
		return completed == orders
	})
	t.Logf("%d orders have outlived their queue", orders)
}

// placeOrder places an order that will be completed.
func placeOrder(t *testing.T, url, key string) {
	t.Helper()
	body := `{"item":"book","quantity":1,"amount":100,"currency":"EUR","card":"tok_ok"}`
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/orders", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer tenant")
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated && answer.StatusCode != http.StatusAccepted {
		text, _ := io.ReadAll(answer.Body)
		t.Fatalf("order: %s: %s", answer.Status, text)
	}
}

// ready returns how many messages of a queue are not delivered.
func ready(t *testing.T, s *site.Site, queue string) int {
	t.Helper()
	connection, err := amqp.Dial(s.AMQPURL())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	ch, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

// await waits until done returns true.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	const patience = 2 * time.Minute
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come about that %s", what)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.FailNow()
		}
	}
}

// A plan with a misspelt fault is refused as a whole.
func TestCarryRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	if err := CarryOut(t.Context(), nil, []record.Planned{{Fault: "earthquake"}}, nil); err == nil || !strings.Contains(err.Error(), "earthquake") {
		t.Errorf("Carry = %v, want an error that names the fault", err)
	}
}
