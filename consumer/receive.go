package consumer

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

// ErrVerifyLater is for an error of [Options].Verify that does not come from the message: Verify cannot look up what
// it needs. Nothing is decided then, as while the database is away. The message is verified again, here and after
// the broker has delivered it again, and it holds up the messages behind it.
//
// Use it only for what every message needs, such as the service's own database. A Verify that can judge one message
// and not the next, as without the key of one sender, should refuse: a dead letter is verified again when it is
// redriven.
var ErrVerifyLater = errors.New("consumer: the message cannot be verified now")

// A received message was verified, read and routed to a step.
type received struct {
	Delivery
	route
	digest      []byte // of the payload as it came
	body        any
	redelivered bool // the broker may have delivered it before
	receivedAt  time.Time
}

// A rejection says why a message can never be executed.
type rejection struct {
	reason Reason
	err    error
	of     *received // the readable part, if that leads to a step; or nil
}

func (r *rejection) Error() string { return r.err.Error() }

func (r *rejection) Unwrap() error { return r.err }

// A receiver verifies and reads messages. It decides by the message alone, and does no I/O except in Verify.
type receiver struct {
	routes     map[routeKey]route
	formats    []string                         // knownFormats
	open       func(msg *message.Message) error // Options.Open
	verifier   func(topic string, msg *message.Message) error
	identity   Identity
	maxPayload int
}

// receive verifies msg, which has just arrived, before it believes anything in msg, and reads it. Two exceptions: it
// opens the envelope, and checks the version of the format. A version can only make a dead letter of msg, and Verify
// need not understand other versions. After an error ([ErrVerifyLater]) nothing is decided.
func (r *receiver) receive(topic string, msg *message.Message) (*received, *rejection, error) {
	if rejected := r.openEnvelope(msg); rejected != nil {
		return nil, rejected, nil
	}
	if rejected := r.checkFormat(msg); rejected != nil {
		return nil, rejected, nil
	}
	err := r.verifyMessage(topic, msg)
	if errors.Is(err, ErrVerifyLater) {
		return nil, nil, err
	}
	if err != nil {
		return nil, &rejection{reason: ReasonUnverified, err: err}, nil
	}
	m, rejected := r.readVerified(topic, msg)
	return m, rejected, nil
}

// receiveAgain is receive for a redriven dead letter. Where Verify cannot decide now, the message is a dead letter
// again: a person may redrive it later.
func (r *receiver) receiveAgain(topic string, msg *message.Message) (*received, *rejection) {
	m, rejected, err := r.receive(topic, msg)
	if err != nil {
		rejected = &rejection{reason: ReasonUnverified, err: err}
	}
	return m, rejected
}

// envelopeRoom is how large an envelope may be besides the payload in it, which may be in base64.
const envelopeRoom = 4 * outbox.MaxHeaderBytes

// openEnvelope calls Options.Open. It does not open an envelope whose payload must be too large: readVerified rejects
// it.
func (r *receiver) openEnvelope(msg *message.Message) *rejection {
	if r.open == nil || (len(msg.Payload)-envelopeRoom)/2 > r.maxPayload {
		return nil
	}
	if err := callGuarded(func() error { return r.open(msg) }); err != nil {
		return &rejection{reason: ReasonUnopened, err: fmt.Errorf("option Open: %w", err)}
	}
	return nil
}

// knownFormats are the versions of the message format that this binary reads. A message of version 1 need not have
// the header.
var knownFormats = []string{strconv.Itoa(outbox.Format)}

// checkFormat rejects msg unless its format is known. No other header of an unknown format is read, so that the
// message belongs to no step.
func (r *receiver) checkFormat(msg *message.Message) *rejection {
	version := msg.Metadata.Get(outbox.HeaderFormat)
	if version == "" || slices.Contains(r.formats, version) {
		return nil
	}
	err := fmt.Errorf("header %s: version %.20q is not known, only %s", outbox.HeaderFormat, version, strings.Join(r.formats, ", "))
	return &rejection{reason: ReasonFormatUnknown, err: err}
}

// verifyMessage calls Options.Verify. A panic in it is an error: else one message would end the process.
func (r *receiver) verifyMessage(topic string, msg *message.Message) error {
	if r.verifier == nil {
		return nil
	}
	err := callGuarded(func() error { return r.verifier(topic, msg) })
	if panicked := new(PanicError); errors.As(err, &panicked) {
		return fmt.Errorf("consumer: option Verify: %w", err)
	}
	return err
}

