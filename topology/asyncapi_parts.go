package topology

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/sagamill/sagamill/cloudevents"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/outbox"
)

// The objects of AsyncAPI 3.0 that the document uses.
type (
	document struct {
		AsyncAPI   string                `json:"asyncapi"`
		Info       info                  `json:"info"`
		Servers    map[string]*server    `json:"servers,omitempty"`
		Channels   map[string]*channel   `json:"channels,omitempty"`
		Operations map[string]*operation `json:"operations,omitempty"`
		Components components            `json:"components"`
	}
	info struct {
		Title       string `json:"title"`
		Version     string `json:"version"`
		Description string `json:"description"`
	}
	server struct {
		Host     string `json:"host"`
		Pathname string `json:"pathname,omitempty"`
		Protocol string `json:"protocol"`
	}
	channel struct {
		Address     *string         `json:"address"` // null: known only at run time
		Description string          `json:"description,omitempty"`
		Servers     []ref           `json:"servers,omitempty"`
		Messages    map[string]ref  `json:"messages"`
		Bindings    json.RawMessage `json:"bindings,omitempty"`
	}
	operation struct {
		Action   string          `json:"action"`
		Summary  string          `json:"summary"`
		Channel  ref             `json:"channel"`
		Messages []ref           `json:"messages"`
		Reply    *operationReply `json:"reply,omitempty"`
		Tags     []tag           `json:"tags"`
	}
	operationReply struct {
		Address  *replyAddress `json:"address,omitempty"`
		Channel  ref           `json:"channel"`
		Messages []ref         `json:"messages"`
	}
	replyAddress struct {
		Description string `json:"description"`
		Location    string `json:"location"`
	}
	components struct {
		Messages       map[string]*message        `json:"messages,omitempty"`
		Schemas        map[string]json.RawMessage `json:"schemas"`
		CorrelationIDs map[string]correlationID   `json:"correlationIds"`
	}
	message struct {
		Name          string          `json:"name"`
		ContentType   string          `json:"contentType,omitempty"`
		Headers       ref             `json:"headers"`
		CorrelationID ref             `json:"correlationId"`
		Payload       json.RawMessage `json:"payload,omitempty"`
		Bindings      json.RawMessage `json:"bindings,omitempty"`
	}
	correlationID struct {
		Description string `json:"description"`
		Location    string `json:"location"`
	}
	tag struct {
		Name string `json:"name"`
	}
	ref struct {
		Ref string `json:"$ref"`
	}
)

const (
	replyType      = flow.TypeReply
	replyTo        = flow.HeaderReplyTo
	sagaID         = "saga"
	plainHeaders   = "headers"
	commandHeaders = "commandHeaders"
)

func sagaTopic(saga string) string { return flow.ReplyTopic(saga) }

// A builder makes a document.
type builder struct {
	document
	service    *Service          // whose messages are being added
	channelIDs map[string]string // by address; "" has the channel whose address is known only at run time
}

func refTo(path ...string) ref { return ref{"#/" + strings.Join(path, "/")} }

// identifierOf replaces each character that an AsyncAPI identifier must not have by an underscore.
func identifierOf(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, name)
}

// freeIdentifier returns an identifier for name that is not in taken.
func freeIdentifier[V any](taken map[string]V, name string) string {
	base := identifierOf(name)
	id := base
	for n := 2; ; n++ {
		if _, found := taken[id]; !found {
			return id
		}
		id = fmt.Sprint(base, "-", n)
	}
}

func (b *builder) addServers() {
	for _, s := range b.service.Servers {
		if wanted := (server{s.Host, s.Path, s.Protocol}); b.findServer(wanted) == "" {
			b.Servers[freeIdentifier(b.Servers, s.Host)] = &wanted
		}
	}
}

// findServer returns the identifier of a server, "" if the document does not have it.
func (b *builder) findServer(wanted server) string {
	for id, s := range b.Servers {
		if *s == wanted {
			return id
		}
	}
	return ""
}

// addChannel returns the identifier of the channel of a topic of the service. With RabbitMQ the channel's address is the
// name of a fanout exchange.
func (b *builder) addChannel(topic string) string {
	address := b.service.Prefix + topic
	id, found := b.channelIDs[address]
	if !found {
		id = freeIdentifier(b.Channels, address)
		b.channelIDs[address] = id
		b.Channels[id] = &channel{Address: &address, Messages: map[string]ref{}}
	}
	c := b.Channels[id]
	for _, s := range b.service.Servers {
		c.Servers = appendNew(c.Servers, refTo("servers", b.findServer(server{s.Host, s.Path, s.Protocol})))
		c.Bindings = mustMarshal(map[string]any{"amqp": map[string]any{
			"is": "routingKey", "exchange": map[string]any{"name": address, "type": "fanout", "durable": true}, "bindingVersion": "0.3.0",
		}})
	}
	return id
}

// addReplyChannel returns the identifier of the channel for replies to any saga, also of a service that is not in the
// document. A command names the topic of its reply only at run time.
func (b *builder) addReplyChannel() string {
	id, found := b.channelIDs[""]
	if !found {
		id = freeIdentifier(b.Channels, "replies")
		b.channelIDs[""] = id
		b.Channels[id] = &channel{Description: "The topic of the saga that has sent a command.", Messages: map[string]ref{}}
	}
	return id
}

