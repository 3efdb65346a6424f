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

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

// ErrVerifyLater is for an error of [Options].Verify that is none of the message: what it
// goes by cannot be looked at. Nothing is decided then, as while the database is away. The
// message is verified again, here and after it has gone back to the broker, and holds up
// what comes behind it: it is for what no message can do without, such as the service's own
// database. Where a Verify can judge one message and not the next, as without the key of one
// sender, it had better refuse that: a dead letter is verified again when it is redriven.
var ErrVerifyLater = errors.New("consumer: the message cannot be verified now")

// A job is one arrival of a message, read and routed.
type job struct {
	Delivery
	route
	digest []byte
	body   any
	parked *parkedCopy // nil: it came from the broker

	arrived arrived // as which it came from the board
	older   bool    // the inbox had a row before this transaction, or has one that is to be moved
	found   cell    // what open has found there
	xid     uint32  // the transaction of its claim
	behind  bool    // the step is ordered, and an earlier message of the key is parked
	spent   int     // entries in batches that failed, of which the database does not know

	redelivered bool  // the broker says that it has delivered it before
	counted     bool  // the coming entry into the handler is counted already
	exhausted   bool  // that entry will not happen: there have been too many
	entered     bool  // the handler has been entered
	direct      bool  // it has used its transaction, after a savepoint
	cause       error // why that entry failed, not yet recorded
	unmended    bool  // its handler has ended the transaction, or may have, and the claim is still to be taken back
	recorded    int   // attempts that were to be recorded with it, maybe in vain
	wakes       bool  // its transaction put something into the outbox

	emitted []outbox.Message // what that is

	undertaking *undertaking // the attempt at an Effect that its transaction has leased
	watch       watch        // what is to be told of it
}

// A parkedCopy is a row of the table parked that this instance has taken.
type parkedCopy struct {
	id       int64
	attempts int // entries into the handler, the coming one included; also the fence,
	round    int // with how often the message was redriven
}

// fence are the arguments of sqlLockParked.
func (p *parkedCopy) fence() []any { return []any{p.id, p.attempts, p.round} }

// A rejection says why a message cannot be a job, ever.
type rejection struct {
	reason Reason
	err    error
	of     *job // as much as could be read, if that leads to a step; or nil
}

func (r *rejection) Error() string { return r.err.Error() }

func (r *rejection) Unwrap() error { return r.err }

// accept is read for a message that has just come: before anything that it says is
// believed, it is verified. The one exception is the version of its format, which
// can only make a dead letter of it; whoever verifies need not understand another.
// Nothing is decided after an error.
func (c *Consumer) accept(topic string, msg *message.Message) (*job, *rejection, error) {
	if rejected := c.checkFormat(msg); rejected != nil {
		return nil, rejected, nil
	}
	err := c.verify(topic, msg)
	if errors.Is(err, ErrVerifyLater) {
		return nil, nil, err
	}
	if err != nil {
		return nil, &rejection{reason: ReasonUnverified, err: err}, nil
	}
	j, rejected := c.read(topic, msg)
	return j, rejected, nil
}

// acceptNow is accept for a message that is a dead letter again where nothing can be
// decided: a person has sent it, and may do so again.
func (c *Consumer) acceptNow(topic string, msg *message.Message) (*job, *rejection) {
	j, rejected, err := c.accept(topic, msg)
	if err != nil {
		rejected = &rejection{reason: ReasonUnverified, err: err}
	}
	return j, rejected
}

// knownFormats are the versions of the message format that this binary reads. The
// header that says so may be left out for version 1.
var knownFormats = []string{strconv.Itoa(outbox.Format)}

// checkFormat rejects msg unless its format is known. Nothing else of it means
// anything then, so that it leads to no step.
func (c *Consumer) checkFormat(msg *message.Message) *rejection {
	version := msg.Metadata.Get(outbox.HeaderFormat)
	if version == "" || slices.Contains(c.formats, version) {
		return nil
	}
	err := fmt.Errorf("header %s: version %.20q is not known, only %s", outbox.HeaderFormat, version, strings.Join(c.formats, ", "))
	return &rejection{reason: ReasonFormatUnknown, err: err}
}

