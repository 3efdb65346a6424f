package outbox

import (
	"sync/atomic"
)

// An outcome is what became of a message.
type outcome uint8

const (
	undecided outcome = iota
	published         // confirmed and not returned
	refused           // by the broker, or by us on its behalf
	queued            // not sent: an earlier message of its key is held
	skipped           // a held message that was not sent, for the same reason
	deferred          // its topic takes no messages at present
)

// An item is a message on its way through a lane.
type item struct {
	row
	page     *page
	key      uint64 // hash of the ordering key
	outcome  outcome
	dead     bool  // refused for the last time
	refusal  error // why, if it is refused or deferred
	strikes  int   // times that it was sent alone with an unknown outcome, while others of its topic got through
	progress uint64
}

// A page is messages that were read together: from the log or from the held ones.
type page struct {
	seq   uint64 // pages are settled in this order
	items []item
	bytes int          // of payload
	after cursor       // behind it, for a page of the log
	held  bool         // its messages are held ones
	left  atomic.Int32 // items undecided
}

// exceptional reports whether more than the cursor has to be written.
func (p *page) exceptional() bool {
	if p.held {
		return true
	}
	for i := range p.items {
		if p.items[i].outcome != published {
			return true
		}
	}
	return false
}
