package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
)

func fetchLedgers(ctx context.Context, urls map[string]string) (map[string]command.Ledger, error) {
	all := map[string]command.Ledger{}
	for _, service := range program.Services {
		status, body, err := demo.FetchURL(ctx, urls[service]+"/ledger/"+service)
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

// A result is the data by which a demo is judged.
type result struct {
	trips    []*placed
	ledgers  map[string]command.Ledger // by service
	patience time.Duration             // for a booking
	left     []string                  // metrics of unfinished messages
}

var invariants = []demo.Invariant[*result]{
	{Says: "every client of a trip got the same reply, byte for byte", Check: func(r *result) []string { return program.FindDifferentReplies(r.listPlacements()) }},
	{Says: "no two trips share an id", Check: func(r *result) []string { return program.FindSharedIDs(r.listPlacements()) }},
	{Says: "every saga ended as its kind should, as its cancellation was answered, or by its deadline", Check: checkEnds},
	{Says: "units are conserved: a trip holds what it booked if completed, else nothing", Check: checkHeldUnits},
	{Says: "what the stock lacks is held by somebody", Check: checkStock},
	{Says: "no trip has booked the same thing twice", Check: checkRepeatedBookings},
	{Says: "a completed trip has one ticket, one mail and one itinerary, any other none", Check: checkDocuments},
	{Says: "the ledgers know no other trips", Check: checkUnknownTrips},
	{Says: "nothing is left in an outbox, parked, or a dead letter", Check: func(r *result) []string { return r.left }},
}

func (r *result) listPlacements() (all []*demo.Placement) {
	for _, p := range r.trips {
		all = append(all, &p.Placement)
	}
	return all
}

func checkEnds(r *result) (bad []string) {
	for _, p := range r.trips {
		if !p.hasEndedWell(r.patience) {
			bad = append(bad, fmt.Sprintf("trip %s (%s) is %q, %q, after %s; DELETE %d; steps %+v",
				p.ID, p.kind.name, p.last.Status, p.last.Reason, p.lasted.Round(time.Millisecond), p.deleted, p.last.Steps))
		}
	}
	return bad
}

// hasEndedWell reports whether the trip ended with the right status. On a slow machine, or while
// processes are killed, a deadline may pass. Then the trip may be compensated instead.
func (p *placed) hasEndedWell(patience time.Duration) bool {
	want := p.kind.outcome
	switch {
	case !p.hasEnded():
		return false
	case p.deleted == http.StatusAccepted:
		want = compensated
	case p.deleted == http.StatusConflict:
		return p.last.Status == completed || p.isLate(patience)
	}
	return want == "" || p.last.Status == want || p.isLate(patience)
}

// isLate reports whether the trip was compensated because a deadline has passed. The saga's reason
// names the deadline, and the client has waited for nine tenths of it; the two clocks may differ.
func (p *placed) isLate(patience time.Duration) bool {
	says := strings.Contains(p.last.Reason, "no reply within") || strings.Contains(p.last.Reason, "the saga's deadline")
	return p.last.Status == compensated && says && p.lasted >= patience-patience/10
}

// countLateTrips counts the trips that were compensated only because a deadline has passed.
func (r *result) countLateTrips() (n int) {
	for _, p := range r.trips {
		if p.kind.outcome != compensated && p.deleted != http.StatusAccepted && p.isLate(r.patience) {
			n++
		}
	}
	return n
}

// wantHeldUnits returns how many units the trip must hold in the end, by service.
func (p *placed) wantHeldUnits() map[string]int {
	held := map[string]int{}
	if p.last.Status == completed {
		held[command.Flight], held[command.Hotel] = 1, 1
		if strings.Contains(p.kind.body, `"car"`) {
			held[command.Car] = 1
		}
	}
	return held
}

// countEntries counts the ledgers' entries of each trip, by service and state.
func (r *result) countEntries() map[string]map[string]int {
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

func checkHeldUnits(r *result) (bad []string) {
	all := r.countEntries()
	for _, p := range r.trips {
		want := p.wantHeldUnits()
		for _, service := range holders {
			if got := all[p.ID][service+" held"]; got != want[service] {
				bad = append(bad, fmt.Sprintf("trip %s (%s, %s): holds %d of %s, want %d", p.ID, p.kind.name, p.last.Status, got, service, want[service]))
			}
		}
	}
	return bad
}

func checkStock(r *result) (bad []string) {
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

func checkRepeatedBookings(r *result) (bad []string) {
	for id, n := range r.countEntries() {
		for _, service := range holders {
			if n[service+" held"]+n[service+" released"] > 1 {
				bad = append(bad, fmt.Sprintf("trip %s: %v", id, n))
			}
		}
	}
	return bad
}

func checkDocuments(r *result) (bad []string) {
	all := r.countEntries()
	for _, p := range r.trips {
		want := 0
		if p.last.Status == completed {
			want = 1
		}
		for _, what := range []string{"ticketing issued", "mail sent", "trip written"} {
			if got := all[p.ID][what]; got != want {
				bad = append(bad, fmt.Sprintf("trip %s (%s, %s): %s %d times, want %d", p.ID, p.kind.name, p.last.Status, what, got, want))
			}
		}
	}
	return bad
}

func checkUnknownTrips(r *result) (bad []string) {
	placed := map[string]bool{}
	for _, p := range r.trips {
		placed[p.ID] = true
	}
	for id := range r.countEntries() {
		if !placed[id] {
			bad = append(bad, "trip "+id)
		}
	}
	return bad
}

// judgeDemo prints the table of outcomes and the invariants. It returns how many do not hold.
func (r *result) judgeDemo(w io.Writer) (violations int) {
	r.printOutcomes(w)
	if n := r.countLateTrips(); n > 0 {
		fmt.Fprintf(w, "\ncompensated only because a deadline passed: %d. The machine is slow, or processes were killed; -patience 30s gives them longer.\n", n)
	}
	return demo.JudgeResult(w, r, invariants)
}

func (r *result) printOutcomes(w io.Writer) {
	all := r.countEntries()
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
			for what, count := range all[p.ID] {
				_, state, _ := strings.Cut(what, " ")
				n[state] += count
			}
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", kinds[k].name, n["all"], n[completed], n[compensated],
			n["all"]-n[completed]-n[compensated], n["held"], n["released"], n["issued"], n["sent"], kinds[k].expected)
	}
	_ = table.Flush()
}
