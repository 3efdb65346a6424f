package cloudevents

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
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
func Open(msg *message.Message) error {
	media, _, err := mime.ParseMediaType(msg.Metadata[outbox.PropertyContentType])
	switch {
	case err == nil && media == StructuredType:
		return openStructured(msg)
	case err == nil && strings.HasPrefix(media, "application/cloudevents"):
		return fmt.Errorf("%w: %s cannot be read, only %s", ErrInvalid, media, StructuredType)
	}
	return openBinary(msg)
}

// openBinary reads the attributes from the metadata. The payload is the data.
func openBinary(msg *message.Message) error {
	attributes := map[string]string{}
	for name, value := range msg.Metadata {
		if attribute := attributeOf(name); attribute != "" {
			attributes[attribute] = value
		}
	}
	if attributes["specversion"] == "" {
		return nil
	}
	return apply(msg, attributes, msg.Metadata[outbox.PropertyContentType], msg.Payload)
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

// openStructured reads the document of structured mode.
func openStructured(msg *message.Message) error {
	var members map[string]json.RawMessage
	if err := strictjson.Unmarshal(msg.Payload, &members); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	attributes := map[string]string{}
	for name, value := range members {
		if name == "data" || name == "data_base64" {
			continue
		}
		text, err := attributeText(value)
		if err != nil || !validName(name) {
			return fmt.Errorf("%w: attribute %.40q is no string, number or boolean with a name of a-z 0-9", ErrInvalid, name)
		}
		if text != "" {
			attributes[name] = text
		}
	}
	contentType := attributes["datacontenttype"]
	delete(attributes, "datacontenttype")
	data, err := dataOf(members, contentType)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if contentType == "" {
		contentType = "application/json"
	}
	return apply(msg, attributes, contentType, data)
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

// dataOf returns the data of a document. A JSON string is text, where the content type is not JSON.
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
