package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/operator"
)

// maxWay is how many lines the way of a key has.
const maxWay = 500

// whyPages is the page that says where anything is, and what it waits for.
func (c *Console) whyPages() []*page {
	return []*page{{path: "why", title: "Why?", inMenu: true, template: "why.html", show: c.showWhy}}
}

// A whyView is what why.html gets.
type whyView struct {
	Query      string // what a person has typed
	Scope, Key string // what the page is about; empty: several things match, or none
	Path       string
	Link       string // the query of this page for somebody else

	Subjects []*subject // if there are several
	Findings []operator.Finding
	Notes    []operator.Finding // what could not be read
	Requests []requestRow
	Way      []wayLine
	Changes  []journalRow // what people have done to its parked messages
	Earlier  int

	Looked  []*place
	Down    []unreachable
	Skipped []skippedPlace
	Several bool
}

func (v *whyView) pageTitle() string {
	if v.Key != "" {
		return "Why? " + v.Key
	}
	return "Why?"
}

// A subject is a key that a text may mean.
type subject struct {
	Scope, Key string
	Found      []string // as what it was found, and where
	Link       string   // of the page about it, below the base
	Unreadable bool     // a parked message without a key: Link is its page
}

// A skippedPlace is where the page has not looked for something.
type skippedPlace struct {
	Place, Kind string
	Problem     *pageError
	Denied      bool
}

func (c *Console) showWhy(ctx context.Context, r *request) (any, error) {
	v := &whyView{Query: r.values.Get("q"), Key: r.values.Get("key"), Scope: r.values.Get("scope"), Path: r.values.Get("path")}
	if strings.TrimSpace(v.Query) == "" && v.Key == "" {
		return v, nil
	}
	all, down := c.listPlaces(ctx)
	v.Looked, v.Down, v.Several = all, down, len(all)+len(down) > 1
	if v.Key == "" {
		for _, text := range slices.Compact([]string{v.Query, strings.TrimSpace(v.Query)}) { // a key may begin or end with a blank
			if len(v.Subjects) > 0 {
				break
			}
			v.Skipped = nil
			if err := c.findSubjects(ctx, v, text); err != nil {
				return nil, err
			}
		}
		if len(v.Subjects) != 1 || v.Subjects[0].Unreadable {
			return v, nil
		}
		v.Scope, v.Key = v.Subjects[0].Scope, v.Subjects[0].Key
	}
	return v, c.explainKey(ctx, v)
}

// findSubjects looks in all places for what a person has typed.
func (c *Console) findSubjects(ctx context.Context, v *whyView, text string) error {
	subjects := map[string]*subject{}
	for _, p := range v.Looked {
		reader, err := p.reader()
		if err != nil {
			return err
		}
		found, err := reader.Search(ctx, text)
		if err != nil {
			return err
		}
		for _, skipped := range found.Skipped {
			v.Skipped = append(v.Skipped, skippedPlace{p.Label, string(skipped.Kind), c.explainError(ctx, skipped.Err), isDeniedError(skipped.Err)})
		}
		for i := range found.Matches {
			m := &found.Matches[i]
			id, link := m.Scope+"\x00"+m.Key, "why"+whyQuery(m.Scope, m.Key, "")
			if m.Key == "" {
				id, link = letterLink(p.Name, operator.Inbox, m.ID), letterLink(p.Name, operator.Inbox, m.ID)
			}
			s := subjects[id]
			if s == nil {
				s = &subject{Scope: m.Scope, Key: m.Key, Unreadable: m.Key == "", Link: link}
				subjects[id] = s
				v.Subjects = append(v.Subjects, s)
			}
			if text := strings.TrimSpace(fmt.Sprintf("%s %s", m.Kind, m.Name)) + " in " + p.Label; !slices.Contains(s.Found, text) && len(s.Found) < 10 {
				s.Found = append(s.Found, text)
			}
		}
	}
	return nil
}

func whyQuery(scope, key, path string) string {
	values := url.Values{"key": {key}}
	if scope != "" {
		values.Set("scope", scope)
	}
	if path != "" {
		values.Set("path", path)
	}
	return "?" + values.Encode()
}

