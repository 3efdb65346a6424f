package cookbook

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
)

// A bank is a provider that honours idempotency keys. It loses its first answer.
type bank struct {
	mu       sync.Mutex
	declined string
	keys     []string // of all requests
	charges  int
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := r.Header.Get("Idempotency-Key")
	if !slices.Contains(b.keys, key) && b.declined == "" {
		b.charges++
	}
	b.keys = append(b.keys, key)
	if len(b.keys) == 1 {
		panic(http.ErrAbortHandler) // the connection ends without an answer
	}
	_ = json.NewEncoder(w).Encode(Charge{ID: "ch-1", Declined: b.declined})
}

func runCharge(t *testing.T, b *bank) *sagamill.Service {
	t.Helper()
	web := httptest.NewServer(b)
	t.Cleanup(web.Close)
	p := &Provider{URL: web.URL, Client: web.Client()}
	s := start(t, sagamill.Config{Steps: append(ends("payment.taken", "payment.declined"), p.Step())})
	send(t, s, order("order.created", "1"))
	return s
}

// An answer that was lost is asked for again under the same key, so that the card is charged once.
func TestProviderChargesOnceAfterALostAnswer(t *testing.T) {
	t.Parallel()
	b := &bank{}
	s := runCharge(t, b)
	awaitText(t, s, "payment.taken saga-1", sqlEnds)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.keys) != 2 || b.keys[0] == "" || b.keys[0] != b.keys[1] || b.charges != 1 {
		t.Errorf("%d charges by requests with the keys %q, want one charge by two requests with one key", b.charges, b.keys)
	}
	if got := readText(t, s, "SELECT string_agg(charge_id, ', ') FROM shop.payment"); got != "ch-1" {
		t.Errorf("payments: %s, want ch-1", got)
	}
}

// A declined card is an answer: it is recorded, and nothing is a dead letter.
func TestProviderDeclines(t *testing.T) {
	t.Parallel()
	s := runCharge(t, &bank{declined: "no money"})
	awaitText(t, s, "payment.declined saga-1", sqlEnds)
	if stats, err := s.Consumer().Stats(t.Context()); stats.Dead != 0 || err != nil {
		t.Errorf("%d dead letters (%v)", stats.Dead, err)
	}
	if got := readText(t, s, "SELECT string_agg(declined, ', ') FROM shop.payment"); got != "no money" {
		t.Errorf("payments: %s, want no money", got)
	}
}

var _ consumer.Call[Order, Charge] = (*Provider)(nil).charge
