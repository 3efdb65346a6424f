package consumer

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// boardSize is how many loads for each lane the board has room for before subscriptions wait. With two, one load can
// collect while another is handled.
const boardSize = 2

const (
	// linger is how long a delivery may wait for others to share its transaction while another lane has a batch.
	// A transaction for each delivery costs client and server a multiple of a shared one.
	linger = 2 * time.Millisecond

	// worthwhile is how much work for handlers justifies another lane.
	worthwhile = time.Millisecond
)

// A boardEntry is a delivery on its way to a lane. Nothing of the message is verified yet.
type boardEntry struct {
	topic  string
	msg    *message.Message
	queue  string    // its queue on the board; the headers may change in a lane
	at     time.Time // when it was put on the board
	pauses uint64    // how often the consumer had been paused by then
	load   *stepLoad // nil: the message belongs to no step, and becomes a dead letter
	alone  bool      // it may not share a transaction
	late   bool      // the time of a batch was over before its turn
}

// A stepLoad is what lanes have learned about the handlers of a step.
type stepLoad struct {
	pace   atomic.Int64 // nanoseconds that a handler takes, smoothed
	direct atomic.Bool  // one has used its transaction, and had a savepoint in a batch
	alone  int          // lanes that have one of its messages alone; the board's
}

// observePace takes the duration of one handler into the smoothed pace.
func (t *stepLoad) observePace(took time.Duration) {
	before := t.pace.Load()
	t.pace.Store(before + (int64(took)-before)/8)
}

// A router is the first stage: it puts deliveries on the board and runs the lanes that take them from there.
type router struct {
	routes    map[routeKey]route
	batchSize int
	batchTime time.Duration

	receiver *receiver
	executor *executor
	settler  *settler
	outage   *outageWatch
	reporter *reporter
}

// receiveTopic puts deliveries on the board until their subscription ends. It ends when ctx does.
func (r *router) receiveTopic(ctx context.Context, topic string, deliveries <-chan *message.Message, b *board) {
	for msg := range deliveries {
		if msg == nil {
			continue // there is nothing to ack
		}
		if !b.putEntry(ctx, r.newBoardEntry(topic, msg)) {
			msg.Nack()
		}
	}
}

// newBoardEntry reads the headers that decide how msg is routed. They are not verified: a forged one changes which
// deliveries share a transaction, and nothing else.
func (r *router) newBoardEntry(topic string, msg *message.Message) boardEntry {
	e := boardEntry{topic: topic, msg: msg, queue: queueKeyOf(msg), alone: true}
	typ := msg.Metadata.Get(outbox.PropertyType)
	foreign := r.receiver.isForeign(msg)
	if foreign {
		typ, _ = r.receiver.routeForeign(topic, typ)
		e.queue = foreignQueue + topic + "\x00" + msg.UUID
	}
	to, known := r.routes[routeKey{topic, typ}]
	if !known {
		return e
	}
	if foreign && to.step.Ordered {
		e.queue = foreignQueue + topic
	}
	e.load = to.load
	e.alone = !r.executor.mayShare(to.step, msg.Metadata.Get(outbox.PropertyRedelivered) == "true", 0)
	return e
}

// foreignQueue begins the names of the queues of foreign messages. Such a message gets its key in a lane, after
// Options.Verify. So each has its own queue, and a handler that hangs delays no other message. Those for an ordered step
// share one queue, since any two of them may have the same key.
const foreignQueue = "\x00\x00"

// A board holds deliveries until a lane takes them. The deliveries of one scope and key go to one lane at a time, in
// their order. So they cannot overtake each other, and they do not wait on many connections for one row lock.
// Deliveries of other keys do not wait for them.
type board struct {
	room    chan struct{} // holds one for each delivery on the board or in a lane
	lanes   int           // that take from it
	bytes   int           // of payload in a load of more than one delivery, at most
	steps   int           // whose messages come
	outage  *outageWatch
	arrived chan struct{} // holds one: a delivery has come that the outage watch does not know of

	mu      sync.Mutex
	more    sync.Cond // there may be something to take, or the board is closed
	queues  map[string]*keyQueue
	ready   []*keyQueue // that no lane has, in the order of their first delivery
	busy    int         // lanes that have a batch
	inHand  int         // deliveries on the board or in a lane
	since   time.Time   // when the first of them was put on it
	watched bool        // the outage watch knows of them
	timer   bool        // a timer will end a linger
	closed  bool
}

// A keyQueue holds the waiting deliveries of one scope and key.
type keyQueue struct {
	key     string
	waiting []boardEntry
}

// A load is what a lane has taken from the board.
type load struct {
	entries []boardEntry
	queues  []*keyQueue
	bytes   int // of payload
}

func newBoard(opts *Options, steps int, outage *outageWatch) *board {
	b := &board{
		room: make(chan struct{}, boardSize*opts.Lanes*opts.BatchSize), lanes: opts.Lanes, bytes: opts.BatchBytes, steps: steps, outage: outage,
		queues: map[string]*keyQueue{}, arrived: make(chan struct{}, 1),
	}
	b.more.L = &b.mu
	return b
}

