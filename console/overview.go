package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/operator"
)

// How long what the overview reads is kept.
const (
	overviewAge = 5 * time.Second
	paceAge     = 20 * time.Second
	processAge  = 10 * time.Second
)

// overviewPage is the first page.
func (c *Console) overviewPage() *page {
	return &page{path: "", title: "Overview", inMenu: true, template: "overview.html", show: c.showOverview, live: c.followOverview, blocks: []string{"body"}}
}

// An overviewView is what overview.html gets.
type overviewView struct {
	Places    []placeView
	Down      []unreachable
	Problems  []problemView
	States    []stateCount // sums of all places
	Reasons   []deadReason
	Processes []processView
	Several   bool
	In        string // the place that it is about; "": all
	Pace      *paceView
}

// A placeView is the state of one schema.
type placeView struct {
	*place
	operator.SchemaStatus
}

type stateCount struct {
	State   string
	Link    string // the query of its sagas
	Count   int
	Oldest  time.Duration // how long the first of them has waited; 0: not known
	Ended   string        // the card counts only those that have ended within this time; "": it counts live ones
	Floor   bool          // there are more
	Loading bool          // the stream sends the count
}

// pacedHour is the time of a pace, as in a search.
const pacedHour = "1h"

// A deadReason counts dead letters of steps.
type deadReason struct {
	Place  *place
	Link   string // the query of its groups
	Step   string // "": the message could not be read
	Undo   bool   // they are compensations
	Reason string
	Count  int
	Oldest time.Duration
}

type processView struct {
	Database string
	operator.Process
}

type problemView struct {
	Place  *place
	Kind   operator.ProblemKind
	Text   string
	Count  int
	Oldest time.Duration
	Link   string // a page below the base; "": none
}

// showOverview reads the page. The pace takes longer than all else: without one in memory, the stream sends it.
func (c *Console) showOverview(ctx context.Context, r *request) (any, error) {
	return c.readOverview(ctx, r, func(_ context.Context, p *placeView) (operator.Pace, bool, error) {
		pace, known := c.paces.peek(p.Name)
		return pace, known, nil
	})
}

// followOverview reads what the stream of the page sends.
func (c *Console) followOverview(ctx context.Context, r *request) (any, error) {
	return c.readOverview(ctx, r, func(ctx context.Context, p *placeView) (operator.Pace, bool, error) {
		pace, err := c.paces.getShared(ctx, p.Name, paceAge, func(ctx context.Context) (operator.Pace, error) {
			n, err := p.instances()
			if err != nil {
				return operator.Pace{}, err
			}
			return n.ReadPace(ctx)
		})
		return pace, true, err
	})
}

// A paceReader returns the pace of a place, and whether it is known.
type paceReader func(context.Context, *placeView) (operator.Pace, bool, error)

func (c *Console) readOverview(ctx context.Context, r *request, read paceReader) (any, error) {
	chosen, all, err := c.choosePlaces(ctx, strings.TrimSpace(r.values.Get("in")))
	if err != nil {
		return nil, err
	}
	v := &overviewView{Several: len(all) > 1, In: strings.TrimSpace(r.values.Get("in"))}
	for _, d := range c.databases {
		if err := c.readDatabase(ctx, v, d, chosen); err != nil {
			v.Down = append(v.Down, unreachable{d.Name, c.explainError(ctx, err)})
		}
	}
	if len(v.Places) == 0 && len(v.Down) > 0 {
		return nil, v.Down[0].Problem
	}
	c.readPaces(ctx, v, read)
	v.sumStates()
	v.listProblems()
	slices.SortStableFunc(v.Reasons, func(a, b deadReason) int { return b.Count - a.Count })
	return v, nil
}

// readDatabase reads the schemas of one database that are chosen, and who is connected to it.
func (c *Console) readDatabase(ctx context.Context, v *overviewView, d Database, chosen []*place) error {
	read, err := c.readStates(ctx, d, chosen, operator.OverviewOptions{})
	if err != nil || len(read) == 0 {
		return err
	}
	v.Places = append(v.Places, read...)
	processes, err := c.processes.getShared(ctx, d.Name, processAge, func(ctx context.Context) ([]operator.Process, error) {
		return operator.ListProcesses(ctx, d.Pool)
	})
	for _, p := range processes {
		v.Processes = append(v.Processes, processView{d.Name, p})
	}
	return err
}

