package main

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func (s *site) delete(tenant, id string) answer {
	s.t.Helper()
	return s.do("DELETE", "/trips/"+id, "", "Authorization", "Bearer "+tenant)
}

func TestACustomerCancels(t *testing.T) {
	t.Parallel()
	s := newSite(t, brokerURL(), 4*time.Second)
	r := &result{}
	place := func(name string) *placed {
		for i := range kinds {
			if kinds[i].name == name {
				p := &placed{kind: &kinds[i], tenant: "acme", replies: make([][]byte, 1)}
				p.id = s.place(p.tenant, strings.ReplaceAll(name, " ", "-"), p.kind.body)
				r.trips = append(r.trips, p)
				return p
			}
		}
		t.Fatalf("there is no kind %s", name)
		return nil
	}
	early, late := place("cancelled"), place("good")
	s.until("acme", late.id, ended)

	for range 2 { // to say it again changes nothing
		a := s.delete("acme", early.id)
		if early.deleted = a.status; a.status != http.StatusAccepted || !strings.Contains(a.body, `"status":"compensat`) {
			t.Errorf("DELETE before the ticket: %d %s", a.status, a.body)
		}
	}
	early.last = s.until("acme", early.id, ended)
	if early.last.Status != compensated || early.last.Reason != "cancelled: by the customer" || early.last.steps() != givenBack+never {
		t.Errorf("cancelled trip: %s %q, %s", early.last.Status, early.last.Reason, early.last.steps())
	}
	if a := s.delete("acme", early.id); a.status != http.StatusAccepted {
		t.Errorf("DELETE of what is cancelled: %d %s", a.status, a.body)
	}

	a := s.delete("acme", late.id)
	if late.deleted = a.status; a.status != http.StatusConflict || !strings.Contains(a.body, "trip-committed") {
		t.Errorf("DELETE after the ticket: %d %s", a.status, a.body)
	}
	late.last = s.until("acme", late.id, ended)
	s.settle(r)
}