// putEntry puts e on the board. It waits while there is no room, and reports false if ctx ends first, or if the queues
// are handed over.
func (b *board) putEntry(ctx context.Context, e boardEntry) bool {
	select {
	case b.room <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	e.at = time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.outage.isPaused() {
		<-b.room
		return false
	}
	e.pauses = b.outage.pauses.Load()
	if b.inHand++; b.inHand == 1 {
		b.since = e.at
	}
	if !b.watched && b.outage.canPause() {
		b.watched = true
		b.arrived <- struct{}{}
	}
	q := b.queues[e.queue]
	if q == nil {
		q = &keyQueue{key: e.queue}
		b.queues[e.queue] = q
		b.ready = append(b.ready, q)
		b.more.Signal()
	}
	q.waiting = append(q.waiting, e)
	return true
}

// queueKeyOf returns the scope and key of msg. All messages without a key share one queue: unless they are foreign,
// they only become dead letters.
func queueKeyOf(msg *message.Message) string {
	key := msg.Metadata.Get(outbox.HeaderKey)
	if colon := strings.LastIndexByte(key, ':'); colon >= 0 {
		key = key[:colon]
	}
	return msg.Metadata.Get(outbox.HeaderScope) + "\x00" + key
}

// takeLoad returns up to n deliveries whose handlers will probably return within the time given, or one. It waits
// until there is one. The caller owns them and their queues until it calls releaseLoad. takeLoad returns an empty
// load once the board is closed and empty.
func (b *board) takeLoad(n int, within time.Duration) load {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if l := b.pickEntries(n, int64(within)); len(l.entries) > 0 {
			b.noteTaken(l)
			return l
		}
		if b.closed && len(b.ready) == 0 {
			return load{}
		}
		b.more.Wait()
	}
}

// pickEntries chooses the deliveries of the next load. The caller holds mu. A delivery that is alone is picked only
// as the first.
func (b *board) pickEntries(n int, within int64) (l load) {
	kept := b.ready[:0]
	for i, q := range b.ready {
		if len(l.entries) == n || within < 0 || len(l.entries) > 0 && l.entries[0].alone {
			kept = append(kept, b.ready[i:]...)
			break
		}
		if len(l.entries) == 0 && b.mustLinger(q.waiting[0], n) {
			kept = append(kept, q)
			continue
		}
		before := len(l.entries)
		for len(q.waiting) > 0 && len(l.entries) < n && within >= 0 && b.fitsLoad(q.waiting[0], l) {
			e := q.waiting[0]
			q.waiting = q.waiting[1:]
			l.entries = append(l.entries, e)
			l.bytes += len(e.msg.Payload)
			if e.load != nil {
				within -= e.load.pace.Load()
			}
		}
		if len(l.entries) == before {
			kept = append(kept, q)
			continue
		}
		l.queues = append(l.queues, q)
	}
	clear(b.ready[len(kept):])
	b.ready = kept
	return l
}

// noteTaken records that a lane has l. If more is ready it wakes one lane, which in turn wakes at most one.
func (b *board) noteTaken(l load) {
	switch first := l.entries[0]; {
	case !first.alone:
		b.busy++
	case first.load != nil:
		first.load.alone++
	}
	if len(b.ready) > 0 {
		b.more.Signal()
	}
}

// mustLinger reports whether e, which may share a transaction, waits until a lane with a batch comes back. It waits
// while half of the lanes have a batch. With fewer it waits up to linger, if the work that is ready is little. A
// timer then wakes a lane.
func (b *board) mustLinger(e boardEntry, n int) bool {
	switch {
	case e.alone || b.busy == 0 || b.closed:
		return false
	case b.busy >= max(1, b.lanes/2):
		return true // until one of them comes back
	case len(b.ready) >= n || time.Duration(len(b.ready))*time.Duration(e.load.pace.Load()) >= worthwhile:
		return false
	}
	left := linger - time.Since(e.at)
	if left <= 0 {
		return false
	}
	if !b.timer {
		b.timer = true
		time.AfterFunc(left, b.endLinger)
	}
	return true
}

// endLinger wakes a lane when a linger is over.
func (b *board) endLinger() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = false
	b.more.Signal()
}

// fitsLoad reports whether e may join l. A payload that does not fit into l stays at the front of its queue, so that
// it is first in the next load. While there are several steps, no step gets the last lane for deliveries that are
// alone: they may be slow, and the other steps need a lane.
func (b *board) fitsLoad(e boardEntry, l load) bool {
	if len(l.entries) > 0 {
		return !e.alone && !l.entries[0].alone && l.bytes+len(e.msg.Payload) <= b.bytes
	}
	return !e.alone || e.load == nil || b.steps == 1 || b.lanes == 1 || b.closed || e.load.alone < b.lanes-1
}

