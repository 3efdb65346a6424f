package console

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/operator"
)

const (
	messagesOnPage = 50
	keysOnPage     = 50

	flowAge  = 5 * time.Second
	keysAge  = 4 * time.Second
	flowSize = 10_000 // messages that a flow counts at most
)

// messagePlaces are the places whose messages the outbox page lists, in the order of its tabs.
var messagePlaces = []operator.Place{operator.PlaceStored, operator.PlaceRefused, operator.PlaceWaiting, operator.PlaceDelayed, operator.PlaceDead, operator.PlaceLog}

// placeTexts say what the messages of a place wait for.
var placeTexts = map[operator.Place]string{
	operator.PlaceStored:  "Committed and not published yet: the relay publishes them next.",
	operator.PlaceRefused: "The broker has refused them. The relay tries again when they are due.",
	operator.PlaceWaiting: "They wait behind an earlier message of their ordering key, or for a topic that takes no messages.",
	operator.PlaceDelayed: "They are published when they are due.",
	operator.PlaceDead:    "The broker has refused them until their attempts were used up. They wait for a person.",
	operator.PlaceLog:     "All that the log still has, published or not, the newest first. The relay empties it from time to time.",
}

// messageTexts say the same of one message.
var messageTexts = map[operator.Place]string{
	operator.PlaceStored:    "The relay publishes it next.",
	operator.PlaceRefused:   "The broker has refused it. The relay tries again when it is due.",
	operator.PlaceWaiting:   "It waits behind an earlier message of its ordering key, or for its topic.",
	operator.PlaceDelayed:   "It is published when it is due.",
	operator.PlaceDead:      "The broker has refused it until its attempts were used up. It waits for a person.",
	operator.PlacePublished: "The broker has confirmed it. The log still has it.",
}

// A messageSearch is which messages a person looks for, as in the URL.
type messageSearch struct {
	In, Place, Topic, Type, Scope, Key, Ordering, Correlation, Message string
}

// fields are the parameters of a search with their names in URLs.
func (s *messageSearch) fields() map[string]*string {
	return map[string]*string{"in": &s.In, "place": &s.Place, "topic": &s.Topic, "type": &s.Type, "scope": &s.Scope, "key": &s.Key,
		"ordering": &s.Ordering, "correlation": &s.Correlation, "message": &s.Message}
}

// Padded returns the names of the conditions with a blank at an end.
func (s *messageSearch) Padded() []string { return listPadded(s.fields()) }

func parseMessageSearch(values url.Values) (*messageSearch, error) {
	s := &messageSearch{}
	readFields(s.fields(), values)
	if s.Place == "" {
		s.Place = string(operator.PlaceStored)
	}
	if !slices.Contains(messagePlaces, operator.Place(s.Place)) {
		return nil, badRequest(fmt.Sprintf("There is no place %.40q in an outbox.", s.Place))
	}
	return s, nil
}

func (s *messageSearch) filter() operator.MessageFilter {
	return operator.MessageFilter{Place: operator.Place(s.Place), Topic: s.Topic, Type: s.Type, Scope: s.Scope, Key: s.Key,
		OrderingKey: s.Ordering, CorrelationID: s.Correlation, MessageID: s.Message}
}

// Narrowed reports whether the search has a condition besides schema and place.
func (s *messageSearch) Narrowed() bool {
	f := s.filter()
	f.Place = ""
	return f != operator.MessageFilter{}
}

func (s *messageSearch) query() url.Values { return queryFields(s.fields()) }

// A messagePoint is where a list of messages goes on: behind a message of a place.
type messagePoint struct {
	In string               `json:"in"`
	At operator.MessageMark `json:"at"`
}

// encodePoint returns a point of a list as a value in a URL.
func encodePoint(point any) string {
	text, _ := json.Marshal(point) // structs of strings, numbers and times
	return base64.RawURLEncoding.EncodeToString(text)
}

