package console

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/operator"
)

const (
	// lettersOnPage is how many letters a page lists.
	lettersOnPage = 50

	// groupsOfSide is how many groups are read of one side of a schema.
	groupsOfSide = 200

	// groupsAge is how long what the page of groups reads is kept.
	groupsAge = 10 * time.Second

	// withoutStep is the step of letters that have none, in a search. No step has this name.
	withoutStep = "(none)"
)

// A letterSearch is which letters a person looks for, as in the URL.
type letterSearch struct {
	Database    string
	Schema      string
	Side        string // inbox or outbox; "": both
	State       string // dead or retrying; "": dead
	ID          string
	Scope       string
	Key         string
	Topic       string
	Step        string
	Reason      string
	Fingerprint string
	Error       string // a part of it
	Age         string // failed last at least this long ago

	parsed operator.Filter
}

// fields are the parameters of a search with their names in URLs.
func (s *letterSearch) fields() map[string]*string {
	return map[string]*string{"database": &s.Database, "schema": &s.Schema, "side": &s.Side, "state": &s.State, "id": &s.ID, "scope": &s.Scope, "key": &s.Key,
		"topic": &s.Topic, "step": &s.Step, "reason": &s.Reason, "fingerprint": &s.Fingerprint, "error": &s.Error, "age": &s.Age}
}

// In returns the name of the place that the search names, as the form of a search has it; "": none, or several.
func (s *letterSearch) In() string {
	if s.Database == "" || s.Schema == "" {
		return ""
	}
	return s.Database + "/" + s.Schema
}

// Padded returns the names of the conditions with a blank at an end.
func (s *letterSearch) Padded() []string { return listPadded(s.fields()) }

func parseLetterSearch(values url.Values) (*letterSearch, error) {
	s := &letterSearch{}
	readFields(s.fields(), values)
	if in := values.Get("in"); in != "" { // as the form of a search names a schema
		s.Database, s.Schema, _ = strings.Cut(in, "/")
	}
	f := operator.Filter{Scope: s.Scope, Key: s.Key, Topic: s.Topic, Step: s.Step, Reason: operator.Reason(s.Reason), Fingerprint: s.Fingerprint, Error: s.Error}
	if s.Step == withoutStep {
		f.Step, f.NoStep = "", true
	}
	switch operator.Side(s.Side) {
	case "", operator.Inbox, operator.Outbox:
	default:
		return nil, badRequest(fmt.Sprintf("There is no side %.40q: the sides are inbox and outbox.", s.Side))
	}
	switch f.State = operator.State(s.State); f.State {
	case "", operator.StateDead, operator.StateRetrying:
	default:
		return nil, badRequest(fmt.Sprintf("There is no state %.40q: a message is dead or retrying.", s.State))
	}
	if s.ID != "" {
		id, err := parseLetterID(s.ID)
		if err != nil {
			return nil, err
		}
		f.IDs = []int64{id}
	}
	var err error
	if f.Older, err = parseAge(s.Age); err != nil {
		return nil, err
	}
	s.parsed = f
	return s, nil
}

func parseLetterID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, badRequest(fmt.Sprintf("The id %.30q is not a number from 1 on.", text))
	}
	return id, nil
}

// filter returns the filter of a search, for the letters of state.
func (s *letterSearch) filter(state operator.State) operator.Filter {
	f := s.parsed
	f.State = state
	return f
}

// state returns the state that the search is for.
func (s *letterSearch) state() operator.State {
	if s.parsed.State == operator.StateRetrying {
		return operator.StateRetrying
	}
	return operator.StateDead
}

// narrows reports whether the search has a condition besides the side and the state.
func (s *letterSearch) narrows() bool {
	for name, field := range s.fields() {
		if name != "side" && name != "state" && *field != "" {
			return true
		}
	}
	return false
}

// Query returns the search as a query, without empty fields.
func (s *letterSearch) Query() url.Values { return queryFields(s.fields()) }

