package consumer

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// Options are what most callers leave alone. The zero value is usable.
type Options struct {
	Schema string // Postgres schema of inbox and outbox; default: sagamill

	Lanes         int           // transactions at once, each on one connection; half of them may be batches; default: 8, at most 1,024
	BatchSize     int           // most messages in one transaction; 1: no batches; default: 64, at most 512
	BatchBytes    int           // most bytes of payload in one transaction; a larger message runs alone; default: 64 MiB, at most 1 GiB
	BatchTime     time.Duration // time after which a transaction takes in no further message; default: 50 ms
	ParkedWorkers int           // parked messages that run at once; default: 4, at most 1,024
	ParkedPoll    time.Duration // longest pause between looks for parked messages that are due; default: 250 ms
	DrainTimeout  time.Duration // longest wait for work in hand when Run's context ends; default: 30 s
	MaxPayload    int           // a message with more bytes of payload is a dead letter; default: 8 MiB

	// Verify is called for each message that arrives, before anything in it is believed: before a row of the inbox is
	// read or written, and before a step's Unhandled may answer. Verifier.Verify of package signing is one. A message
	// for which it returns an error becomes a dead letter, [ReasonUnverified]. It gets no identity, so that the
	// genuine message of the same key still runs. When it is redriven it is verified again, edited or not. A message
	// that has passed is not verified again, neither when it is parked nor as a dead letter of another reason.
	//
	// It must not change the message. An error or a panic is final, except an [ErrVerifyLater]: a Verify that uses the
	// service's own database returns that one. Several goroutines call it. Default: every message is believed.
	Verify func(topic string, msg *message.Message) error

	Observer Observer // sees the outcome of each message, such as the one of package telemetry; default: none

	Wake   func()       // called after a commit that put messages into the outbox, such as Relay.Wake; default: none
	Logger *slog.Logger // default: slog.Default()
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
	o.ParkedPoll = cmp.Or(o.ParkedPoll, 250*time.Millisecond)
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
	return nil
}