// decodePoint reads a value of encodePoint. Without a value, point stays as it is.
func decodePoint(text string, point any) error {
	if text == "" {
		return nil
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(data, point) != nil {
		return badRequest("The address does not say where the list goes on.")
	}
	return nil
}

// reader returns the reader of p.
func (p *place) reader() (*operator.Reader, error) {
	return operator.NewReader(p.pool, &operator.Options{Schema: p.Schema, ReadTimeout: p.timeout})
}

// outboxPages are the outbox with its list, and one message.
func (c *Console) outboxPages() []*page {
	return []*page{
		{path: "outbox", title: "Outbox", inMenu: true, template: "outbox.html", show: c.showOutbox, live: c.readOutboxes, blocks: []string{"outboxes"}},
		{path: "message", title: "Message", template: "message.html", show: c.showMessage},
	}
}

// An outboxView is what outbox.html gets.
type outboxView struct {
	placeChoice
	Search *messageSearch
	Tabs   []stateTab
	About  string // what the messages of the tab wait for
	Rows   []messageRow
	Next   string
	First  string
	State  []outboxState
	Down   []unreachable
}

// A placeChoice is for the field of a form that chooses a schema.
type placeChoice struct {
	In      string
	Places  []*place
	Several bool
}

func newPlaceChoice(in string, all []*place) placeChoice { return placeChoice{in, all, len(all) > 1} }

type messageRow struct {
	operator.OutboxMessage
	Where *place
}

// An outboxState is the outbox of one schema.
type outboxState struct {
	placeView
	Flow     *operator.Flow
	Keys     []operator.WaitingKey
	MoreKeys bool
	Problems []string // what of it could not be read
}

// FlowCap is how many messages a flow counts at most.
func (outboxState) FlowCap() int { return flowSize }

func (c *Console) showOutbox(ctx context.Context, r *request) (any, error) {
	search, err := parseMessageSearch(r.values)
	if err != nil {
		return nil, err
	}
	var after messagePoint
	if err := decodePoint(r.values.Get("after"), &after); err != nil {
		return nil, err
	}
	chosen, all, err := c.choosePlaces(ctx, search.In)
	if err != nil {
		return nil, err
	}
	state, err := c.readOutboxes(ctx, r)
	if err != nil {
		return nil, err
	}
	v := state.(*outboxView)
	v.placeChoice, v.Search, v.Tabs, v.About = newPlaceChoice(search.In, all), search, search.tabs(), placeTexts[operator.Place(search.Place)]
	next, err := c.fillMessages(ctx, v, withOutbox(chosen, v.State), after)
	if err != nil {
		return nil, err
	}
	if next != nil {
		q := search.query()
		q.Set("after", encodePoint(next))
		v.Next = "?" + q.Encode()
	}
	if after != (messagePoint{}) {
		v.First = "?" + search.query().Encode()
	}
	return v, nil
}

// withOutbox returns those of places that have an outbox which can be read.
func withOutbox(places []*place, states []outboxState) (all []*place) {
	for _, p := range places {
		if slices.ContainsFunc(states, func(s outboxState) bool { return s.Name == p.Name && s.Outbox != nil }) {
			all = append(all, p)
		}
	}
	return all
}

func (s *messageSearch) tabs() (tabs []stateTab) {
	for _, one := range messagePlaces {
		q := s.query()
		q.Set("place", string(one))
		tabs = append(tabs, stateTab{string(one), "?" + q.Encode(), s.Place == string(one)})
	}
	return tabs
}

// fillMessages fills the page, one place after the other, and returns where the next page begins.
func (c *Console) fillMessages(ctx context.Context, v *outboxView, places []*place, after messagePoint) (*messagePoint, error) {
	begin := 0
	if after.In != "" {
		if begin = slices.IndexFunc(places, func(p *place) bool { return p.Name == after.In }); begin < 0 {
			return nil, badRequest("The list goes on in a schema that is not here any more.")
		}
	}
	for i := begin; i < len(places); i++ {
		from := operator.MessageMark{}
		if i == begin {
			from = after.At
		}
		if len(v.Rows) >= messagesOnPage {
			return &messagePoint{places[i].Name, from}, nil
		}
		reader, err := places[i].reader()
		if err != nil {
			return nil, err
		}
		found, next, err := reader.ListMessages(ctx, v.Search.filter(), from, messagesOnPage-len(v.Rows))
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			c.redactMessage(&m)
			v.Rows = append(v.Rows, messageRow{m, places[i]})
		}
		if next != nil {
			return &messagePoint{places[i].Name, *next}, nil
		}
	}
	return nil, nil
}

// readOutboxes reads the state of the outboxes, for the page and its stream.
func (c *Console) readOutboxes(ctx context.Context, r *request) (any, error) {
	chosen, all, err := c.choosePlaces(ctx, strings.TrimSpace(r.values.Get("in")))
	if err != nil {
		return nil, err
	}
	v := &outboxView{placeChoice: newPlaceChoice(r.values.Get("in"), all)}
	only := operator.OverviewOptions{}
	only.Parts = append(only.Parts, "outbox") // append has the type of the elements: this package may not import migrations
	for _, d := range c.databases {
		read, err := c.readStates(ctx, d, chosen, only)
		if err != nil {
			v.Down = append(v.Down, unreachable{d.Name, c.explainError(ctx, err)})
		}
		for _, p := range read {
			if slices.Contains(partNames(p), "outbox") {
				v.State = append(v.State, c.readOutbox(ctx, p))
			}
		}
	}
	return v, nil
}

func partNames(p placeView) (names []string) {
	for _, part := range p.Parts {
		names = append(names, string(part))
	}
	return names
}