// with returns the query of the search with other values.
func (s *letterSearch) with(pairs ...string) string {
	q := s.Query()
	for i := 0; i < len(pairs); i += 2 {
		if q.Del(pairs[i]); pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return "?" + q.Encode()
}

// tabs are the links to the same search in each state.
func (s *letterSearch) tabs() []stateTab {
	return []stateTab{
		{string(operator.StateDead), s.with("state", ""), s.state() == operator.StateDead},
		{string(operator.StateRetrying), s.with("state", string(operator.StateRetrying)), s.state() == operator.StateRetrying},
	}
}

// conditions returns the conditions for people.
func (s *letterSearch) conditions() []condition {
	return listConditions(s.fields(), "database", "schema", "side", "state", "id", "topic", "step", "reason", "key", "scope", "error", "fingerprint", "age")
}

// chooseSides returns the sides that the search is about. Only the inbox has reasons.
func (c *Console) chooseSides(ctx context.Context, s *letterSearch) (chosen []letterSide, all []*place, err error) {
	_, all, err = c.choosePlaces(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	for _, p := range all {
		if s.Database != "" && p.Database != s.Database || s.Schema != "" && p.Schema != s.Schema {
			continue
		}
		for _, side := range []operator.Side{operator.Inbox, operator.Outbox} {
			if (s.Side == "" || s.Side == string(side)) && (s.Reason == "" || side == operator.Inbox) {
				chosen = append(chosen, letterSide{p, side})
			}
		}
	}
	if len(chosen) == 0 && (s.Side != string(operator.Outbox) || s.Reason == "") {
		if _, _, err = c.choosePlaces(ctx, s.Database+"/"+s.Schema); err == nil {
			err = badRequest("No schema matches.")
		}
		return nil, nil, err
	}
	return chosen, all, nil
}

// isWithoutTable reports whether err says that a schema does not have a side: services use an inbox, an outbox or both.
func isWithoutTable(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == "42P01"
}

// readSides calls read for each side. It skips a side that the schema does not have. If read fails for some sides, for
// example by a timeout, problems names them. If it fails for all of them, readSides returns an error.
func (c *Console) readSides(ctx context.Context, sides []letterSide, read func(letterSide) error) (problems []string, err error) {
	done := 0
	for _, side := range sides {
		switch failed := read(side); {
		case failed == nil || isWithoutTable(failed):
			done++
		case c.isRequestsFault(ctx, failed):
			return nil, failed
		default:
			problems = append(problems, fmt.Sprintf("%s of %s: %s", side.Side, side.Label, c.explainError(ctx, failed).What))
			err = failed
		}
	}
	if done > 0 {
		err = nil
	}
	return problems, err
}

// groupsPage is the page of the groups of dead letters.
func (c *Console) groupsPage() *page {
	return &page{path: "dead", title: "Dead letters", inMenu: true, template: "dead.html", show: c.showGroups, live: c.showGroups, blocks: []string{"groups"}}
}

// A groupsView is what dead.html gets.
type groupsView struct {
	Search   *letterSearch
	Places   []*place
	Several  bool
	Groups   []groupRow
	Total    int
	Missing  int
	Problems []string
	List     string // the query of the list of all of these letters
	Tabs     []stateTab
}

// A groupRow is a group with the queries of its links.
type groupRow struct {
	operator.LetterGroup
	Place *place
	Side  operator.Side
	Query string
	Verbs []letterVerb
	Line  string // the points of its sparkline
}

func (c *Console) showGroups(ctx context.Context, r *request) (any, error) {
	search, err := parseLetterSearch(r.values)
	if err != nil {
		return nil, err
	}
	sides, all, err := c.chooseSides(ctx, search)
	if err != nil {
		return nil, err
	}
	v := &groupsView{Search: search, Places: all, Several: len(all) > 1, List: search.with(), Tabs: search.tabs()}
	v.Problems, err = c.readSides(ctx, sides, func(side letterSide) error {
		key := search.with("database", side.Database, "schema", side.Schema, "side", string(side.Side))
		read, err := c.groups.getShared(ctx, key, groupsAge, func(ctx context.Context) (operator.LetterGroups, error) {
			d, err := side.read()
			if err != nil {
				return operator.LetterGroups{}, err
			}
			found, err := d.Group(ctx, search.filter(search.state()), groupsOfSide)
			for i := range found.Groups {
				found.Groups[i].Error = c.redactText(KindError, found.Groups[i].Topic, found.Groups[i].Error)
			}
			return found, err
		})
		v.Total, v.Missing = v.Total+read.Total, v.Missing+read.Missing
		for _, g := range read.Groups {
			v.Groups = append(v.Groups, newGroupRow(search, side, g))
		}
		return err
	})
	slices.SortStableFunc(v.Groups, func(a, b groupRow) int { return b.Count - a.Count })
	return v, err
}

func newGroupRow(search *letterSearch, side letterSide, g operator.LetterGroup) groupRow {
	step := g.Step
	if step == "" {
		step = withoutStep
	}
	row := groupRow{LetterGroup: g, Place: side.place, Side: side.Side}
	row.Query = search.with("database", side.Database, "schema", side.Schema, "side", string(side.Side), "topic", g.Topic, "step", step,
		"reason", string(g.Reason), "fingerprint", g.Fingerprint)
	one := *search
	one.Side = string(side.Side)
	row.Verbs = one.verbsOf(search.state())
	peak := slices.Max(g.Trend[:])
	var points []string
	for i, n := range g.Trend {
		points = append(points, fmt.Sprintf("%.1f,%.1f", float64(i)*trendWidth/float64(len(g.Trend)-1), trendHeight-2-float64(n)*(trendHeight-4)/float64(max(1, peak))))
	}
	row.Line = strings.Join(points, " ")
	return row
}

// The box of the sparkline of a group.
const (
	trendWidth  = 96
	trendHeight = 24
)

// LastHour returns how many of the letters failed in the last hour.
func (g groupRow) LastHour() (n int) {
	for _, count := range g.Trend {
		n += count
	}
	return n
}

// A letterPlace is where a list goes on: behind a letter.
type letterPlace struct {
	In   string        `json:"in"`
	Side operator.Side `json:"side"`
	ID   int64         `json:"id"`
}

func (p *letterPlace) encode() string {
	text, _ := json.Marshal(p) // strings and a number can be encoded
	return base64.RawURLEncoding.EncodeToString(text)
}

// findLetterPlace returns the index of the side in which the list goes on, and the id behind which it does.
func findLetterPlace(text string, sides []letterSide) (begin int, after int64, err error) {
	if text == "" {
		return 0, 0, nil
	}
	var p letterPlace
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(data, &p) != nil || p.ID < 0 {
		return 0, 0, badRequest("The address does not say where the list goes on.")
	}
	begin = slices.IndexFunc(sides, func(s letterSide) bool { return s.Name == p.In && s.Side == p.Side })
	if begin < 0 {
		return 0, 0, badRequest("The list goes on in a schema that is not here any more.")
	}
	return begin, p.ID, nil
}

// lettersPage is the list of letters.
func (c *Console) lettersPage() *page {
	return &page{path: "letters", title: "Letters", template: "letters.html", show: c.showLetters, live: c.countLetters, blocks: []string{"counts"}}
}

// A lettersView is what letters.html gets.
type lettersView struct {
	Search   *letterSearch
	Places   []*place
	Several  bool
	Rows     []letterRow
	Next     string // the query of the next page; "": this is the last
	First    string // that of the first page; "": this is it
	Groups   string // that of the groups
	Tabs     []stateTab
	Verbs    []letterVerb
	Problems []string
	Count    int
	Loading  bool
}

func (v *lettersView) pageTitle() string { return v.Search.title() }

func (v *groupsView) pageTitle() string { return v.Search.title() }

// title names the state of the messages that the search is for.
func (s *letterSearch) title() string {
	if s.state() == operator.StateRetrying {
		return "Retrying messages"
	}
	return "Dead letters"
}

// A letterRow is a letter with its place.
type letterRow struct {
	operator.DeadLetter
	Place *place
}

// Query returns the query of the letter's page.
func (l letterRow) Query() string {
	return letterQuery(l.Place, l.Side, l.ID)
}

func letterQuery(p *place, side operator.Side, id int64) string {
	return "?" + url.Values{"database": {p.Database}, "schema": {p.Schema}, "side": {string(side)}, "id": {strconv.FormatInt(id, 10)}}.Encode()
}

func (c *Console) showLetters(ctx context.Context, r *request) (any, error) {
	search, err := parseLetterSearch(r.values)
	if err != nil {
		return nil, err
	}
	sides, all, err := c.chooseSides(ctx, search)
	if err != nil {
		return nil, err
	}
	begin, after, err := findLetterPlace(r.values.Get("after"), sides)
	if err != nil {
		return nil, err
	}
	v := &lettersView{Search: search, Places: all, Several: len(all) > 1, Groups: search.with("id", ""), Tabs: search.tabs(), Loading: true, Verbs: search.verbs()}
	if v.Problems, err = c.readSides(ctx, sides[begin:], func(side letterSide) error { return c.readLetters(ctx, v, side, &after) }); err != nil {
		return nil, err
	}
	if r.values.Get("after") != "" {
		v.First = search.with()
	} else if v.Next == "" && len(v.Problems) == 0 { // all that match are in the list
		v.Count, v.Loading = len(v.Rows), false
	}
	return v, nil
}

// readLetters appends letters of one side, behind the id after, until the page is full. It sets after to 0 for the next side.
func (c *Console) readLetters(ctx context.Context, v *lettersView, side letterSide, after *int64) error {
	begin := *after
	*after = 0
	if v.Next != "" {
		return nil
	}
	d, err := side.read()
	if err != nil {
		return err
	}
	room := lettersOnPage - len(v.Rows)
	found, err := d.List(ctx, v.Search.filter(v.Search.state()), begin, room+1)
	if err != nil {
		return err
	}
	more := len(found) > room
	if begin == 0 && !more { // the stream of the page needs no other reading
		c.counts.put(v.Search.countKey(side), countAge, len(found))
	}
	for _, l := range c.redactLetters(found[:min(len(found), room)]) {
		v.Rows = append(v.Rows, letterRow{l, side.place})
		begin = l.ID
	}
	if more {
		v.Next = v.Search.with("after", (&letterPlace{side.Name, side.Side, begin}).encode())
	}
	return nil
}

// countKey is the key of the count of what the search picks of one side.
func (s *letterSearch) countKey(side letterSide) string {
	return "letters" + s.with("database", side.Database, "schema", side.Schema, "side", string(side.Side))
}

// countLetters counts what the search picks, for the stream of the page.
func (c *Console) countLetters(ctx context.Context, r *request) (any, error) {
	search, err := parseLetterSearch(r.values)
	if err != nil {
		return nil, err
	}
	sides, all, err := c.chooseSides(ctx, search)
	if err != nil {
		return nil, err
	}
	v := &lettersView{Search: search, Several: len(all) > 1}
	v.Problems, err = c.readSides(ctx, sides, func(side letterSide) error {
		count, err := c.counts.getShared(ctx, search.countKey(side), countAge, func(ctx context.Context) (int, error) {
			d, err := side.read()
			if err != nil {
				return 0, err
			}
			return d.Count(ctx, search.filter(search.state()))
		})
		v.Count += count
		return err
	})
	if err != nil && len(v.Problems) > 0 { // the list is there, and says that the count is not
		err = nil
	}
	return v, err
}

// errNoLetter is the page of a letter that is gone.
func errNoLetter(side operator.Side, id int64) *pageError {
	return &pageError{Status: http.StatusNotFound, What: fmt.Sprintf("The %s has no parked message %d any more: it was redriven and handled, or discarded.", side, id),
		Advice: "The journal says who has changed it.", LinkText: "Journal of it", Link: "journal?" + url.Values{"side": {string(side)}, "id": {strconv.FormatInt(id, 10)}}.Encode()}
}
