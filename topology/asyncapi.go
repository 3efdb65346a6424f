package topology

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/outbox"
)

// AsyncAPIOptions are optional members of the document.
type AsyncAPIOptions struct {
	Title   string // default: the names of the services
	Version string // default: the version that all services have in common, else "unversioned"
}

// EncodeAsyncAPI returns an AsyncAPI 3.0 document of services, as JSON. The order of the services does not matter. In a
// document of several services each operation has a tag with the name of its service. A nil opts means the defaults. An
// error names the description that cannot be used.
func EncodeAsyncAPI(services []*Service, opts *AsyncAPIOptions) ([]byte, error) {
	if opts == nil {
		opts = &AsyncAPIOptions{}
	}
	if slices.Contains(services, nil) {
		return nil, errors.New("topology: a description is nil")
	}
	sorted := slices.SortedStableFunc(slices.Values(services), func(a, b *Service) int { return strings.Compare(a.Name, b.Name) })
	if err := checkServices(sorted); err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	b := newBuilder(sorted, opts)
	for _, s := range sorted {
		b.addService(s)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(&b.document); err != nil { // a Payload that Describe has not made may be no JSON
		return nil, fmt.Errorf("topology: %w", err)
	}
	return text.Bytes(), nil
}

func checkServices(sorted []*Service) error {
	if len(sorted) == 0 {
		return errors.New("there is no description of a service")
	}
	for i, s := range sorted {
		if s.Name == "" {
			return errors.New(`a description has no name: its member "service" is missing or empty`)
		}
		if i > 0 && s.Name == sorted[i-1].Name {
			return fmt.Errorf("there are two descriptions of service %s", s.Name)
		}
		for _, m := range s.allMessages() {
			if m.Topic == "" && m.Type != replyType || m.Type == "" {
				return fmt.Errorf("service %s: a message has no topic or no type", s.Name)
			}
		}
	}
	return nil
}

// allMessages returns the messages of s in any order.
func (s *Service) allMessages() (all []Message) {
	all = append(all, s.Emits...)
	for i := range s.Steps {
		for _, in := range s.Steps[i].inputs() {
			all = append(all, in.Message)
			if in.Reply != nil {
				all = append(all, *in.Reply)
			}
		}
		all = append(all, s.Steps[i].Emits...)
	}
	for i := range s.Sagas {
		for _, c := range s.Sagas[i].Commands {
			all = append(all, c.Reply)
			if c.Message != nil {
				all = append(all, *c.Message)
			}
		}
	}
	return all
}

// inputs returns the action and, if there is one, the compensation.
func (s *Step) inputs() []*Input {
	if s.Compensation == nil {
		return []*Input{&s.Action}
	}
	return []*Input{&s.Action, s.Compensation}
}

// documentDescription is the description of each document.
const documentDescription = "Messages go through sagamill. Each one is sent at least once, and takes effect once for its headers " +
	outbox.HeaderScope + " and " + outbox.HeaderKey + "."

// newBuilder returns a builder of a document that has no channels yet.
func newBuilder(services []*Service, opts *AsyncAPIOptions) *builder {
	var names []string
	version := services[0].Version
	for _, s := range services {
		names = append(names, s.Name)
		if s.Version != version {
			version = ""
		}
	}
	return &builder{
		channelIDs: map[string]string{},
		document: document{
			AsyncAPI: "3.0.0",
			Info: info{
				Title: cmp.Or(opts.Title, strings.Join(names, ", ")), Version: cmp.Or(opts.Version, version, "unversioned"),
				Description: documentDescription,
			},
			Servers: map[string]*server{}, Channels: map[string]*channel{}, Operations: map[string]*operation{},
			Components: components{
				Schemas: map[string]json.RawMessage{}, Messages: map[string]*message{},
				CorrelationIDs: map[string]correlationID{sagaID: {"The instance of the saga.", "$message.header#/correlation-id"}},
			},
		},
	}
}

// addService adds the messages that a service receives and sends.
func (b *builder) addService(s *Service) {
	b.service = s
	b.addServers()
	for i := range s.Steps {
		step := &s.Steps[i]
		for k, in := range step.inputs() {
			b.addInput(step.Name, in, k == 1)
		}
	}
	for i := range s.Sagas {
		b.addSaga(&s.Sagas[i])
	}
	b.addEmits()
}

// addInput adds the operation of a step that receives a message.
func (b *builder) addInput(step string, in *Input, undo bool) {
	name, summary := b.service.Name+"."+step, "Step "+step
	if undo {
		name, summary = name+".undo", "Compensation of step "+step
	}
	channel := b.addChannel(in.Topic)
	op := &operation{Action: "receive", Summary: summary + ".", Channel: refTo("channels", channel)}
	op.Messages = []ref{b.addMessage(channel, in.Type, in.Message, in.Reply != nil)}
	if in.Reply != nil {
		replies := b.addReplyChannel()
		op.Reply = &operationReply{
			Address:  &replyAddress{"The topic of the saga that has sent the message.", "$message.header#/" + replyTo},
			Channel:  refTo("channels", replies),
			Messages: []ref{b.addMessage(replies, name+".reply", *in.Reply, false)},
		}
	}
	b.addOperation(name, op)
}

// addSaga adds the commands of a version of a saga, and the replies to them. If another version is in the document
// already, only the messages that differ are added.
func (b *builder) addSaga(s *Saga) {
	var replies, nested []ref
	id := b.service.Name + "." + s.Name
	channel := b.addChannel(sagaTopic(s.Name))
	for _, c := range s.Commands {
		name := id + "." + c.Step
		if c.Undo {
			name += ".undo"
		}
		reply := b.addMessage(channel, name+".reply", c.Reply, false)
		replies = appendNew(replies, reply)
		if c.Nested != "" {
			nested = appendNew(nested, reply)
		}
		if c.Message != nil {
			b.addCommand(s, &c, channel, reply)
		}
	}
	if len(replies) > 0 {
		b.addOperation(id+".replies", &operation{
			Action: "receive", Summary: "Replies to saga " + s.Name + ".", Channel: refTo("channels", channel), Messages: replies,
		})
	}
	if len(nested) > 0 {
		b.addOperation(id+".nested", &operation{
			Action: "send", Summary: "Replies of sagas nested in saga " + s.Name + ".", Channel: refTo("channels", channel), Messages: nested,
		})
	}
}

// addCommand adds the operation of a saga that sends a command, or orders a nested saga to compensate.
func (b *builder) addCommand(s *Saga, c *Command, replies string, reply ref) {
	to := b.addChannel(c.Message.Topic)
	sent := b.addMessage(to, c.Message.Type, *c.Message, c.Nested == "")
	id, summary := b.service.Name+"."+s.Name+"."+c.Step, fmt.Sprintf("Step %s of saga %s.", c.Step, s.Name)
	if c.Undo || c.Nested != "" {
		id, summary = id+".undo", fmt.Sprintf("Compensation of step %s of saga %s.", c.Step, s.Name)
	}
	b.addOperation(id, &operation{
		Action: "send", Summary: summary, Channel: refTo("channels", to), Messages: []ref{sent},
		Reply: &operationReply{Channel: refTo("channels", replies), Messages: []ref{reply}},
	})
	if c.Nested != "" {
		b.addOperation(b.service.Name+"."+c.Nested+".revocations", &operation{
			Action: "receive", Summary: "Orders to compensate saga " + c.Nested + ", which is nested in another.",
			Channel: refTo("channels", to), Messages: []ref{sent},
		})
	}
}

// addEmits adds an operation for each topic to which steps or the service itself send messages.
func (b *builder) addEmits() {
	byTopic := map[string]*operation{}
	senders := map[string][]string{}
	add := func(by string, messages []Message) {
		for _, m := range messages {
			channel := b.addChannel(m.Topic)
			op := byTopic[m.Topic]
			if op == nil {
				op = &operation{Action: "send", Channel: refTo("channels", channel)}
				byTopic[m.Topic] = op
				b.addOperation(b.service.Name+".send."+m.Topic, op)
			}
			op.Messages = appendNew(op.Messages, b.addMessage(channel, m.Type, m, false))
			senders[m.Topic] = appendNew(senders[m.Topic], by)
			op.Summary = "Sent by " + strings.Join(senders[m.Topic], ", ") + "."
		}
	}
	for _, step := range b.service.Steps {
		add("step "+step.Name, step.Emits)
	}
	add("the service", b.service.Emits)
}

func appendNew[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}
