package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
)

func fetchLedgers(ctx context.Context, urls map[string]string) (map[string]command.Ledger, error) {
	all := map[string]command.Ledger{}
	for _, service := range serviceNames {
		status, body, err := get(ctx, urls[service]+"/ledger/"+service)
		if err != nil {
			return nil, fmt.Errorf("GET /ledger/%s: %w", service, err)
		}
		var l command.Ledger
		if err := json.Unmarshal(body, &l); err != nil || status != http.StatusOK {
			return nil, fmt.Errorf("GET /ledger/%s: %d %.200s", service, status, body)
		}
		all[service] = l
	}
	return all, nil
}

// A result is what a demo is judged by.
type result struct {
	trips    []*placed
	ledgers  map[string]command.Ledger // by service
	patience time.Duration             // for a booking
	left     []string                  // metrics of what has not come to an end
}

// An invariant is something that must be true in the end.
type invariant struct {
	says  string
	check func(*result) []string // what contradicts it
}

var invariants = []invariant{
	{"every client of a trip got the same reply, byte for byte", sameReplies},
	{"no two trips share an id", distinctIDs},
	{"every saga ended as its kind should, as its cancellation was answered, or by its deadline", endedAsMeant},
	{"units are conserved: a trip holds what it booked if completed, else nothing", conserved},
	{"what the stock lacks is held by somebody", stocked},
	{"no trip has booked the same thing twice", bookedOnce},
	{"a completed trip has one ticket, one mail and one itinerary, any other none", finished},
	{"the ledgers know no other trips", known},
	{"nothing is left in an outbox, parked, or a dead letter", func(r *result) []string { return r.left }},
}

func sameReplies(r *result) (bad []string) {
	for _, p := range r.trips {
		for _, reply := range p.replies {
			if !bytes.Equal(reply, p.replies[0]) {
				bad = append(bad, fmt.Sprintf("trip %s: %q and %q", p.id, p.replies[0], reply))
			}
		}
	}
	return bad
}

func distinctIDs(r *result) (bad []string) {
	seen := map[string]bool{}
	for _, p := range r.trips {
		if seen[p.id] {
			bad = append(bad, "trip "+p.id)
		}
		seen[p.id] = true
	}
	return bad
}

func endedAsMeant(r *result) (bad []string) {
	for _, p := range r.trips {
		if !p.endedWell(r.patience) {
			bad = append(bad, fmt.Sprintf("trip %s (%s) is %q, %q, after %s; DELETE %d; steps %+v",
				p.id, p.kind.name, p.last.Status, p.last.Reason, p.lasted.Round(time.Millisecond), p.deleted, p.last.Steps))
		}
	}
	return bad
}

// endedWell reports whether the trip ended as it should. On a slow machine, or while processes
// are killed, a deadline may pass, and the trip is compensated.
func (p *placed) endedWell(patience time.Duration) bool {
	want := p.kind.outcome
	switch {
	case !p.ended():
		return false
	case p.deleted == http.StatusAccepted:
		want = compensated
	case p.deleted == http.StatusConflict:
		return p.last.Status == completed || p.late(patience)
	}
	return want == "" || p.last.Status == want || p.late(patience)
}

// late reports whether the trip was compensated because a deadline has passed: the saga says
// so, and the client has waited for that long, but for a tenth, since the clocks are two.
func (p *placed) late(patience time.Duration) bool {
	says := strings.Contains(p.last.Reason, "no reply within") || strings.Contains(p.last.Reason, "the saga's deadline")
	return p.last.Status == compensated && says && p.lasted >= patience-patience/10
}

// lateTrips counts the trips that a deadline has kept from ending as they might have.
func (r *result) lateTrips() (n int) {
	for _, p := range r.trips {
		if p.kind.outcome != compensated && p.deleted != http.StatusAccepted && p.late(r.patience) {
			n++
		}
	}
	return n
}

// held are the services in which the trip must hold something in the end.
func (p *placed) held() map[string]int {
	held := map[string]int{}
	if p.last.Status == completed {
		held[command.Flight], held[command.Hotel] = 1, 1
		if strings.Contains(p.kind.body, `"car"`) {
			held[command.Car] = 1
		}
	}
	return held
}

