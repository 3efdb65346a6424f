package cloudevents

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/url"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/strictjson"
	"github.com/sagamill/sagamill/outbox"
)

// Options say how messages are sent as CloudEvents.
type Options struct {
	// Source is the CloudEvents attribute source: a URI reference that names the service, such as /shop/orders. It is
	// required.
	Source string
	// Structured sends CloudEvents in structured mode: the message body has the attributes and the data. Default: binary
	// mode.
	Structured bool
	// Prefix is the beginning of the names of headers in binary mode, and must be "cloudEvents_" or "cloudEvents:"
	// (AMQP), "ce_" (Kafka) or "ce-" (NATS). Default: cloudEvents_.
	Prefix string
}

// DefaultPrefix begins the headers of binary mode in the CloudEvents binding for AMQP, and the metadata that [Open]
// sets.
const DefaultPrefix = "cloudEvents_"

// prefixes are those of binary mode. Letter case does not count.
var prefixes = []string{DefaultPrefix, "cloudEvents:", "ce_", "ce-"}

// StructuredType is the content type of structured mode.
const StructuredType = "application/cloudevents+json"

// extensions are the attributes that carry headers of sagamill.
var extensions = []struct{ attribute, header string }{
	{"causationid", outbox.HeaderCausation},
	{"correlationid", outbox.PropertyCorrelation},
	{"sagamillformat", outbox.HeaderFormat},
	{"sagamillkey", outbox.HeaderKey},
	{"sagamillreplayed", outbox.HeaderReplayed},
	{"sagamillreplyto", "x-sagamill-reply-to"},
	{"sagamillscope", outbox.HeaderScope},
	{"sagamillsignature", outbox.HeaderSignature},
	{"traceparent", outbox.HeaderTraceParent},
	{"tracestate", outbox.HeaderTraceState},
}

// NewPublisher returns a publisher for a relay. It hands messages to next as CloudEvents, batch by batch, and returns
// next's results. A signer goes around it: signatures are those of the messages. An error names the option.
func NewPublisher(next outbox.Publisher, opts *Options) (outbox.Publisher, error) {
	if next == nil {
		return nil, errors.New("cloudevents: NewPublisher needs a publisher")
	}
	if opts == nil {
		opts = &Options{}
	}
	p := &publisher{next: next, opts: *opts}
	p.opts.Prefix = cmp.Or(p.opts.Prefix, DefaultPrefix)
	if _, err := url.Parse(p.opts.Source); err != nil || p.opts.Source == "" {
		return nil, fmt.Errorf("cloudevents: option Source: %q is no URI reference such as /shop/orders", p.opts.Source)
	}
	if !slices.Contains(prefixes, p.opts.Prefix) {
		return nil, fmt.Errorf("cloudevents: option Prefix: %q is none of %s", p.opts.Prefix, strings.Join(prefixes, " "))
	}
	return p, nil
}

type publisher struct {
	next outbox.Publisher
	opts Options
}

// PublishBatch implements [outbox.Publisher]. The relay may hand over the same messages again, so they are not changed.
func (p *publisher) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	events := make([]outbox.Publication, len(batch))
	for i, one := range batch {
		events[i] = one
		events[i].Message = p.wrapMessage(one.Message)
	}
	return p.next.PublishBatch(ctx, events)
}

func (p *publisher) wrapMessage(msg *message.Message) *message.Message {
	attributes := p.attributesOf(msg)
	event := message.NewMessage(msg.UUID, msg.Payload)
	event.SetContext(msg.Context())
	for name, value := range msg.Metadata {
		if attributeOf(name) == "" { // an attribute is sent once: two values would be ambiguous
			event.Metadata[name] = value
		}
	}
	if p.opts.Structured {
		event.Payload = encodeStructured(attributes, msg.Metadata[outbox.PropertyContentType], msg.Payload)
		event.Metadata[outbox.PropertyContentType] = StructuredType
		return event
	}
	for name, value := range attributes {
		event.Metadata[p.opts.Prefix+name] = value
	}
	return event
}

// attributesOf returns the attributes of a message, without datacontenttype. Attributes for headers of sagamill come
// from those headers alone. A header cloudEvents_sagamillreplyto is dropped: it belongs to a handled event whose
// metadata a handler has copied.
func (p *publisher) attributesOf(msg *message.Message) map[string]string {
	attributes := headerAttributes(msg)
	maps.DeleteFunc(attributes, func(name, value string) bool { return value == "" || name == "time" })
	for _, e := range extensions {
		delete(attributes, e.attribute)
		if value := msg.Metadata[e.header]; value != "" {
			attributes[e.attribute] = value
		}
	}
	maps.Copy(attributes, map[string]string{
		"specversion": "1.0", "id": msg.UUID, "source": p.opts.Source, "type": msg.Metadata[outbox.PropertyType],
	})
	if at := msg.Metadata[outbox.PropertyTimestamp]; at != "" {
		attributes["time"] = at
	}
	delete(attributes, "datacontenttype")
	return attributes
}

// validName reports whether name can be the name of an attribute, which data is not.
func validName(name string) bool {
	return name != "" && name != "data" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// encodeStructured returns the document of structured mode. JSON is in it byte by byte, so that a receiver gets the
// bytes that the inbox knows.
func encodeStructured(attributes map[string]string, contentType string, payload []byte) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	attribute := func(name, value string) {
		text, err := json.Marshal(value)
		if err != nil {
			panic(err) // a string can be encoded
		}
		fmt.Fprintf(&b, "%q:%s,", name, text)
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		attribute(name, attributes[name])
	}
	if contentType != "" {
		attribute("datacontenttype", contentType)
	}
	switch {
	case len(payload) == 0:
		b.Truncate(b.Len() - 1) // an event without data
	case isJSON(contentType) && isStrictJSON(payload) && len(bytes.TrimSpace(payload)) == len(payload):
		fmt.Fprintf(&b, `"data":%s`, payload)
	default:
		fmt.Fprintf(&b, `"data_base64":%q`, base64.StdEncoding.EncodeToString(payload))
	}
	b.WriteByte('}')
	return b.Bytes()
}

// isStrictJSON reports whether Open can read a document that contains payload. It cannot if payload has a member twice
// or is nested too deeply.
func isStrictJSON(payload []byte) bool {
	var data json.RawMessage
	return strictjson.Unmarshal(slices.Concat([]byte("["), payload, []byte("]")), &data) == nil && json.Valid(payload)
}

// isJSON reports whether an envelope has data of a content type as JSON. Data without a content type are JSON.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return contentType == "" || err == nil && (strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json"))
}
