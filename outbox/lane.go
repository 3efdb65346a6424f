package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// laneBatch is how many messages a lane hands to the broker at once.
	laneBatch = 512

	// maxLaneCalls limits a lane's calls at the same time, which are for different topics.
	maxLaneCalls = 64

	// maxStrikes is how often a message is sent alone with an unknown outcome, others of
	// its topic getting through in between, before it counts as refused: it is the
	// message that breaks the connection.
	maxStrikes = 3

	// blockedKeys is at how many blocked keys a lane forgets those that the database knows and
	// no message in flight was read without: see settledPages.
	blockedKeys = 4096
)

// errUnknown is the refusal of such a message.
var errUnknown = fmt.Errorf("%w: its outcome was unknown %d times while others of its topic were published", ErrRefused, maxStrikes)

// A lane publishes the messages of its share of the ordering keys, in the order
// in which they come, one of each key at a time: had two of them been in flight, a
// refusal of the first would let the second overtake it. A call of the publisher has
// messages of one topic, all of different keys, and calls for different topics run at
// the same time: a topic that takes its time holds up none but itself.
//
// When a call for a topic is not answered, the lane tries one message of it at a time, at
// growing intervals, and sends twice as many after each success. So a message over which
// the connection breaks is alone in the end. Messages of a topic that stalls are kept
// aside, unsent: see topics.
type lane struct {
	r    *Relay
	in   chan []*item
	stop <-chan struct{} // closed when nothing more is to be waited for
	done chan<- struct{} // told when a page is decided, or the lane gives up
	poke chan struct{}   // holds one: a topic stalls, or is resumed

	pending  []*item             // undecided, in order
	busy     map[uint64]bool     // keys with a message in a call
	flows    map[string]*flow    // by topic
	calls    int                 // on their way
	returned chan *call          // has room for each call
	blocked  map[uint64]block    // keys with held messages, as far as in-flight ones may not know
	forgetAt int                 // at how many of them the lane forgets some
	suspects map[int64]suspicion // held messages that were given back

	settled *settledPages

	open   atomic.Int64 // messages handed to the lane and not decided
	gaveUp atomic.Bool  // the broker did not answer, and the relay is to stop

	mu    sync.Mutex
	freed []freed
}

// A flow is the calls of a lane for one topic, one after the other.
type flow struct {
	topic     string
	calling   bool
	size      int       // messages in the next call
	failures  int       // calls in a row that were not answered for each message
	restUntil time.Time // no call before
}

// A call is messages of one flow on their way, and what became of them.
type call struct {
	flow    *flow
	wave    []*item
	results []error
	took    time.Duration
}

// A suspicion is what is remembered of a suspect.
type suspicion struct {
	strikes  int
	progress uint64
}

// A block holds back the messages of a key.
type block struct {
	head    int64  // the refused message
	through uint64 // the latest page with a message that was refused or queued
}

// A freed key had nothing held when page through had been settled.
type freed struct{ key, through uint64 }

// settledPages says up to which page the database knows what is held, and every message in flight
// was read after that. A message says itself whether one of its key is held by then: row.behind.
type settledPages struct {
	known atomic.Uint64

	through, last uint64 // the pages settled, and dispatched, when known was last moved
}

// note notes that the pages up to through are settled, and those up to last dispatched. Once all
// of the latter are settled, whatever is in flight was read later than the settlement.
func (s *settledPages) note(through, last uint64) {
	if through >= s.last {
		s.known.Store(s.through)
		s.through, s.last = through, last
	}
}

func newLane(r *Relay, settled *settledPages, stop <-chan struct{}, done chan<- struct{}) *lane {
	return &lane{
		r: r, settled: settled, forgetAt: r.limits.keys, in: make(chan []*item, 2*r.opts.Window+stallPage), stop: stop, done: done, poke: make(chan struct{}, 1),
		busy: map[uint64]bool{}, flows: map[string]*flow{}, returned: make(chan *call, maxLaneCalls),
		blocked: map[uint64]block{}, suspects: map[int64]suspicion{},
	}
}

// free lets messages of the keys pass again, unless some have been queued since.
func (l *lane) free(f freed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.freed = append(l.freed, f)
}

func (l *lane) applyFreed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.freed {
		if b, ok := l.blocked[f.key]; ok && b.through <= f.through {
			delete(l.blocked, f.key)
		}
	}
	l.freed = l.freed[:0]
}

