package outbox

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

const (
	// stallTimeout is how long a full window may make no progress before a few more messages
	// are read. If they get through, a message in the window is to blame.
	stallTimeout = time.Second

	// stallPage is the number of these messages.
	stallPage = 16

	// messageOverhead is about how much memory a message takes in the relay besides its payload and its headers.
	messageOverhead = 1 << 10
)

// An outcome is what became of a message in a lane.
type outcome uint8

const (
	undecided outcome = iota
	published         // confirmed and not returned
	refused           // by the broker, or by the relay on its behalf
	queued            // not sent: an earlier message of its key is held
	skipped           // stays held: not sent, as its key is held by an earlier one, or sent with an unknown outcome
	deferred          // its topic takes no messages at present
)

// An item is a message on its way through a lane.
type item struct {
	row
	page     *page
	key      uint64 // hash of the ordering key
	outcome  outcome
	dead     bool   // refused for the last time
	refusal  error  // why it is refused or deferred
	strikes  int    // times sent alone with an unknown outcome while others of its topic got through
	progress uint64 // messages of its topic that had got through at the last strike
}

// A page is messages that were read together: from the log or from the held ones.
type page struct {
	seq   uint64 // pages are settled in this order
	items []item
	bytes int          // of memory, see row.memory
	after cursor       // behind it, for a page of the log
	held  bool         // its messages are held ones
	left  atomic.Int32 // items undecided
}

// isExceptional reports whether more than the cursor has to be written.
func (p *page) isExceptional() bool {
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

// A window is the pages in flight, from their read to their settlement. They take half of WindowBytes, and the other
// half only while the window makes no progress. So a heap that grows to twice of what is in use, as Go's does, stays
// within twice WindowBytes.
type window struct {
	*core
	pages    []*page // in order
	messages int     // in pages
	bytes    int     // of their memory
	seq      uint64  // of the last page
	movedAt  time.Time

	settled      int // messages that are settled, and that no checkpoint covers yet
	settledBytes int // of their memory, which is free
}

// usualBytes is how much memory the pages in flight take while the window makes progress.
func (w *window) usualBytes() int { return max(1, w.opts.WindowBytes/2) }

// roomForLog returns how many messages may be read from the log, and how many bytes of memory
// they may take, give or take a message.
func (w *window) roomForLog() (messages, bytes int) {
	messages, bytes = min(w.opts.Window-w.messages-w.settled, w.limits.page), w.roomInBytes()
	if messages > 0 && bytes > 0 {
		return messages, min(bytes, maxPageBytes)
	}
	if time.Since(w.movedAt) > w.limits.stall && w.currentPressure() != stuck {
		w.movedAt = time.Now()
		return stallPage, min(w.opts.WindowBytes-w.bytes, maxPageBytes)
	}
	return 0, 0
}

// roomInBytes is roomForLog for the memory alone, while the window makes progress.
func (w *window) roomInBytes() int {
	return min(w.usualBytes()-w.bytes, w.opts.WindowBytes-w.bytes-w.settledBytes)
}

// currentPressure returns how full the window is.
func (w *window) currentPressure() pressure {
	switch {
	case w.messages >= 2*w.opts.Window || w.bytes >= w.opts.WindowBytes:
		return stuck
	case 2*w.messages >= w.opts.Window || 2*w.bytes >= w.usualBytes():
		return pressed
	}
	return calm
}

// isFullWithSettled reports whether a checkpoint makes room.
func (w *window) isFullWithSettled() bool {
	return w.settled > 0 && (w.messages+w.settled >= w.opts.Window || w.bytes+w.settledBytes >= w.opts.WindowBytes)
}

// hasManySettled reports whether a checkpoint would free a quarter of the window.
func (w *window) hasManySettled() bool {
	return w.settled > 0 && (w.settled >= w.opts.Window/4 || w.settledBytes >= w.opts.WindowBytes/4)
}

func (w *window) isFull() bool {
	return w.messages >= w.opts.Window || w.bytes >= w.usualBytes()
}

// addPage makes a page of rows and adds it at the end.
func (w *window) addPage(rows []row, after cursor, held bool) *page {
	w.seq++
	p := &page{seq: w.seq, items: make([]item, len(rows)), after: after, held: held}
	p.left.Store(int32(len(rows)))
	for i := range rows {
		m := &p.items[i]
		m.row, m.page, m.key = rows[i], p, maphash.String(keySeed, rows[i].OrderingKey)
		m.held = held
		p.bytes += m.memory()
	}
	w.pages = append(w.pages, p)
	w.messages += len(rows)
	w.bytes += p.bytes
	return p
}

// hasTopic reports whether messages of a topic are in flight. Messages of it that were kept
// aside need not be in the database yet.
func (w *window) hasTopic(topic string) bool {
	for _, p := range w.pages {
		for i := range p.items {
			if p.items[i].Topic == topic {
				return true
			}
		}
	}
	return false
}

// decidedPages returns the pages in front that are decided.
func (w *window) decidedPages() []*page {
	front := 0
	for front < len(w.pages) && w.pages[front].left.Load() == 0 {
		front++
	}
	return w.pages[:front]
}

// dropPages drops the first pages, which are settled, and returns how many messages they had.
func (w *window) dropPages(front int) (n int) {
	for _, p := range w.pages[:front] {
		n += len(p.items)
		w.bytes -= p.bytes
	}
	clear(w.pages[:front])
	w.pages = w.pages[front:]
	w.messages -= n
	w.movedAt = time.Now()
	return n
}

// settledThrough returns the last page that is settled with all before it.
func (w *window) settledThrough() uint64 { return w.seq - uint64(len(w.pages)) }
