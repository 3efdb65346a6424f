package consumer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// Options are settings that most callers leave at their defaults. The zero value is usable.
type Options struct {
	Schema string // PostgreSQL schema of inbox and outbox; default: sagamill

	Lanes         int           // number of transactions that run at the same time, each on one connection; at most half of these transactions may handle batches; default: 8, at most 1,024
	BatchSize     int           // largest number of messages in one transaction; 1 means no batches; default: 64, at most 512
	BatchBytes    int           // largest sum of payload bytes in one transaction; a message with more bytes runs alone; default: 64 MiB, at most 1 GiB
	BatchTime     time.Duration // a transaction that has run for this time takes no further message of its batch; default: 50 ms
	ParkedWorkers int           // number of parked messages whose handlers run at the same time; default: 4, at most 1,024
	ParkedPoll    time.Duration // longest pause between two searches for messages that other processes have parked; default: 2 s
	DrainTimeout  time.Duration // after the context of Run has ended, Run waits at most this time for messages that are still being handled; default: 30 s
	MaxPayload    int           // largest payload in bytes; a message with a larger payload becomes a dead letter; default: 8 MiB

	// ConnectionCheck is how often PostgreSQL checks, while it executes a statement of a handler, whether this process is
	// still connected. If it is not, PostgreSQL ends the statement and frees the lock of the step. A server on Windows, or
	// a PostgreSQL 14 that is not on Linux, cannot check: each claim then fails until the option is negative, which means
	// never. Default: 1 s, in whole milliseconds.
	ConnectionCheck time.Duration

	// Verify checks each message that arrives; the consumer calls Verify before it reads or writes an inbox row, and
	// before it calls the function Unhandled of a step. Verifier.Verify of package signing is a Verify. A message for
	// which it returns an error becomes a dead letter, [ReasonUnverified]. It gets no identity, so that the genuine
	// message of the same key still runs. When it is redriven it is verified again, edited or not. A message that has
	// passed is not verified again, neither when it is parked nor as a dead letter of another reason.
	//
	// It must not change the message. An error or a panic is final, except an [ErrVerifyLater]: a Verify that uses the
	// service's own database returns that one. Several goroutines call it. Default: every message is trusted.
	Verify func(topic string, msg *message.Message) error

	// Open extracts a message from its envelope, such as a CloudEvent: see package cloudevents. It changes msg, and is
	// called before Verify. It may be called again for a message that it has opened. If it fails, the message is a dead
	// letter, [ReasonUnopened], without an identity. A redrive opens and verifies the message again. Several
	// goroutines call it. Default: messages have no envelope.
	Open func(msg *message.Message) error

	// Identity returns the scope, the key and the `n` of a message that lacks the headers of sagamill; `n` distinguishes
	// messages that have the same key and go to the same step: see [Identity]. Several goroutines call it. Default: a
	// message that lacks the headers of sagamill becomes a dead letter with [ReasonKeyMissing].
	Identity Identity

	Observer Observer // Observer gets the outcome of each message; package telemetry has such an Observer; default: none

	Wake   func()       // Wake is called after a commit that wrote messages to the outbox; usually Wake is Relay.Wake; default: none
	Logger *slog.Logger // Logger gets the errors that concern a message, and the errors of the consumer itself; default: slog.Default()
}

// An Identity returns the scope, the key and the n of a message that has no [outbox.HeaderKey]. With the name of its
// step they are what the inbox dedupes by. n may be empty; it tells messages of one key to one step apart.
//
// A message must have the same identity in each delivery, and two messages must have different ones. Otherwise the
// second message is lost as a duplicate if the payloads are equal, or is a dead letter, [ReasonKeyReused], if they
// differ. A message whose identity changes between two deliveries is handled twice.
//
// An error, a panic, or an identity outside the limits makes the message a dead letter, [ReasonIdentity]. The scope is
// 1 to [outbox.MaxScope] printable bytes. The key is 1 to 255 printable ASCII characters. n is at most 64 of
// A-Z a-z 0-9 . _ - and does not begin with a dot. Identity is called again for a redriven dead letter.
//
// A message with a usable identity gets the headers of sagamill, which its retries and its dead letter keep. If it has
// no type, it gets the type of the only input on its topic. If it has neither a timestamp in RFC 3339 nor a UUIDv7, its
// age is counted from this arrival: the broker must not redeliver it after a [Sweeper] has removed the row of its step.
//
// Messages without headers of sagamill run in parallel, even if they have the same key. Those for a [Step] that is
// Ordered run one after the other.
type Identity func(msg *message.Message) (scope, key, n string, err error)

