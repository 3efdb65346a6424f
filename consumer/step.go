package consumer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/fieldhash"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/internal/strictjson"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// MaxTimeout is the longest that a handler may run. A broker would have taken the delivery away long before.
const MaxTimeout = 24 * time.Hour

// A Step is one participant's part in a saga. Within one [Consumer] a message
// type on a topic belongs to one step.
type Step struct {
	Name         string // name of the step, which must match [a-z0-9][a-z0-9-]{0,62}; scope, key and Name identify the effect of the step, so never change Name; required
	Action       Input  // the message that starts the step; required
	Compensation Input  // the message that undoes the step; this message has the same key as the message of Action; default: the step cannot be undone

	MaxAttempts int           // largest number of attempts of the action, and of the compensation; an attempt that ends with a crash counts too; a rejection of saga.On is no failure; default: 10
	RetryBase   time.Duration // longest wait between the first failed attempt and the next attempt; default: 1 s
	RetryCap    time.Duration // longest wait between any failed attempt and the next attempt; default: 5 min
	Timeout     time.Duration // longest time for one run of a handler, or of one of the three functions of an [Effect] (call, verify and record); default: 30 s, at most MaxTimeout

	// After the call of an [Effect] has ended in this process, the other system can still be working on the call for at
	// most the time Settle. Until then a not-found answer of an [Effect]'s verify is not trusted. Without verify it has
	// no meaning; a step without an Effect cannot have it. Default: 1 min.
	Settle time.Duration

	// With AskFirst, the function verify of an [Effect] asks the other system before each call, also before the first
	// call. It is for a database that may forget commits: one that is restored to an earlier time, or fails over to a
	// standby that was behind. After that a message can arrive again, from the relay, the broker or the table parked,
	// whose call was made and is forgotten. It costs a question for each call. A not-found answer is then trusted at once,
	// except for a replayed message, for which verify is asked in any case: there after a lease and Settle. A step without
	// a verify cannot have it. Default: if the inbox row shows no earlier call, the consumer trusts the row, and does not
	// ask the other system.
	AskFirst bool

	// With CancelParked, a compensation cancels its action even if the message of the action is retrying or is a dead
	// letter. Set it only if the handler has no effect outside its transaction: a failed attempt may have had one, which
	// would then never be undone. So it cannot be set with an [Effect] for the action; a step that becomes one must drop
	// it a release before. Default: the compensation cancels only what is known to have done nothing, waits for another action
	// that is retrying, and becomes a dead letter if the action is one.
	CancelParked bool

	// Single runs each message of the step in a transaction of its own, without other messages. Set it if the handler
	// does something outside its transaction, or is slow. Otherwise up to [Options].BatchSize messages share a
	// transaction, and if that fails because of another message, the handler is entered again. Such entries count as
	// attempts, except after a deadlock or a serialization failure. A step with an [Effect] is always Single. Default: false.
	Single bool

	// Unhandled is called when a message of the step becomes a dead letter, and when a compensation finds nothing to undo.
	// A service that waits for the handler's answer can so learn that none comes. Unhandled runs in the transaction that
	// records that end. The messages it emits are completed as in a handler, and published if and only if that transaction
	// commits.
	//
	// It must only emit, and must not block, because rows are locked. It is called again if the transaction is lost.
	// It answers again for a dead letter that is redriven and dies again, and for another copy that dies. If it
	// panics, or emits a message that the outbox refuses, the message ends without an answer, which is logged.
	//
	// A message that belongs to the step by topic and type needs no more than a readable scope and key for the call.
	// Unhandled is not called for a duplicate, nor for a message that an operator buries. It is called for an action
	// that its compensation has overtaken or cancelled only if that action is a dead letter. Default: none.
	Unhandled func(u Unhandled, emit Emit)

	// Prepare runs before the handlers of a batch, and reads from the database what all these handlers need. Steps that
	// are given the same Preparer are prepared together. Default: none.
	Prepare *Preparer

	// Emits lists the messages that the handlers emit, except replies to a saga; the description of the service shows this
	// list: see package topology. A message that is not in the list is sent all the same, and is logged once. Default: the
	// emitted messages are not described.
	Emits []outbox.Output

	// Ordered makes a message wait while an earlier message of the same key is retrying in this step. A dead letter
	// holds no message up. It needs a subscriber that delivers the messages of a key one after the other. Package
	// rabbitmq does that with the option Key and, over several instances, a single active consumer. Default: false.
	Ordered bool

	declared *declaration // of Emits; nil: there is none
}