// readStates reads the schemas of one database that are chosen, and of them the parts that o names.
func (c *Console) readStates(ctx context.Context, d Database, chosen []*place, o operator.OverviewOptions) (all []placeView, err error) {
	places := map[string]*place{}
	for _, p := range chosen {
		if p.Database == d.Name {
			o.Schemas = append(o.Schemas, p.Schema)
			places[p.Schema] = p
		}
	}
	if len(o.Schemas) == 0 {
		return nil, nil
	}
	key := fmt.Sprint(url.Values{"database": {d.Name}, "schema": o.Schemas}.Encode(), o.Parts)
	read, err := c.overviews.getShared(ctx, key, overviewAge, func(ctx context.Context) ([]operator.SchemaStatus, error) {
		return operator.ReadOverview(ctx, d.Pool, &o)
	})
	for _, status := range read {
		all = append(all, placeView{places[status.Schema], status})
	}
	return all, err
}

// readPaces sums the paces of all places. A pace that takes too long is left out, and the view says so.
func (c *Console) readPaces(ctx context.Context, v *overviewView, read paceReader) {
	for i := range v.Places {
		p := &v.Places[i]
		if p.Sagas == nil {
			continue
		}
		if v.Pace == nil {
			v.Pace = newPaceView()
		}
		switch pace, known, err := read(ctx, p); {
		case err != nil:
			v.Pace.Missing = append(v.Pace.Missing, p.Label+": "+c.explainError(ctx, err).What)
		case known:
			v.Pace.add(&pace)
		default:
			v.Pace.Loading = true
		}
	}
}

func (v *overviewView) sumStates() {
	sums := map[string]*stateCount{}
	add := func(state string, count int, oldest time.Duration) {
		s := sums[state]
		if s == nil {
			s = &stateCount{State: state}
			sums[state] = s
		}
		s.Count, s.Oldest = s.Count+count, max(s.Oldest, oldest)
	}
	for i := range v.Places {
		g := v.Places[i].Sagas
		if g == nil {
			continue
		}
		add("stuck", g.Stuck, g.OldestStuck)
		add("paused", g.Paused, g.OldestPaused)
		add("compensating", g.Compensating, 0)
		add("running", g.Running, g.Silent)
	}
	if v.Pace != nil {
		for _, m := range v.Pace.minutes {
			add("completed", m.Completed, 0)
			add("compensated", m.Compensated, 0)
		}
		for _, state := range []string{"completed", "compensated"} {
			if v.Pace.Loading {
				sums[state] = &stateCount{State: state, Ended: pacedHour, Loading: true}
			} else if s := sums[state]; s != nil {
				s.Ended, s.Floor = pacedHour, v.Pace.Known < len(v.Pace.minutes)
			}
		}
	}
	for _, status := range statuses {
		if s := sums[string(status)]; s != nil {
			s.Link = "?" + queryFields(map[string]*string{"state": &s.State, "in": &v.In, "ended": &s.Ended}).Encode()
			v.States = append(v.States, *s)
		}
	}
	for i := range v.Places {
		p := &v.Places[i]
		if p.Inbox == nil {
			continue
		}
		for _, parked := range p.Inbox.Parked {
			if parked.Dead {
				v.Reasons = append(v.Reasons, deadReason{p.place, linkReason(p.place, parked.Step, string(parked.Reason)), parked.Step, parked.Undo, string(parked.Reason), parked.Messages, parked.Oldest})
			}
		}
	}
}

// linkReason returns the query of the groups of dead letters of a step and a reason.
func linkReason(p *place, step, reason string) string {
	return (&letterSearch{Database: p.Database, Schema: p.Schema, Side: string(operator.Inbox), Step: cmp.Or(step, withoutStep), Reason: reason}).with()
}