// IdentityFromUUID is for publishers that keep the UUID when they send a message again.
func IdentityFromUUID(scope string) Identity {
	return func(msg *message.Message) (string, string, string, error) {
		if msg.UUID == "" {
			return "", "", "", errors.New("the message has no UUID")
		}
		return scope, msg.UUID, "", nil
	}
}

// IdentityFromMetadata is for publishers that send a key of their own, such as the number of an order, in the
// metadata (header) of that name.
func IdentityFromMetadata(scope, name string) Identity {
	return func(msg *message.Message) (string, string, string, error) {
		key := msg.Metadata.Get(name)
		if key == "" {
			return "", "", "", fmt.Errorf("metadata %s is missing or empty", name)
		}
		return scope, key, "", nil
	}
}

// IdentityFromPayload is for JSON payloads with a key in the member at path, such as "order.id". The member is a
// string or a number. Numbers are compared as text: 1 and 1.0 are two keys.
func IdentityFromPayload(scope, path string) Identity {
	return func(msg *message.Message) (string, string, string, error) {
		value := json.RawMessage(msg.Payload)
		for _, name := range strings.Split(path, ".") {
			var object map[string]json.RawMessage
			if err := DecodeJSON(value, &object); err != nil {
				return "", "", "", fmt.Errorf("payload: member %s: %w", path, err)
			}
			value = object[name]
			if value == nil {
				return "", "", "", fmt.Errorf("payload: member %s is missing", path)
			}
		}
		var text string
		if json.Unmarshal(value, &text) == nil && value[0] == '"' {
			return scope, text, "", nil
		}
		var number json.Number
		if value[0] == '"' || json.Unmarshal(value, &number) != nil || number == "" {
			return "", "", "", fmt.Errorf("payload: member %s is neither a string nor a number", path)
		}
		return scope, number.String(), "", nil
	}
}

// deafGrace is how long a handler may take to return after its context has ended.
const deafGrace = 5 * time.Second

func (o *Options) completeOptions() error {
	o.Schema = cmp.Or(o.Schema, sqlschema.Default)
	o.Lanes = cmp.Or(o.Lanes, 8)
	o.BatchSize = cmp.Or(o.BatchSize, 64)
	o.BatchBytes = cmp.Or(o.BatchBytes, defaultBatchBytes)
	o.BatchTime = cmp.Or(o.BatchTime, 50*time.Millisecond)
	o.ParkedWorkers = cmp.Or(o.ParkedWorkers, 4)
	o.ParkedPoll = cmp.Or(o.ParkedPoll, 2*time.Second)
	o.ConnectionCheck = cmp.Or(o.ConnectionCheck, txguard.DefaultConnectionCheck)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	o.MaxPayload = cmp.Or(o.MaxPayload, outbox.MaxPayload)
	o.Logger = guard.Logger(cleantext.Logger(cmp.Or(o.Logger, slog.Default())))
	if err := sqlschema.Check(o.Schema); err != nil {
		return fmt.Errorf("option Schema: %w", err)
	}
	const most = 1024
	switch {
	case o.Lanes < 1 || o.Lanes > most:
		return fmt.Errorf("option Lanes: %d is not between 1 and %d", o.Lanes, most)
	case o.BatchSize < 1 || o.BatchSize > maxBatchSize:
		return fmt.Errorf("option BatchSize: %d is not between 1 and %d", o.BatchSize, maxBatchSize)
	case o.BatchBytes < 1 || o.BatchBytes > maxBatchBytes:
		return fmt.Errorf("option BatchBytes: %d is not between 1 and %d", o.BatchBytes, maxBatchBytes)
	case o.BatchTime < 0:
		return fmt.Errorf("option BatchTime: %s is negative", o.BatchTime)
	case o.ParkedWorkers < 1 || o.ParkedWorkers > most:
		return fmt.Errorf("option ParkedWorkers: %d is not between 1 and %d", o.ParkedWorkers, most)
	case o.ParkedPoll < time.Millisecond:
		return fmt.Errorf("option ParkedPoll: %s is less than a millisecond", o.ParkedPoll)
	case o.DrainTimeout < 0:
		return fmt.Errorf("option DrainTimeout: %s is negative", o.DrainTimeout)
	case o.MaxPayload < 1:
		return fmt.Errorf("option MaxPayload: %d is not positive", o.MaxPayload)
	}
	if err := txguard.ValidateConnectionCheck(o.ConnectionCheck); err != nil {
		return fmt.Errorf("option ConnectionCheck: %w", err)
	}
	return nil
}
