package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A kind is a sort of order in the demo's load.
type kind struct {
	name     string
	share    int    // of a hundred orders
	body     string // of POST /orders, with the amount left out
	copies   int    // clients that place it at the same time
	outcome  string // the status that it must end in
	expected string // for the table
}

var kinds = []kind{
	{"accepted", 50, `{"item":"book","quantity":1,"amount":%d,"currency":"EUR","card":"tok_ok"}`, 1, "completed", "charged, shipped"},
	{"duplicate clients", 14, `{"item":"book","quantity":2,"amount":%d,"currency":"EUR","card":"tok_ok"}`, 3, "completed", "charged once, same reply to all"},
	{"declined card", 10, `{"item":"book","quantity":1,"amount":%d,"currency":"EUR","card":"tok_declined"}`, 1, "cancelled", "nothing charged"},
	{"unshippable item", 12, `{"item":"unshippable","quantity":1,"amount":%d,"currency":"EUR","card":"tok_ok"}`, 1, "cancelled", "charged, refunded"},
	{"lost gateway reply", 8, `{"item":"book","quantity":1,"amount":%d,"currency":"EUR","card":"tok_lost_reply"}`, 1, "completed", "charged once, asked twice"},
	{"flaky gateway", 4, `{"item":"book","quantity":1,"amount":%d,"currency":"EUR","card":"tok_flaky"}`, 1, "completed", "charged at the third attempt"},
	{"slow gateway", 2, `{"item":"book","quantity":1,"amount":%d,"currency":"EUR","card":"tok_slow"}`, 1, "completed", "charged after 2 s"},
}

// A placed order is what the clients know of one order.
type placed struct {
	kind   *kind
	tenant string
	key    string
	amount int64

	replies [][]byte // one for each client that placed it
	id      string
	last    view
}

// view is what GET /orders/{id} answers.
type view struct {
	Status string `json:"status"`
	Reason string `json:"reason"`
	Steps  []struct {
		Step     string `json:"step"`
		State    string `json:"state"`
		Attempts int    `json:"attempts"`
	} `json:"steps"`
}

func (p *placed) ended() bool { return p.last.Status == "completed" || p.last.Status == "cancelled" }

// A load is all orders of a demo, and how far they are.
type load struct {
	url     string
	client  *http.Client
	orders  []*placed
	known   chan *placed // those that were accepted; room for all
	placed  atomic.Int64
	retries atomic.Int64
	ended   atomic.Int64
}

func newLoad(url string, n int) *load {
	l := &load{url: url, client: &http.Client{Timeout: 30 * time.Second}, known: make(chan *placed, n)}
	for i := range n {
		l.orders = append(l.orders, &placed{
			kind:   pick(i),
			tenant: fmt.Sprintf("tenant-%d", i%3), key: fmt.Sprintf("order:%d", i/3), // the same keys in each tenant
			amount: int64(100 + i),
		})
	}
	return l
}

// pick spreads the kinds over the first orders, so that a small load has all
// of them, and then by share.
func pick(i int) *kind {
	if i < len(kinds) {
		return &kinds[i]
	}
	n := rand.IntN(100)
	for k := range kinds {
		if n -= kinds[k].share; n < 0 {
			return &kinds[k]
		}
	}
	return &kinds[0]
}

// place sends every order, from clients at the same time.
func (l *load) place(ctx context.Context, clients int) error {
	queue := make(chan *placed)
	var working sync.WaitGroup
	errs := make([]error, clients)
	for c := range clients {
		working.Go(func() {
			for p := range queue {
				if errs[c] == nil {
					errs[c] = l.placeOne(ctx, p)
				}
			}
		})
	}
	for _, p := range l.orders {
		queue <- p
	}
	close(queue)
	working.Wait()
	return errors.Join(errs...)
}

func (l *load) placeOne(ctx context.Context, p *placed) error {
	p.replies = make([][]byte, p.kind.copies)
	errs := make([]error, p.kind.copies)
	var posting sync.WaitGroup
	for i := range p.replies {
		posting.Go(func() { p.replies[i], errs[i] = l.post(ctx, p) })
	}
	posting.Wait()
	l.placed.Add(1)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var reply struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(p.replies[0], &reply); err != nil || reply.ID == "" {
		return fmt.Errorf("POST /orders answered %.200q", p.replies[0])
	}
	p.id = reply.ID
	l.known <- p
	return nil
}

// post keeps to the client's side of the Idempotency-Key contract: after a
// timeout, a broken connection, a 409 or a 5xx it sends the same key again.
func (l *load) post(ctx context.Context, p *placed) ([]byte, error) {
	body := fmt.Appendf(nil, p.kind.body, p.amount)
	var last error
	for try := range 60 {
		if try > 0 {
			l.retries.Add(1)
			pause(ctx, min(50*time.Millisecond<<min(try, 10), 2*time.Second))
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/orders", bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+p.tenant)
		r.Header.Set("Idempotency-Key", p.key)
		r.Header.Set("Content-Type", "application/json")
		status, reply, err := l.do(r)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			last = err
		case status == http.StatusAccepted:
			return reply, nil
		case status == http.StatusConflict || status >= 500:
			last = fmt.Errorf("%d %.200s", status, reply)
		default:
			return nil, fmt.Errorf("POST /orders: %d %.200s", status, reply)
		}
	}
	return nil, fmt.Errorf("POST /orders: given up: %w", last)
}

func (l *load) do(r *http.Request) (status int, body []byte, err error) {
	answer, err := l.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	return answer.StatusCode, body, err
}

// awaitEnd asks for each order, as soon as it is accepted, until all have
// ended, or ctx has.
func (l *load) awaitEnd(ctx context.Context) {
	var open []*placed
	for ctx.Err() == nil && int(l.ended.Load()) < len(l.orders) {
		for len(l.known) > 0 {
			open = append(open, <-l.known)
		}
		open = slices.DeleteFunc(open, func(p *placed) bool {
			l.look(ctx, p)
			if p.ended() {
				l.ended.Add(1)
			}
			return p.ended()
		})
		pause(ctx, 100*time.Millisecond)
	}
}

// look asks what became of an order. A service that is away is asked again.
func (l *load) look(ctx context.Context, p *placed) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url+"/orders/"+p.id, nil)
	if err != nil {
		return
	}
	r.Header.Set("Authorization", "Bearer "+p.tenant)
	status, body, err := l.do(r)
	var v view
	if err == nil && status == http.StatusOK && json.Unmarshal(body, &v) == nil {
		p.last = v
	}
}

// progress returns how much of the work is done, from 0 to 1.
func (l *load) progress() float64 {
	return float64(l.placed.Load()) / float64(len(l.orders))
}

// report prints how far the load is, a line a second.
func (l *load) report(ctx context.Context, w io.Writer, f *fleet) {
	for started := time.Now(); ctx.Err() == nil; {
		pause(ctx, time.Second)
		line := fmt.Sprintf("%4.0fs  placed %d of %d, ended %d", time.Since(started).Seconds(), l.placed.Load(), len(l.orders), l.ended.Load())
		if n := l.retries.Load(); n > 0 {
			line += ", client retries " + strconv.FormatInt(n, 10)
		}
		if n := f.restarts.Load(); n > 0 {
			line += ", processes restarted " + strconv.FormatInt(n, 10)
		}
		fmt.Fprintln(w, line)
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
