package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

// A kind is a kind of trip in the demo's load.
type kind struct {
	name     string
	share    int    // of a hundred trips
	body     string // of POST /trips
	copies   int    // clients that place it at the same time
	outcome  string // status that the trip must end in; empty: either, it depends on other trips
	expected string // for the table

	cancel time.Duration // the customer cancels within this time after the trip is accepted; 0: never
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

// A placed trip is one trip of the demo, as its clients see it.
type placed struct {
	demo.Placement
	kind *kind

	deleted int // status of the answer to DELETE
	last    view

	began  time.Time     // when the request was first sent
	lasted time.Duration // from then until the client saw that the trip had ended
}

// A view is the body of the answer to GET /trips/{id}.
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

func (p *placed) hasEnded() bool { return p.last.Status == completed || p.last.Status == compensated }

// A load is all trips of a demo.
type load struct{ demo.Load[*placed] }

func newLoad(url string, n int) *load {
	l := &load{}
	l.URL, l.Client = url, &http.Client{Timeout: 30 * time.Second}
	l.Place = l.placeTrip
	l.HasEnded = func(ctx context.Context, p *placed) bool {
		l.refreshStatus(ctx, p)
		if p.hasEnded() {
			p.lasted = time.Since(p.began)
		}
		return p.hasEnded()
	}
	var shares []int
	for _, k := range kinds {
		shares = append(shares, k.share)
	}
	for i := range n {
		k := &kinds[demo.PickKind(i, shares)]
		l.Items = append(l.Items, &placed{Placement: program.NewPlacement(i, k.copies), kind: k})
	}
	return l
}

// placeTrip posts the trip from all of its clients, and then cancels it if its kind has a cancel time.
func (l *load) placeTrip(ctx context.Context, p *placed) error {
	p.began = time.Now()
	if err := l.PostCopies(ctx, &p.Placement, "/trips", p.kind.body); err != nil {
		return err
	}
	if p.kind.cancel == 0 {
		return nil
	}
	select {
	case <-time.After(rand.N(p.kind.cancel)):
	case <-ctx.Done():
	}
	return l.cancelTrip(ctx, p)
}

// cancelTrip cancels the trip. The answer that it is too late is no error.
func (l *load) cancelTrip(ctx context.Context, p *placed) error {
	status, reply, err := l.RepeatRequest(ctx, &p.Placement, http.MethodDelete, "/trips/"+p.ID, "", func(int) bool { return false })
	p.deleted = status
	if err == nil && status != http.StatusAccepted && status != http.StatusConflict {
		err = fmt.Errorf("DELETE /trips: %d %.200s", status, reply)
	}
	return err
}

// refreshStatus reads the trip's status. If the service is away, the trip keeps its last status.
func (l *load) refreshStatus(ctx context.Context, p *placed) {
	status, body, err := l.SendRequest(ctx, &p.Placement, http.MethodGet, "/trips/"+p.ID, "")
	var v view
	if err == nil && status == http.StatusOK && json.Unmarshal(body, &v) == nil {
		p.last = v
	}
}
