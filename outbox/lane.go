package outbox

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// laneBatch is how many messages a lane hands to the broker at once.
	laneBatch = 512

	// maxLaneCalls limits a lane's simultaneous calls, which are for different topics.
	maxLaneCalls = 64

	// blockedKeys is at how many blocked keys a lane forgets some: those that the database
	// knows and no message in flight was read without (see settledPages).
	blockedKeys = 4096
)

var keySeed = maphash.MakeSeed()

// A laneSet is the lanes of a tenure. A message's ordering key decides its lane. A message of
// the log says itself whether it waits behind a held message: row.behind.
type laneSet struct {
	all     []*lane
	settled settledPages
}

func (ls *laneSet) openLanes(s *core, stop <-chan struct{}, done chan<- struct{}) {
	for range s.opts.Lanes {
		ls.all = append(ls.all, newLane(s, &ls.settled, stop, done))
	}
}

// pokeLanes makes the lanes look again at the messages that wait in them.
func (ls *laneSet) pokeLanes() {
	for _, lane := range ls.all {
		select {
		case lane.poke <- struct{}{}:
		default:
		}
	}
}

// dispatchPage hands the messages of p to their lanes.
func (ls *laneSet) dispatchPage(p *page) {
	parts := make([][]*item, len(ls.all))
	for i := range p.items {
		m := &p.items[i]
		lane := m.key % uint64(len(ls.all))
		parts[lane] = append(parts[lane], m)
	}
	for i, part := range parts {
		if len(part) > 0 {
			ls.all[i].open.Add(int64(len(part)))
			ls.all[i].in <- part // has room for a window of pages of one message
		}
	}
}

// freeKeys lets messages of keys pass again of which nothing is held once page through is
// settled.
func (ls *laneSet) freeKeys(keys []string, through uint64) {
	for _, key := range keys {
		h := maphash.String(keySeed, key)
		ls.all[h%uint64(len(ls.all))].freeKey(freedKey{h, through})
	}
}

// gaveUp reports whether a lane has given up on the broker, and no other lane has undecided
// messages.
func (ls *laneSet) gaveUp() bool {
	gaveUp := false
	for _, lane := range ls.all {
		if lane.open.Load() > 0 && !lane.gaveUp.Load() {
			return false
		}
		gaveUp = gaveUp || lane.gaveUp.Load()
	}
	return gaveUp
}

// A lane publishes the messages of its share of the ordering keys in the order in which they
// come. It has one message of each key in flight. With two of a key in flight, a refusal of the first would let
// the second overtake it. A call of the publisher has messages of one topic, all of different
// keys. Calls for different topics run at the same time: a slow topic delays only itself.
//
// When a call for a topic is not answered, the lane tries one message of it at a time, at
// growing intervals. After each success it sends twice as many. So a message over which the
// connection breaks is alone in the end. Messages of a topic that stalls are kept aside, unsent:
// see topics.
type lane struct {
	*core
	in   chan []*item
	stop <-chan struct{} // closed when the broker is not waited for any more
	done chan<- struct{} // gets a value when a page is decided, or the lane gives up
	poke chan struct{}   // holds one: a topic stalls, or resumes

	pending  []*item             // undecided, in order
	busy     map[uint64]bool     // keys with a message in a call
	flows    map[string]*flow    // by topic
	calls    int                 // running
	returned chan *call          // has room for each call
	blocked  map[uint64]block    // keys with held messages, as far as messages in flight may not know
	forgetAt int                 // how many of them make the lane forget some
	suspects map[int64]suspicion // held messages that were given back

	settled *settledPages

	open   atomic.Int64 // messages handed to the lane and not decided
	gaveUp atomic.Bool  // the broker did not answer, and the relay is to stop

	mu    sync.Mutex
	freed []freedKey
}

// A flow is the calls of a lane for one topic, one after the other.
type flow struct {
	topic     string
	calling   bool
	size      int       // messages in the next call
	failures  int       // calls in a row that were not answered for each message
	restUntil time.Time // no call before
}

// A call is messages of one flow at the publisher, and their results.
type call struct {
	flow    *flow
	wave    []*item
	results []error
	took    time.Duration
}

// A block holds back the messages of a key.
type block struct {
	head    int64  // the refused message
	through uint64 // the latest page with a message that was refused or queued
}

// A freedKey had nothing held when page through had been settled.
type freedKey struct{ key, through uint64 }

// settledPages says up to which page the database knows the held messages, and every message in
// flight was read after that. Such a message says itself whether one of its key is held:
// row.behind.
type settledPages struct {
	known atomic.Uint64

	through, last uint64 // the pages settled, and dispatched, when known was last moved
}

// noteSettled notes that the pages up to through are settled, and those up to last dispatched.
// Once all of the latter are settled, every message in flight was read after the settlement.
func (s *settledPages) noteSettled(through, last uint64) {
	if through >= s.last {
		s.known.Store(s.through)
		s.through, s.last = through, last
	}
}

func newLane(s *core, settled *settledPages, stop <-chan struct{}, done chan<- struct{}) *lane {
	return &lane{
		core: s, settled: settled, forgetAt: s.limits.keys, in: make(chan []*item, 2*s.opts.Window+stallPage),
		stop: stop, done: done, poke: make(chan struct{}, 1),
		busy: map[uint64]bool{}, flows: map[string]*flow{}, returned: make(chan *call, maxLaneCalls),
		blocked: map[uint64]block{}, suspects: map[int64]suspicion{},
	}
}

// freeKey lets messages of a key pass again, unless some have been queued since.
func (l *lane) freeKey(f freedKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.freed = append(l.freed, f)
}

func (l *lane) applyFreedKeys() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.freed {
		if b, ok := l.blocked[f.key]; ok && b.through <= f.through {
			delete(l.blocked, f.key)
		}
	}
	l.freed = l.freed[:0]
}