// forgetKnown keeps what is remembered of blocked keys to the messages in flight, however many
// are held.
func (l *lane) forgetKnown() {
	if len(l.blocked) < l.forgetAt {
		return
	}
	known := l.settled.known.Load()
	for key, b := range l.blocked {
		if b.through <= known {
			delete(l.blocked, key)
		}
	}
	l.forgetAt = max(l.r.limits.keys, 2*len(l.blocked))
}

// run publishes until ctx ends, and returns when no call is on its way.
func (l *lane) run(ctx context.Context) {
	for ctx.Err() == nil {
		l.takeAll()
		now := time.Now()
		for _, c := range l.next(now) {
			go func() {
				c.results = l.r.publishTopic(ctx, c.flow.topic, c.wave)
				c.took = time.Since(now)
				l.returned <- c
			}()
		}
		l.await(ctx, now)
	}
	for l.calls > 0 {
		l.settleCall(ctx, <-l.returned)
	}
}

// await waits until there may be something to do, and does what a call that has returned
// leaves to be done. A flow that rested at now is waited for.
func (l *lane) await(ctx context.Context, now time.Time) {
	rest, stop := l.rest(now)
	defer rest.Stop()
	select {
	case items := <-l.in:
		l.take(items)
	case c := <-l.returned:
		l.settleCall(ctx, c)
	case <-l.poke:
	case <-rest.C:
	case <-stop:
		if l.gaveUp.CompareAndSwap(false, true) {
			l.tell()
		}
	case <-ctx.Done():
	}
}

