package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/operator"
)

const (
	// explanationAge is how long what was read of a saga is kept, so that browsers share it. A stream reads it again when
	// the instance has changed, or after followedAge: it costs a scan of each log.
	explanationAge = time.Second
	followedAge    = 8 * time.Second

	// maxExplanations is how many of them are kept.
	maxExplanations = 32
)

// A sagaAddress names a saga, as in the URL. A saga without an instance has a scope and a key only.
type sagaAddress struct{ Database, Schema, Scope, Key, Path, ID string }

func (a *sagaAddress) fields() map[string]*string {
	return map[string]*string{"database": &a.Database, "schema": &a.Schema, "scope": &a.Scope, "key": &a.Key, "path": &a.Path, "id": &a.ID}
}

func parseSagaAddress(values url.Values) (*sagaAddress, error) {
	a := &sagaAddress{}
	for name, field := range a.fields() {
		*field = values.Get(name)
	}
	switch {
	case a.Key == "" && a.ID == "":
		return nil, badRequest("The address names no saga: its key is missing.")
	case (a.Database == "") != (a.Schema == ""):
		return nil, badRequest("The address names a database without a schema, or a schema without a database.")
	}
	return a, nil
}

// Query returns the address as a query, without empty fields.
func (a *sagaAddress) Query() string {
	values := url.Values{}
	for name, field := range a.fields() {
		if *field != "" {
			values.Set(name, *field)
		}
	}
	return "?" + values.Encode()
}

func (a *sagaAddress) placeName() string {
	if a.Database == "" {
		return ""
	}
	return a.Database + "/" + a.Schema
}

// sagaPage is the page of one saga: of an instance, or of messages that no orchestrator coordinates.
func (c *Console) sagaPage() *page {
	return &page{path: "saga", title: "Saga", template: "saga.html", show: c.showSaga, live: c.followSaga,
		blocks: []string{"now", "drawing", "events"}}
}

// A sagaView is what saga.html gets. The last fields are set when the page is loaded, and not in its stream.
type sagaView struct {
	Address    sagaAddress
	Several    bool // databases or schemas
	Home       *place
	Instance   *operator.Timeline // nil: the saga has no instance
	Around     string             // the query of the instance around a nested one
	TraceURL   string
	Findings   []operator.Finding
	Unreadable []operator.Finding
	Down       []unreachable
	Changed    bool // of a stream: since the page was loaded
	Dead       []deadLink
	Drawing    *drawing
	Steps      []stepLine
	Events     []sagaEvent
	Earlier    int // events that are left out
	State      *contentView

	Verbs     []verbLine
	StepVerbs []verbLine
	Letters   []letterView
	Messages  []messageView
	LeftOut   int                // messages whose content is not shown
	Changes   []journalRow       // what people have done to its parked messages
	Instances []operator.Address // that the key names, if it names several
}

func (v *sagaView) pageTitle() string { return "Saga " + v.Address.Key }

// FirstTrace returns the address of the trace of the first message that has one, for a saga without an instance.
func (v *sagaView) FirstTrace() (address string) {
	var first time.Time
	for i := range v.Messages {
		if m := &v.Messages[i]; m.TraceURL != "" && (address == "" || m.CreatedAt.Before(first)) {
			address, first = m.TraceURL, m.CreatedAt
		}
	}
	return address
}

// revision changes with the instance, and with the verbs that it takes.
func (v *sagaView) revision() string {
	if v.Instance == nil {
		return ""
	}
	return fmt.Sprint(v.Instance.UpdatedAt.UnixMicro(), v.Instance.Status)
}

// isFinished ends the stream of an instance that has ended, unless something of it is still on its way.
func (v *sagaView) isFinished() bool {
	return v.Instance != nil && !v.Instance.EndedAt.IsZero() &&
		!slices.ContainsFunc(v.Findings, func(f operator.Finding) bool { return f.What != "instance" })
}

// A deadLink leads to the dead letters of a saga in a place.
type deadLink struct {
	Label, Query string
	Count        int
}