// problemTexts say what each kind of problem is.
var problemTexts = map[operator.ProblemKind]string{
	operator.ProblemMigration:    "Migrations are missing in the schema.",
	operator.ProblemHidden:       "Row-level security hides rows of a table from the role of the console: this page is incomplete.",
	operator.ProblemGrant:        "The role of the console may not read all parts: this page is incomplete.",
	operator.ProblemRepair:       "A part of the schema could not be read.",
	operator.ProblemSequence:     "The sequence of the outbox's ids is behind its rows. A relay that starts raises it.",
	operator.ProblemRelay:        "Messages are stored, and no relay is active.",
	operator.ProblemBroker:       "A relay is active, and the oldest message has waited for too long.",
	operator.ProblemTransaction:  "A transaction that has written has been open for minutes.",
	operator.ProblemRefused:      "The broker refuses messages, or takes none of a topic.",
	operator.ProblemOutboxDead:   "The broker has refused messages until their attempts were used up.",
	operator.ProblemConsumer:     "A parked message has been due for too long.",
	operator.ProblemDead:         "Dead letters of steps wait for a person.",
	operator.ProblemOrchestrator: "A saga has been due for too long: no orchestrator continues it.",
	operator.ProblemStuck:        "Sagas are stuck.",
	operator.ProblemPaused:       "Sagas are paused until a person resumes them.",
	operator.ProblemSweeper:      "Expired idempotency keys are still stored: no sweeper removes them.",
	operator.ProblemHeld:         "Sagas are held by a dead letter at a participant: redrive it, or decide about the saga.",
	operator.ProblemUnknown:      "The outcome of requests is unknown. No retry runs them before somebody decides.",
}

// problemStates are the states of the sagas that a problem is about.
var problemStates = map[operator.ProblemKind]string{operator.ProblemStuck: "stuck", operator.ProblemPaused: "paused",
	operator.ProblemHeld: "running", operator.ProblemOrchestrator: statusLive}

// problemPlaces are the messages of the outbox that a problem is about.
var problemPlaces = map[operator.ProblemKind]operator.Place{operator.ProblemSequence: operator.PlaceStored, operator.ProblemRelay: operator.PlaceStored, operator.ProblemBroker: operator.PlaceStored,
	operator.ProblemTransaction: operator.PlaceStored, operator.ProblemRefused: operator.PlaceRefused, operator.ProblemOutboxDead: operator.PlaceDead}

// letterLinks are the pages of the letters that a problem is about.
var letterLinks = map[operator.ProblemKind]string{operator.ProblemDead: "dead?side=inbox", operator.ProblemOutboxDead: "dead?side=outbox",
	operator.ProblemConsumer: "letters?side=inbox&state=retrying"}

func (v *overviewView) listProblems() {
	for i := range v.Places {
		p := &v.Places[i]
		for _, problem := range p.Problems() {
			one := problemView{Place: p.place, Kind: problem.Kind, Text: cmp.Or(problemTexts[problem.Kind], string(problem.Kind)), Count: problem.Count, Oldest: problem.Oldest}
			place := url.Values{"database": {p.Database}, "schema": {p.Schema}}
			if state := problemStates[problem.Kind]; state != "" {
				one.Link = "sagas?" + url.Values{"in": {p.Name}, "state": {state}}.Encode()
			} else if link := letterLinks[problem.Kind]; link != "" {
				one.Link = link + "&" + place.Encode()
			} else if problem.Kind == operator.ProblemUnknown {
				one.Link = "requests?" + url.Values{"in": {p.Name}}.Encode()
			}
			if at := problemPlaces[problem.Kind]; at != "" && one.Link == "" {
				one.Link = "outbox?" + url.Values{"in": {p.Name}, "place": {string(at)}}.Encode()
			}
			v.Problems = append(v.Problems, one)
		}
	}
}

// Letters returns the query of the letters of a side in a state.
func (p placeView) Letters(side, state string) string {
	return (&letterSearch{Database: p.Database, Schema: p.Schema, Side: side, State: state}).with()
}

// LogBytes returns the size of the log of the outbox.
func (p placeView) LogBytes() (total int64) {
	if p.Outbox != nil {
		for size := range maps.Values(p.Outbox.Leaves) {
			total += size
		}
	}
	return total
}