// readOutbox reads what the overview does not have. What cannot be read does not hide the rest.
func (c *Console) readOutbox(ctx context.Context, p placeView) outboxState {
	s := outboxState{placeView: p}
	for _, part := range p.Unreadable {
		if string(part.Part) == "outbox" {
			s.Problems = append(s.Problems, c.explainError(ctx, part.Err).What)
			return s
		}
	}
	fail := func(what string, err error) {
		s.Problems = append(s.Problems, what+": "+c.explainError(ctx, err).What)
	}
	reader, err := p.reader()
	if err != nil {
		fail("Outbox", err)
		return s
	}
	if flow, err := c.flows.getShared(ctx, p.Name, flowAge, reader.ReadFlow); err != nil {
		fail("Throughput", err)
	} else {
		s.Flow = &flow
	}
	keys, err := c.waitingKeys.getShared(ctx, p.Name, keysAge, func(ctx context.Context) ([]operator.WaitingKey, error) {
		found, err := reader.ListWaitingKeys(ctx, "", keysOnPage+1)
		for i := range found {
			found[i].First.Reason = c.redactText(KindError, found[i].First.Topic, found[i].First.Reason)
		}
		return found, err
	})
	if err != nil {
		fail("Waiting keys", err)
	}
	s.Keys, s.MoreKeys = keys[:min(len(keys), keysOnPage)], len(keys) > keysOnPage
	return s
}

// Behind returns how many messages wait behind the first one of k.
func (outboxState) Behind(k operator.WaitingKey) int { return k.Messages - 1 }

// A storedView is what message.html gets.
type storedView struct {
	*place
	operator.StoredMessage
	Listed   []header // its headers
	Shown    *contentView
	TraceURL string
	About    string
	Letter   string // the query of its page as a dead or refused message; "": it is neither
	Several  bool
}

func (v *storedView) pageTitle() string { return fmt.Sprintf("Message %d", v.ID) }

type header struct{ Name, Value string }

func (c *Console) showMessage(ctx context.Context, r *request) (any, error) {
	id, err := strconv.ParseInt(r.values.Get("id"), 10, 64)
	if err != nil || id < 1 {
		return nil, badRequest("The address does not have the id of a message, which is a number.")
	}
	in := r.values.Get("in")
	chosen, all, err := c.choosePlaces(ctx, in)
	if err != nil {
		return nil, err
	}
	if len(chosen) != 1 {
		return nil, badRequest("The address does not say in which schema the message is.")
	}
	reader, err := chosen[0].reader()
	if err != nil {
		return nil, err
	}
	m, err := reader.GetMessage(ctx, id, maxRead)
	if errors.Is(err, operator.ErrNoMessage) {
		return nil, &pageError{Status: http.StatusNotFound, What: fmt.Sprintf("The outbox of %s does not have message %d.", chosen[0].Label, id),
			Advice: "It was published, and the log was emptied since; or it was discarded. Look for its key or its message id at Why?."}
	}
	if err != nil {
		return nil, err
	}
	c.redactMessage(&m.OutboxMessage)
	v := &storedView{place: chosen[0], StoredMessage: m, Several: len(all) > 1, About: messageTexts[m.Place]}
	if isHeldBack(m.Place) {
		v.Letter = letterQuery(chosen[0], operator.Outbox, m.ID)
	}
	v.Listed = c.showHeaders(m.Topic, m.Headers)
	for _, h := range v.Listed {
		if h.Name == "traceparent" {
			v.TraceURL = c.traceURL(h.Value)
		}
	}
	v.Shown = c.newPayload(m.Topic, m.Payload, m.Size)
	return v, nil
}

// isHeldBack reports whether the broker has refused a message in this place, so that a person can act on it.
func isHeldBack(in operator.Place) bool {
	return in == operator.PlaceDead || in == operator.PlaceRefused
}

// linkMessage returns the page of a message of the outbox of p, below the base. It is that of a letter if a person can act on it.
func linkMessage(p *place, m *operator.OutboxMessage) string {
	if isHeldBack(m.Place) {
		return "letter" + letterQuery(p, operator.Outbox, m.ID)
	}
	return messageLink(p.Name, m.ID)
}

// showHeaders returns the headers of a message, redacted, in the order of their names.
func (c *Console) showHeaders(topic string, stored json.RawMessage) (all []header) {
	if len(stored) == 0 {
		return nil
	}
	data, cut := c.redact(Content{Kind: KindHeaders, Name: topic, Data: stored})
	values := map[string]any{}
	if cut || json.Unmarshal(data, &values) != nil {
		return []header{{"(redacted)", string(data)}}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all = append(all, header{name, fmt.Sprint(values[name])})
	}
	return all
}
