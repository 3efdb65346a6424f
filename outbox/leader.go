package outbox

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
)

const (
	// heldInterval is how often due messages are looked for, as long as that is
	// quick (see lookPause): what a delay may be longer than asked for.
	heldInterval = 100 * time.Millisecond

	// stallTimeout is how long a full window may make no progress before a few
	// more messages are read: if they get through, one in the window is to blame.
	stallTimeout = time.Second

	// stallPage is how many.
	stallPage = 16

	// listTimeout bounds reading from the log, which takes the longer the more
	// there is to publish. The lease is kept meanwhile.
	listTimeout = 10 * time.Minute
)

// A leader is one tenure of the active relay. One
// goroutine reads pages and hands their messages to the lanes, and, in the order
// of the pages, notes what became of them.
type leader struct {
	r      *Relay
	tenure tenure
	reader logReader
	lanes  []*lane
	pages  []*page       // in flight, in order
	done   chan struct{} // a page may be decided, or a probe is answered

	probing *sync.WaitGroup // of goroutines that send probes

	inFlight int    // messages in pages
	bytes    int    // of their payloads
	seq      uint64 // of pages
	marks    int64  // checkpoints of this epoch
	turnAt   int64  // the checkpoint after which the tables of cursors take turns

	settled   settledPages
	chores    []chore
	retryAt   time.Time // when to look for refused messages that are due
	retrying  bool      // a page of them is in flight: no message is in two
	retried   []string  // the topics of the last page of them
	promoteAt time.Time // when to look for messages that wait behind none
	promoted  string    // the ordering key up to which that is done
	moveAt    time.Time // when to look for delayed messages that are due
	unmoved   int       // moves of them in a row that have failed
	resumeAll bool      // messages that an earlier tenure deferred must still be made due

	expiry   *time.Timer // ends the tenure with the lease
	readAt   time.Time   // not before
	rotateAt time.Time
	turnedAt time.Time              // when new messages last went to another leaf
	vain     [len(leaves)]int       // attempts in a row to empty the leaf
	emptyAt  [len(leaves)]time.Time // not before
	movedAt  time.Time              // when pages were last settled
	backlog  bool                   // the last read was a full one
	idle     int                    // rounds without anything to do
	failures int                    // rounds in a row that failed
}

var keySeed = maphash.MakeSeed()

// lead publishes from t on until ctx ends, after which it finishes the messages
// in flight, or until the lease is lost.
func (r *Relay) lead(ctx, work context.Context, t tenure) error {
	work, end := context.WithCancelCause(work)
	defer end(nil)
	r.topics.forgetProbes()
	l := &leader{
		r: r, tenure: t, done: make(chan struct{}, 1),
		reader:   logReader{db: r.db, sql: &r.sql, epoch: t.epoch, limit: r.limits.list, at: t.at},
		turnedAt: time.Now(), movedAt: time.Now(), turnAt: r.limits.cursors,
		resumeAll: true,
		expiry:    time.AfterFunc(time.Until(t.until), func() { end(errExpired) }), // nothing is published without a lease
	}
	defer l.expiry.Stop()
	l.openLanes(ctx.Done())
	var lanes sync.WaitGroup
	for _, lane := range l.lanes {
		lanes.Go(func() { lane.run(work) })
	}
	lanes.Go(func() { l.keepLease(work, end) })
	l.probing = &lanes
	r.counters.leads.Store(true)
	err := guard.Call(func() error { return l.run(ctx, work) }) // what a panic leaves of l goes with the tenure
	r.counters.leads.Store(false)
	end(nil)
	lanes.Wait()
	r.release(ctx, t.epoch) // does nothing to another relay's
	return err
}

// keepLease renews the lease until ctx ends, and ends the tenure when another
// relay has taken over. It does so beside the rounds, which may take longer than
// the lease.
func (l *leader) keepLease(ctx context.Context, end context.CancelCauseFunc) {
	wait := l.r.opts.Lease / 3
	for {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		var until time.Time
		err := guard.Call(func() (err error) {
			until, err = l.r.renew(ctx, l.tenure.epoch)
			return err
		})
		switch {
		case errors.Is(err, errOvertaken):
			end(errOvertaken)
			return
		case err != nil:
			wait = l.r.opts.Lease / standbyLooks
		default:
			l.expiry.Reset(time.Until(until))
			wait = l.r.opts.Lease / 3
		}
	}
}