// entries counts, by service and state, what was done for each trip.
func (r *result) entries() map[string]map[string]int {
	all := map[string]map[string]int{}
	for service, ledger := range r.ledgers {
		for _, e := range ledger.Entries {
			if all[e.TripID] == nil {
				all[e.TripID] = map[string]int{}
			}
			all[e.TripID][service+" "+e.State]++
		}
	}
	return all
}

// holders are the services that hold units.
var holders = []string{command.Flight, command.Hotel, command.Car}

func conserved(r *result) (bad []string) {
	all := r.entries()
	for _, p := range r.trips {
		want := p.held()
		for _, service := range holders {
			if got := all[p.id][service+" held"]; got != want[service] {
				bad = append(bad, fmt.Sprintf("trip %s (%s, %s): holds %d of %s, want %d", p.id, p.kind.name, p.last.Status, got, service, want[service]))
			}
		}
	}
	return bad
}

func stocked(r *result) (bad []string) {
	for _, service := range holders {
		held := map[string]int64{}
		for _, e := range r.ledgers[service].Entries {
			if e.State == "held" {
				held[e.Item]++
			}
		}
		for _, s := range r.ledgers[service].Stock {
			if s.Capacity-s.Free != held[s.Item] {
				bad = append(bad, fmt.Sprintf("%s %s: %d of %d are free, and %d held", service, s.Item, s.Free, s.Capacity, held[s.Item]))
			}
		}
	}
	return bad
}

func bookedOnce(r *result) (bad []string) {
	for id, n := range r.entries() {
		for _, service := range holders {
			if n[service+" held"]+n[service+" released"] > 1 {
				bad = append(bad, fmt.Sprintf("trip %s: %v", id, n))
			}
		}
	}
	return bad
}

func finished(r *result) (bad []string) {
	all := r.entries()
	for _, p := range r.trips {
		want := 0
		if p.last.Status == completed {
			want = 1
		}
		for _, what := range []string{"ticketing issued", "mail sent", "trip written"} {
			if got := all[p.id][what]; got != want {
				bad = append(bad, fmt.Sprintf("trip %s (%s, %s): %s %d times, want %d", p.id, p.kind.name, p.last.Status, what, got, want))
			}
		}
	}
	return bad
}

func known(r *result) (bad []string) {
	placed := map[string]bool{}
	for _, p := range r.trips {
		placed[p.id] = true
	}
	for id := range r.entries() {
		if !placed[id] {
			bad = append(bad, "trip "+id)
		}
	}
	return bad
}

// shown is how many contradictions of an invariant are printed.
const shown = 5

// print writes the table of outcomes and judges the invariants. It returns how
// many do not hold.
func (r *result) print(w io.Writer) (violations int) {
	r.table(w)
	if n := r.lateTrips(); n > 0 {
		fmt.Fprintf(w, "\ncompensated only because a deadline passed: %d. The machine is slow, or processes were killed; -patience 30s gives them longer.\n", n)
	}
	fmt.Fprintln(w, "\ninvariants")
	for _, i := range invariants {
		bad := i.check(r)
		if len(bad) == 0 {
			fmt.Fprintln(w, "  holds     "+i.says)
			continue
		}
		violations++
		fmt.Fprintf(w, "  VIOLATED  %s (%d times)\n", i.says, len(bad))
		for _, b := range bad[:min(shown, len(bad))] {
			fmt.Fprintln(w, "            "+b)
		}
	}
	return violations
}

func (r *result) table(w io.Writer) {
	all := r.entries()
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nload\ttrips\tcompleted\tcompensated\topen\theld\tgiven back\ttickets\tmails\texpected")
	for k := range kinds {
		n := map[string]int{}
		for _, p := range r.trips {
			if p.kind != &kinds[k] {
				continue
			}
			n["all"]++
			n[p.last.Status]++
			for what, count := range all[p.id] {
				_, state, _ := strings.Cut(what, " ")
				n[state] += count
			}
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", kinds[k].name, n["all"], n[completed], n[compensated],
			n["all"]-n[completed]-n[compensated], n["held"], n["released"], n["issued"], n["sent"], kinds[k].expected)
	}
	_ = table.Flush()
}
