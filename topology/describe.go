package topology

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/cloudevents"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/brokerurls"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A Service describes the messages of a service. It has no secrets: it keeps only scheme, host and virtual host of the
// broker's URL.
type Service struct {
	Name        string    `json:"service"`
	Version     string    `json:"version,omitempty"`
	Prefix      string    `json:"prefix,omitempty"`       // begins the address of each topic
	CloudEvents string    `json:"cloud_events,omitempty"` // "structured" if the service sends CloudEvents in structured mode
	Servers     []Server  `json:"servers,omitempty"`      // brokers; empty: the service does not use RabbitMQ
	Steps       []Step    `json:"steps,omitempty"`
	Sagas       []Saga    `json:"sagas,omitempty"` // each version
	Emits       []Message `json:"emits,omitempty"` // messages that neither Steps nor Sagas list
}

// A Server is a broker.
type Server struct {
	Protocol string `json:"protocol"` // amqp or amqps
	Host     string `json:"host"`
	Path     string `json:"path,omitempty"` // the virtual host
}

// A Message describes one type of message.
type Message struct {
	Topic       string          `json:"topic"`
	Type        string          `json:"type"`
	ContentType string          `json:"content_type,omitempty"` // "": any
	Payload     json.RawMessage `json:"payload,omitempty"`      // JSON Schema; nil: the structure is not known
}

// An Input is a message that a step receives.
type Input struct {
	Message
	Reply *Message `json:"reply,omitempty"` // to the topic in the message's header x-sagamill-reply-to
}

// A Step is a step of a service.
type Step struct {
	Name         string    `json:"name"`
	Action       Input     `json:"action"`
	Compensation *Input    `json:"compensation,omitempty"`
	Emits        []Message `json:"emits,omitempty"`
}

// A Saga is a version of a saga that the service orchestrates.
type Saga struct {
	Name     string    `json:"name"`
	Version  int       `json:"version"`
	Commands []Command `json:"commands,omitempty"`
}

// A Command is the message that a saga sends for a step, with its reply. The topic of the reply is saga.Topic of the
// saga's name.
type Command struct {
	Step    string   `json:"step"`
	Undo    bool     `json:"undo,omitempty"`   // it is the step's compensation
	Nested  string   `json:"nested,omitempty"` // the nested saga that replies in place of a participant
	Message *Message `json:"message,omitempty"`
	Reply   Message  `json:"reply"`
}

// Options are facts about a service that [Describe] cannot read from its steps and sagas. The zero value is usable.
type Options struct {
	Version     string               // version of the service; default: none
	Prefix      string               // prefix of the names of exchanges and queues, as in rabbitmq.ConfigOptions; default: none
	BrokerURL   string               // URL of RabbitMQ, or several URLs separated by commas; default: the service does not use RabbitMQ
	CloudEvents *cloudevents.Options // options of the CloudEvents publisher that the relay uses; default: the service sends no CloudEvents
	Emits       []outbox.Output      // further messages that the service emits, such as messages of HTTP handlers, of local steps and of saga.Definition.OnEnd; default: none
}

// Describe returns the description of the service called name. It makes JSON Schemas from the Go types of bodies, and
// checks them with sample values that package encoding/json encodes. A nil opts means the defaults. An error names the
// part that cannot be used, and quotes no URL.
func Describe(name string, steps []consumer.Step, sagas []saga.Plan, opts *Options) (*Service, error) {
	if opts == nil {
		opts = &Options{}
	}
	if name == "" {
		return nil, errors.New("topology: the service has no name")
	}
	if slices.ContainsFunc(opts.Emits, func(o outbox.Output) bool { return o.Topic == "" }) {
		return nil, errors.New("topology: option Emits: one has no Topic")
	}
	s := &Service{Name: name, Version: opts.Version, Prefix: opts.Prefix, Emits: describeOutputs(opts.Emits)}
	if opts.CloudEvents != nil && opts.CloudEvents.Structured {
		s.CloudEvents = structured
	}
	for i := range steps {
		step, err := describeStep(&steps[i])
		if err != nil {
			return nil, fmt.Errorf("topology: step %q: %w", steps[i].Name, err)
		}
		s.Steps = append(s.Steps, step)
	}
	for _, plan := range sagas {
		if plan == nil {
			return nil, errors.New("topology: a definition is nil")
		}
		s.addSaga(flow.FlowOfPlan(plan))
	}
	var err error
	if s.Servers, err = describeServers(opts.BrokerURL); err != nil {
		return nil, fmt.Errorf("topology: option BrokerURL: %w", err)
	}
	return s, nil
}

const structured = "structured"

// defaultPorts are the ports of URLs that name none.
var defaultPorts = map[string]string{"amqp": "5672", "amqps": "5671"}

// describeServers returns the brokers of a list of URLs. The error does not quote a URL, which may have a password.
func describeServers(list string) (servers []Server, err error) {
	if list == "" {
		return nil, nil
	}
	for i, text := range brokerurls.Split(list) {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || defaultPorts[u.Scheme] == "" {
			return nil, fmt.Errorf("URL %d is not one of RabbitMQ, such as amqps://mq.example/shop", i+1)
		}
		host := u.Host
		if u.Port() == "" {
			host = net.JoinHostPort(u.Hostname(), defaultPorts[u.Scheme])
		}
		servers = append(servers, Server{Protocol: u.Scheme, Host: host, Path: strings.TrimSuffix(u.EscapedPath(), "/")})
	}
	return servers, nil
}