// readMessage reads a message that was verified when it arrived. Its format may be newer than this binary.
func (r *receiver) readMessage(topic string, msg *message.Message) (*received, *rejection) {
	if rejected := r.checkFormat(msg); rejected != nil {
		return nil, rejected
	}
	return r.readVerified(topic, msg)
}

// readVerified reads a verified message of a known format. Any bytes give a received message or a rejection.
func (r *receiver) readVerified(topic string, msg *message.Message) (*received, *rejection) {
	if rejected := r.identifyForeign(topic, msg); rejected != nil {
		return nil, rejected
	}
	m, rejected := r.readAddress(topic, msg)
	if len(msg.Payload) > r.maxPayload {
		err := fmt.Errorf("payload has %d bytes, the limit is %d", len(msg.Payload), r.maxPayload)
		return nil, &rejection{ReasonTooLarge, err, m}
	}
	if rejected != nil {
		return nil, rejected
	}
	body, err := decodeBody(m.input, msg.Metadata, msg.Payload)
	if err != nil {
		return nil, &rejection{ReasonUndecodable, err, m}
	}
	sum := sha256.Sum256(msg.Payload)
	m.digest, m.body = sum[:], body
	return m, nil
}

// identifyForeign calls Options.Identity for a message without headers of sagamill, and sets the headers. It does not
// call Identity for a payload over the limit: readVerified rejects it.
func (r *receiver) identifyForeign(topic string, msg *message.Message) *rejection {
	if !r.isForeign(msg) || len(msg.Payload) > r.maxPayload {
		return nil
	}
	var scope, key, n string
	err := callGuarded(func() (err error) {
		scope, key, n, err = r.identity(msg)
		return err
	})
	if err == nil {
		err = checkIdentity(scope, key, n)
	}
	if err != nil {
		return &rejection{reason: ReasonIdentity, err: fmt.Errorf("option Identity: %w", err)}
	}
	metadata := message.Metadata{}
	maps.Copy(metadata, msg.Metadata) // a publisher in this process may still hold the map
	typ, step := r.routeForeign(topic, metadata[outbox.PropertyType])
	metadata[outbox.HeaderScope] = scope
	metadata[outbox.HeaderKey] = stepkey.Key{Key: key, Step: step, N: n}.String()
	if own := metadata[outbox.PropertyType]; own != typ {
		metadata[headerOwnType], metadata[outbox.PropertyType] = own, typ
	}
	if sentAt(metadata, msg.UUID).IsZero() { // also where a header of that name has another format
		metadata[outbox.PropertyTimestamp] = time.Now().UTC().Format(time.RFC3339)
	}
	msg.Metadata = metadata
	return nil
}

// headerOwnType keeps the type with which a foreign message came if another type routes it. "" means it came without one.
const headerOwnType = "x-sagamill-own-type"

// isForeign reports whether msg has no step key and Options.Identity is set.
func (r *receiver) isForeign(msg *message.Message) bool {
	_, named := msg.Metadata[outbox.HeaderKey]
	return !named && r.identity != nil
}

// checkIdentity returns an error that names the part of an identity that is outside its limits. The error does not
// quote the part, which may contain anything.
func checkIdentity(scope, key, n string) error {
	if !isUsableScope(scope) {
		return fmt.Errorf("the scope must be 1 to %d printable bytes", outbox.MaxScope)
	}
	if strings.HasPrefix(n, ".") {
		return errors.New("n must not begin with a dot")
	}
	return stepkey.Key{Key: key, Step: foreignStep, N: n}.Check()
}

func isUsableScope(scope string) bool {
	return scope != "" && len(scope) <= outbox.MaxScope && cleantext.Printable(scope)
}

// foreignStep is the step in the key of a message that belongs to no step of this consumer.
const foreignStep = "unknown"

// routeForeign returns the type by which a message on topic is routed, and the name of its step. A message without a
// type belongs to the only input on the topic. The input of [FromWatermill] takes any type if it is the only one there.
func (r *receiver) routeForeign(topic, typ string) (routed, step string) {
	if to, ok := r.routes[routeKey{topic, typ}]; ok {
		return typ, to.step.Name
	}
	inputs := 0
	routed, step = typ, foreignStep
	for key, to := range r.routes {
		if key.topic != topic {
			continue
		}
		inputs++
		if typ == "" || to.input.anyType {
			routed, step = key.typ, to.step.Name
		}
	}
	if inputs > 1 {
		return typ, foreignStep
	}
	return routed, step
}

