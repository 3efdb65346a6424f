package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/management"
	"github.com/sagamill/sagamill/operator"
)

const (
	topicsAge    = 10 * time.Second
	describedAge = 30 * time.Second
	maxDescribed = 32 << 20 // bytes of all descriptions
)

// topologyPages is who sends and receives which messages.
func (c *Console) topologyPages() []*page {
	return []*page{{path: "topology", title: "Topology", inMenu: true, template: "topology.html", show: c.showTopology}}
}

// A describedMessage is a message of a description.
type describedMessage struct {
	Topic string `json:"topic"`
	Type  string `json:"type"`
}

type describedInput struct {
	describedMessage
	Reply *describedMessage `json:"reply"`
}

// A describedService is what a service says about itself at /topology: what package topology writes.
type describedService struct {
	Name   string `json:"service"`
	Prefix string `json:"prefix"`
	Steps  []struct {
		Name         string             `json:"name"`
		Action       describedInput     `json:"action"`
		Compensation *describedInput    `json:"compensation"`
		Emits        []describedMessage `json:"emits"`
	} `json:"steps"`
	Sagas []struct {
		Name     string `json:"name"`
		Version  int    `json:"version"`
		Commands []struct {
			Step    string            `json:"step"`
			Undo    bool              `json:"undo"`
			Message *describedMessage `json:"message"`
			Reply   describedMessage  `json:"reply"`
		} `json:"commands"`
	} `json:"sagas"`
	Emits []describedMessage `json:"emits"`
}

// A topologyView is what topology.html gets.
type topologyView struct {
	placeChoice
	Topics     []*topicRow
	Queues     []management.Queue // that belong to no topic here
	Described  bool               // services say what they declare
	Managed    bool               // the broker says how long queues are
	MoreQueues bool
	Failed     []namedProblem
}

type namedProblem struct {
	Name    string
	Problem *pageError
}

// A topicRow is a topic with who sends and receives its messages.
type topicRow struct {
	Topic     string
	Sends     []topicUser
	Receives  []topicUser
	Queues    []management.Queue
	Unclaimed bool // messages are sent, and nothing here is known to receive them
}

// A topicUser sends or receives messages of a topic.
type topicUser struct {
	Name   string // of a service or a schema
	What   string // for people: the step, the saga, the type
	Seen   int    // messages in the tables; 0: it is declared only
	Place  string // of a schema, for links
	Last   time.Time
	Parked bool // Seen counts parked messages
}

func (c *Console) showTopology(ctx context.Context, r *request) (any, error) {
	in := strings.TrimSpace(r.values.Get("in"))
	chosen, all, err := c.choosePlaces(ctx, in)
	if err != nil {
		return nil, err
	}
	v := &topologyView{placeChoice: newPlaceChoice(in, all)}
	topics := topicTable{}
	fail := func(name string, err error) {
		v.Failed = append(v.Failed, namedProblem{name, c.explainError(ctx, err)})
	}
	for _, p := range chosen {
		uses, err := c.topics.getShared(ctx, p.Name, topicsAge, func(ctx context.Context) ([]operator.TopicUse, error) {
			reader, err := p.reader()
			if err != nil {
				return nil, err
			}
			return reader.ListTopics(ctx)
		})
		if err != nil {
			fail(p.Label, err)
		}
		topics.addSeen(p, uses)
	}
	prefixes := []string{""}
	if c.opts.Topology != nil {
		services, err := c.described.get(ctx, "", describedAge, c.readDescriptions)
		if err != nil {
			fail("Descriptions of services", err)
		}
		v.Described = err == nil
		for i := range services {
			topics.addDescribed(&services[i])
			prefixes = append(prefixes, services[i].Prefix)
		}
	}
	v.Topics = topics.sorted()
	if c.opts.Management != nil {
		queues, err := c.queues.get(ctx, "", managementAge, c.opts.Management.listQueues)
		if err != nil {
			fail("Broker", err)
		}
		v.Managed, v.MoreQueues = err == nil, len(queues) == maxQueues
		v.Queues = topics.addQueues(queues, prefixes)
	}
	for _, t := range v.Topics {
		t.Unclaimed = v.Described && len(t.Sends) > 0 && len(t.Receives) == 0 && len(t.Queues) == 0
	}
	return v, nil
}