// run does round after round. It returns nil after ctx has ended, and how the tenure has ended
// once the lease is lost.
func (l *leader) run(ctx, work context.Context) error {
	for {
		stopping := ctx.Err() != nil
		n, err := l.round(work, stopping)
		switch {
		case errors.Is(err, errOvertaken):
			return err
		case work.Err() != nil && stopping:
			return nil
		case work.Err() != nil:
			return context.Cause(work)
		case err != nil:
			l.failures++
			l.r.opts.Logger.ErrorContext(ctx, "outbox: relay", "schema", l.r.opts.Schema, "failures", l.failures, "error", err)
			l.r.signals.rested.Send(err)
		default:
			l.failures = 0
		}
		l.r.signals.passed.Send(n)
		if stopping && l.finished() {
			return nil // what is in flight is published again by the next relay
		}
		l.wait(ctx, work, n)
	}
}

// finished reports whether everything in flight is settled, or will not be
// because the broker is away.
func (l *leader) finished() bool {
	if len(l.pages) == 0 {
		return true
	}
	gaveUp := false
	for _, lane := range l.lanes {
		if lane.open.Load() > 0 && !lane.gaveUp.Load() {
			return false
		}
		gaveUp = gaveUp || lane.gaveUp.Load()
	}
	return gaveUp && l.pages[0].left.Load() > 0
}

// openLanes makes the lanes. Which keys wait for held messages the messages of the log say
// themselves: row.behind.
func (l *leader) openLanes(stop <-chan struct{}) {
	for range l.r.opts.Lanes {
		l.lanes = append(l.lanes, newLane(l.r, &l.settled, stop, l.done))
	}
	l.r.topics.listen(l.pokeLanes)
	l.chores = []chore{
		{name: "resume topics", do: l.resumeTopics},
		{name: "promote waiting messages", do: l.promoteWaiting},
		{name: "read due messages", do: l.readRetries},
		{name: "move delayed messages", do: l.moveDelayed},
	}
}

// pokeLanes has the lanes look again at what waits in them.
func (l *leader) pokeLanes() {
	for _, lane := range l.lanes {
		select {
		case lane.poke <- struct{}{}:
		default:
		}
	}
}

func (l *leader) lane(key uint64) *lane { return l.lanes[key%uint64(len(l.lanes))] }