type routeKey struct{ topic, typ string }

// A route is the step and the handler for one message type on one topic.
type route struct {
	step  *Step
	kind  kind
	input Input
	load  *stepLoad
}

// readAddress reads the headers that lead msg to a step. It does not look at the payload.
func (r *receiver) readAddress(topic string, msg *message.Message) (*received, *rejection) {
	reject := func(reason Reason, format string, args ...any) (*received, *rejection) {
		return nil, &rejection{reason: reason, err: fmt.Errorf(format, args...)}
	}
	header := msg.Metadata.Get
	if header(outbox.HeaderKey) == "" {
		return reject(ReasonKeyMissing, "header %s is missing or empty", outbox.HeaderKey)
	}
	key, err := stepkey.Parse(header(outbox.HeaderKey))
	if err != nil {
		return reject(ReasonKeyMalformed, "header %s: %w", outbox.HeaderKey, err)
	}
	scope := header(outbox.HeaderScope)
	if scope == "" {
		return reject(ReasonScopeMissing, "header %s is missing or empty", outbox.HeaderScope)
	}
	if !isUsableScope(scope) {
		return reject(ReasonScopeMalformed, "header %s must be at most %d printable bytes", outbox.HeaderScope, outbox.MaxScope)
	}
	typ := header(outbox.PropertyType)
	if typ == "" {
		return reject(ReasonTypeMissing, "property %s is missing or empty", outbox.PropertyType)
	}
	to, ok := r.routes[routeKey{topic, typ}]
	if !ok {
		return reject(ReasonTypeUnknown, "no step of this consumer takes type %.100q from topic %s", typ, topic)
	}
	incarnation, n := stepkey.SplitN(key.N)
	return &received{
		Delivery: Delivery{
			ID: msg.UUID, Topic: topic, Type: typ,
			Scope: scope, Key: key.Key, Incarnation: incarnation, N: n, Step: to.step.Name, Undo: to.kind == compensation,
			Undoable:      to.kind == action && to.step.Compensation.decode != nil,
			CorrelationID: cmp.Or(header(outbox.PropertyCorrelation), msg.UUID),
			Metadata:      msg.Metadata, Payload: msg.Payload,
		},
		route: to, receivedAt: time.Now(),
		redelivered: header(outbox.PropertyRedelivered) == "true",
	}, nil
}

// decodeBody decodes a payload by the codec for its content type.
func decodeBody(in Input, metadata message.Metadata, payload []byte) (body any, err error) {
	err = callGuarded(func() (err error) { // a panic, as in an UnmarshalJSON, would end the process
		var codec outbox.Codec
		if !in.raw {
			if err = checkEncoding(metadata[outbox.PropertyContentEncoding]); err != nil {
				return err
			}
			if codec, err = in.findCodec(metadata[outbox.PropertyContentType]); err != nil {
				return err
			}
		}
		if body, err = in.decode(codec, payload); err != nil {
			return fmt.Errorf("payload: %w", err)
		}
		return nil
	})
	return body, err
}

// checkEncoding refuses an encoded payload. Some clients name the charset here.
func checkEncoding(encoding string) error {
	switch strings.ToLower(encoding) {
	case "", "identity", "utf-8", "utf8", "us-ascii":
		return nil
	}
	return fmt.Errorf("property content-encoding is %.40q: option Open can decode the payload and delete the property", encoding)
}

// findCodec returns the codec for a content type.
func (in *Input) findCodec(contentType string) (outbox.Codec, error) {
	if contentType == "" {
		return jsonCodec{}, nil
	}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, errors.New("property content-type is malformed") // its text can hold anything
	}
	for _, c := range in.Codecs {
		if c.Reads(media) {
			return c, nil
		}
	}
	if strings.HasPrefix(media, "application/cloudevents") {
		return nil, errors.New("the message is a CloudEvent: set option Open, see package cloudevents")
	}
	if !(jsonCodec{}).Reads(media) {
		return nil, fmt.Errorf("property content-type: %.60q is neither JSON nor of the step's Codecs", media)
	}
	switch strings.ToLower(params["charset"]) {
	case "", "utf-8", "utf8", "us-ascii":
		return jsonCodec{}, nil
	}
	return nil, errors.New("property content-type names another charset than UTF-8")
}

// jsonCodec is strict: see [DecodeJSON].
type jsonCodec struct{}

func (jsonCodec) ContentType() string { return "application/json" }

func (jsonCodec) Reads(media string) bool {
	return media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
}