// A sagaReading is what all places have of a saga.
type sagaReading struct {
	address sagaAddress
	places  map[string]*place // by label, which is the name of a part
	down    []unreachable
	*operator.Explanation
	home     *place
	timeline *operator.Timeline
}

// readSaga reads a saga. Its error is a page if there is none, or an [operator.ErrAmbiguous].
func (c *Console) readSaga(ctx context.Context, r *request, follow bool) (*sagaReading, error) {
	address, err := parseSagaAddress(r.values)
	if err != nil {
		return nil, err
	}
	chosen, _, err := c.choosePlaces(ctx, address.placeName())
	if err != nil {
		return nil, err
	}
	if address.ID != "" {
		if err := findByID(ctx, chosen, address); err != nil {
			return nil, err
		}
	}
	all, down := c.listPlaces(ctx)
	s := &sagaReading{address: *address, places: map[string]*place{}, down: down}
	var sources []operator.Source
	for _, p := range all {
		s.places[p.Label] = p
		sources = append(sources, operator.Source{DB: p.pool, Schema: p.Schema, Name: p.Label, Flags: flagsOf(p, len(c.databases))})
	}
	at := operator.Address{Scope: address.Scope, Key: address.Key, Path: address.Path}
	key, age, get := address.Query(), explanationAge, c.explanations.get
	if follow {
		key, age, get = key+" "+readRevision(ctx, chosen, at), followedAge, c.explanations.getShared
	}
	s.Explanation, err = get(ctx, key, age, func(ctx context.Context) (*operator.Explanation, error) {
		return operator.Explain(ctx, sources, at, c.explainOptions())
	})
	if err != nil {
		return nil, err
	}
	s.chooseHome()
	if len(s.Findings) == 0 {
		return nil, &pageError{Status: http.StatusNotFound, What: fmt.Sprintf("Nothing is known of the saga %.100q.", address.Key),
			Advice: "Look whether key and scope are right, or search for it. Rows of a saga that has ended may have been removed."}
	}
	return s, nil
}

// explainOptions are those of each explanation: what it has is redacted.
func (c *Console) explainOptions() *operator.ExplainOptions {
	o := &operator.ExplainOptions{ReadTimeout: c.opts.ReadTimeout, Buttons: true}
	if c.opts.Redact != nil {
		o.Redact = c.redactText
	}
	return o
}

// readRevision returns a text that changes with an instance and with those nested in it, by look-ups in indexes. It is
// empty if there is no instance, or if it cannot be read: then the page says so.
func readRevision(ctx context.Context, places []*place, at operator.Address) string {
	for _, p := range places {
		n, err := p.instances()
		if err != nil {
			return ""
		}
		t, err := n.Get(ctx, at)
		if err != nil {
			continue
		}
		revision := fmt.Sprint(t.UpdatedAt.UnixMicro(), t.Status)
		for i := range t.Nested {
			revision += fmt.Sprint(" ", t.Nested[i].UpdatedAt.UnixMicro())
		}
		return revision
	}
	return ""
}

func flagsOf(p *place, databases int) string {
	if databases == 1 {
		return " -schema " + p.Schema
	}
	return " -database " + p.Database + "=… -schema " + p.Schema
}

// findByID completes an address that has the id of an instance.
func findByID(ctx context.Context, places []*place, a *sagaAddress) error {
	for _, p := range places {
		n, err := p.instances()
		if err != nil {
			return err
		}
		found, err := n.List(ctx, operator.InstanceFilter{ID: a.ID, Scope: a.Scope, Key: a.Key}, operator.Address{}, 1)
		if err != nil {
			return err
		}
		if len(found) > 0 {
			i := found[0]
			*a = sagaAddress{p.Database, p.Schema, i.Scope, i.Key, i.Path, ""}
			return nil
		}
	}
	return &pageError{Status: http.StatusNotFound, What: "There is no saga with this id.", Advice: "Look whether it is the correlation id of a saga, or search by key."}
}