// An Input is a message type with its handler. Make one with [On], [OnBytes], [Effect] or [FromWatermill].
type Input struct {
	Topic string // where the message is published
	Type  string // its type; default: Topic

	// Codecs read bodies that are no JSON. The content type of a message decides which one: the first that reads it.
	// JSON is read besides, and is meant where a message has no content type. Default: none.
	Codecs []outbox.Codec

	// Reply is the type of the result that the handler replies with, to the topic that the message names. It is for
	// descriptions of the service. Package saga sets it. Default: the handler does not reply.
	Reply reflect.Type

	body    reflect.Type                                      // what decode returns a pointer to; nil if the Input is raw
	decode  func(c outbox.Codec, payload []byte) (any, error) // c is nil if the Input is raw
	run     func(ctx context.Context, tx pgx.Tx, d Delivery, body any, emit Emit) error
	effect  *effect // instead of run
	raw     bool    // the payload is not decoded
	anyType bool    // a foreign message of any type is for it: see FromWatermill
}

// A Handler does a step's work in tx, which it must not end. The messages it emits are published if and only if tx
// commits. ctx ends after the step's Timeout.
//
// It is entered again after an error, with nothing left of the last attempt in the database. A business outcome,
// such as a declined card, is no error: emit it and return nil.
type Handler[T any] func(ctx context.Context, tx pgx.Tx, in Message[T], emit Emit) error

// A Message is a delivery with its decoded payload.
type Message[T any] struct {
	Delivery
	Body T
}

// Emit adds messages to the outbox, in the handler's transaction. Topic and Step are required. Scope, Key,
// CorrelationID and the trace headers default to those of the handled message, as does Incarnation for messages of its
// scope and key. CausationID is its id.
//
// A message that the outbox refuses ([outbox.ErrInvalid]) makes the handled message a dead letter, since no further
// attempt would change it. The broker refuses a topic without a queue, which holds back later messages of the saga:
// declare the queue of every service that listens first. Emit may not be called after the handler has returned.
type Emit func(msgs ...outbox.Message)

// JSON emits one message with v in JSON as its payload. A v that JSON cannot express makes the handled message a dead
// letter: see [outbox.JSON].
func (e Emit) JSON(topic, step string, v any) {
	e(outbox.Message{Topic: topic, Step: step, Payload: outbox.JSON(v)})
}

// A Delivery is all that is known of a message besides its body.
type Delivery struct {
	ID, Topic, Type string
	Scope, Key      string
	Incarnation     string           // tells sagas of one key apart: see [outbox.Message]; "": the saga has none
	N               string           // tells messages of one saga to one step apart
	Step            string           // the step that handles it
	Undo            bool             // it is the step's compensation
	Undoable        bool             // it is the action of a step that has one
	CorrelationID   string           // the saga instance
	Attempt         int              // 1 for the first entry into the handler
	Metadata        message.Metadata // not to be changed
	Payload         []byte           // not to be changed

	out *collector // of the attempt
}

// EffectKey is an idempotency key for a call to another system, such as a payment provider. [Effect] hands it to the
// call. It is the same for every attempt, and different for any other step, key or scope, so that tenants cannot
// collide there. A step's action and its compensation have different ones.
func (d *Delivery) EffectKey() string {
	return fieldhash.Hex(sha256.New(), d.Scope, d.Key, d.Step, d.joinedN(), strconv.FormatBool(d.Undo))
}

// joinedN is the n of the step key: part of the identity of the step.
func (d *Delivery) joinedN() string { return stepkey.JoinN(d.Incarnation, d.N) }

