package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/sagaid"
	"github.com/sagamill/sagamill/internal/stepkey"
)

// The metadata names of a published message. The first group are message headers on every
// broker. The second group are properties where the broker has them (RabbitMQ's basic
// properties), and metadata of the same name elsewhere. The message id is the watermill
// message's UUID.
const (
	HeaderKey         = "x-idempotency-key"   // the step key, <key>:<step>[#<n>]
	HeaderScope       = "x-idempotency-scope" // where the key is unique, such as a tenant
	HeaderCausation   = "x-causation-id"      // id of the message that led to this one
	HeaderTraceParent = "traceparent"         // W3C Trace Context
	HeaderTraceState  = "tracestate"

	HeaderFormat    = "x-sagamill-format"    // major version of the message format; absent: 1, see [Format]
	HeaderSignature = "x-sagamill-signature" // of package signing

	// HeaderReplayed marks a message that an operator has had published once more. Its
	// value is the time of that, in RFC 3339 and UTC; any value counts. The receiver may
	// have handled the message before and may have forgotten that. A replay sets the
	// header; other tools that publish messages again may set it too.
	HeaderReplayed = "x-sagamill-replayed"

	PropertyType        = "type"
	PropertyTimestamp   = "timestamp" // RFC 3339, UTC
	PropertyCorrelation = "correlation-id"
	PropertyContentType = "content-type"
	// PropertyContentEncoding says how the payload is encoded, such as gzip. A step with a body reads a payload
	// that is not encoded; the value may name its charset, UTF-8.
	PropertyContentEncoding = "content-encoding"

	// PropertyRedelivered is set to "true" on the receiving side only, by a subscriber
	// whose broker reports an earlier delivery of the message.
	PropertyRedelivered = "redelivered"
)

// Format is the major version of the message format that this package writes: the names above
// and the meaning of their values. A message without [HeaderFormat] is of version 1. A change
// that an older reader may ignore, such as a further header, does not raise it. A change that
// an older reader would misread does. A reader refuses a version that it does not know.
const Format = 1

// The limits of a message. They are checked before the insert. An AMQP short string over 255
// bytes, or a header frame over 128 KiB, would close the whole broker connection. The stored
// row would close it again and again.
const (
	MaxTopic       = 200      // bytes; room for an exchange or queue suffix in a 255-byte short string
	MaxScope       = 255      // bytes
	MaxHeaders     = 64       // count, of the caller's own headers
	MaxHeaderName  = 128      // bytes
	MaxHeaderBytes = 32 << 10 // names and values together
	MaxPayload     = 8 << 20  // bytes; half of RabbitMQ 4's default message limit
	MaxBatch       = 10_000   // messages in one Write
	MaxDelay       = 100 * 365 * 24 * time.Hour
)

// ErrInvalid reports a message that may not be stored. Nothing was written.
var ErrInvalid = errors.New("outbox: invalid message")

// A Message is to be published once the transaction that stores it has committed.
type Message struct {
	Topic string // where it is published to
	Type  string // what it is; default: Topic

	// Scope, Key and Incarnation name the saga. A handler behind package idemkey leaves them
	// empty: [Writer.Write] takes those of the handler's request. Key is the idempotency key
	// of that request. Incarnation tells sagas of one key apart: a key may be used again after
	// its record has expired. Keep all three with the business row (idemkey.Info has them) for
	// messages that are sent later, such as a cancellation. Under another name a compensation
	// finds nothing to undo.
	//
	// A saga that began without package idemkey has no incarnation. Within an idempotent
	// request such a message needs [NoIncarnation].
	Scope, Key  string
	Incarnation string // 1 to 24 of A-Z a-z 0-9 _; default: none

	// Step is required: the name of the step that the message is for, or of one of them where
	// several services listen. It becomes part of the published step key. A receiving step
	// dedupes under its own name, not under this one.
	Step string
	// N tells several messages of one saga to one step apart: 1 to 64 of A-Z a-z 0-9 . _ -, such as a UUID. It does not
	// begin with a dot. Default: there is one message.
	N string

	Payload     []byte
	ContentType string // default: application/json

	ID            string // UUIDv7; default: a new one
	CorrelationID string // the saga instance; default: ID
	CausationID   string // the message that led to this one, if any

	// Headers are the caller's own. Refused are CC, BCC and the names of this package's headers, but for those of the trace.
	Headers map[string]string

	// OrderingKey: messages with the same one are first delivered in the order in which their
	// transactions committed. Their writers must serialise, as by locking the same row.
	// Default: Scope and Key.
	OrderingKey string

	// Delay: the message is published no sooner than this long after its insert. It counts as
	// written when it is due, which is its timestamp. Default: 0.
	Delay time.Duration
}