// chooseHome chooses the instance that the page is about: that of the address, or the first of any place. It also
// completes the address.
func (s *sagaReading) chooseHome() {
	for _, part := range s.Parts {
		if len(part.Sagas) > 0 && (s.home == nil || s.places[part.Name].Name == s.address.placeName()) {
			s.home, s.timeline = s.places[part.Name], &part.Sagas[0]
		}
	}
	if s.home != nil {
		s.address = sagaAddress{s.home.Database, s.home.Schema, s.timeline.Scope, s.timeline.Key, s.timeline.Path, ""}
		return
	}
	for _, part := range s.Parts {
		switch {
		case s.address.Scope != "":
			return
		case len(part.Inbox.Steps) > 0:
			s.address.Scope = part.Inbox.Steps[0].Scope
		case len(part.Outbox.Messages) > 0:
			s.address.Scope = part.Outbox.Messages[0].Scope
		case len(part.Inbox.Letters) > 0:
			s.address.Scope = part.Inbox.Letters[0].Scope
		}
	}
}

// homePart returns the part of the place that has the instance.
func (s *sagaReading) homePart() *operator.SagaPart {
	i := slices.IndexFunc(s.Parts, func(p *operator.SagaPart) bool { return s.home != nil && p.Name == s.home.Label })
	if i < 0 {
		return nil
	}
	return s.Parts[i]
}

// showSaga reads the page: what its stream sends later, the verbs, and what the messages carry.
func (c *Console) showSaga(ctx context.Context, r *request) (any, error) {
	s, err := c.readSaga(ctx, r, false)
	var ambiguous *operator.AmbiguousError
	var scopes *operator.ScopesError
	switch {
	case errors.As(err, &ambiguous):
		return &sagaView{Address: sagaAddress{Key: r.values.Get("key")}, Instances: ambiguous.Addresses}, nil
	case errors.As(err, &scopes):
		v := &sagaView{Address: sagaAddress{Key: r.values.Get("key")}}
		for _, scope := range scopes.Scopes {
			v.Instances = append(v.Instances, operator.Address{Scope: scope, Key: v.Address.Key})
		}
		return v, nil
	case err != nil:
		return nil, err
	}
	v := c.newSagaView(s)
	if err := c.addContents(ctx, v, s); err != nil {
		return nil, err
	}
	if s.home != nil && s.timeline.EndedAt.IsZero() {
		n, err := s.home.instances()
		if err != nil {
			return nil, err
		}
		choices, err := n.Choices(ctx, s.timeline.Address)
		if err != nil {
			return nil, err
		}
		for i := range choices {
			choices[i].Refusal = c.redactText(KindError, s.timeline.Saga, choices[i].Refusal)
		}
		v.Verbs, v.StepVerbs = listVerbs(s, choices, r.role)
	}
	return v, nil
}

// followSaga reads what the stream of the page sends.
func (c *Console) followSaga(ctx context.Context, r *request) (any, error) {
	s, err := c.readSaga(ctx, r, true)
	if errors.Is(err, operator.ErrAmbiguous) {
		return nil, badRequest("The key has several instances.")
	}
	if err != nil {
		return nil, err
	}
	v := c.newSagaView(s)
	v.Changed = r.values.Has(loadedRevision) && r.values.Get(loadedRevision) != v.revision()
	return v, nil
}

func (c *Console) newSagaView(s *sagaReading) *sagaView {
	v := &sagaView{Address: s.address, Several: len(s.places) > 1, Home: s.home, Instance: s.timeline, Findings: s.Findings, Unreadable: s.Unreadable, Down: s.down}
	for _, part := range s.Parts {
		v.Dead = append(v.Dead, deadLinks(s, part)...)
	}
	if s.timeline == nil {
		v.Drawing = drawMessages(s)
		v.Events, v.Earlier = listEvents(s)
		return v
	}
	t := s.timeline
	v.TraceURL = c.traceURL(t.TraceParent)
	if t.Parent != "" {
		around := s.address
		around.Path = parentPath(t.Path)
		v.Around = around.Query()
	}
	v.Drawing = drawInstance(t, s.homePart().Sagas)
	v.Steps = listSteps(s, t)
	v.Events, v.Earlier = listEvents(s)
	if len(t.State) > 0 {
		v.State = c.newContent(Content{Kind: KindState, Name: t.Saga, Data: t.State}, len(t.State))
	}
	return v
}

