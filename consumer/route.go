package consumer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// boardSize is how many deliveries are on the board or in a lane, in batches for
// each lane, before subscriptions wait: one can fill up while another is handled.
const boardSize = 2

const (
	// linger is how long a delivery may wait for company while another lane has a
	// batch: a transaction for each costs both sides a multiple of what they share.
	linger = 2 * time.Millisecond

	// worthwhile is how much work for handlers is enough for another lane.
	worthwhile = time.Millisecond
)

// An arrived is a delivery on its way to a lane.
type arrived struct {
	topic string
	msg   *message.Message
	at    time.Time // when it was put on the board
	step  *traffic  // nil: it is nobody's, and becomes a dead letter
	alone bool      // it may not share a transaction
	late  bool      // there was no time for it in a batch that it was in
}

// A traffic is what lanes know of a step.
type traffic struct {
	pace   atomic.Int64 // nanoseconds that a handler takes, smoothed
	direct atomic.Bool  // one has used its transaction, and had a savepoint in a batch
	alone  int          // lanes that have one of its messages alone; the board's
}

// note learns how long one handler took.
func (t *traffic) note(took time.Duration) {
	before := t.pace.Load()
	t.pace.Store(before + (int64(took)-before)/8)
}

// distribute puts deliveries on the board until their subscription ends, which it
// does when ctx ends.
func (c *Consumer) distribute(ctx context.Context, topic string, deliveries <-chan *message.Message, b *board) {
	for msg := range deliveries {
		if msg == nil {
			continue // a subscriber that hands over nothing has nothing to ack
		}
		if !b.put(ctx, c.arrival(topic, msg)) {
			msg.Nack()
		}
	}
}

// arrival looks at what tells how msg is to be handled, before it is read.
func (c *Consumer) arrival(topic string, msg *message.Message) arrived {
	to, known := c.routes[routeKey{topic, msg.Metadata.Get(outbox.PropertyType)}]
	if !known {
		return arrived{topic: topic, msg: msg, alone: true}
	}
	alone := !c.joins(to.step, msg.Metadata.Get(outbox.PropertyRedelivered) == "true", 0)
	return arrived{topic: topic, msg: msg, step: to.traffic, alone: alone}
}

// joins reports whether a message of step may share a transaction. What may have
// killed a process is alone, and so is what has no attempt left for itself should
// others make the transaction fail.
func (c *Consumer) joins(step *Step, redelivered bool, spent int) bool {
	return c.opts.BatchSize > 1 && c.marked && !redelivered && !step.Single && spent+1 < step.MaxAttempts
}

// A board is where deliveries wait for lanes. Those of one saga go to one lane at
// a time, in their order, so that they neither overtake each other nor wait for
// one lock on many connections; nobody else waits for them.
type board struct {
	room  chan struct{} // holds one for each delivery on the board or in a lane
	lanes int           // that take from it
	bytes int           // of payload in a load of more than one delivery, at most
	steps int           // whose messages come

	mu     sync.Mutex
	more   sync.Cond // there may be something to take, or the board is closed
	sagas  map[string]*saga
	ready  []*saga // that no lane has, in the order of their first delivery
	busy   int     // lanes that have a batch
	timer  bool    // the end of somebody's linger will be told
	closed bool
}

// A saga is deliveries with the same scope and key.
type saga struct {
	key     string
	waiting []arrived
}

// A load is what a lane has taken from the board.
type load struct {
	all   []arrived
	sagas []*saga
	bytes int // of payload
}

func newBoard(opts *Options, steps int) *board {
	b := &board{room: make(chan struct{}, boardSize*opts.Lanes*opts.BatchSize), lanes: opts.Lanes, bytes: opts.BatchBytes, steps: steps, sagas: map[string]*saga{}}
	b.more.L = &b.mu
	return b
}