// On returns an Input that hands messages of topic to h, with the payload decoded from JSON or by one of the Input's
// Codecs. The message's type is the topic's name, unless the returned Input's Type is set to another. A payload that is
// not a T, or that gives a member of JSON twice, is a dead letter.
func On[T any](topic string, h Handler[T]) Input {
	in := Input{Topic: topic, Type: topic, body: reflect.TypeFor[T](), decode: decodeAs[T]}
	if h != nil { // New reports a nil handler
		in.run = func(ctx context.Context, tx pgx.Tx, d Delivery, body any, emit Emit) error {
			return h(ctx, tx, Message[T]{Delivery: d, Body: *body.(*T)}, emit)
		}
	}
	return in
}

// OnBytes is [On] for payloads of any content type, which h gets as they came.
func OnBytes(topic string, h Handler[[]byte]) Input {
	in := Input{Topic: topic, Type: topic, raw: true, decode: keepPayload}
	if h != nil {
		in.run = func(ctx context.Context, tx pgx.Tx, d Delivery, body any, emit Emit) error {
			return h(ctx, tx, Message[[]byte]{Delivery: d, Body: bytes.Clone(body.([]byte))}, emit) // h may change its copy
		}
	}
	return in
}

// BodyType returns the type that payloads are decoded to, nil if the handler gets them as they came.
func (in Input) BodyType() reflect.Type { return in.body }

func keepPayload(_ outbox.Codec, payload []byte) (any, error) { return payload, nil }

// FromWatermill returns a step that hands the messages of topic to h, a handler for a watermill Router. h gets a copy
// of the message, with its payload as it came, in any content type. It may ack or not: the step acks after COMMIT. A
// nack, an error or a panic makes the attempt fail. h may write to the database in the step's transaction: see
// [TxFrom].
//
// The step is Single, since h was written to act outside a transaction: such an act can happen twice, as it could in a
// Router. Set the other fields of the Step as they are needed. Messages without headers of sagamill need
// [Options].Identity. Middleware of the Router is put around h here.
func FromWatermill(name, topic string, h message.NoPublishHandlerFunc) Step {
	step := FromWatermillHandler(name, topic, topic, func(msg *message.Message) ([]*message.Message, error) {
		return nil, h(msg)
	})
	step.Emits = nil
	if h == nil {
		step.Action.run = nil
	}
	return step
}

// FromWatermillHandler is [FromWatermill] for a handler that produces messages. They go through the outbox to
// publishTopic, if and only if the transaction commits.
//
// A produced message belongs to the saga of the handled one. Its n is a digest of the step, of the handled message's
// n and of its place among the produced messages. Its metadata become headers, except those that the outbox sets: the
// UUID is new, and trace headers and correlation id are those of the handled message unless h has set others. Headers
// about the handled message alone are dropped: x-sagamill-…, and attributes of its CloudEvent. Its type is
// publishTopic, unless h has set a type that differs from the handled message's. The step's Emits names publishTopic.
func FromWatermillHandler(name, topic, publishTopic string, h message.HandlerFunc) Step {
	in := Input{Topic: topic, Type: topic, raw: true, anyType: true, decode: keepPayload}
	if h != nil && publishTopic != "" {
		in.run = func(ctx context.Context, tx pgx.Tx, d Delivery, _ any, emit Emit) error {
			produced, err := runWatermillHandler(ctx, tx, &d, h)
			if err != nil {
				return err
			}
			for place, msg := range produced {
				emit(producedMessage(&d, publishTopic, place, msg))
			}
			return nil
		}
	}
	return Step{Name: name, Action: in, Single: true, Emits: []outbox.Output{{Topic: publishTopic, Type: publishTopic}}}
}

// runWatermillHandler calls h with a copy of the message, whose context has tx.
func runWatermillHandler(ctx context.Context, tx pgx.Tx, d *Delivery, h message.HandlerFunc) ([]*message.Message, error) {
	msg := message.NewMessage(d.ID, bytes.Clone(d.Payload))
	maps.Copy(msg.Metadata, d.Metadata)
	restoreOwnType(msg.Metadata)
	msg.SetContext(context.WithValue(ctx, txOfHandler{}, tx))
	produced, err := h(msg)
	if err != nil {
		return nil, err
	}
	select {
	case <-msg.Nacked():
		return nil, errors.New("consumer: the watermill handler has nacked the message")
	default:
		return produced, nil
	}
}