// parentPath returns the path of the instance around one at a path.
func parentPath(path string) string {
	_, within := flow.Incarnation(path)
	if i := strings.LastIndexByte(within, '-'); i >= 0 {
		return path[:len(path)-len(within)+i]
	}
	return flow.Root(path)
}

// deadLinks returns the links to the dead letters of a saga in one place.
func deadLinks(s *sagaReading, part *operator.SagaPart) (links []deadLink) {
	p := s.places[part.Name]
	add := func(side operator.Side, count int, what string) {
		if count == 0 || p == nil {
			return
		}
		query := url.Values{"database": {p.Database}, "schema": {p.Schema}, "side": {string(side)}, "key": {s.address.Key}}
		if s.address.Scope != "" {
			query.Set("scope", s.address.Scope)
		}
		links = append(links, deadLink{what + " in " + p.Label, "?" + query.Encode(), count})
	}
	dead := 0
	for i := range part.Inbox.Letters {
		if part.Inbox.Letters[i].State == operator.StateDead {
			dead++
		}
	}
	add(operator.Inbox, dead, "of steps")
	dead = 0
	for i := range part.Outbox.Messages {
		if part.Outbox.Messages[i].Place == operator.PlaceDead {
			dead++
		}
	}
	add(operator.Outbox, dead, "of the outbox")
	return links
}

// A stepLine is a step in the table of steps.
type stepLine struct {
	*operator.TimelineStep
	Label  string // of its state
	Tone   string
	Group  string // of a group: what it does with its steps
	Took   time.Duration
	Undone time.Duration
	Nested string // the query of the nested saga
}

// Indent is the class of the depth.
func (l *stepLine) Indent() string { return fmt.Sprintf("depth-%d", min(l.Depth, 4)) }

func listSteps(s *sagaReading, t *operator.Timeline) []stepLine {
	lines := make([]stepLine, len(t.Steps))
	for i := range t.Steps {
		step := &t.Steps[i]
		look := lookOf(step.State)
		l := stepLine{TimelineStep: step, Label: look.label, Tone: look.tone, Group: groupLabels[step.Kind]}
		if !step.Ended.IsZero() && !step.Began.IsZero() {
			l.Took = step.Ended.Sub(step.Began)
		}
		if !step.UndoEnded.IsZero() && !step.UndoBegan.IsZero() {
			l.Undone = step.UndoEnded.Sub(step.UndoBegan)
		}
		if step.Nested != nil {
			at := s.address
			at.Path = step.Nested.Path
			l.Nested = at.Query()
		}
		lines[i] = l
	}
	return lines
}

var traceParent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}`)

// traceURL returns the address of the trace in a header, "" if there is none or nobody knows where traces are.
func (c *Console) traceURL(header string) string {
	found := traceParent.FindStringSubmatch(header)
	if found == nil || c.opts.TraceURL == nil {
		return ""
	}
	return c.opts.TraceURL(found[1])
}

// A contentView is a payload, headers or a state, as a page shows it.
type contentView struct {
	Text string
	Note string // that it is cut off, binary, or left out
}

// newContent returns what a page shows of content, whose size is that of all of it.
func (c *Console) newContent(content Content, size int) *contentView {
	data, cut := c.redact(content)
	v := &contentView{}
	if cut || len(content.Data) < size {
		v.Note = fmt.Sprintf("Only the first %s of %s are shown.", formatBytes(int64(len(data))), formatBytes(int64(size)))
	}
	v.Text = visibleLines(string(indentJSON(data)))
	return v
}

// visibleLines is visibleText for text of several lines.
func visibleLines(text string) string {
	lines := strings.Split(strings.ReplaceAll(text, "\t", "    "), "\n")
	for i, line := range lines {
		lines[i] = visibleText(strings.TrimSuffix(line, "\r"))
	}
	return strings.Join(lines, "\n")
}