// round does what there is to do and does not wait for the broker. It returns
// how many messages were settled, moved or read.
func (l *leader) round(ctx context.Context, stopping bool) (n int, err error) {
	n, err = l.settle(ctx)
	if err != nil || stopping {
		return n, err
	}
	l.r.topics.setPressure(l.pressure())
	l.r.sendProbes(ctx, l.probing, l.unsettled, func() {
		select {
		case l.done <- struct{}{}:
		default:
		}
	})
	for i := range l.chores {
		more, err := l.attempt(ctx, &l.chores[i])
		if n += more; err != nil {
			return n, err
		}
	}
	read, err := l.readLog(ctx)
	if n += read; err != nil {
		return n, err
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	if err := l.rotate(ctx); err != nil && ctx.Err() == nil {
		l.r.opts.Logger.WarnContext(ctx, "outbox: the log's tables do not rotate", "schema", l.r.opts.Schema, "error", err)
	}
	return n, nil
}

// A chore is a part of a round that deals with a bounded number of held messages. If it fails, it is
// left out for a while, and the round goes on: it costs the log nothing but the time that it took.
type chore struct {
	name      string
	do        func(context.Context) (int, error)
	failures  int // in a row
	notBefore time.Time
}

// attempt does c unless it has just failed. Its error is one that ends the tenure.
func (l *leader) attempt(ctx context.Context, c *chore) (int, error) {
	if time.Now().Before(c.notBefore) {
		return 0, nil
	}
	n, err := c.do(ctx)
	switch {
	case err == nil:
		c.failures = 0
	case errors.Is(err, errOvertaken):
		return n, err
	case ctx.Err() == nil:
		c.failures++
		c.notBefore = time.Now().Add(failurePolicy.Wait(c.failures))
		l.r.opts.Logger.ErrorContext(ctx, "outbox: a step of the relay failed; it is tried again later, and new messages are published meanwhile",
			"schema", l.r.opts.Schema, "step", c.name, "failures", c.failures, "error", err)
		l.r.signals.rested.Send(err)
	}
	return n, nil
}

// unsettled reports whether messages of a topic are in pages that are not settled. Then those that
// were kept aside need not be in the database yet.
func (l *leader) unsettled(topic string) bool {
	for _, p := range l.pages {
		for i := range p.items {
			if p.items[i].Topic == topic {
				return true
			}
		}
	}
	return false
}

// room returns how many messages may be read, and how many bytes of payload they may have,
// give or take a message.
func (l *leader) room() (messages, bytes int) {
	messages, bytes = min(l.r.opts.Window-l.inFlight, l.r.limits.page), l.r.opts.WindowBytes-l.bytes
	if messages > 0 && bytes > 0 {
		return messages, min(bytes, maxPageBytes)
	}
	if time.Since(l.movedAt) > l.r.limits.stall && l.pressure() != stuck {
		l.movedAt = time.Now()
		return stallPage, min(l.r.opts.WindowBytes, maxPageBytes)
	}
	return 0, 0
}

// pressure returns how full the window is.
func (l *leader) pressure() pressure {
	switch {
	case l.inFlight >= 2*l.r.opts.Window || l.bytes >= 2*l.r.opts.WindowBytes:
		return stuck
	case 2*l.inFlight >= l.r.opts.Window || 2*l.bytes >= l.r.opts.WindowBytes:
		return pressed
	}
	return calm
}

// readLog reads a page and hands it to the lanes.
func (l *leader) readLog(ctx context.Context) (int, error) {
	room, bytes := l.room()
	l.backlog = false
	if room <= 0 || time.Now().Before(l.readAt) {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	rows, after, err := l.reader.read(ctx, room, bytes)
	if err != nil {
		return 0, fmt.Errorf("outbox: %w", err)
	}
	l.backlog = len(rows) == room || !l.reader.caughtUp()
	if len(rows) > 1 && !l.backlog {
		// Many are writing: a read for each commit would cost them more than the
		// little that the messages wait for each other.
		l.readAt = time.Now().Add(l.r.opts.PollMin)
	}
	if len(rows) > 0 {
		l.dispatch(rows, after, false)
	}
	return len(rows), nil
}

// full reports whether the window is full.
func (l *leader) full() bool {
	return l.inFlight >= l.r.opts.Window || l.bytes >= l.r.opts.WindowBytes
}

// dispatch hands rows to the lanes as a page, of the log or of held messages.
func (l *leader) dispatch(rows []row, after cursor, held bool) {
	l.seq++
	p := &page{seq: l.seq, items: make([]item, len(rows)), after: after, held: held}
	p.left.Store(int32(len(rows)))
	parts := make([][]*item, len(l.lanes))
	for i := range rows {
		m := &p.items[i]
		m.row, m.page, m.key = rows[i], p, maphash.String(keySeed, rows[i].OrderingKey)
		m.held = held
		p.bytes += len(m.Payload)
		lane := m.key % uint64(len(l.lanes))
		parts[lane] = append(parts[lane], m)
	}
	l.pages = append(l.pages, p)
	l.inFlight += len(rows)
	l.bytes += p.bytes
	for i, part := range parts {
		if len(part) > 0 {
			l.lanes[i].open.Add(int64(len(part)))
			l.lanes[i].in <- part // has room for a window of pages of one message
		}
	}
}

// wait waits until there may be something to do: a page is decided, somebody has
// committed messages, or it is time to look.
func (l *leader) wait(ctx, work context.Context, n int) {
	wait, wake := l.pause(ctx, n)
	if at, stalled := l.r.topics.nextProbe(); stalled {
		wait = min(wait, max(time.Until(at), l.r.opts.PollMin))
	}
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	stop := ctx.Done()
	if ctx.Err() != nil {
		stop = nil
	}
	select {
	case <-timer.C:
	case <-wake:
		l.idle = 0
	case <-l.done:
	case <-stop:
	case <-work.Done():
	}
}

// pause returns how long to wait after a round that has moved n messages on, and
// what ends the wait; nil: not a commit.
func (l *leader) pause(ctx context.Context, n int) (time.Duration, <-chan struct{}) {
	linger := time.Until(l.readAt)
	switch {
	case l.failures > 0:
		return failurePolicy.Wait(l.failures), nil
	case l.full() || ctx.Err() != nil:
		return l.r.opts.PollMax, nil // for the broker
	case l.backlog:
		l.idle = 0
		return 0, nil
	case linger > 0:
		l.idle = 0
		return linger, nil
	case n > 0:
		l.idle = 0
		return l.r.opts.PollMin, l.r.wake
	}
	if l.idle++; l.inFlight == 0 {
		l.r.signals.rested.Send(nil)
	}
	return backoff.Policy{Base: l.r.opts.PollMin, Cap: l.r.opts.PollMax}.Ceiling(l.idle), l.r.wake
}