func describeOutputs(outputs []outbox.Output) (messages []Message) {
	for _, out := range outputs {
		m := Message{Topic: out.Topic, Type: cmp.Or(out.Type, out.Topic), ContentType: cmp.Or(out.ContentType, jsonType)}
		if isJSON(m.ContentType) && out.Body != nil {
			m.Payload = schemaOf(out.Body)
		}
		messages = append(messages, m)
	}
	return messages
}

const jsonType = "application/json"

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == jsonType || strings.HasSuffix(media, "+json"))
}

func describeStep(step *consumer.Step) (Step, error) {
	if step.Action.Topic == "" {
		return Step{}, errors.New("its Action was not made with On or Effect")
	}
	s := Step{Name: step.Name, Action: describeInput(&step.Action, false), Emits: describeOutputs(step.Emits)}
	if step.Compensation.Topic != "" {
		undo := describeInput(&step.Compensation, true)
		s.Compensation = &undo
	}
	return s, nil
}

func describeInput(in *consumer.Input, undo bool) Input {
	d := Input{Message: Message{Topic: in.Topic, Type: cmp.Or(in.Type, in.Topic)}}
	if body := in.BodyType(); body != nil {
		d.ContentType = contentTypeOf(in.Codecs, body)
		if isJSON(d.ContentType) {
			d.Payload = schemaOf(body)
		}
	}
	if in.Reply != nil {
		reply := replyMessage("", in.Reply, undo, false)
		d.Reply = &reply
	}
	return d
}

// contentTypeOf returns the content type of the first codec that can encode a body, or that of JSON if none can. An
// Input may have codecs that are for the bodies of other steps.
func contentTypeOf(codecs []outbox.Codec, body reflect.Type) string {
	sample := reflect.New(body).Elem()
	if body.Kind() == reflect.Pointer {
		sample = reflect.New(body.Elem())
	}
	for _, c := range codecs {
		err := guard.Call(func() error {
			_, err := c.Encode(sample.Interface())
			return err
		})
		if err == nil {
			return c.ContentType()
		}
	}
	return jsonType
}

// addSaga adds a version of a saga, and of the sagas nested in it.
func (s *Service) addSaga(f *flow.Flow) {
	known := func(other Saga) bool { return other.Name == f.Name() && other.Version == f.Version() }
	if slices.ContainsFunc(s.Sagas, known) {
		return
	}
	d := Saga{Name: f.Name(), Version: f.Version()}
	for i := range f.Steps {
		d.Commands = append(d.Commands, describeCommands(f.Name(), f.Machine.Step(i+1), &f.Steps[i])...)
	}
	s.Sagas = append(s.Sagas, d)
	for i := range f.Steps {
		if nested := f.Steps[i].Do.Nested; nested != nil {
			s.addSaga(nested)
		}
	}
}

// describeCommands returns the commands for one step of a saga. A local step has none.
func describeCommands(name string, n *machine.Node, f *flow.Functions) (commands []Command) {
	topic := flow.ReplyTopic(name)
	switch n.Kind {
	case machine.Remote:
		do := commandMessage(n.Topic, n.Type, n.ContentType, f.Do.BodyType)
		commands = append(commands, Command{Step: n.Name, Message: &do, Reply: replyMessage(topic, f.Do.ResultType, false, false)})
	case machine.Nested:
		c := Command{Step: n.Name, Nested: n.Saga, Reply: replyMessage(topic, f.Do.ResultType, false, true)}
		if n.Undo == machine.Nested {
			revocation := commandMessage(flow.ReplyTopic(n.Saga), flow.TypeRevoke, jsonType, reflect.TypeFor[flow.Revocation]())
			c.Message = &revocation
		}
		commands = append(commands, c)
	}
	if n.Undo == machine.Remote {
		undo := commandMessage(n.UndoTopic, n.UndoType, n.UndoContentType, f.Undo.BodyType)
		commands = append(commands, Command{Step: n.Name, Undo: true, Message: &undo, Reply: replyMessage(topic, f.Undo.ResultType, true, false)})
	}
	return commands
}

func commandMessage(topic, typ, contentType string, body reflect.Type) Message {
	m := Message{Topic: topic, Type: typ, ContentType: cmp.Or(contentType, jsonType)}
	switch {
	case !isJSON(m.ContentType):
	case body == nil:
		m.Payload = json.RawMessage(`{"type":"null"}`)
	default:
		m.Payload = schemaOf(body)
	}
	return m
}

// replyMessage returns the reply to a command or to a compensation. The type of the participant's result is result.
func replyMessage(topic string, result reflect.Type, undo, nested bool) Message {
	outcomes := []flow.Outcome{flow.OutcomeDone, flow.OutcomeRejected}
	switch {
	case undo:
		outcomes = []flow.Outcome{flow.OutcomeUndone, flow.OutcomeRejected, flow.OutcomeFailed}
	case nested:
		outcomes = append(outcomes, flow.OutcomeUndone)
	default:
		outcomes = append(outcomes, flow.OutcomeFailed, flow.OutcomeHeld, flow.OutcomeBroken)
	}
	properties := map[string]any{
		"outcome": map[string]any{"type": "string", "enum": outcomes},
		"reason":  map[string]any{"type": "string", "description": "of an outcome other than done and undone"},
	}
	if undo {
		properties["reason"] = map[string]any{"type": "string", "description": "of an outcome other than undone, or why an action had failed that has not happened"}
		properties["not_done"] = map[string]any{"type": "boolean", "description": "with undone: the action had no effect, and never will"}
	} else {
		properties["result"] = schemaOf(result)
	}
	return Message{
		Topic: topic, Type: flow.TypeReply, ContentType: jsonType,
		Payload: mustMarshal(map[string]any{"type": "object", "properties": properties, "required": []string{"outcome"}}),
	}
}

func mustMarshal(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is made of strings and schemas
	}
	return text
}