// forgetKnownKeys bounds the memory of blocked keys by the messages in flight, however many
// messages are held.
func (l *lane) forgetKnownKeys() {
	if len(l.blocked) < l.forgetAt {
		return
	}
	known := l.settled.known.Load()
	for key, b := range l.blocked {
		if b.through <= known {
			delete(l.blocked, key)
		}
	}
	l.forgetAt = max(l.limits.keys, 2*len(l.blocked))
}

// publishItems publishes until ctx ends, and returns when no call is running.
func (l *lane) publishItems(ctx context.Context) {
	for ctx.Err() == nil {
		l.takeWaiting()
		now := time.Now()
		for _, c := range l.pickCalls(now) {
			go func() {
				c.results = sender{l.core}.publishTopic(ctx, c.flow.topic, c.wave)
				c.took = time.Since(now)
				l.returned <- c
			}()
		}
		l.awaitEvent(ctx, now)
	}
	for l.calls > 0 {
		l.takeResults(ctx, <-l.returned)
	}
}

// awaitEvent waits until there may be something to do, and takes in what has come. It waits for
// the end of a flow's rest, as of now.
func (l *lane) awaitEvent(ctx context.Context, now time.Time) {
	rest, stop := l.nextRest(now)
	defer rest.Stop()
	select {
	case items := <-l.in:
		l.takeItems(items)
	case c := <-l.returned:
		l.takeResults(ctx, c)
	case <-l.poke:
	case <-rest.C:
	case <-stop:
		if l.gaveUp.CompareAndSwap(false, true) {
			l.signalLeader()
		}
	case <-ctx.Done():
	}
}

// nextRest returns a timer for the first end of a flow's rest. The channel ends the rest when
// the relay stops, which does not wait for a broker that is away. It is nil while a call runs,
// while nothing waits, and once the lane has given up.
func (l *lane) nextRest(now time.Time) (*time.Timer, <-chan struct{}) {
	first := time.Duration(-1)
	for _, f := range l.flows {
		if wait := f.restUntil.Sub(now); wait > 0 && (first < 0 || wait < first) {
			first = wait
		}
	}
	if first < 0 || len(l.pending) == 0 {
		idle := time.NewTimer(time.Hour)
		return idle, nil
	}
	if l.calls > 0 || l.gaveUp.Load() {
		return time.NewTimer(first), nil
	}
	return time.NewTimer(first), l.stop
}

// takeWaiting takes in the items that have come, without waiting.
func (l *lane) takeWaiting() {
	for {
		select {
		case items := <-l.in:
			l.takeItems(items)
		default:
			return
		}
	}
}

func (l *lane) takeItems(items []*item) {
	for _, m := range items {
		if m.held {
			s := l.suspects[m.ID]
			m.strikes, m.progress = s.strikes, s.progress
		}
	}
	l.pending = append(l.pending, items...)
}

// pickCalls picks the messages of the next calls, the first of each key, and decides those that
// are not to be sent.
func (l *lane) pickCalls(now time.Time) (calls []*call) {
	l.applyFreedKeys()
	l.forgetKnownKeys()
	byTopic := make(map[string]*call, 1)
	ahead := make(map[uint64]bool) // keys of which an earlier message has to go first
	for _, m := range l.pending {
		if l.busy[m.key] || ahead[m.key] || l.decideUnsent(m) {
			continue
		}
		ahead[m.key] = true
		c := byTopic[m.Topic]
		if c == nil {
			f := l.flowOf(m.Topic)
			if f.calling || now.Before(f.restUntil) || l.calls >= maxLaneCalls {
				continue
			}
			c = &call{flow: f}
			byTopic[m.Topic] = c
			calls = append(calls, c)
			f.calling = true
			l.calls++
		}
		alone := m.strikes > 0 // suspects go alone
		if len(c.wave) >= c.flow.size || alone && len(c.wave) > 0 || len(c.wave) > 0 && c.wave[0].strikes > 0 {
			continue
		}
		c.wave = append(c.wave, m)
		l.busy[m.key] = true
	}
	l.dropDecided()
	return calls
}

// decideUnsent decides m, which is the first of its key, if it is not to be sent.
func (l *lane) decideUnsent(m *item) bool {
	b, blocked := l.blocked[m.key]
	switch {
	case !m.held && (blocked || m.behind > 0):
		l.blocked[m.key] = block{max(b.head, m.behind), m.page.seq}
		l.decideItem(m, queued)
	case blocked && b.head < m.ID && b.through == m.page.seq:
		l.decideItem(m, skipped) // a held message waits where it is
	case l.topics.isStalled(m.Topic):
		l.deferItem(m, errStalled)
	default:
		return false
	}
	return true
}

func (l *lane) flowOf(topic string) *flow {
	f := l.flows[topic]
	if f == nil {
		f = &flow{topic: topic, size: laneBatch}
		l.flows[topic] = f
	}
	return f
}

// dropDecided drops decided items from pending.
func (l *lane) dropDecided() {
	kept := l.pending[:0]
	for _, m := range l.pending {
		if m.outcome == undecided {
			kept = append(kept, m)
		}
	}
	clear(l.pending[len(kept):])
	l.pending = kept
}

func (l *lane) decideItem(m *item, o outcome) {
	m.outcome = o
	m.Payload, m.Headers = nil, nil // a page may wait for its last message for long
	if m.held && o != skipped {
		delete(l.suspects, m.ID)
	}
	l.open.Add(-1)
	if m.page.left.Add(-1) == 0 {
		l.signalLeader()
	}
}

// signalLeader makes the leader look.
func (l *lane) signalLeader() {
	select {
	case l.done <- struct{}{}:
	default: // one is enough
	}
}
