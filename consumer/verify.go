package consumer

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// The reasons of messages of which nothing is believed. They have no identity, and
// no step answers for them.
const (
	ReasonFormatUnknown Reason = "format-unknown" // of a version of the message format that this binary does not know
	ReasonUnverified    Reason = "unverified"     // Options.Verify has refused it
)

// unbelieved reports whether r is the reason of a message that Options.Verify has
// refused, or was not asked about.
func (r Reason) unbelieved() bool { return r == ReasonFormatUnknown || r == ReasonUnverified }

// ErrVerifyLater is for an error of [Options].Verify that is none of the message: what it
// goes by cannot be looked at. Nothing is decided then, as while the database is away. The
// message is verified again, here and after it has gone back to the broker, and holds up
// what comes behind it: it is for what no message can do without, such as the service's own
// database. Where a Verify can judge one message and not the next, as without the key of one
// sender, it had better refuse that: a dead letter is verified again when it is redriven.
var ErrVerifyLater = errors.New("consumer: the message cannot be verified now")

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