// verify recovers a panic of Options.Verify: it would end the process with every
// delivery.
func (c *Consumer) verify(topic string, msg *message.Message) error {
	if c.opts.Verify == nil {
		return nil
	}
	err := guarded(func() error { return c.opts.Verify(topic, msg) })
	if panicked := new(PanicError); errors.As(err, &panicked) {
		return fmt.Errorf("consumer: option Verify: %w", err)
	}
	return err
}

// read makes a job of msg, or says why that cannot be done. It never fails in
// another way, whatever the bytes.
func (c *Consumer) read(topic string, msg *message.Message) (*job, *rejection) {
	if rejected := c.checkFormat(msg); rejected != nil {
		return nil, rejected
	}
	j, rejected := c.address(topic, msg)
	if len(msg.Payload) > c.opts.MaxPayload {
		err := fmt.Errorf("payload has %d bytes, the limit is %d", len(msg.Payload), c.opts.MaxPayload)
		return nil, &rejection{ReasonTooLarge, err, j}
	}
	if rejected != nil {
		return nil, rejected
	}
	if err := checkContentType(msg.Metadata.Get(outbox.PropertyContentType)); err != nil {
		return nil, &rejection{ReasonUndecodable, err, j}
	}
	body, err := decode(j.input, msg.Payload)
	if err != nil {
		return nil, &rejection{ReasonUndecodable, fmt.Errorf("payload: %w", err), j}
	}
	sum := sha256.Sum256(msg.Payload)
	j.digest, j.body = sum[:], body
	return j, nil
}

type routeKey struct{ topic, typ string }

// A route is what a message type on a topic leads to.
type route struct {
	step    *Step
	kind    kind
	input   Input
	traffic *traffic
}

// address reads what leads msg to a step, and does not look at its payload.
func (c *Consumer) address(topic string, msg *message.Message) (*job, *rejection) {
	reject := func(reason Reason, format string, args ...any) (*job, *rejection) {
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
	to, ok := c.routes[routeKey{topic, typ}]
	if !ok {
		return reject(ReasonTypeUnknown, "no step of this consumer takes type %.100q from topic %s", typ, topic)
	}
	incarnation, n := stepkey.SplitN(key.N)
	return &job{
		Delivery: Delivery{
			ID: msg.UUID, Topic: topic, Type: typ,
			Scope: scope, Key: key.Key, Incarnation: incarnation, N: n, Step: to.step.Name, Undo: to.kind == compensation,
			Undoable:      to.kind == action && to.step.Compensation.decode != nil,
			CorrelationID: cmp.Or(header(outbox.PropertyCorrelation), msg.UUID),
			Metadata:      msg.Metadata, Payload: msg.Payload,
		},
		route: to, watch: watch{came: time.Now()},
		redelivered: header(outbox.PropertyRedelivered) == "true",
	}, nil
}

// checkContentType returns an error where the sender says that the payload is not
// what [On] decodes: JSON, in UTF-8. One that says nothing is believed to send it.
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

// decode recovers a panic of the body's own UnmarshalJSON: it would end the
// process with every delivery.
func decode(in Input, payload []byte) (body any, err error) {
	err = guarded(func() (err error) {
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
)

// ReasonTooOld is that of a message that may have run already: its step has no
// row, and it is older than what a [Sweeper] has removed, or its age is unknown.
const ReasonTooOld Reason = "too-old"

// The reasons of messages of which nothing is believed. They have no identity, and
// no step answers for them.
const (
	ReasonFormatUnknown Reason = "format-unknown" // of a version of the message format that this binary does not know
	ReasonUnverified    Reason = "unverified"     // Options.Verify has refused it
)

// unbelieved reports whether r is the reason of a message that Options.Verify has
// refused, or was not asked about.
func (r Reason) unbelieved() bool { return r == ReasonFormatUnknown || r == ReasonUnverified }