func (jsonCodec) Encode(body any) ([]byte, error) { return json.Marshal(body) }

func (jsonCodec) Decode(payload []byte, into any) error { return DecodeJSON(payload, into) }

// Reason says why a message is parked or a dead letter.
type Reason string

// The reasons.
const (
	ReasonKeyMissing     Reason = "key-missing"
	ReasonKeyMalformed   Reason = "key-malformed"
	ReasonScopeMissing   Reason = "scope-missing"
	ReasonScopeMalformed Reason = "scope-malformed"
	ReasonIdentity       Reason = "identity-unusable" // Options.Identity has failed, or what it returned is outside the limits
	ReasonTypeMissing    Reason = "type-missing"
	ReasonTypeUnknown    Reason = "type-unknown"
	ReasonTooLarge       Reason = "too-large"
	ReasonUndecodable    Reason = "undecodable"
	ReasonKeyReused      Reason = "key-reused"         // the identity was used for another payload
	ReasonTerminal       Reason = "terminal"           // the handler said that no attempt can succeed
	ReasonEmitInvalid    Reason = "emit-invalid"       // the handler wrote or emitted a message that the outbox refuses: [outbox.ErrInvalid]
	ReasonExhausted      Reason = "attempts-exhausted" // MaxAttempts entries into the handler
	ReasonActionDead     Reason = "action-dead"        // a compensation of a step whose action is a dead letter
	ReasonWaits          Reason = "waits-for-action"   // a compensation of a step whose action is parked
	ReasonOrder          Reason = "waits-for-order"    // an earlier message of an ordered step's key is parked
	ReasonFailed         Reason = "failed"             // the handler failed and will be entered again
	ReasonSuperseded     Reason = "superseded"         // the compensation undid nothing, but the action may have had an effect
	ReasonCalling        Reason = "calling"            // an Effect's call is under way, or ended with its process
	ReasonUnsettled      Reason = "unsettled"          // verify found nothing, but it is too early to believe that
	ReasonParked         Reason = "parked"             // the handler said that a person must decide: [ErrParked]

	// MaxAttempts entries, the last of which failed by a condition of the server.
	ReasonUnavailable Reason = "database-unavailable"

	// The message may have run already: its step has no row, and the message is older than rows that a [Sweeper] has
	// removed, or its age is unknown.
	ReasonTooOld Reason = "too-old"

	// These messages were not verified. They have no identity, and Unhandled is not called for them.
	ReasonFormatUnknown Reason = "format-unknown" // of a version of the message format that this binary does not know
	ReasonUnverified    Reason = "unverified"     // Options.Verify has refused it
	ReasonUnopened      Reason = "unopened"       // Options.Open has failed, so that Options.Verify was not asked
)

// unbelieved reports whether r is the reason of a message that Options.Verify has refused or was not asked about.
func (r Reason) unbelieved() bool {
	return r == ReasonFormatUnknown || r == ReasonUnverified || r == ReasonUnopened
}

// mayBeInEnvelope reports whether a message with reason r may be one that arrived without an Options.Open.
func (r Reason) mayBeInEnvelope() bool {
	return r == ReasonKeyMissing || r == ReasonIdentity || r == ReasonUndecodable || r == ReasonTooLarge
}

// since returns a time before which nothing can have moved the row of m's step, zero if none is known. For an action
// that is the time when it was sent. A compensation is younger than its action, whose row may have been removed
// before the compensation was sent: for it, the time is the beginning of the saga.
func (m *received) since() time.Time {
	if m.kind == compensation {
		return sagaSince(m.Metadata.Get(outbox.PropertyCorrelation), m.ID)
	}
	return sentAt(m.Metadata, m.ID)
}

// sentAt returns when a message was sent, by its timestamp or else by its id; zero if neither says so.
func sentAt(metadata message.Metadata, id string) time.Time {
	if t, err := time.Parse(time.RFC3339, metadata.Get(outbox.PropertyTimestamp)); err == nil {
		return t
	}
	return uuidTime(id)
}

// sagaSince returns when a saga began if its id is a UUIDv7. A sender that knew of no saga repeats the id of the
// message.
func sagaSince(correlation, messageID string) time.Time {
	if correlation == messageID {
		return time.Time{}
	}
	return uuidTime(correlation)
}

// uuidTime returns the time in a UUIDv7, and the zero time for any other id.
func uuidTime(id string) time.Time {
	u, err := uuid.Parse(id)
	if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		return time.Time{}
	}
	var ms int64
	for _, b := range u[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms).UTC()
}
