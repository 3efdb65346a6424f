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

// A kind is a sort of trip in the demo's load.
type kind struct {
	name     string
	share    int    // of a hundred trips
	body     string // of POST /trips
	copies   int    // clients that place it at the same time
	outcome  string // the status that it must end in; empty: either, it depends on others
	expected string // for the table

	cancel time.Duration // the customer cancels at some time until so long after it is accepted; 0: never
}

var kinds = []kind{
	{"good", 34, `{"traveller":"Ada","flight":"LH100","hotel":"grand","budget":90000}`, 1, completed, "booked, ticketed, confirmed", 0},
	{"with a car", 10, `{"traveller":"Ben","flight":"LH100","hotel":"grand","car":"compact","budget":90000}`, 1, completed, "a car as well", 0},
	{"duplicate clients", 10, `{"traveller":"Cleo","flight":"LH100","hotel":"grand","budget":90000}`, 3, completed, "once, same reply to all", 0},
	{"hotel sold out", 6, `{"traveller":"Dora","flight":"LH100","hotel":"full-house","car":"compact","budget":90000}`, 1, compensated, "flight and car given back", 0},
	{"car sold out", 6, `{"traveller":"Egon","flight":"LH100","hotel":"grand","car":"convertible","budget":90000}`, 1, compensated, "flight and hotel given back", 0},
	{"last seats", 6, `{"traveller":"Fay","flight":"ZZ9","hotel":"grand","budget":90000}`, 1, "", "four completed at most", 0},
	{"over budget", 6, `{"traveller":"Gus","flight":"LH100","hotel":"grand","budget":100}`, 1, compensated, "nothing asked for", 0},
	{"silent hotel", 3, `{"traveller":"Hal","flight":"LH100","hotel":"silent-inn","budget":90000}`, 1, compensated, "deadline, never booked", 0},
	{"late hotel", 3, `{"traveller":"Ida","flight":"LH100","hotel":"late-inn","budget":90000}`, 1, compensated, "deadline, booked and given back", 0},
	{"slow hotel", 2, `{"traveller":"Jon","flight":"LH100","hotel":"slow-inn","budget":90000}`, 1, completed, "in time", 0},
	{"no ticket", 4, `{"traveller":"Nofly","flight":"LH100","hotel":"grand","budget":90000}`, 1, compensated, "pivot rejected, all given back", 0},
	{"full mailbox", 4, `{"traveller":"Fullbox","flight":"LH100","hotel":"grand","budget":90000}`, 1, completed, "mail at the third attempt", 0},
	{"cancelled", 3, `{"traveller":"Kim","flight":"LH100","hotel":"slow-inn","budget":90000}`, 1, "", "given back, as the DELETE was answered", time.Millisecond},
	{"cancelled late", 3, `{"traveller":"Lea","flight":"LH100","hotel":"grand","budget":90000}`, 1, "", "as the DELETE was answered", 500 * time.Millisecond},
}

// The statuses that a trip ends in.
const (
	completed   = "completed"
	compensated = "compensated"
)

// A placed trip is what the clients know of one trip.
type placed struct {
	kind   *kind
	tenant string
	key    string

	replies [][]byte // one for each client that placed it
	id      string
	deleted int // status of the answer to DELETE
	last    view

	began  time.Time     // when it was first sent
	lasted time.Duration // from then until it was seen to have ended
}

// view is what GET /trips/{id} answers.
type view struct {
	Status string `json:"status"`
	Reason string `json:"reason"`
	Steps  []struct {
		Step     string `json:"step"`
		State    string `json:"state"`
		Attempts int    `json:"attempts"`
	} `json:"steps"`
	Itinerary string `json:"itinerary"`
}

func (p *placed) ended() bool { return p.last.Status == completed || p.last.Status == compensated }

// A load is all trips of a demo, and how far they are.
type load struct {
	url     string
	client  *http.Client
	trips   []*placed
	known   chan *placed // those that were accepted; room for all
	placed  atomic.Int64
	retries atomic.Int64
	ended   atomic.Int64
}

func newLoad(url string, n int) *load {
	l := &load{url: url, client: &http.Client{Timeout: 30 * time.Second}, known: make(chan *placed, n)}
	for i := range n {
		l.trips = append(l.trips, &placed{
			kind:   pick(i),
			tenant: fmt.Sprintf("tenant-%d", i%3), key: fmt.Sprintf("trip:%d", i/3), // the same keys in each tenant
		})
	}
	return l
}

