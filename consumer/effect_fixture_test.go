package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A provider is an external service. Its ledger has a line for each effect, so that a test sees an effect that
// happened twice.
type provider struct {
	url     string
	honours bool // it answers a key that it knows without a second effect

	mu      sync.Mutex
	ledger  []string
	asked   int
	unheard int          // questions to fail
	refuse  []string     // answers to the next requests, which have no effect
	lose    int          // replies to lose
	arrived func(string) // called on arrival of a request for an effect, before it happens

	entered chan struct{} // has room for one; told when the ledger gets a line
}

func newProvider(t *testing.T, honours bool) *provider {
	t.Helper()
	p := &provider{honours: honours, arrived: func(string) {}, entered: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{what}", p.serveEffect)
	mux.HandleFunc("GET /{what}", p.serveQuestion)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// serveEffect goes on after its client has given up, as real ones do.
func (p *provider) serveEffect(w http.ResponseWriter, r *http.Request) {
	key, what := r.Header.Get("Idempotency-Key"), r.PathValue("what")
	p.arrived(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.refuse) > 0 {
		answer := p.refuse[0]
		p.refuse = p.refuse[1:]
		http.Error(w, answer, http.StatusServiceUnavailable)
		return
	}
	line := what + " " + key
	if !p.honours || !slices.Contains(p.ledger, line) {
		p.ledger = append(p.ledger, line)
		select {
		case p.entered <- struct{}{}:
		default:
		}
	}
	if p.lose > 0 {
		p.lose--
		panic(http.ErrAbortHandler)
	}
	fmt.Fprint(w, "receipt of "+what)
}

func (p *provider) serveQuestion(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.unheard > 0 {
		p.unheard--
		panic(http.ErrAbortHandler)
	}
	what := r.PathValue("what")
	if !slices.Contains(p.ledger, what+" "+r.Header.Get("Idempotency-Key")) {
		http.NotFound(w, r)
		return
	}
	fmt.Fprint(w, "receipt of "+what)
}

// made returns what the provider has done, with how many different keys.
func (p *provider) made() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	keys := map[string]bool{}
	for _, line := range p.ledger {
		what, key, _ := strings.Cut(line, " ")
		all = append(all, what)
		keys[key] = true
	}
	return fmt.Sprint(strings.Join(all, ", "), " / ", len(keys))
}

// loseReply has the reply to the next request with an effect not arrive.
func (p *provider) loseReply() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = 1
}

// enter executes a request whose caller no longer waits for it.
func (p *provider) enter(what string, d *Delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ledger = append(p.ledger, what+" "+d.EffectKey())
}

func (p *provider) times(field *int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *field
}

// checkAsked fails the test unless the provider was asked want times for a result.
func (p *provider) checkAsked(t *testing.T, want int) {
	t.Helper()
	if got := p.times(&p.asked); got != want {
		t.Errorf("the provider was asked %d times, want %d", got, want)
	}
}

// A client is how the test's steps reach a provider.
type client struct{ url string }

func (c client) send(ctx context.Context, method, what, key string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url+"/"+what, nil)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Idempotency-Key", key)
	r.Close = true // net/http sends a request again on its own when a kept connection turns out to be closed
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, strings.TrimSpace(string(text)), err
}

func (c client) call(what string) Call[payment, string] {
	return func(ctx context.Context, _ Message[payment], key string) (string, error) {
		status, text, err := c.send(ctx, http.MethodPost, what, key)
		switch {
		case err != nil || status == http.StatusOK:
			return text, err
		case strings.Contains(text, "never"):
			err = Terminal(errors.New(text))
		case strings.Contains(text, "person"):
			err = Park(errors.New(text))
		default:
			err = errors.New(text)
		}
		if strings.Contains(text, "not done") {
			err = NotDone(err)
		}
		return "", err
	}
}

func (c client) verify(what string) Verify[payment, string] {
	return func(ctx context.Context, _ Message[payment], key string) (string, bool, error) {
		status, text, err := c.send(ctx, http.MethodGet, what, key)
		return text, status == http.StatusOK, err
	}
}

// record leaves the result and the message's amount in the effect table.
func (f *fixture) record() Record[payment, string] {
	return func(ctx context.Context, tx pgx.Tx, in Message[payment], result string, _ Emit) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+f.schema+".effect (what) VALUES ($1)", fmt.Sprint(result, " ", in.Key, " ", in.Body.Amount))
		return err
	}
}

// effectStep is a step whose action and compensation are effects at the
// provider at url. With verify it does not rely on keys.
func (f *fixture) effectStep(url string, verify bool) Step {
	c := client{url}
	ask, askUndo := c.verify("pay"), c.verify("refund")
	if !verify {
		ask, askUndo = nil, nil
	}
	return Step{
		Name: "process-payment", RetryBase: 1, RetryCap: 1, Settle: 1, MaxAttempts: 5,
		Action:       Effect("pay", c.call("pay"), ask, f.record()),
		Compensation: Effect("unpay", c.call("refund"), askUndo, f.record()),
	}
}

// pass lets a day pass for what is parked: leases run out, calls settle.
func (f *fixture) pass(t *testing.T) {
	t.Helper()
	f.exec(t, `UPDATE {schema}.parked SET due_at = due_at - interval '1 day', last_at = last_at - interval '1 day', first_at = first_at - interval '1 day',
		redriven_at = redriven_at - interval '1 day'`)
}

// doubts returns "state reason attempts" of every parked message, with a
// question mark where it is in doubt.
func (f *fixture) doubts(t *testing.T) string {
	t.Helper()
	return strings.Join(f.texts(t, `SELECT concat_ws(' ', state, reason, attempts) || CASE WHEN in_doubt THEN '?' ELSE '' END FROM {schema}.parked ORDER BY id`), "; ")
}

// finishParked runs what is parked until nothing is, a day at a time.
func (f *fixture) finishParked(t *testing.T, c *Consumer) {
	t.Helper()
	for range 20 {
		f.pass(t)
		if runParkedOnce(t, c) == 0 {
			return
		}
	}
	t.Fatalf("still parked: %s", f.doubts(t))
}