// releaseLoad gives back the lane's load. The deliveries in left were not executed: they return to the front of
// their queues. These queues, and what has arrived in them meanwhile, are ready to be taken.
func (b *board) releaseLoad(l load, left []boardEntry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch first := l.entries[0]; {
	case !first.alone:
		b.busy--
	case first.load != nil:
		first.load.alone--
	}
	if len(left) > 0 && b.outage.hasHandedOver(left[0]) { // with the others of the load
		for _, e := range left {
			e.msg.Nack()
		}
		left = nil
	}
	for _, e := range slices.Backward(left) {
		q := b.queues[e.queue]
		q.waiting = slices.Insert(q.waiting, 0, e)
	}
	b.freeRoom(len(l.entries) - len(left))
	for _, q := range l.queues {
		if len(q.waiting) == 0 {
			delete(b.queues, q.key)
			continue
		}
		b.ready = append(b.ready, q)
	}
	b.more.Signal()
}

// freeRoom takes n deliveries out of the count. The caller holds mu.
func (b *board) freeRoom(n int) {
	b.inHand -= n
	for range n {
		<-b.room
	}
}

// busySince reports whether deliveries are on the board or in a lane, and since when without a break. After false the
// next one signals arrived.
func (b *board) busySince() (since time.Time, busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watched = b.inHand > 0
	return b.since, b.watched
}

// dropWaiting removes and returns the deliveries that no lane has.
func (b *board) dropWaiting() (dropped []boardEntry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range b.queues {
		dropped = append(dropped, q.waiting...)
		q.waiting = nil
	}
	for _, q := range b.ready {
		delete(b.queues, q.key)
	}
	clear(b.ready)
	b.ready = b.ready[:0]
	b.freeRoom(len(dropped))
	return dropped
}

// closeBoard lets lanes take what is left, and then end.
func (b *board) closeBoard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.more.Broadcast()
}

// startLane runs a lane. A handler that ends its goroutine by runtime.Goexit, as FailNow of package testing does,
// ends the lane too. A new one replaces it.
func (r *router) startLane(lanes *sync.WaitGroup, ctx, work context.Context, b *board) {
	lanes.Go(func() {
		finished := false
		defer func() {
			if !finished {
				r.startLane(lanes, ctx, work, b)
			}
		}()
		for r.runLane(ctx, work, b) {
		}
		finished = true
	})
}

// runLane takes one load from b and settles it. It reports false when the board is closed and empty. Once ctx has
// ended, deliveries that have not begun are nacked.
func (r *router) runLane(ctx, work context.Context, b *board) bool {
	l := b.takeLoad(r.batchSize, r.batchTime)
	if len(l.entries) == 0 {
		return false
	}
	var left []boardEntry
	defer func() { b.releaseLoad(l, left) }()
	defer nackUnfinished(l.entries, &left)
	attempts, unsure := r.readLoad(ctx, work, l.entries)
	for try := 1; ; try++ {
		for _, a := range r.executor.executeLoad(ctx, work, attempts) {
			left = append(left, a.origin)
		}
		unsure = slices.DeleteFunc(unsure, func(e boardEntry) bool {
			return try >= r.executor.maxTriesFor(e, ErrVerifyLater) || r.outage.hasHandedOver(e)
		})
		if len(left) > 0 {
			left = append(left, unsure...) // they stand behind the others of their keys
			return true
		}
		if len(unsure) == 0 || ctx.Err() != nil {
			return true
		}
		_ = backoff.Sleep(ctx, failurePolicy.Wait(try))
		attempts, unsure = r.readLoad(ctx, work, unsure)
	}
}

// readLoad receives the messages of entries. It returns an attempt for each that can be executed. A message that is
// rejected is stored as a dead letter and acked. A message that cannot be verified now is in unsure, with those
// behind it in its queue. Once ctx has ended, the remaining ones are nacked.
func (r *router) readLoad(ctx, work context.Context, all []boardEntry) (attempts []*attempt, unsure []boardEntry) {
	var why error
	for _, e := range all {
		if ctx.Err() != nil {
			break
		}
		if slices.ContainsFunc(unsure, func(u boardEntry) bool { return u.queue == e.queue }) {
			unsure = append(unsure, e)
			continue
		}
		m, rejected, err := r.receiver.receive(e.topic, e.msg)
		switch {
		case err != nil:
			unsure, why = append(unsure, e), err
		case rejected == nil:
			a := newAttempt(m)
			a.origin = e
			attempts = append(attempts, a)
		case r.executor.retryUntilDone(ctx, e, func() error { return r.settler.storeRejected(work, e.topic, e.msg, rejected) }):
			r.settler.ackAttempts(&attempt{received: received{Delivery: Delivery{ID: e.msg.UUID}}, origin: e})
		}
	}
	if why != nil {
		r.reporter.log.ErrorContext(ctx, "consumer: deliveries cannot be verified", "topic", unsure[0].topic, "message_id", unsure[0].msg.UUID, "deliveries", len(unsure), "error", sqlschema.Explain(why))
	}
	return attempts, unsure
}

// nackUnfinished nacks every entry that was neither acked nor left, also when a handler has ended the goroutine. A
// nack after an ack has no effect.
func nackUnfinished(all []boardEntry, left *[]boardEntry) {
	keep := map[*message.Message]bool{}
	for _, e := range *left {
		keep[e.msg] = true
	}
	for _, e := range all {
		if !keep[e.msg] {
			e.msg.Nack()
		}
	}
}
