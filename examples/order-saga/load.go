package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

// A kind is a kind of order in the demo's load.
type kind struct {
	name     string
	share    int    // of a hundred orders
	body     string // of POST /orders, with the amount left out
	copies   int    // clients that place it at the same time
	outcome  string // status that the order must end in
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

// A placed order is one order of the demo, as its clients see it.
type placed struct {
	demo.Placement
	kind   *kind
	amount int64
	last   view
}

// A view is the body of the answer to GET /orders/{id}.
type view struct {
	Status string `json:"status"`
	Reason string `json:"reason"`
	Steps  []struct {
		Step     string `json:"step"`
		State    string `json:"state"`
		Attempts int    `json:"attempts"`
	} `json:"steps"`
}

func (p *placed) hasEnded() bool { return p.last.Status == "completed" || p.last.Status == "cancelled" }

// A load is all orders of a demo.
type load struct{ demo.Load[*placed] }

func newLoad(url string, n int) *load {
	l := &load{}
	l.URL, l.Client = url, &http.Client{Timeout: 30 * time.Second}
	l.Place = func(ctx context.Context, p *placed) error {
		return l.PostCopies(ctx, &p.Placement, "/orders", p.formatBody())
	}
	l.HasEnded = func(ctx context.Context, p *placed) bool {
		l.refreshStatus(ctx, p)
		return p.hasEnded()
	}
	var shares []int
	for _, k := range kinds {
		shares = append(shares, k.share)
	}
	for i := range n {
		k := &kinds[demo.PickKind(i, shares)]
		l.Items = append(l.Items, &placed{Placement: program.NewPlacement(i, k.copies), kind: k, amount: int64(100 + i)})
	}
	return l
}

// formatBody returns the body of the order's POST.
func (p *placed) formatBody() string { return fmt.Sprintf(p.kind.body, p.amount) }

// refreshStatus reads the order's status. If the service is away, the order keeps its last status.
func (l *load) refreshStatus(ctx context.Context, p *placed) {
	status, body, err := l.SendRequest(ctx, &p.Placement, http.MethodGet, "/orders/"+p.ID, "")
	var v view
	if err == nil && status == http.StatusOK && json.Unmarshal(body, &v) == nil {
		p.last = v
	}
}
