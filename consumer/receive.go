package consumer

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
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
	redelivered bool      // the broker may have delivered it before
	came        time.Time // when it was read
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
	formats    []string // knownFormats
	verifier   func(topic string, msg *message.Message) error
	maxPayload int
}

// receive verifies msg, which has just arrived, before it believes anything in msg, and reads it. One exception: it
// checks the version of the format first. A version can only make a dead letter of msg, and Verify need not
// understand other versions. After an error ([ErrVerifyLater]) nothing is decided.
func (r *receiver) receive(topic string, msg *message.Message) (*received, *rejection, error) {
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
	m, rejected := r.readAddress(topic, msg)
	if len(msg.Payload) > r.maxPayload {
		err := fmt.Errorf("payload has %d bytes, the limit is %d", len(msg.Payload), r.maxPayload)
		return nil, &rejection{ReasonTooLarge, err, m}
	}
	if rejected != nil {
		return nil, rejected
	}
	if err := checkContentType(msg.Metadata.Get(outbox.PropertyContentType)); err != nil {
		return nil, &rejection{ReasonUndecodable, err, m}
	}
	body, err := decodePayload(m.input, msg.Payload)
	if err != nil {
		return nil, &rejection{ReasonUndecodable, fmt.Errorf("payload: %w", err), m}
	}
	sum := sha256.Sum256(msg.Payload)
	m.digest, m.body = sum[:], body
	return m, nil
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
	if len(scope) > outbox.MaxScope || !cleantext.Printable(scope) {
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
		route: to, came: time.Now(),
		redelivered: header(outbox.PropertyRedelivered) == "true",
	}, nil
}

// checkContentType returns an error if the property content-type excludes what [On] decodes: JSON in UTF-8. A
// missing property is accepted.
func checkContentType(value string) error {
	if value == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(value)
	if err != nil {
		return errors.New("property content-type is malformed") // its text can hold anything
	}
	if media != "application/json" && media != "text/json" && !strings.HasSuffix(media, "+json") {
		return errors.New("property content-type does not say JSON")
	}
	switch strings.ToLower(params["charset"]) {
	case "", "utf-8", "utf8", "us-ascii":
		return nil
	}
	return errors.New("property content-type names another charset than UTF-8")
}

// decodePayload decodes the body. A panic in its UnmarshalJSON is an error: else one message would end the process.
func decodePayload(in Input, payload []byte) (body any, err error) {
	err = callGuarded(func() (err error) {
		body, err = in.decode(payload)
		return err
	})
	return body, err
}

// Reason says why a message is parked or a dead letter.
type Reason string

// The reasons.
const (
	ReasonKeyMissing     Reason = "key-missing"
	ReasonKeyMalformed   Reason = "key-malformed"
	ReasonScopeMissing   Reason = "scope-missing"
	ReasonScopeMalformed Reason = "scope-malformed"
	ReasonTypeMissing    Reason = "type-missing"
	ReasonTypeUnknown    Reason = "type-unknown"
	ReasonTooLarge       Reason = "too-large"
	ReasonUndecodable    Reason = "undecodable"
	ReasonKeyReused      Reason = "key-reused"         // the identity was used for another payload
	ReasonTerminal       Reason = "terminal"           // the handler said that no attempt can succeed
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
)

// unbelieved reports whether r is the reason of a message that Options.Verify has refused or was not asked about.
func (r Reason) unbelieved() bool { return r == ReasonFormatUnknown || r == ReasonUnverified }

// since returns a time before which nothing can have moved the row of m's step, zero if none is known. For an action
// that is the time when it was sent. A compensation is younger than its action, whose row may have been removed
// before the compensation was sent: for it, the time is the beginning of the saga.
func (m *received) since() time.Time {
	if m.kind == compensation {
		return sagaSince(m.Metadata.Get(outbox.PropertyCorrelation), m.ID)
	}
	if t, err := time.Parse(time.RFC3339, m.Metadata.Get(outbox.PropertyTimestamp)); err == nil {
		return t
	}
	return uuidTime(m.ID)
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
