package consumer

import (
	"fmt"
	"math"
	"slices"

	"github.com/sagamill/sagamill/internal/inbox"
)

// headerReader is a consumer without steps. It reads headers and knows no type.
var headerReader = &Consumer{opts: Options{MaxPayload: math.MaxInt}, formats: knownFormats}

// Inspect reads a stored message as c reads it when the message is redriven, and reports
// the result. It calls the decoder of the step, and Options.Verify for a message that was
// never verified. It enters no handler and changes nothing. A nil Consumer reads headers
// alone. Package operator previews redrives with it.
func (c *Consumer) Inspect(m inbox.StoredMessage) inbox.Reading {
	row := &parkedRow{
		Kind: m.Kind, Scope: m.Scope, Key: m.Key, Step: m.Step, N: m.N, Topic: m.Topic, MessageID: []byte(m.ID),
		Payload: m.Payload, Digest: m.Digest, Reason: Reason(m.Reason),
	}
	row.HeaderNames, row.HeaderValues = headers(m.Headers)
	switch {
	case c == nil:
		return inspectHeaders(row)
	case !c.takes(row):
		return inbox.Reading{}
	}
	j, rejected := c.readAgain(row, row.message())
	if rejected != nil {
		cancels := row.Kind != unread && c.steps[row.Step].CancelParked
		return inbox.Reading{Taken: true, CancelParked: cancels, Err: fmt.Errorf("%s: %w", rejected.reason, rejected.err)}
	}
	return inbox.Reading{
		Taken: true, CancelParked: j.step.CancelParked,
		Kind: j.kind, Identity: inbox.Identity{Scope: j.Scope, Key: j.Key, Step: j.Step, N: j.joinedN()},
	}
}

// inspectHeaders reads row without any step: every type is unknown, which is no error here.
func inspectHeaders(row *parkedRow) (r inbox.Reading) {
	if _, rejected := headerReader.read(row.Topic, row.message()); rejected.reason != ReasonTypeUnknown {
		r.Err = fmt.Errorf("%s: %w", rejected.reason, rejected.err)
	}
	return r
}

// takes reports whether c retries row when row is redriven.
func (c *Consumer) takes(row *parkedRow) bool {
	if row.Kind == unread {
		return slices.Contains(c.topics, row.Topic)
	}
	return c.steps[row.Step] != nil
}
