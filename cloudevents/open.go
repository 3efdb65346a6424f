package cloudevents

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/strictjson"
	"github.com/sagamill/sagamill/outbox"
)

// ErrInvalid reports a CloudEvent that breaks the specification. The message is unchanged.
var ErrInvalid = errors.New("cloudevents: invalid event")

// Open turns a CloudEvent of either mode into the message that it carries: payload, id, type, timestamp, content type
// and headers. It leaves msg alone if that is no CloudEvent. A batch of events is an error. It is for
// consumer.Options.Open. Its error is an [ErrInvalid].
//
// An event may carry another event as its data, in binary mode too. Only the outer one is opened, also when Open is
// called again.
func Open(msg *message.Message) error {
	contentType := msg.Metadata[outbox.PropertyContentType]
	attributes := headerAttributes(msg)
	binary := attributes["specversion"] != ""
	media, _, err := mime.ParseMediaType(contentType)
	if err == nil && media == StructuredType {
		read, err := readDocument(msg.Payload)
		if !binary || err == nil && read.isEvent(attributes) {
			return read.applyTo(msg, err)
		}
	} else if err == nil && strings.HasPrefix(media, "application/cloudevents") && !binary {
		return fmt.Errorf("%w: %s cannot be read, only %s", ErrInvalid, media, StructuredType)
	}
	if !binary {
		return nil
	}
	return apply(msg, attributes, contentType, msg.Payload)
}

// headerAttributes returns the attributes in the metadata. Of two headers for one attribute, that of the earlier prefix
// counts.
func headerAttributes(msg *message.Message) map[string]string {
	attributes, found := map[string]string{}, map[string]string{}
	for name, value := range msg.Metadata {
		attribute := attributeOf(name)
		if attribute == "" {
			continue
		}
		if other, twice := found[attribute]; !twice || precedes(name, other) {
			attributes[attribute], found[attribute] = value, name
		}
	}
	return attributes
}

// precedes reports whether header a counts rather than header b, if both have the same attribute.
func precedes(a, b string) bool {
	rank := func(header string) int {
		return slices.IndexFunc(prefixes, func(prefix string) bool {
			return len(header) > len(prefix) && strings.EqualFold(header[:len(prefix)], prefix)
		})
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), -cmp.Compare(a, b)) < 0 // lower case before upper case
}

// attributeOf returns the attribute in a header of binary mode, "" for another header.
func attributeOf(header string) string {
	for _, prefix := range prefixes {
		if len(header) > len(prefix) && strings.EqualFold(header[:len(prefix)], prefix) {
			if name := strings.ToLower(header[len(prefix):]); validName(name) {
				return name
			}
		}
	}
	return ""
}

// A document is an event in structured mode.
type document struct {
	attributes  map[string]string // without datacontenttype
	contentType string
	data        []byte
}

// isEvent reports whether d is the event of attributes: an event is identified by source and id.
func (d *document) isEvent(attributes map[string]string) bool {
	return d.attributes["source"] == attributes["source"] && d.attributes["id"] == attributes["id"]
}

// applyTo makes msg the message in d. An err of reading d is returned as an [ErrInvalid].
func (d *document) applyTo(msg *message.Message, err error) error {
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return apply(msg, d.attributes, d.contentType, d.data)
}

// readDocument reads the document of structured mode.
func readDocument(payload []byte) (*document, error) {
	var members map[string]json.RawMessage
	if err := strictjson.Unmarshal(payload, &members); err != nil {
		return nil, err
	}
	d := &document{attributes: map[string]string{}}
	for name, value := range members {
		if name == "data" || name == "data_base64" {
			continue
		}
		text, err := attributeText(value)
		if err != nil || !validName(name) {
			return nil, fmt.Errorf("attribute %.40q is no string, number or boolean with a name of a-z 0-9", name)
		}
		if text != "" {
			d.attributes[name] = text
		}
	}
	d.contentType = d.attributes["datacontenttype"]
	delete(d.attributes, "datacontenttype")
	var err error
	if d.data, err = dataOf(members, d.contentType); err != nil {
		return nil, err
	}
	d.contentType = cmp.Or(d.contentType, "application/json")
	return d, nil
}

// attributeText returns the value of an attribute as a string; "" for null.
func attributeText(value json.RawMessage) (string, error) {
	var text *string
	if json.Unmarshal(value, &text) == nil {
		if text == nil {
			return "", nil
		}
		return *text, nil
	}
	if value[0] == '{' || value[0] == '[' {
		return "", errors.New("a structure")
	}
	return string(value), nil
}

// dataOf returns the data of a document. If the content type is not JSON, data must be a string, which is the text.
func dataOf(members map[string]json.RawMessage, contentType string) ([]byte, error) {
	data, plain := members["data"]
	encoded, inBase64 := members["data_base64"]
	switch {
	case plain && inBase64:
		return nil, errors.New("it has both data and data_base64")
	case inBase64:
		var text string
		if err := json.Unmarshal(encoded, &text); err != nil {
			return nil, errors.New("data_base64 is no string")
		}
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("data_base64: %w", err)
		}
		return decoded, nil
	case !plain || isJSON(contentType):
		return data, nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return nil, fmt.Errorf("data of content type %.60q are no string", contentType)
	}
	return []byte(text), nil
}

// apply makes msg the message in an event.
func apply(msg *message.Message, attributes map[string]string, contentType string, data []byte) error {
	if version := attributes["specversion"]; version != "1.0" {
		return fmt.Errorf("%w: specversion is %.20q, only 1.0 can be read", ErrInvalid, version)
	}
	for _, name := range []string{"id", "source", "type"} {
		if attributes[name] == "" {
			return fmt.Errorf("%w: attribute %s is missing or empty", ErrInvalid, name)
		}
	}
	metadata := message.Metadata{} // a publisher in this process may still hold the old one
	for name, value := range msg.Metadata {
		if attributeOf(name) == "" {
			metadata[name] = value
		}
	}
	for name, value := range attributes {
		metadata[DefaultPrefix+name] = value
	}
	for _, e := range extensions {
		if value := attributes[e.attribute]; value != "" {
			metadata[e.header] = value
		}
	}
	metadata[outbox.PropertyType] = attributes["type"]
	if at := attributes["time"]; at != "" {
		metadata[outbox.PropertyTimestamp] = at
	}
	metadata[outbox.PropertyContentType] = contentType
	if contentType == "" {
		delete(metadata, outbox.PropertyContentType)
	}
	msg.UUID, msg.Metadata, msg.Payload = attributes["id"], metadata, data
	return nil
}

// Identity is a consumer.Options.Identity for events of publishers without sagamill: source and id together name an
// event, as the specification demands. The key is a digest of both. Messages that are no CloudEvents have none.
func Identity(scope string) func(msg *message.Message) (string, string, string, error) {
	return func(msg *message.Message) (string, string, string, error) {
		source, id := msg.Metadata[DefaultPrefix+"source"], msg.Metadata[DefaultPrefix+"id"]
		if source == "" || id == "" {
			return "", "", "", errors.New("the message is no CloudEvent, or consumer.Options.Open is not cloudevents.Open")
		}
		sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s", len(source), source, id))
		return scope, hex.EncodeToString(sum[:]), "", nil
	}
}