// put hangs a up. It waits while there is no room, and reports false if ctx ends
// first.
func (b *board) put(ctx context.Context, a arrived) bool {
	select {
	case b.room <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	key := sagaOf(a.msg)
	a.at = time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sagas[key]
	if s == nil {
		s = &saga{key: key}
		b.sagas[key] = s
		b.ready = append(b.ready, s)
		b.more.Signal()
	}
	s.waiting = append(s.waiting, a)
	return true
}

// sagaOf returns the scope and key of msg. What has none is as good as one saga:
// it only becomes dead letters.
func sagaOf(msg *message.Message) string {
	key := msg.Metadata.Get(outbox.HeaderKey)
	if colon := strings.LastIndexByte(key, ':'); colon >= 0 {
		key = key[:colon]
	}
	return msg.Metadata.Get(outbox.HeaderScope) + "\x00" + key
}

// take returns up to n deliveries whose handlers are likely to be through within
// the time given, or one. They and their sagas are the caller's until it returns
// them by free. It waits until there is something, and returns nothing once the
// board is closed and empty.
func (b *board) take(n int, within time.Duration) load {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if l := b.pick(n, int64(within)); len(l.all) > 0 {
			b.handedOut(l)
			return l
		}
		if b.closed && len(b.ready) == 0 {
			return load{}
		}
		b.more.Wait()
	}
}

// pick is called by who holds mu. What is alone is picked only as the first.
func (b *board) pick(n int, within int64) (l load) {
	kept := b.ready[:0]
	for i, s := range b.ready {
		if len(l.all) == n || within < 0 || len(l.all) > 0 && l.all[0].alone {
			kept = append(kept, b.ready[i:]...)
			break
		}
		if len(l.all) == 0 && b.lingers(s.waiting[0], n) {
			kept = append(kept, s)
			continue
		}
		before := len(l.all)
		for len(s.waiting) > 0 && len(l.all) < n && within >= 0 && b.fits(s.waiting[0], l) {
			a := s.waiting[0]
			s.waiting = s.waiting[1:]
			l.all = append(l.all, a)
			l.bytes += len(a.msg.Payload)
			if a.step != nil {
				within -= a.step.pace.Load()
			}
		}
		if len(l.all) == before {
			kept = append(kept, s)
			continue
		}
		l.sagas = append(l.sagas, s)
	}
	clear(b.ready[len(kept):])
	b.ready = kept
	return l
}

// handedOut notes that a lane has l. If there is more, another one is told: nobody
// tells more than one.
func (b *board) handedOut(l load) {
	switch first := l.all[0]; {
	case !first.alone:
		b.busy++
	case first.step != nil:
		first.step.alone++
	}
	if len(b.ready) > 0 {
		b.more.Signal()
	}
}

// lingers reports whether a, which may share a transaction, is to wait until a
// lane that has a batch comes back: half of the lanes have one, or with the others it
// is not much, and it has not waited for long. Somebody is told when it has.
func (b *board) lingers(a arrived, n int) bool {
	switch {
	case a.alone || b.busy == 0 || b.closed:
		return false
	case b.busy >= max(1, b.lanes/2):
		return true // until one of them comes back
	case len(b.ready) >= n || time.Duration(len(b.ready))*time.Duration(a.step.pace.Load()) >= worthwhile:
		return false
	}
	left := linger - time.Since(a.at)
	if left <= 0 {
		return false
	}
	if !b.timer {
		b.timer = true
		time.AfterFunc(left, b.lingered)
	}
	return true
}

func (b *board) lingered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = false
	b.more.Signal()
}

// fits reports whether a may go with l. A payload for which l has no room left waits at
// the front, so that it is first in the next load. No step gets the last lane for what
// is alone and may be slow, while there are other steps: it must not hold them up.
func (b *board) fits(a arrived, l load) bool {
	if len(l.all) > 0 {
		return !a.alone && !l.all[0].alone && l.bytes+len(a.msg.Payload) <= b.bytes
	}
	return !a.alone || a.step == nil || b.steps == 1 || b.lanes == 1 || b.closed || a.step.alone < b.lanes-1
}

