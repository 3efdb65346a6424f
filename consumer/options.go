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

	Lanes         int           // transactions at once, each on a connection of its own; half of them may be batches; default: 8, at most 1,024
	BatchSize     int           // messages handled in one transaction at most; 1: each has its own; default: 64, at most 512
	BatchBytes    int           // bytes of payload handled in one transaction at most, but for a single message with more; default: 64 MiB, at most 1 GiB
	BatchTime     time.Duration // from when on a transaction takes in no further message; default: 50 ms
	ParkedWorkers int           // parked messages run at once; default: 4, at most 1,024
	ParkedPoll    time.Duration // longest pause between looks for parked messages that are due; default: 250 ms
	DrainTimeout  time.Duration // longest wait for work in hand when Run's context ends; default: 30 s
	MaxPayload    int           // bytes of payload over which a message is a dead letter; default: 8 MiB

	// Verify is asked about each message that arrives, before anything that it says
	// is believed, such as Verifier.Verify of package signing: before a row of the
	// inbox is read or written, and before a step's Unhandled may answer. What it
	// returns an error for is a dead letter, [ReasonUnverified], without an identity,
	// so that the genuine message of the same key still runs. Redriven, that is
	// verified again, edited or not. What was verified once is not asked about again:
	// neither a parked message, nor a dead letter of another reason.
	//
	// It must not change the message. An error is final, and so is a panic, but for an
	// [ErrVerifyLater]: what goes by the service's own database returns that one. Several
	// goroutines call it. Default: every message is believed.
	Verify func(topic string, msg *message.Message) error

	Observer Observer // is told what becomes of messages, such as one of package telemetry; default: nobody is

	Wake   func()       // called after a commit that put messages into the outbox, such as Relay.Wake; default: none
	Logger *slog.Logger // default: slog.Default()
}

// deafGrace is what a handler has from the end of its context to its return.
const deafGrace = 5 * time.Second

func (o *Options) complete() error {
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