// explainKey fills the page about a key. If the key is used in several scopes, or more than once, it lists these.
func (c *Console) explainKey(ctx context.Context, v *whyView) error {
	v.Link = whyQuery(v.Scope, v.Key, v.Path)
	var sources []operator.Source
	for _, p := range v.Looked {
		sources = append(sources, operator.Source{DB: p.pool, Schema: p.Schema, Name: p.Label, Flags: flagsOf(p, len(c.databases))})
	}
	e, err := operator.Explain(ctx, sources, operator.Address{Scope: v.Scope, Key: v.Key, Path: v.Path}, c.explainOptions())
	var scopes *operator.ScopesError
	var several *operator.AmbiguousError
	switch {
	case errors.As(err, &scopes):
		v.Subjects = nil
		for _, scope := range scopes.Scopes {
			v.Subjects = append(v.Subjects, &subject{Scope: scope, Key: v.Key, Link: "why" + whyQuery(scope, v.Key, v.Path), Found: []string{"the key in this scope"}})
		}
		return nil
	case errors.As(err, &several):
		v.Subjects = nil
		for _, at := range several.Addresses {
			v.Subjects = append(v.Subjects, &subject{Scope: at.Scope, Key: at.Key, Link: "why" + whyQuery(at.Scope, at.Key, at.Path), Found: []string{"the instance " + at.Path}})
		}
		return nil
	case errors.Is(err, operator.ErrMoved):
		return &pageError{Status: http.StatusServiceUnavailable, What: "The relay has emptied a table of the outbox while the page was read.", Advice: "Reload the page."}
	case err != nil:
		return err
	}
	v.Subjects, v.Findings, v.Notes = nil, e.Findings, e.Unreadable
	c.findKeyRequests(ctx, v)
	if v.Changes, err = c.listKeyChanges(ctx, v.Looked, e); err != nil {
		return err
	}
	v.collectWay(e)
	return nil
}

// listKeyChanges returns what people have done to the parked messages of a key.
func (c *Console) listKeyChanges(ctx context.Context, looked []*place, e *operator.Explanation) (all []journalRow, err error) {
	for _, part := range e.Parts {
		at := slices.IndexFunc(looked, func(p *place) bool { return p.Label == part.Name })
		if at < 0 {
			continue
		}
		changes, err := c.listLetterChanges(ctx, looked[at], part)
		if err != nil {
			return nil, err
		}
		all = append(all, changes...)
	}
	return all, nil
}

// findKeyRequests reads the records of the key: that of the HTTP request that began the saga has its scope and its key.
func (c *Console) findKeyRequests(ctx context.Context, v *whyView) {
	found := &requestsView{Key: v.Key, Scope: v.Scope}
	for _, p := range v.Looked {
		if err := c.readRequests(ctx, found, p); err != nil {
			found.Failed = append(found.Failed, placeProblem{p, c.explainError(ctx, err)})
		}
	}
	v.Requests = found.Rows
	kind := string(operator.MatchRequest)
	note := func(p *place, problem *pageError, denied bool) {
		if !slices.ContainsFunc(v.Skipped, func(s skippedPlace) bool { return s.Place == p.Label && s.Kind == kind }) {
			v.Skipped = append(v.Skipped, skippedPlace{p.Label, kind, problem, denied})
		}
	}
	for _, p := range found.Denied {
		note(p, nil, true)
	}
	for _, f := range found.Failed {
		note(f.Where, f.Problem, false)
	}
}

// A wayLine is something that has happened to a key.
type wayLine struct {
	At    time.Time
	After time.Duration // since the line before
	Where string
	What  string // request, saga, message, step, letter or person
	Text  string
	Link  string // below the base; "": none
}

// Later reports whether the line is at least a millisecond after the one before.
func (l wayLine) Later() bool { return l.After >= time.Millisecond }