// free takes back what a lane has not come to, and makes it and what has come for
// the same sagas meanwhile ready to be taken.
func (b *board) free(l load, left []arrived) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch first := l.all[0]; {
	case !first.alone:
		b.busy--
	case first.step != nil:
		first.step.alone--
	}
	for _, a := range slices.Backward(left) {
		s := b.sagas[sagaOf(a.msg)]
		s.waiting = slices.Insert(s.waiting, 0, a)
	}
	for range len(l.all) - len(left) {
		<-b.room
	}
	for _, s := range l.sagas {
		if len(s.waiting) == 0 {
			delete(b.sagas, s.key)
			continue
		}
		b.ready = append(b.ready, s)
	}
	b.more.Signal()
}

// close lets takers go on to the end.
func (b *board) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.more.Broadcast()
}

// keepLane runs a lane. A handler that ends its goroutine (runtime.Goexit, as
// testing's FailNow does) takes the lane with it: another one goes on.
func (c *Consumer) keepLane(lanes *sync.WaitGroup, ctx, work context.Context, b *board) {
	lanes.Go(func() {
		finished := false
		defer func() {
			if !finished {
				c.keepLane(lanes, ctx, work, b)
			}
		}()
		for c.runLane(ctx, work, b) {
		}
		finished = true
	})
}

// runLane takes deliveries from b and settles them. It reports false when there
// will be no more. Once ctx has ended, those that have not begun go back.
func (c *Consumer) runLane(ctx, work context.Context, b *board) bool {
	l := b.take(c.opts.BatchSize, c.opts.BatchTime)
	if len(l.all) == 0 {
		return false
	}
	var left []arrived
	defer func() { b.free(l, left) }()
	defer nackRest(l.all, &left)
	jobs, unsure := c.begin(ctx, work, l.all)
	for try := 1; ; try++ {
		for _, j := range c.settleSome(ctx, work, jobs) {
			left = append(left, j.arrived)
		}
		unsure = slices.DeleteFunc(unsure, func(a arrived) bool { return try >= a.tries(ErrVerifyLater) })
		if len(left) > 0 {
			left = append(left, unsure...) // they are behind what is left of their sagas
			return true
		}
		if len(unsure) == 0 || ctx.Err() != nil {
			return true
		}
		pause(ctx, failurePolicy.Wait(try), nil, false)
		jobs, unsure = c.begin(ctx, work, unsure)
	}
}

// begin returns the jobs that deliveries are, and those of which nobody can say yet whether
// they are one, with what comes behind them of their saga. What cannot be a job is a dead
// letter then, and acked. Once ctx has ended, the rest goes back.
func (c *Consumer) begin(ctx, work context.Context, all []arrived) (jobs []*job, unsure []arrived) {
	var why error
	for _, a := range all {
		if ctx.Err() != nil {
			break
		}
		if slices.ContainsFunc(unsure, func(u arrived) bool { return sagaOf(u.msg) == sagaOf(a.msg) }) {
			unsure = append(unsure, a)
			continue
		}
		j, rejected, err := c.accept(a.topic, a.msg)
		switch {
		case err != nil:
			unsure, why = append(unsure, a), err
		case rejected == nil:
			j.arrived = a
			jobs = append(jobs, j)
		case c.insist(ctx, a, func() error { return c.bury(work, a.topic, a.msg, rejected) }):
			c.ack(&job{Delivery: Delivery{ID: a.msg.UUID}, arrived: a})
		}
	}
	if why != nil {
		c.opts.Logger.ErrorContext(ctx, "consumer: deliveries cannot be verified", "topic", unsure[0].topic, "message_id", unsure[0].msg.UUID, "deliveries", len(unsure), "error", sqlschema.Explain(why))
	}
	return jobs, unsure
}

// nackRest nacks what was neither acked nor left, also if a handler has ended the
// goroutine. A nack has no effect on what was acked.
func nackRest(all []arrived, left *[]arrived) {
	keep := map[*message.Message]bool{}
	for _, a := range *left {
		keep[a.msg] = true
	}
	for _, a := range all {
		if !keep[a.msg] {
			a.msg.Nack()
		}
	}
}

