package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

func (s *site) delete(tenant, id string) answer {
	s.t.Helper()
	return s.do("DELETE", "/trips/"+id, "", "Authorization", "Bearer "+tenant)
}

func TestACustomerCancels(t *testing.T) {
	t.Parallel()
	s := newSite(t, brokerURL(), 10*time.Second)
	r := &result{}
	place := func(name string) *placed {
		for i := range kinds {
			if kinds[i].name == name {
				p := &placed{Placement: demo.Placement{Tenant: "acme", Replies: make([][]byte, 1)}, kind: &kinds[i]}
				p.ID = s.place(p.Tenant, strings.ReplaceAll(name, " ", "-"), p.kind.body)
				r.trips = append(r.trips, p)
				return p
			}
		}
		t.Fatalf("there is no kind %s", name)
		return nil
	}
	early, late := place("cancelled"), place("good")
	s.until("acme", late.ID, ended)

	for range 2 { // to say it again changes nothing
		a := s.delete("acme", early.ID)
		if early.deleted = a.status; a.status != http.StatusAccepted || !strings.Contains(a.body, `"status":"compensat`) {
			t.Errorf("DELETE before the ticket: %d %s", a.status, a.body)
		}
	}
	early.last = s.until("acme", early.ID, ended)
	if early.last.Status != compensated || early.last.Reason != "cancelled: by the customer" || early.last.steps() != givenBack+never {
		t.Errorf("cancelled trip: %s %q, %s", early.last.Status, early.last.Reason, early.last.steps())
	}
	if a := s.delete("acme", early.ID); a.status != http.StatusAccepted {
		t.Errorf("DELETE of what is cancelled: %d %s", a.status, a.body)
	}

	a := s.delete("acme", late.ID)
	if late.deleted = a.status; a.status != http.StatusConflict || !strings.Contains(a.body, "trip-committed") {
		t.Errorf("DELETE after the ticket: %d %s", a.status, a.body)
	}
	late.last = s.until("acme", late.ID, ended)
	s.settle(r)
}