// An Output is a type of messages that a service sends. It sends nothing: package topology describes the service by it.
// Make one with [OutputOf].
type Output struct {
	Topic       string       // where the messages are published
	Type        string       // their type; default: Topic
	ContentType string       // of their payloads; default: application/json
	Body        reflect.Type // what their payloads are in Go; default: that is not known
}

// OutputOf returns the Output of messages of topic, with the topic as their type and a T in JSON as their payload.
func OutputOf[T any](topic string) Output {
	return Output{Topic: topic, Type: topic, Body: reflect.TypeFor[T]()}
}

// JSON returns v in JSON, as [Message].Payload. If that is impossible, as for a channel or a NaN, it panics with an
// [ErrInvalid]. In a step the message that is being handled then becomes a dead letter, since no further attempt would
// change it. In an HTTP handler behind package idemkey the transaction rolls back, and the key is released.
func JSON(v any) []byte {
	payload, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Errorf("%w: payload: %w", ErrInvalid, err))
	}
	return payload
}

// A Codec turns the bodies of messages into bytes, and back. Without one a body is JSON; package protobuf has another.
// Several goroutines use it.
type Codec interface {
	// ContentType is the content type of what Encode returns, such as application/protobuf.
	ContentType() string
	// Reads reports whether Decode reads payloads of a media type, which comes in lower case and without parameters.
	Reads(mediaType string) bool
	Encode(body any) ([]byte, error)
	// Decode puts a payload into the value that into points to.
	Decode(payload []byte, into any) error
}

// Encode returns m with body as its payload, in the content type of c. It panics as [JSON] does if c cannot express
// body.
func Encode(c Codec, m Message, body any) Message {
	payload, err := c.Encode(body)
	if err != nil {
		panic(fmt.Errorf("%w: payload: %w", ErrInvalid, err))
	}
	m.Payload, m.ContentType = payload, c.ContentType()
	return m
}

// NoIncarnation, as a Message's Incarnation, says that its saga has none.
const NoIncarnation = sagaid.None

// SagaKey returns the scope and the idempotency key of the saga of a received message, as one
// string: the default of [Message.OrderingKey]. It is "" for a message without them.
func SagaKey(msg *message.Message) string {
	k, err := stepkey.Parse(msg.Metadata.Get(HeaderKey))
	scope := msg.Metadata.Get(HeaderScope)
	if err != nil || scope == "" {
		return ""
	}
	return (&Message{Scope: scope, Key: k.Key}).orderingKeyOrDefault()
}

// reservedHeaders are the names that the package itself sets, and those that make RabbitMQ
// route a message elsewhere.
var reservedHeaders = map[string]bool{
	HeaderKey: true, HeaderScope: true, HeaderCausation: true, HeaderFormat: true, HeaderSignature: true,
	"cc": true, "bcc": true,
	PropertyType: true, PropertyTimestamp: true, PropertyCorrelation: true, PropertyContentType: true, PropertyRedelivered: true,
}

