package consumer

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

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

// A route is what a message type on a topic leads to.
type route struct {
	step    *Step
	kind    kind
	input   Input
	traffic *traffic
}

type routeKey struct{ topic, typ string }

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

// decode recovers a panic of the body's own UnmarshalJSON: it would end the
// process with every delivery.
func decode(in Input, payload []byte) (body any, err error) {
	err = guarded(func() (err error) {
		body, err = in.decode(payload)
		return err
	})
	return body, err
}

func (j *job) arrival() arrival {
	return arrival{kind: j.kind, digest: j.digest, parked: j.parked != nil, cancelParked: j.step.CancelParked, behind: j.behind, since: j.since()}
}

// attempts returns how many entries into the handler there were, the present
// one included.
func (j *job) attempts(c cell) int {
	n := c.entries(j.kind)
	switch {
	case j.parked != nil:
		n = j.parked.attempts
	case !j.counted:
		n++
	default:
		n = max(n, 1) // the row that has counted it may have been swept since
	}
	if j.exhausted {
		n--
	}
	return n
}

// headers turns metadata into columns, sorted by name. The redelivered mark
// belongs to one delivery, not to the message.
func headers(metadata message.Metadata) (names, values [][]byte) {
	names, values = [][]byte{}, [][]byte{}
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		if name != outbox.PropertyRedelivered {
			names, values = append(names, []byte(name)), append(values, []byte(metadata[name]))
		}
	}
	return names, values
}
