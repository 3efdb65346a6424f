package judge

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

const compensated = "compensated"

// sagaGraph holds the allowed changes of an instance's status.
var sagaGraph = map[string][]string{
	"":             {"running", "compensating", completed, compensated},
	"running":      {"compensating", completed, compensated, "stuck", "paused"},
	"compensating": {compensated, "stuck", "paused"},
	"stuck":        {"running", "compensating", completed, compensated},
	"paused":       {"running", "compensating", completed, compensated, "stuck"},
}

func (c *run) judgeTrips() []*Invariant {
	once := &Invariant{ID: "I1", Says: "a trip has each booking, ticket, mail and itinerary once at most"}
	ends := &Invariant{ID: "I2", Says: "every accepted trip is there and ends as it should, or is compensated for a deadline"}
	stock := &Invariant{ID: "I3", Says: "units are conserved: what a stock lacks is held, by trips that are completed"}
	graph := &Invariant{ID: "I4", Says: "an instance changes along its graph, each change a revision, and ends once"}
	undone := &Invariant{ID: "I5", Says: "a completed trip holds what it booked and has its papers; of any other all is given back, and there are none"}
	order := &Invariant{ID: "I11", Says: "nothing is given back after the ticket was issued, and nothing is booked after it"}
	for _, t := range c.trips {
		t.judgeOnce(once)
		c.judgeTripEnd(t, ends)
		t.judgeGraph(graph)
		t.judgeUndone(undone)
		t.judgeOrder(order)
	}
	c.judgeStock(stock)
	return []*Invariant{once, ends, stock, graph, undone, order}
}

func (t *trip) finalStatus() string {
	if t.saga == nil {
		return "lost"
	}
	return t.saga.Status
}

func (t *trip) judgeOnce(i *Invariant) {
	var wrong []string
	for _, service := range holders {
		if n := countInserts(t.changes, service+"_service.booking"); n > 1 || len(t.bookings[service]) > 1 {
			wrong = append(wrong, fmt.Sprintf("%s booked %d times", service, max(n, len(t.bookings[service]))))
		}
	}
	if t.tickets > 1 || t.mails > 1 || t.itineraries > 1 {
		wrong = append(wrong, fmt.Sprintf("%d tickets, %d mails, %d itineraries", t.tickets, t.mails, t.itineraries))
	}
	i.checkThat(len(wrong) == 0, t.offender(), "%s", strings.Join(wrong, ", "))
}

func (c *run) judgeTripEnd(t *trip, i *Invariant) {
	status := t.finalStatus()
	final := status == completed || status == compensated
	switch {
	case t.placed == nil && t.row == nil:
		i.checkThat(false, t.offender(), "something was done for a trip that nobody has placed")
		return
	case t.placed == nil:
		i.checkThat(final, t.offender(), "the trip is %s", status)
		return
	case !final:
		i.checkThat(false, t.offender(), "the trip (%s) is %s: %s", t.kind, status, t.finalReason())
		return
	}
	want := t.want
	switch {
	case t.answered(http.StatusAccepted):
		want = compensated
	case t.answered(http.StatusConflict):
		want = completed
	case len(t.cancel) > 0: // it is unknown whether the cancel took effect
		want = ""
	}
	i.checkThat(want == "" || status == want || c.startedLate(t), t.offender(), "the trip (%s) is %s, not %s: %s", t.kind, status, want, t.finalReason())
}

func (t *trip) finalReason() string {
	if t.saga == nil {
		return ""
	}
	return t.saga.Reason
}

// overdue matches the machine's reason for a step, or a saga, whose deadline has passed. A participant's
// reasons have a prefix and do not match.
var overdue = regexp.MustCompile(`^(step [^: ]+: no reply within [0-9.hmsµn]+|the saga's deadline of [0-9.hmsµn]+ has passed)$`)

// startedLate reports whether the trip was compensated because a deadline had passed while faults struck.
// Without faults that is not allowed.
func (c *run) startedLate(t *trip) bool {
	if t.finalStatus() != compensated || !overdue.MatchString(t.finalReason()) || len(t.changes) == 0 {
		return false
	}
	return c.troubled(record.At(t.changes[0].at), record.At(t.changes[len(t.changes)-1].at))
}

// mustComplete reports whether the trip must complete: a client placed it, all that it asks for is available,
// and no client cancelled it.
func (t *trip) mustComplete() bool {
	return t.placed != nil && t.want == completed && !t.answered(http.StatusAccepted)
}

func (t *trip) judgeGraph(i *Invariant) {
	const table = "trip_service.saga"
	wrong, ended, revision := walkStates(t.changes, table, keyColumn(t.changes, table), sagaGraph), 0, -1
	for _, ch := range t.changes {
		if ch.table != table || ch.op == "DELETE" {
			continue
		}
		var now int
		if _, err := fmt.Sscanf(ch.what, "revision %d", &now); err == nil {
			if revision >= 0 && (now < revision || now > revision+1) && wrong == "" {
				wrong = fmt.Sprintf("revision %d → %d", revision, now)
			}
			revision = now
		}
		if ch.state == completed || ch.state == compensated {
			ended++
		}
	}
	if ended > 1 && wrong == "" {
		wrong = fmt.Sprintf("has ended %d times", ended)
	}
	i.checkThat(wrong == "", t.offender(), "%s", wrong)
}

func (t *trip) judgeUndone(i *Invariant) {
	status, papers := t.finalStatus(), 0
	var wrong []string
	if status == completed {
		papers = 1
	}
	if t.tickets != papers || t.mails != papers || t.itineraries != papers {
		wrong = append(wrong, fmt.Sprintf("%d tickets, %d mails, %d itineraries", t.tickets, t.mails, t.itineraries))
	}
	for _, service := range holders {
		for _, b := range t.bookings[service] {
			if (b.State == "held") != (status == completed) {
				wrong = append(wrong, service+" "+b.State)
			}
		}
	}
	if status == completed && (len(t.bookings["flight"]) == 0 || len(t.bookings["hotel"]) == 0) {
		wrong = append(wrong, "no flight or no hotel")
	}
	i.checkThat(len(wrong) == 0, t.offender(), "%s with %s", status, strings.Join(wrong, ", "))
}

// judgeOrder checks the order of steps: after the pivot a trip goes forward only.
func (t *trip) judgeOrder(i *Invariant) {
	ticket := position(t.changes, "ticketing_service.ticket", func(ch change) bool { return ch.op == "INSERT" })
	if ticket < 0 {
		return
	}
	after := slices.IndexFunc(t.changes, func(ch change) bool { return ch.seq > ticket && strings.HasSuffix(ch.table, "_service.booking") })
	if after < 0 {
		i.checkThat(true, t.offender(), "")
		return
	}
	ch := t.changes[after]
	i.checkThat(false, t.offender(), "%s: %s after the ticket", ch.table, ch.state)
}

func (c *run) judgeStock(i *Invariant) {
	for _, service := range holders {
		held := map[string]int64{}
		for _, b := range c.rows.bookings[service] {
			if b.State == "held" {
				held[b.Item]++
			}
		}
		for _, s := range c.rows.stocks[service] {
			i.checkThat(s.Capacity-s.Free == held[s.Item], Offender{Key: service + " " + s.Item}, "of %d are %d free and %d held", s.Capacity, s.Free, held[s.Item])
		}
	}
}
