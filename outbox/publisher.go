package outbox

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A Publication is one message on its way to the broker. Its Message carries
// the message id as UUID and this package's headers and properties as metadata.
type Publication struct {
	Topic   string
	Message *message.Message
}

// A Publisher hands messages to a broker.
//
// PublishBatch publishes batch in order and returns one result for each, in
// the same order. A nil result means that the broker has taken the message
// over durably (confirmed it) and that it reached at least one queue (it was
// not returned). An error that is [ErrRefused] means that the broker answered
// and will not have this message as things are. Any other error says that the
// outcome is unknown or the broker is away: the message will be published
// again, under the same id.
//
// It returns once every outcome is known, or when ctx ends: then the missing
// results are its error. It is called by one goroutine at a time.
type Publisher interface {
	PublishBatch(ctx context.Context, batch []Publication) []error
}

// ErrRefused reports that the broker does not accept a message: it was
// returned as unroutable, nacked, or is over a size limit. Publishers wrap it.
// A refused message spends one of its attempts; one that met a broker that was
// away or blocked spends none.
var ErrRefused = errors.New("outbox: message refused by the broker")

// FromWatermill returns a Publisher on any watermill publisher. It publishes
// one message at a time, so its order and its durability are those of pub, and
// its speed is one round trip to the broker each. An error of pub counts as
// unavailable, not as refused, because watermill does not tell them apart: a
// message that pub will never take is tried for ever, holding back its own
// ordering key alone. After three errors in a row the broker counts as away and
// the rest of the batch is not tried.
func FromWatermill(pub message.Publisher) Publisher { return watermillPublisher{pub} }

type watermillPublisher struct{ pub message.Publisher }

// awayAfter is how many errors in a row say that the broker is away.
const awayAfter = 3

// PublishBatch implements [Publisher].
func (w watermillPublisher) PublishBatch(ctx context.Context, batch []Publication) []error {
	results := make([]error, len(batch))
	var last error
	for i, failed := 0, 0; i < len(batch); i++ {
		if err := ctx.Err(); err != nil {
			last, failed = err, awayAfter
		}
		if failed < awayAfter {
			last = w.pub.Publish(batch[i].Topic, batch[i].Message)
		}
		if results[i] = last; last != nil {
			failed++
		} else {
			failed = 0
		}
	}
	return results
}