// settleSome deals with one of jobs, or with some of them in one transaction, from
// the first, and acks or nacks those. It returns the others.
func (c *Consumer) settleSome(ctx, work context.Context, jobs []*job) (left []*job) {
	n := c.together(jobs)
	for i, part := range ascending(jobs[:n]) {
		if i > 0 && ctx.Err() != nil {
			left = append(left, part...)
			continue
		}
		left = append(left, c.settleBatch(ctx, work, part)...)
	}
	return append(left, jobs[n:]...)
}

// together returns how many of jobs, from the first, may share a transaction: a
// step's row is claimed once in it. Of an ordered step there is one for each key,
// since what parks the one must be known before the next is looked at. More than
// can have a savepoint are not begun with.
func (c *Consumer) together(jobs []*job) int {
	seen, direct := map[identity]bool{}, 0
	for i, j := range jobs {
		id := identity{j.Scope, j.Key, j.Step, j.joinedN()}
		if j.step.Ordered {
			id.n = ""
		}
		if j.traffic.direct.Load() {
			direct++
		}
		if !c.joins(j.step, j.redelivered, j.spent) || seen[id] || direct > maxSavepoints {
			return max(i, 1)
		}
		seen[id] = true
	}
	return len(jobs)
}

// ascending returns jobs in the order of their sagas, in one part or two. Handlers
// lock rows of their saga: two batches in two processes that came to the same sagas
// in opposite orders would deadlock. Messages of one saga keep their order.
//
// What sorts last must not be what there is no time for again and again. So the saga
// begins that has waited longest since there was none, and those that sort before it
// are a part of their own.
func ascending(jobs []*job) [][]*job {
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, compareSaga)
	var late *job
	for _, j := range jobs {
		if j.arrived.late && (late == nil || j.arrived.at.Before(late.arrived.at)) {
			late = j
		}
	}
	if late == nil {
		return [][]*job{jobs}
	}
	first := slices.IndexFunc(jobs, func(j *job) bool { return compareSaga(j, late) == 0 })
	return [][]*job{jobs[first:], jobs[:first]}
}

func compareSaga(a, b *job) int {
	return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key))
}

// settleDelivery acks j once it is dealt with, and in every other case gives it
// back.
func (c *Consumer) settleDelivery(ctx, work context.Context, j *job) {
	if c.insist(ctx, j.arrived, func() error { return c.handle(work, j) }) {
		c.ack(j)
	} else {
		j.arrived.msg.Nack()
	}
}

// failurePolicy spaces tries while the database is away.
var failurePolicy = backoff.Policy{Base: 100 * time.Millisecond, Cap: 5 * time.Second}

// How often a delivery whose outcome cannot be recorded is tried before it goes
// back to the broker, at first and after it has been there.
const (
	maxTries         = 5
	redeliveredTries = 14
)

// tries is how often a is tried before it goes back to the broker. Another process may get
// at what this one cannot; what it has given back too is tried for half a minute while the
// database is away, or an outage would use up the broker's limit of deliveries.
func (a arrived) tries(err error) int {
	if a.msg.Metadata.Get(outbox.PropertyRedelivered) == "true" && (isUnavailable(err) || isNoLogin(err) || errors.Is(err, ErrVerifyLater)) {
		return redeliveredTries
	}
	return maxTries
}

// insist reports whether do, which deals with a, has succeeded. While the database
// is away it tries again here, where that costs the broker nothing; in the end
// it gives up, so that one message cannot hold its lane for ever.
func (c *Consumer) insist(ctx context.Context, a arrived, do func() error) bool {
	for try := 1; ; try++ {
		err := guard.Call(do) // of the pool's hooks: a step's functions are guarded each by itself
		if err == nil {
			return true
		}
		c.opts.Logger.ErrorContext(ctx, "consumer: delivery is not decided", "topic", a.topic, "message_id", a.msg.UUID, "try", try, "error", sqlschema.Explain(err))
		if try >= a.tries(err) || ctx.Err() != nil {
			return false
		}
		timer := time.NewTimer(failurePolicy.Wait(try))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}