// addOperation adds an operation of the service. If there is one of that name, such as that of another version of a
// saga, addOperation adds the messages of op to it.
func (b *builder) addOperation(name string, op *operation) {
	op.Tags = []tag{{b.service.Name}}
	same, found := b.Operations[identifierOf(name)]
	if !found || same.Channel != op.Channel || same.Action != op.Action {
		b.Operations[freeIdentifier(b.Operations, name)] = op
		return
	}
	for _, m := range op.Messages {
		same.Messages = appendNew(same.Messages, m)
	}
	if same.Reply != nil && op.Reply != nil {
		for _, m := range op.Reply.Messages {
			same.Reply.Messages = appendNew(same.Reply.Messages, m)
		}
	}
}

// addMessage adds a message to a channel, and to the components unless they have it already. If sender and receiver
// describe one message differently, the second description gets another identifier, such as payment.made-2.
func (b *builder) addMessage(channelID, name string, m Message, command bool) ref {
	object, base := b.messageObject(m, command), identifierOf(name)
	id := base
	for n := 2; ; n++ {
		other, found := b.Components.Messages[id]
		if !found {
			b.Components.Messages[id] = object
		}
		if !found || reflect.DeepEqual(other, object) {
			break
		}
		id = fmt.Sprint(base, "-", n)
	}
	b.Channels[channelID].Messages[id] = refTo("components", "messages", id)
	return refTo("channels", channelID, "messages", id)
}

func (b *builder) messageObject(m Message, command bool) *message {
	object := &message{
		Name: m.Type, ContentType: m.ContentType, Headers: b.addHeaders(command),
		CorrelationID: refTo("components", "correlationIds", sagaID), Payload: compactJSON(m.Payload),
	}
	if len(b.service.Servers) > 0 {
		object.Bindings = mustMarshal(map[string]any{"amqp": map[string]any{"messageType": m.Type, "bindingVersion": "0.3.0"}})
	}
	if b.service.CloudEvents == structured {
		object.ContentType, object.Payload = cloudevents.StructuredType, cloudEventSchema(&m)
	}
	return object
}

// compactJSON removes spaces from a schema, so that the same schema from two descriptions compares equal.
func compactJSON(schema json.RawMessage) json.RawMessage {
	var text bytes.Buffer
	if len(schema) == 0 || json.Compact(&text, schema) != nil {
		return schema
	}
	return text.Bytes()
}

// cloudEventSchema returns the schema of a message in an envelope.
func cloudEventSchema(m *Message) json.RawMessage {
	text := map[string]any{"type": "string"}
	properties := map[string]any{
		"specversion": map[string]any{"const": "1.0"}, "id": text, "source": text, "type": map[string]any{"const": m.Type},
		"time": map[string]any{"type": "string", "format": "date-time"},
	}
	if m.ContentType != "" {
		properties["datacontenttype"] = map[string]any{"const": m.ContentType}
	}
	if isJSON(m.ContentType) && m.Payload != nil {
		properties["data"] = compactJSON(m.Payload)
	} else if m.ContentType != "" && !isJSON(m.ContentType) {
		properties["data_base64"] = map[string]any{"type": "string", "contentEncoding": "base64"}
	}
	return mustMarshal(map[string]any{"type": "object", "properties": properties, "required": []string{"specversion", "id", "source", "type"}})
}

// addHeaders adds the schema of a message's headers and returns it. Commands of a saga have one header more.
func (b *builder) addHeaders(command bool) ref {
	text := func(description string) map[string]any {
		return map[string]any{"type": "string", "description": description}
	}
	plain := refTo("components", "schemas", plainHeaders)
	b.Components.Schemas[plainHeaders] = mustMarshal(map[string]any{
		"type": "object",
		"properties": map[string]any{
			outbox.HeaderKey:           text("The step key, KEY:STEP#N. A message takes effect once for its scope and step key."),
			outbox.HeaderScope:         text("Where the key is unique, such as a tenant."),
			outbox.HeaderCausation:     text("The id of the message that led to this one."),
			outbox.HeaderTraceParent:   text("W3C Trace Context."),
			outbox.HeaderTraceState:    text("W3C Trace Context."),
			outbox.HeaderFormat:        text("The version of the message format; absent: 1."),
			outbox.HeaderSignature:     text("The signature, where consumers verify."),
			outbox.HeaderReplayed:      text("When an operator has published the message once more."),
			outbox.PropertyCorrelation: text("The instance of the saga. With RabbitMQ it is the property correlation-id."),
		},
		"required": []string{outbox.HeaderKey, outbox.HeaderScope},
	})
	if !command {
		return plain
	}
	b.Components.Schemas[commandHeaders] = mustMarshal(map[string]any{
		"allOf": []any{plain}, "type": "object", "properties": map[string]any{replyTo: text("The topic of the reply.")}, "required": []string{replyTo},
	})
	return refTo("components", "schemas", commandHeaders)
}
