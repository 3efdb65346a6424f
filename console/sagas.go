package console

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/operator"
)

const (
	// sagasOnPage is how many sagas a page lists.
	sagasOnPage = 50

	// maxWalked is how many sagas one page reads while it looks for those at a step.
	maxWalked = 5000

	countAge = 2 * time.Second

	// countedSagas is up to how many sagas of a place are counted.
	countedSagas = 10_000
)

// statuses are those of instances, the ones that need a person first.
var statuses = []operator.Status{"stuck", "paused", "compensating", "running", "completed", "compensated"}

const statusLive = "live" // all that have not ended

// A sagaSearch is what a person looks for, as in the URL.
type sagaSearch struct {
	In      string // name of a place; "": all
	Key     string
	ID      string
	Scope   string
	Name    string
	Version string
	State   string // a status, or live
	Step    string
	Age     string // began at least this long ago
	Silent  string // unchanged for this long
	Ended   string // ended within this time

	parsed operator.InstanceFilter
}

// fields are the parameters of a search with their names in URLs.
func (s *sagaSearch) fields() map[string]*string {
	return map[string]*string{"in": &s.In, "key": &s.Key, "id": &s.ID, "scope": &s.Scope, "name": &s.Name, "version": &s.Version,
		"state": &s.State, "step": &s.Step, "age": &s.Age, "silent": &s.Silent, "ended": &s.Ended}
}

// Padded returns the names of the conditions with a blank at an end.
func (s *sagaSearch) Padded() []string { return listPadded(s.fields()) }

func parseSagaSearch(values url.Values) (*sagaSearch, error) {
	s := &sagaSearch{}
	readFields(s.fields(), values)
	f := operator.InstanceFilter{Key: s.Key, Scope: s.Scope, ID: s.ID, Saga: s.Name, Step: s.Step}
	var err error
	if s.Version != "" {
		if f.Version, err = strconv.Atoi(s.Version); err != nil || f.Version < 1 || f.Version > 1<<31-1 {
			return nil, badRequest(fmt.Sprintf("The version %.20q is not a number from 1 on.", s.Version))
		}
	}
	switch {
	case s.State == "":
	case s.State == statusLive:
		f.Live = true
	case slices.Contains(statuses, operator.Status(s.State)):
		f.Status = operator.Status(s.State)
	default:
		return nil, badRequest(fmt.Sprintf("There is no state %.40q.", s.State))
	}
	if f.Older, err = parseAge(s.Age); err != nil {
		return nil, err
	}
	if f.Silent, err = parseAge(s.Silent); err != nil {
		return nil, err
	}
	if f.Ended, err = parseAge(s.Ended); err != nil {
		return nil, err
	}
	s.parsed = f
	return s, nil
}