// rest returns a timer for the first flow that rests. The channel ends the rest when the
// relay stops, since a broker that is away is not waited for. It is nil while a call runs,
// while nothing waits, and once the lane has given up.
func (l *lane) rest(now time.Time) (*time.Timer, <-chan struct{}) {
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

// takeAll takes in what has come, without waiting.
func (l *lane) takeAll() {
	for {
		select {
		case items := <-l.in:
			l.take(items)
		default:
			return
		}
	}
}

func (l *lane) take(items []*item) {
	for _, m := range items {
		if m.held {
			s := l.suspects[m.ID]
			m.strikes, m.progress = s.strikes, s.progress
		}
	}
	l.pending = append(l.pending, items...)
}

// next picks the messages of the next calls, the first of each key, and decides
// those that are not to be sent.
func (l *lane) next(now time.Time) (calls []*call) {
	l.applyFreed()
	l.forgetKnown()
	byTopic := make(map[string]*call, 1)
	ahead := make(map[uint64]bool) // keys of which an earlier message has to go first
	for _, m := range l.pending {
		if l.busy[m.key] || ahead[m.key] || l.withheld(m) {
			continue
		}
		ahead[m.key] = true
		c := byTopic[m.Topic]
		if c == nil {
			f := l.flow(m.Topic)
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
	l.sweep()
	return calls
}

// withheld decides m, which is the first of its key, if it is not to be sent.
func (l *lane) withheld(m *item) bool {
	b, blocked := l.blocked[m.key]
	switch {
	case !m.held && (blocked || m.behind > 0):
		l.blocked[m.key] = block{max(b.head, m.behind), m.page.seq}
		l.decide(m, queued)
	case blocked && b.head < m.ID && b.through == m.page.seq:
		l.decide(m, skipped) // a held message waits where it is
	case l.r.topics.isStalled(m.Topic):
		l.deferItem(m, errStalled)
	default:
		return false
	}
	return true
}

func (l *lane) flow(topic string) *flow {
	f := l.flows[topic]
	if f == nil {
		f = &flow{topic: topic, size: laneBatch}
		l.flows[topic] = f
	}
	return f
}

// sweep drops what is decided.
func (l *lane) sweep() {
	kept := l.pending[:0]
	for _, m := range l.pending {
		if m.outcome == undecided {
			kept = append(kept, m)
		}
	}
	clear(l.pending[len(kept):])
	l.pending = kept
}

func (l *lane) decide(m *item, o outcome) {
	m.outcome = o
	if m.held && o != skipped {
		delete(l.suspects, m.ID)
	}
	l.open.Add(-1)
	if m.page.left.Add(-1) == 0 {
		l.tell()
	}
}

// tell makes the leader look.
func (l *lane) tell() {
	select {
	case l.done <- struct{}{}:
	default: // one is enough
	}
}

// settleCall decides what the broker has answered, and lets the flow rest if it has not
// answered for each message.
func (l *lane) settleCall(ctx context.Context, c *call) {
	l.calls--
	c.flow.calling = false
	unknown := l.settleResults(c)
	l.sweep()
	switch {
	case unknown == nil:
		c.flow.failures = 0
		c.flow.adapt(c.took)
	case ctx.Err() == nil:
		l.retreat(ctx, c.flow, unknown)
	}
	if len(l.flows) > maxTopics {
		l.forgetFlows()
	}
}

// adapt doubles the size of the next call, or halves it after one that took long: calls that
// are short are not taken for calls that hang.
func (f *flow) adapt(took time.Duration) {
	if took > stallPatience/2 {
		f.size = max(1, f.size/2)
		return
	}
	f.size = min(2*f.size, laneBatch)
}

// forgetFlows forgets the flows in their initial state.
func (l *lane) forgetFlows() {
	for topic, f := range l.flows {
		if !f.calling && f.failures == 0 {
			delete(l.flows, topic)
		}
	}
}

// settleResults decides the messages of c. It returns an error of those that it cannot
// decide.
func (l *lane) settleResults(c *call) (unknown error) {
	for i, m := range c.wave {
		delete(l.busy, m.key)
		switch err := c.results[i]; {
		case err == nil:
			l.decide(m, published)
		case errors.Is(err, ErrRefused):
			l.refuse(m, err)
		case l.r.topics.isStalled(m.Topic):
			l.deferItem(m, err)
		case errors.Is(err, ErrDeferred) && (len(c.wave) == 1 || slices.ContainsFunc(c.results, isNil)):
			unknown = err
			l.deferItem(m, err) // others of the topic may get through
		default:
			unknown = err
			l.suspect(m, err, len(c.wave) == 1)
		}
	}
	return unknown
}

func isNil(err error) bool { return err == nil }

// suspect deals with a message whose outcome is not known.
func (l *lane) suspect(m *item, err error, alone bool) {
	if alone {
		l.strike(m, err)
	}
	if m.held && m.outcome == undecided {
		l.giveBack(m)
	}
}

// refuse leaves the decision about later messages of the key to the database,
// which holds them with this one; if it is dead, until that is noted: should the
// relay die before, the next one sends it again.
func (l *lane) refuse(m *item, err error) {
	m.refusal = err
	m.dead = m.Attempts+1 >= l.r.opts.MaxAttempts
	l.blocked[m.key] = block{m.ID, m.page.seq}
	l.decide(m, refused)
}

// deferItem keeps m aside, without an attempt spent, and what comes behind it in its key
// with it.
func (l *lane) deferItem(m *item, err error) {
	m.refusal = err
	l.blocked[m.key] = block{m.ID, m.page.seq}
	l.decide(m, deferred)
}

// strike counts an unknown outcome against m if others of its topic have got through since
// the last one, so that the broker and the topic's queues are there.
func (l *lane) strike(m *item, err error) {
	if through := l.r.topics.throughOf(m.Topic); m.strikes == 0 || through != m.progress {
		m.strikes, m.progress = m.strikes+1, through
	}
	if m.strikes >= maxStrikes {
		l.refuse(m, fmt.Errorf("%w: %w", errUnknown, err))
	}
}

// giveBack leaves a held message where it is, due, and what comes behind it in its
// key with it: waiting for its outcome here, it would keep others that are due
// from being read.
func (l *lane) giveBack(m *item) {
	l.blocked[m.key] = block{m.ID, m.page.seq}
	if m.strikes > 0 {
		l.suspects[m.ID] = suspicion{m.strikes, m.progress}
	}
	l.decide(m, skipped)
}

// retreat lets a flow wait for the broker. Its next call has one message, if possible
// another one than the last, to tell a broker that is away from a message that breaks the
// connection.
func (l *lane) retreat(ctx context.Context, f *flow, failure error) {
	f.failures++
	f.size = 1
	f.restUntil = time.Now().Add(failurePolicy.Wait(f.failures))
	l.rotate(f.topic)
	l.r.opts.Logger.ErrorContext(ctx, "outbox: the broker has not taken all messages, trying again",
		"schema", l.r.opts.Schema, "topic", f.topic, "failures", f.failures, "error", failure)
	l.r.signals.rested.Send(failure)
}

// rotate moves the first message of a topic to the end if it is a suspect, and what is
// behind it in its key.
func (l *lane) rotate(topic string) {
	i := slices.IndexFunc(l.pending, func(m *item) bool { return m.Topic == topic })
	if i < 0 || l.pending[i].strikes == 0 {
		return
	}
	key := l.pending[i].key
	var rest, suspect []*item
	for _, m := range l.pending {
		if m.key == key {
			suspect = append(suspect, m)
		} else {
			rest = append(rest, m)
		}
	}
	l.pending = append(rest, suspect...)
}
