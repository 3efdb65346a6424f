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
// PublishBatch publishes batch and returns one result for each message, in the
// order of batch. All have the same topic, and no two the same ordering key, so that they
// may be published in any order, or at once. A nil result means that the broker has taken the message
// over durably (confirmed it) and that it reached at least one queue (it was
// not returned). An error that is [ErrRefused] means that the broker answered
// and will not have this message as things are. An [ErrDeferred] means that the broker
// is there and that the topic's queue does not take messages at present. Any other error
// says that the outcome is unknown or the broker is away. In both cases the message will
// be published again, under the same id.
//
// It returns once every outcome is known, or when ctx ends: then the missing
// results are its error. A relay calls it from several goroutines at once, one
// for each of its lanes and each topic, but never with messages of one ordering key: the
// next of a key comes when there is a result for the one before it. The relay cancels ctx
// after 0.5 to 4 s if messages of other topics get through and none of this call's.
type Publisher interface {
	PublishBatch(ctx context.Context, batch []Publication) []error
}

// ErrRefused reports that the broker does not accept a message: it was
// returned as unroutable, or is over a size limit. Publishers wrap it.
// A refused message spends one of its attempts, and is a dead letter after the last. One
// that met a broker that was away or blocked spends none.
var ErrRefused = errors.New("outbox: message refused by the broker")

// ErrDeferred reports that the broker is there and that a queue of the topic takes no
// messages at present. The broker nacked the message, or did not confirm it. Publishers
// wrap it. The message is not to blame: it spends no attempt and never becomes a dead letter
// over it. The relay keeps it aside and tries again until the queue takes it. The message may
// be stored already, or be in other queues of the topic, so that consumers see it again.
var ErrDeferred = errors.New("outbox: the topic's queue takes no messages at present")