// restoreOwnType sets the type with which a foreign message came, if another type has routed it.
func restoreOwnType(metadata message.Metadata) {
	own, routed := metadata[headerOwnType]
	if !routed {
		return
	}
	delete(metadata, headerOwnType)
	if metadata[outbox.PropertyType] = own; own == "" {
		delete(metadata, outbox.PropertyType)
	}
}

// txOfHandler is the key of the transaction in the context of a watermill handler.
type txOfHandler struct{}

// TxFrom returns the transaction of the step, from the context of the message that [FromWatermill] has handed to a
// handler. The handler must not end it. Elsewhere, as in the old Router, ok is false.
func TxFrom(ctx context.Context) (tx pgx.Tx, ok bool) {
	tx, ok = ctx.Value(txOfHandler{}).(pgx.Tx)
	return tx, ok
}

// producedMessage returns the message of the outbox for one that a watermill handler has produced.
func producedMessage(d *Delivery, topic string, place int, msg *message.Message) outbox.Message {
	origin := []string{d.Step, d.N, strconv.Itoa(place)}
	if d.Undo { // the action may have produced a message for the same topic
		origin = append(origin, "undo")
	}
	m := outbox.Message{
		Topic: topic, Type: topic, Step: d.Step, Payload: msg.Payload, Headers: map[string]string{},
		N:             fieldhash.Hex(sha256.New(), origin...)[:16],
		CorrelationID: msg.Metadata[outbox.PropertyCorrelation],
	}
	if typ := msg.Metadata[outbox.PropertyType]; typ != "" && typ != d.Type && typ != d.Metadata[headerOwnType] {
		m.Type = typ
	}
	if m.ContentType = msg.Metadata[outbox.PropertyContentType]; m.ContentType == "" && !json.Valid(msg.Payload) {
		m.ContentType = "application/octet-stream"
	}
	for name, value := range msg.Metadata {
		if !outbox.ReservedHeader(name) && !belongsToHandled(d, name, value) {
			m.Headers[name] = value
		}
	}
	return m
}

// belongsToHandled reports whether a header is about the handled message alone, such as where to reply, or the id of
// its CloudEvent. A handler that copies all metadata does not intend such a header for the messages that it produces.
func belongsToHandled(d *Delivery, name, value string) bool {
	lower := strings.ToLower(name)
	return strings.HasPrefix(lower, "x-sagamill-") || strings.HasPrefix(lower, "cloudevents_") && d.Metadata[name] == value
}

func decodeAs[T any](c outbox.Codec, payload []byte) (any, error) {
	body := new(T)
	return body, c.Decode(payload, body)
}

// A Preparer is called before the handlers of a batch are entered, with the messages for which they will be entered.
// It can read and lock in one round trip what all of them need.
type Preparer struct {
	prepare func(ctx context.Context, tx pgx.Tx, messages []*Delivery) (context.Context, error)
}

// NewPreparer returns a Preparer that calls prepare. The handlers' contexts derive from the context that prepare
// returns. prepare must not change anything. A handler must also work without it, since a message that is executed
// alone is not prepared. After an error or a panic in prepare, the messages are executed one by one.
//
// Lock rows in one order, so that two batches do not wait for each other.
func NewPreparer(prepare func(ctx context.Context, tx pgx.Tx, messages []*Delivery) (context.Context, error)) *Preparer {
	return &Preparer{prepare}
}

// DecodeJSON is json.Unmarshal without the leniencies that can change the meaning of a message. It refuses a member
// that is given twice, also in other letter case, nesting over 128, and data after the value. It accepts unknown
// members, since a newer sender may have added them. [On] and [Effect] use it.
func DecodeJSON(data []byte, into any) error { return strictjson.Unmarshal(data, into) }