// parseAge reads 90s, 5m, 2h or 3d.
func parseAge(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	unit := 1
	if days, ok := strings.CutSuffix(text, "d"); ok {
		text, unit = days+"h", 24
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > 10*365*24*time.Hour/time.Duration(unit) {
		return 0, badRequest(fmt.Sprintf("The age %.20q is not a time such as 90s, 5m, 2h or 3d.", text))
	}
	return d * time.Duration(unit), nil
}

func (s *sagaSearch) filter() operator.InstanceFilter { return s.parsed }

// ended reports whether the search picks only sagas that have ended.
func (s *sagaSearch) ended() bool {
	return s.State == "completed" || s.State == "compensated" || s.parsed.Ended > 0
}

// narrows reports whether the search has any condition.
func (s *sagaSearch) narrows() bool { return s.parsed != operator.InstanceFilter{} || s.In != "" }

// Query returns the search as a query, without empty fields.
func (s *sagaSearch) Query() url.Values { return queryFields(s.fields()) }

// conditions returns the conditions for people.
func (s *sagaSearch) conditions() []condition {
	return listConditions(s.fields(), "in", "name", "version", "state", "step", "key", "id", "scope", "age", "silent", "ended")
}

// A sagaPlace is where a list goes on: behind an instance of a place.
type sagaPlace struct {
	In string           `json:"in"`
	At operator.Address `json:"at"`
}

func (p *sagaPlace) encode() string {
	text, _ := json.Marshal(p) // strings can be encoded
	return base64.RawURLEncoding.EncodeToString(text)
}

func decodeSagaPlace(text string) (p sagaPlace, err error) {
	if text == "" {
		return p, nil
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(data, &p) != nil || strings.ContainsRune(p.At.Key+p.At.Scope+p.At.Path, 0) {
		return p, badRequest("The address does not say where the list goes on.")
	}
	return p, nil
}

// sagasPage is the list of sagas.
func (c *Console) sagasPage() *page {
	return &page{path: "sagas", title: "Sagas", inMenu: true, template: "sagas.html", show: c.showSagas,
		live: c.countSagas, blocks: []string{"counts"}}
}

// A sagasView is what sagas.html gets.
type sagasView struct {
	Search   *sagaSearch
	Places   []*place
	Several  bool
	Statuses []operator.Status
	Rows     []sagaRow
	Next     string // the query of the next page, with its question mark; "": this is the last
	First    string // that of the first page; "": this is it
	Walked   int    // how many were read, if a step was looked for; else 0
	Verbs    []decisionVerb
	Counts   []sagaCount // unset in a page: the stream reads it
	Loading  bool
	Tabs     []stateTab

	Unnarrowed bool // it has no condition, so that there are no verbs
}

type sagaRow struct {
	operator.Instance
	Place *place
}

// A sagaCount is the number of sagas of a place that the search picks.
type sagaCount struct {
	Place   string
	Count   int
	Problem string
}

// A stateTab is a link to the same search with another state.
type stateTab struct {
	Label, Query string
	Current      bool
}

func (c *Console) showSagas(ctx context.Context, r *request) (any, error) {
	search, err := parseSagaSearch(r.values)
	if err != nil {
		return nil, err
	}
	after, err := decodeSagaPlace(r.values.Get("after"))
	if err != nil {
		return nil, err
	}
	chosen, all, err := c.choosePlaces(ctx, search.In)
	if err != nil {
		return nil, err
	}
	v := &sagasView{Search: search, Places: all, Several: len(all) > 1, Statuses: statuses, Loading: true, Tabs: search.tabs(), Unnarrowed: !search.narrows()}
	if !search.ended() && search.narrows() {
		for _, verb := range verbOrder {
			v.Verbs = append(v.Verbs, decisionVerbs[verb])
		}
	}
	next, err := c.readSagas(ctx, v, chosen, after)
	if err != nil {
		return nil, err
	}
	if next != nil {
		q := search.Query()
		q.Set("after", next.encode())
		v.Next = "?" + q.Encode()
	}
	if after != (sagaPlace{}) {
		v.First = "?" + search.Query().Encode()
	}
	return v, nil
}

func (s *sagaSearch) tabs() []stateTab {
	var tabs []stateTab
	add := func(label, state string) {
		q := s.Query()
		if q.Del("state"); state != "" {
			q.Set("state", state)
		}
		tabs = append(tabs, stateTab{label, "?" + q.Encode(), s.State == state})
	}
	add("all", "")
	add(statusLive, statusLive)
	for _, status := range statuses {
		add(string(status), string(status))
	}
	return tabs
}

// readSagas fills the page, one place after the other, and returns where the next page begins. A search for a step reads
// more instances than it shows, and gives up after maxWalked.
func (c *Console) readSagas(ctx context.Context, v *sagasView, places []*place, after sagaPlace) (next *sagaPlace, err error) {
	begin := 0
	if after.In != "" {
		if begin = slices.IndexFunc(places, func(p *place) bool { return p.Name == after.In }); begin < 0 {
			return nil, badRequest("The list goes on in a schema that is not here any more.")
		}
	}
	walked := 0
	for i := begin; i < len(places); i++ {
		n, err := places[i].instances()
		if err != nil {
			return nil, err
		}
		from := &operator.Address{}
		if i == begin {
			from = &after.At
		}
		for from != nil { // nil: the place has no more
			if walked >= maxWalked {
				return &sagaPlace{places[i].Name, *from}, nil
			}
			full := len(v.Rows) >= sagasOnPage
			size := max(1, sagasOnPage-len(v.Rows)) // of a full page, one: is there a next page?
			if v.Search.Step != "" {                // no more than fit, and no row twice: a page of the walk is shown as a whole
				size = sagasOnPage
			}
			found, following, err := n.Walk(ctx, v.Search.filter(), *from, size)
			if err != nil {
				return nil, err
			}
			if full && len(found) > 0 {
				return &sagaPlace{places[i].Name, *from}, nil
			}
			for k := range found {
				found[k].Reason = c.redactText(KindError, found[k].Saga, found[k].Reason)
				v.Rows = append(v.Rows, sagaRow{found[k], places[i]})
			}
			walked += size
			from = following
		}
	}
	if v.Search.Step != "" {
		v.Walked = walked
	}
	return nil, nil
}

// countSagas counts the sagas that the search picks, for the stream of the page. If the count of a place takes too long,
// a text stands in its place, and the counts of the other places stay.
func (c *Console) countSagas(ctx context.Context, r *request) (any, error) {
	search, err := parseSagaSearch(r.values)
	if err != nil {
		return nil, err
	}
	chosen, all, err := c.choosePlaces(ctx, search.In)
	if err != nil {
		return nil, err
	}
	v := &sagasView{Search: search, Several: len(all) > 1}
	if search.Step != "" {
		return v, nil
	}
	key := search.Query()
	for _, p := range chosen {
		key.Set("in", p.Name)
		count, err := c.counts.getShared(ctx, key.Encode(), countAge, func(ctx context.Context) (int, error) {
			n, err := p.instances()
			if err != nil {
				return 0, err
			}
			return n.CountUpTo(ctx, search.filter(), countedSagas)
		})
		one := sagaCount{Place: p.Label, Count: count}
		if err != nil {
			one.Problem = c.explainError(ctx, err).What
		}
		v.Counts = append(v.Counts, one)
	}
	return v, nil
}

// Floor reports whether there may be more than the counts say.
func (v *sagasView) Floor() bool {
	return slices.ContainsFunc(v.Counts, func(c sagaCount) bool { return c.Count == countedSagas })
}

// Total returns the sum of the counts.
func (v *sagasView) Total() (total int) {
	for _, one := range v.Counts {
		total += one.Count
	}
	return total
}