// collectWay puts what the tables of all places have of the key into the order of time.
func (v *whyView) collectWay(e *operator.Explanation) {
	add := func(at time.Time, where, what, text, link string) {
		if !at.IsZero() {
			v.Way = append(v.Way, wayLine{At: at, Where: where, What: what, Text: text, Link: link})
		}
	}
	for i := range v.Requests {
		q := &v.Requests[i]
		link := "requests?" + url.Values{"in": {q.Where.Name}, "key": {q.Key}, "scope": {q.Scope}, "namespace": {q.Namespace}}.Encode()
		add(q.CreatedAt, q.Where.Label, "request", "the request came first", link)
		add(q.CompletedAt, q.Where.Label, "request", fmt.Sprintf("%s with status %d", q.State, q.Status), link)
	}
	orchestrated := slices.ContainsFunc(e.Parts, func(p *operator.SagaPart) bool { return len(p.Sagas) > 0 })
	for _, part := range e.Parts {
		name := v.placeName(part.Name)
		for i := range part.Sagas {
			addInstance(add, part.Name, name, &part.Sagas[i])
		}
		for i := range part.Outbox.Messages {
			m := &part.Outbox.Messages[i]
			link := messageLink(name, m.ID)
			if isHeldBack(m.Place) {
				link = letterLink(name, operator.Outbox, m.ID)
			}
			add(m.CreatedAt, part.Name, "message", fmt.Sprintf("%s to %s, step %s: %s", m.Type, m.Topic, formatStep(m.Step, m.N), m.Place), link)
		}
		for i := range part.Inbox.Steps {
			s := &part.Inbox.Steps[i]
			if orchestrated && strings.HasPrefix(s.Step, replySteps) {
				continue
			}
			step := formatStep(s.Step, s.N)
			if s.UpdatedAt.After(s.CreatedAt) {
				add(s.CreatedAt, part.Name, "step", fmt.Sprintf("step %s was tried first", step), "")
			}
			add(s.UpdatedAt, part.Name, "step", fmt.Sprintf("step %s is %s after %s", step, s.State, formatPlural(s.Attempts+s.UndoAttempts, "attempt", "attempts")), "")
		}
		for i := range part.Inbox.Letters {
			l := &part.Inbox.Letters[i]
			add(l.LastAt, part.Name, "letter", fmt.Sprintf("step %s, %s: %s: %s", formatStep(l.Step, l.N), l.State, l.Reason, l.Error), letterLink(name, operator.Inbox, l.ID))
		}
	}
	for i := range v.Changes {
		change := &v.Changes[i]
		add(change.At, change.Where.Label, "person", fmt.Sprintf("%s of %s %s by %s: %s", change.Verb, map[bool]string{true: "message", false: "messages"}[change.Messages == 1], change.Numbers(), change.By, change.Why), "")
	}
	slices.SortStableFunc(v.Way, func(a, b wayLine) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Where, b.Where)) })
	for i := range v.Way[min(1, len(v.Way)):] {
		v.Way[i+1].After = v.Way[i+1].At.Sub(v.Way[i].At)
	}
	v.Earlier = max(0, len(v.Way)-maxWay)
	v.Way = v.Way[v.Earlier:]
}

// addInstance adds the life of an instance.
func addInstance(add func(at time.Time, where, what, text, link string), where, name string, t *operator.Timeline) {
	label := t.Saga
	if t.Path != "" {
		label += " " + t.Path
	}
	database, schema, _ := strings.Cut(name, "/")
	link := "saga" + (&sagaAddress{Database: database, Schema: schema, Scope: t.Scope, Key: t.Key, Path: t.Path}).Query()
	add(t.StartedAt, where, "saga", fmt.Sprintf("saga %s began, version %d", label, t.Version), link)
	for i := range t.Steps {
		s := &t.Steps[i]
		if s.Number == 0 {
			continue
		}
		add(s.Began, where, "saga", label+": step "+s.Name+" began", "")
		add(s.Ended, where, "saga", label+": step "+s.Name+" ended: "+string(s.State), "")
		add(s.UndoBegan, where, "saga", label+": the compensation of "+s.Name+" began", "")
		add(s.UndoEnded, where, "saga", label+": the compensation of "+s.Name+" ended", "")
	}
	for _, d := range t.Journal {
		text := fmt.Sprintf("%s: %s by %s: %s", label, d.Verb, d.By, d.Why)
		if d.Step != "" {
			text = fmt.Sprintf("%s: %s of step %s by %s: %s", label, d.Verb, d.Step, d.By, d.Why)
		}
		add(d.At, where, "person", text, "")
	}
	add(t.EndedAt, where, "saga", fmt.Sprintf("saga %s %s", label, t.Status), link)
}

// placeName returns the name of the place with a label.
func (v *whyView) placeName(label string) string {
	for _, p := range v.Looked {
		if p.Label == label {
			return p.Name
		}
	}
	return label
}

func formatStep(step, n string) string {
	if n == "" {
		return step
	}
	return step + "#" + n
}

func messageLink(in string, id int64) string {
	return "message?" + url.Values{"in": {in}, "id": {fmt.Sprint(id)}}.Encode()
}

// letterLink returns the page of a dead letter or a retrying message of a place.
func letterLink(in string, side operator.Side, id int64) string {
	database, schema, _ := strings.Cut(in, "/")
	return "letter?" + url.Values{"database": {database}, "schema": {schema}, "side": {string(side)}, "id": {fmt.Sprint(id)}}.Encode()
}
