package poolertest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// Requests, outbox, steps and sagas do without anything that a connection remembers, in
// each way to talk that leaves no prepared statements behind.
func TestTransactionMode(t *testing.T) {
	t.Parallel()
	b := newBouncer(t)
	for _, mode := range []string{"exec", "cache_describe", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, b, mode)
			var orders sync.WaitGroup
			for n := range 5 * len(items) {
				orders.Go(func() {
					for range 2 { // the second is a replay
						if err := p.order(fmt.Sprint(n), items[n%len(items)].item); err != nil {
							t.Error(err)
						}
					}
				})
			}
			orders.Wait()
			for n := range 5 * len(items) {
				p.expect(fmt.Sprint(n), items[n%len(items)].effects)
			}
			p.look()
		})
	}
}

// look reads what an operator does, through the pooler.
func (p *place) look() {
	p.t.Helper()
	if stats, err := p.relay.Stats(p.t.Context()); err != nil || stats.Refused+stats.Waiting+stats.Dead != 0 {
		p.t.Errorf("outbox: %+v, %v", stats, err)
	}
	refused, err := operator.NewDeadLetters(p.pooled, operator.Outbox, &operator.Options{Schema: p.schema})
	check(p.t, err)
	if n, err := refused.Count(p.t.Context(), operator.Filter{}); n != 0 || err != nil {
		p.t.Errorf("%d dead letters of the outbox, %v", n, err)
	}
	letters, err := operator.NewDeadLetters(p.pooled, operator.Inbox, &operator.Options{Schema: p.schema})
	check(p.t, err)
	if list, err := letters.List(p.t.Context(), operator.Filter{}, 0, 10); len(list) != 0 || err != nil {
		p.t.Errorf("%d dead letters of steps, %v", len(list), err)
	}
	instances, err := operator.NewInstances(p.pooled, &operator.Options{Schema: p.schema})
	check(p.t, err)
	if list, err := instances.List(p.t.Context(), operator.InstanceFilter{}, saga.Address{}, 100); len(list) != 5*len(items) || err != nil {
		p.t.Errorf("%d instances, %v; want %d", len(list), err, 5*len(items))
	}
}

// Each restart cuts off requests, steps and the relay, some of them in the middle of a
// COMMIT. Every saga ends all the same, and has done everything once.
func TestRestarts(t *testing.T) {
	t.Parallel()
	const orders, restarts = 60, 4
	b := newBouncer(t)
	p := newPlace(t, b, "exec")
	accepted := make(chan int, orders)
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for n := client; n < orders; n += 4 {
				if err := p.order(fmt.Sprint(n), items[n%len(items)].item); err != nil {
					t.Error(err)
				}
				accepted <- n
			}
		})
	}
	for n := range orders {
		select {
		case <-accepted:
		case <-time.After(patience):
			t.Fatalf("only %d orders were accepted within %v", n, patience)
		}
		if n%(orders/(restarts+1)) == orders/(restarts+1)-1 {
			b.restart()
		}
	}
	clients.Wait()
	for n := range orders {
		p.expect(fmt.Sprint(n), items[n%len(items)].effects)
	}
}