// pick spreads the kinds over the first trips, so that a small load has all
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

// place sends every trip, from clients at the same time.
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
	for _, p := range l.trips {
		queue <- p
	}
	close(queue)
	working.Wait()
	return errors.Join(errs...)
}

func (l *load) placeOne(ctx context.Context, p *placed) error {
	p.began = time.Now()
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
		return fmt.Errorf("POST /trips answered %.200q", p.replies[0])
	}
	p.id = reply.ID
	if p.kind.cancel > 0 {
		pause(ctx, rand.N(p.kind.cancel))
		if err := l.delete(ctx, p); err != nil {
			return err
		}
	}
	l.known <- p
	return nil
}

// post keeps to the client's side of the Idempotency-Key contract: after a
// timeout, a broken connection, a 409 or a 5xx it sends the same key again.
func (l *load) post(ctx context.Context, p *placed) ([]byte, error) {
	status, reply, err := l.insist(ctx, p, http.MethodPost, "/trips", p.kind.body, func(status int) bool { return status == http.StatusConflict })
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("POST /trips: %d %.200s", status, reply)
	}
	return reply, err
}

// delete cancels the trip, or learns that it is too late.
func (l *load) delete(ctx context.Context, p *placed) error {
	status, reply, err := l.insist(ctx, p, http.MethodDelete, "/trips/"+p.id, "", func(int) bool { return false })
	p.deleted = status
	if err == nil && status != http.StatusAccepted && status != http.StatusConflict {
		err = fmt.Errorf("DELETE /trips: %d %.200s", status, reply)
	}
	return err
}

// insist asks until there is an answer that is not for another try.
func (l *load) insist(ctx context.Context, p *placed, method, path, body string, again func(status int) bool) (status int, reply []byte, err error) {
	for try := range 60 {
		if try > 0 {
			l.retries.Add(1)
			pause(ctx, min(50*time.Millisecond<<min(try, 10), 2*time.Second))
		}
		status, reply, err = l.ask(ctx, p, method, path, body)
		switch {
		case ctx.Err() != nil:
			return 0, nil, ctx.Err()
		case err == nil && status < 500 && !again(status):
			return status, reply, nil
		}
	}
	return 0, nil, fmt.Errorf("%s %s: given up: %d %.200s, %w", method, path, status, reply, err)
}

// ask makes one request for the trip's tenant, with the trip's key.
func (l *load) ask(ctx context.Context, p *placed, method, path, body string) (status int, reply []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, l.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+p.tenant)
	if method == http.MethodPost {
		r.Header.Set("Idempotency-Key", p.key)
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := l.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	reply, err = io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return answer.StatusCode, reply, err
}

// awaitEnd asks for each trip, as soon as it is accepted, until all have
// ended, or ctx has.
func (l *load) awaitEnd(ctx context.Context) {
	var open []*placed
	for ctx.Err() == nil && int(l.ended.Load()) < len(l.trips) {
		for len(l.known) > 0 {
			open = append(open, <-l.known)
		}
		open = slices.DeleteFunc(open, func(p *placed) bool {
			l.look(ctx, p)
			if p.ended() {
				p.lasted = time.Since(p.began)
				l.ended.Add(1)
			}
			return p.ended()
		})
		pause(ctx, 100*time.Millisecond)
	}
}

// look asks what became of a trip. A service that is away is asked again.
func (l *load) look(ctx context.Context, p *placed) {
	status, body, err := l.ask(ctx, p, http.MethodGet, "/trips/"+p.id, "")
	var v view
	if err == nil && status == http.StatusOK && json.Unmarshal(body, &v) == nil {
		p.last = v
	}
}

// progress returns how much of the work is done, from 0 to 1.
func (l *load) progress() float64 {
	return float64(l.placed.Load()) / float64(len(l.trips))
}

// report prints how far the load is, a line a second.
func (l *load) report(ctx context.Context, w io.Writer, f *fleet) {
	for started := time.Now(); ctx.Err() == nil; {
		pause(ctx, time.Second)
		line := fmt.Sprintf("%4.0fs  placed %d of %d, ended %d", time.Since(started).Seconds(), l.placed.Load(), len(l.trips), l.ended.Load())
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