// readDescriptions reads what services say about themselves.
func (c *Console) readDescriptions(ctx context.Context) (services []describedService, err error) {
	data, err := c.opts.Topology(ctx)
	if err != nil {
		c.opts.Logger.WarnContext(ctx, "console: option Topology failed", "error", err)
		return nil, &pageError{Status: http.StatusBadGateway, What: "Not all services have described themselves.", Advice: adviceLog}
	}
	unreadable := &pageError{Status: http.StatusBadGateway, What: "The descriptions of services cannot be read.", Advice: "They are JSON as a service serves it at /topology."}
	if len(data) > maxDescribed {
		return nil, unreadable
	}
	for decoder := json.NewDecoder(bytes.NewReader(data)); ; {
		var value json.RawMessage
		if err := decoder.Decode(&value); errors.Is(err, io.EOF) {
			return services, nil
		} else if err != nil {
			return nil, unreadable
		}
		if value[0] != '[' {
			value = slices.Concat(json.RawMessage("["), value, json.RawMessage("]"))
		}
		var list []describedService
		if json.Unmarshal(value, &list) != nil || slices.ContainsFunc(list, func(s describedService) bool { return s.Name == "" }) {
			return nil, unreadable
		}
		services = append(services, list...)
	}
}

// A topicTable has topics by name.
type topicTable map[string]*topicRow

func (t topicTable) row(topic string) *topicRow {
	if t[topic] == nil {
		t[topic] = &topicRow{Topic: topic}
	}
	return t[topic]
}

// add adds a user unless an equal one is there.
func (t topicTable) add(topic string, sends bool, user topicUser) {
	if topic == "" { // a reply goes where its command says
		return
	}
	row := t.row(topic)
	users := &row.Receives
	if sends {
		users = &row.Sends
	}
	if !slices.Contains(*users, user) {
		*users = append(*users, user)
	}
}

// addSeen adds what the tables of a place have.
func (t topicTable) addSeen(p *place, uses []operator.TopicUse) {
	for i := range uses {
		u := &uses[i]
		t.add(u.Topic, u.Sends, topicUser{Name: p.Label, What: describeUse(u), Seen: u.Messages, Place: p.Name, Last: u.Last, Parked: !u.Sends && u.Messages > 0})
	}
}

func describeUse(u *operator.TopicUse) string {
	var parts []string
	if u.Saga != "" {
		parts = append(parts, "saga "+u.Saga)
	}
	if u.Step != "" {
		parts = append(parts, "step "+u.Step)
	}
	if u.Undo {
		parts = append(parts, "compensation")
	}
	if u.Type != "" && u.Type != u.Topic {
		parts = append(parts, "type "+u.Type)
	}
	return strings.Join(parts, ", ")
}

// addDescribed adds what a service says about itself.
func (t topicTable) addDescribed(s *describedService) {
	add := func(m describedMessage, sends bool, u operator.TopicUse) {
		u.Topic, u.Type = m.Topic, m.Type
		t.add(m.Topic, sends, topicUser{Name: s.Name, What: describeUse(&u)})
	}
	for i := range s.Steps {
		step := &s.Steps[i]
		add(step.Action.describedMessage, false, operator.TopicUse{Step: step.Name})
		if step.Compensation != nil {
			add(step.Compensation.describedMessage, false, operator.TopicUse{Step: step.Name, Undo: true})
		}
		for _, m := range step.Emits {
			add(m, true, operator.TopicUse{Step: step.Name})
		}
	}
	for i := range s.Sagas {
		name := s.Sagas[i].Name
		for _, command := range s.Sagas[i].Commands {
			if command.Message != nil {
				add(*command.Message, true, operator.TopicUse{Saga: name, Step: command.Step, Undo: command.Undo})
			}
			add(describedMessage{Topic: command.Reply.Topic}, false, operator.TopicUse{Saga: name})
		}
	}
	for _, m := range s.Emits {
		add(m, true, operator.TopicUse{})
	}
}

// addQueues gives each topic its queues, which are called PREFIX TOPIC.SERVICE, and returns the others.
func (t topicTable) addQueues(queues []management.Queue, prefixes []string) (others []management.Queue) {
	for _, q := range queues {
		exchange := strings.TrimSuffix(q.Name, management.DeadSuffix)
		if dot := strings.LastIndexByte(exchange, '.'); dot >= 0 {
			exchange = exchange[:dot]
		}
		i := slices.IndexFunc(prefixes, func(prefix string) bool {
			topic, ok := strings.CutPrefix(exchange, prefix)
			return ok && t[topic] != nil
		})
		if i < 0 {
			others = append(others, q)
			continue
		}
		row := t[strings.TrimPrefix(exchange, prefixes[i])]
		row.Queues = append(row.Queues, q)
	}
	return others
}

func (t topicTable) sorted() []*topicRow {
	var all []*topicRow
	for _, row := range t {
		byName := func(a, b topicUser) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.What, b.What)) }
		slices.SortFunc(row.Sends, byName)
		slices.SortFunc(row.Receives, byName)
		all = append(all, row)
	}
	slices.SortFunc(all, func(a, b *topicRow) int { return cmp.Compare(a.Topic, b.Topic) })
	return all
}