// withDefaults returns s complete, or an error that names the field.
func (s Step) withDefaults() (Step, error) {
	s.MaxAttempts = cmp.Or(s.MaxAttempts, 10)
	s.RetryBase = cmp.Or(s.RetryBase, time.Second)
	s.RetryCap = cmp.Or(s.RetryCap, 5*time.Minute)
	s.Timeout = cmp.Or(s.Timeout, 30*time.Second)
	if err := stepkey.CheckStep(s.Name); err != nil {
		return s, fmt.Errorf("step %q: Name: %w", s.Name, err)
	}
	switch {
	case s.Action.decode == nil:
		return s, fmt.Errorf("step %q: Action: make it with On or Effect", s.Name)
	case s.Compensation.decode == nil && s.Compensation.Topic != "":
		return s, fmt.Errorf("step %q: Compensation: make it with On or Effect", s.Name)
	case s.MaxAttempts < 1:
		return s, fmt.Errorf("step %q: MaxAttempts: %d is not positive", s.Name, s.MaxAttempts)
	case s.RetryBase < 0 || s.RetryCap < s.RetryBase:
		return s, fmt.Errorf("step %q: RetryCap: %s is less than RetryBase, %s", s.Name, s.RetryCap, s.RetryBase)
	case s.Timeout < 0 || s.Timeout > MaxTimeout:
		return s, fmt.Errorf("step %q: Timeout: %s is not between 0 and %s", s.Name, s.Timeout, MaxTimeout)
	}
	if err := s.checkInputs(); err != nil {
		return s, err
	}
	if slices.ContainsFunc(s.Emits, func(o outbox.Output) bool { return o.Topic == "" }) {
		return s, fmt.Errorf("step %q: Emits: one has no Topic", s.Name)
	}
	s.Single = s.Single || s.hasEffect()
	s.Settle = cmp.Or(s.Settle, time.Minute)
	s.declared = newDeclaration(s.Emits)
	return s, nil
}

func (s *Step) retryPolicy() backoff.Policy {
	return backoff.Policy{Base: s.RetryBase, Cap: s.RetryCap}
}

// Invoke runs the handler of in on d alone, for tests of steps: it uses no inbox, counts no attempt and commits
// nothing. It returns the emitted messages, complete as they would be stored, and executes queued statements in tx.
//
// tx may be nil for a handler that does not use it; queued statements are not executed then. Of an [Effect], Invoke
// makes the call, or asks verify before if d.Attempt is not the first, and records the result in tx.
//
// An error is the handler's own or a [PanicError]. It can also say that the payload cannot be decoded, or that a
// queued statement or an emitted message is refused. With a tx the caller has to roll back then.
func (in Input) Invoke(ctx context.Context, tx pgx.Tx, d Delivery) ([]outbox.Message, error) {
	if in.decode == nil || in.missingFunction() != "" {
		return nil, errors.New("consumer: Invoke of an Input that was not made with On or Effect")
	}
	body, err := decodeBody(in, d.Metadata, d.Payload)
	if err != nil {
		return nil, Terminal(err)
	}
	a := &attempt{received: received{Delivery: d}}
	out := &collector{job: a, log: cleantext.Logger(slog.Default())}
	d.out = out
	err = callGuarded(func() error { return in.invokeHandler(ctx, tx, d, body, out.emitMessages) })
	out.closeCollector()
	if err != nil {
		return nil, err
	}
	if err := out.executeQueued(ctx, tx); err != nil {
		return nil, fmt.Errorf("consumer: queued statements: %w", err)
	}
	return out.msgs, checkEmitted(out.msgs)
}

// invokeHandler runs the handler, or the call and its record.
func (in *Input) invokeHandler(ctx context.Context, tx pgx.Tx, d Delivery, body any, emit Emit) (err error) {
	if tx != nil {
		tx = txguard.Wrap(tx)
	}
	if in.effect == nil {
		return in.run(ctx, tx, d, body, emit)
	}
	var result any
	found := false
	if d.Attempt > 1 && in.effect.verify != nil {
		if result, found, err = in.effect.verify(ctx, d, body); err != nil {
			return err
		}
	}
	if !found {
		if result, err = in.effect.call(ctx, d, body); err != nil {
			return err
		}
	}
	return in.effect.record(ctx, tx, d, body, result, emit)
}

// executeQueued executes the queued statements in tx.
func (o *collector) executeQueued(ctx context.Context, tx pgx.Tx) error {
	if tx == nil || len(o.statements) == 0 {
		return nil
	}
	batch := &pgx.Batch{}
	o.queueInto(batch)
	return tx.SendBatch(ctx, batch).Close()
}