// ReservedHeader reports whether a [Message] may not have a header of that name, because the package or the broker
// gives it a meaning.
func ReservedHeader(name string) bool { return reservedHeaders[strings.ToLower(name)] }

// Validate returns the [ErrInvalid] with which [Writer.Write] would refuse msgs, or nil.
func Validate(msgs ...Message) error {
	if len(msgs) > MaxBatch {
		return fmt.Errorf("%w: %d messages in one Write, the limit is %d", ErrInvalid, len(msgs), MaxBatch)
	}
	for i := range msgs {
		if err := msgs[i].checkFields(); err != nil {
			return fmt.Errorf("%w (message %d of %d)", err, i+1, len(msgs))
		}
	}
	return nil
}

// checkFields returns an [ErrInvalid] that names the field and the limit.
func (m *Message) checkFields() error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case m.Topic == "" || len(m.Topic) > MaxTopic || !cleantext.Printable(m.Topic):
		return invalid("Topic must be 1 to %d printable bytes", MaxTopic)
	case len(m.Type) > MaxTopic || !cleantext.Printable(m.Type):
		return invalid("Type must be at most %d printable bytes", MaxTopic)
	case m.Scope == "" || len(m.Scope) > MaxScope || !cleantext.Printable(m.Scope):
		return invalid("Scope must be 1 to %d printable bytes", MaxScope)
	case len(m.Payload) > MaxPayload:
		return invalid("Payload has %d bytes, the limit is %d", len(m.Payload), MaxPayload)
	case len(m.ContentType) > MaxHeaderName || !cleantext.Printable(m.ContentType):
		return invalid("ContentType must be at most %d printable bytes", MaxHeaderName)
	case len(m.CorrelationID) > MaxHeaderName || !cleantext.Printable(m.CorrelationID):
		return invalid("CorrelationID must be at most %d printable bytes", MaxHeaderName)
	case len(m.CausationID) > MaxHeaderName || !cleantext.Printable(m.CausationID):
		return invalid("CausationID must be at most %d printable bytes", MaxHeaderName)
	case len(m.OrderingKey) > stepkey.MaxKey+MaxScope+1 || !utf8.ValidString(m.OrderingKey) || strings.ContainsRune(m.OrderingKey, 0):
		return invalid("OrderingKey must be at most %d bytes of UTF-8 without NUL", stepkey.MaxKey+MaxScope+1)
	case m.Delay < 0 || m.Delay > MaxDelay:
		return invalid("Delay must be between 0 and %s", MaxDelay)
	}
	if m.storedIncarnation() != "" {
		if err := stepkey.CheckIncarnation(m.Incarnation); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if err := (stepkey.Key{Key: m.Key, Step: m.Step, N: m.storedN()}).Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return m.checkHeaders(invalid)
}

// storedN returns the third part of the step key: the incarnation and N.
func (m *Message) storedN() string { return stepkey.JoinN(m.storedIncarnation(), m.N) }

func (m *Message) storedIncarnation() string {
	if m.Incarnation == NoIncarnation {
		return ""
	}
	return m.Incarnation
}

func (m *Message) checkHeaders(invalid func(string, ...any) error) error {
	if len(m.Headers) > MaxHeaders {
		return invalid("%d headers, the limit is %d", len(m.Headers), MaxHeaders)
	}
	size := 0
	for name, value := range m.Headers {
		size += len(name) + len(value)
		switch {
		case name == "" || len(name) > MaxHeaderName || !cleantext.Printable(name):
			return invalid("a header name must be 1 to %d printable bytes", MaxHeaderName)
		case ReservedHeader(name):
			return invalid("header %s is set by the outbox or has a meaning of its own to the broker", name)
		case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
			return invalid("header %s is not UTF-8 without NUL", name)
		}
	}
	if size > MaxHeaderBytes {
		return invalid("headers have %d bytes, the limit is %d", size, MaxHeaderBytes)
	}
	return nil
}
