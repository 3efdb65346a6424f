package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
)

const (
	// The relay looks at a call for a topic each stallPatience. It cuts the call after calmLooks
	// looks in a row between which messages of other topics got through: a broker that comes back
	// has some time for each topic. While half of the window is in flight, other topics may not
	// get any further. Then pressedLooks are enough, if any of them got through since the call
	// began. The patience doubles with each stall that follows a resumption within stallMemory: a
	// queue may be slow, and not stalled. The patience is PublishTimeout at most. It is
	// maxPressedPatience for a call that is in the way of others, and looks come as often.
	stallPatience      = 500 * time.Millisecond
	calmLooks          = 4
	pressedLooks       = 2
	maxPressedPatience = 4 * time.Second
	stallMemory        = 5 * time.Minute

	// A topic stalls after maxVain calls in a row that brought nothing through. They count if
	// the broker is there: it has deferred the messages, or messages of other topics got through
	// since the call before. When the relay is stuck, it is enough that messages got through
	// since the first call: a stuck relay sends nothing that could get through.
	maxVain = 3

	// maxProbes is how many stalled topics are probed at the same time.
	maxProbes = 16

	// maxTopics is how many topics are remembered. Above it the relay forgets topics that do not
	// stall and have no call running.
	maxTopics = 4096
)

// probePolicy spaces the probes of a stalled topic.
var probePolicy = backoff.Policy{Base: 250 * time.Millisecond, Cap: 5 * time.Second}

// errStalled ends a call for a topic that stalls.
var errStalled = fmt.Errorf("%w: the broker takes messages of other topics and none of this one", ErrDeferred)

// A pressure says how full the window is.
type pressure uint32

const (
	calm    pressure = iota
	pressed          // half of the window is in flight
	stuck            // twice the window is in flight: nothing is read until some messages are decided
)

// topics records which topics stall: the broker takes none of their messages at present, although
// it is there. The queue has no leader, or is full. A topic stalls if calls for it bring nothing
// through while the broker defers them or messages of other topics get through. Its messages are
// then kept aside, and one of them is sent now and then as a probe. A probe that the broker
// confirms or refuses ends the stall.
type topics struct {
	patience time.Duration // stallPatience, except in tests
	changed  func()        // called when a topic begins or ceases to stall; it must not wait
	pressure atomic.Uint32 // a pressure

	mu      sync.Mutex
	told    time.Time // when the log last had the error that the broker has not taken all messages
	known   map[string]*topic
	through uint64 // messages of all topics that got through
}

// complaintPause is the shortest time between two errors in the log that the broker has not taken all messages.
const complaintPause = time.Second

// mayComplain reports whether the log may have such an error now. If so, the next complaintPause begins.
func (t *topics) mayComplain(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	may := now.Sub(t.told) >= complaintPause
	if may {
		t.told = now
	}
	return may
}

// A topic is the memory of one.
type topic struct {
	through uint64 // messages of it that got through
	vain    int    // calls in a row that brought none of it through, though the broker is there
	first   uint64 // messages of others that had got through at the first of these calls
	others  uint64 // and at the last one

	stalled   bool
	reached   bool // a probe was answered: the topic is to resume
	stalls    int  // in a row, each within stallMemory of the last resumption
	resumedAt time.Time

	probing bool
	probes  int // in vain since it stalled
	probeAt time.Time
	probed  int64 // the message of the last probe

	published *row // the message of a probe, until it is settled
	calls     int  // running
}

// A topicCall is a call of the publisher for one topic.
type topicCall struct {
	topic  string
	others uint64 // messages of other topics that had got through when it began
}

// setListener sets the function that is called when a topic begins or ceases to stall.
func (ts *topics) setListener(changed func()) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.changed = changed
}

// stateOf returns the memory of a topic. The caller holds mu.
func (ts *topics) stateOf(name string) *topic {
	if t := ts.known[name]; t != nil {
		return t
	}
	if ts.known == nil || len(ts.known) >= maxTopics {
		kept := make(map[string]*topic)
		for other, t := range ts.known {
			if t.stalled || t.calls > 0 {
				kept[other] = t
			}
		}
		ts.known = kept
	}
	t := &topic{}
	ts.known[name] = t
	return t
}

// beginCall notes that a call for a topic begins.
func (ts *topics) beginCall(name string) topicCall {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.stateOf(name)
	t.calls++
	return topicCall{topic: name, others: ts.through - t.through}
}

// endCall counts the results of a call, and reports whether the topic begins to stall over it.
// cancelled says that watchCall has ended the call.
func (ts *topics) endCall(c topicCall, results []error, cancelled bool) (stalls bool) {
	through, refused, deferred := 0, 0, 0
	for _, err := range results {
		switch {
		case err == nil:
			through++
		case errors.Is(err, ErrRefused):
			refused++
		case errors.Is(err, ErrDeferred):
			deferred++
		}
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.stateOf(c.topic)
	t.calls--
	t.through += uint64(through)
	ts.through += uint64(through)
	others := ts.through - t.through
	switch {
	case through+refused > 0:
		t.vain = 0
		return false
	case t.stalled:
		return false
	case t.vain == 0:
		t.vain, t.first, t.others = 1, others, others
	case deferred > 0 || others > t.others || ts.isStuckSince(t, others):
		t.vain, t.others = t.vain+1, others
	default: // the broker may be away
	}
	if !cancelled && t.vain < maxVain {
		return false
	}
	ts.stallTopic(t)
	return true
}

// isStuckSince reports whether the relay is stuck and messages of other topics got through since
// the first vain call for t. The caller holds mu.
func (ts *topics) isStuckSince(t *topic, others uint64) bool {
	return t.vain > 0 && others > t.first && ts.currentPressure() == stuck
}

func (ts *topics) setPressure(p pressure) { ts.pressure.Store(uint32(p)) }

func (ts *topics) currentPressure() pressure { return pressure(ts.pressure.Load()) }

// stallTopic begins the stall of t. The caller holds mu.
func (ts *topics) stallTopic(t *topic) {
	t.stalls++
	if time.Since(t.resumedAt) > stallMemory {
		t.stalls = 1
	}
	t.stalled, t.vain, t.probes = true, 0, 0
	t.probeAt = time.Now().Add(probePolicy.Wait(1))
	ts.changed()
}

// throughOf returns how many messages of a topic got through.
func (ts *topics) throughOf(name string) uint64 {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.stateOf(name).through
}

func (ts *topics) isStalled(name string) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.known[name]
	return t != nil && t.stalled
}

// stalledNames returns the topics that stall, in order.
func (ts *topics) stalledNames() []string {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	names := []string{}
	for name, t := range ts.known {
		if t.stalled {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// watchCall ends a call with cancel once messages of other topics have got through for longer
// than the patience with its topic: see stallPatience. The caller stops it.
func (ts *topics) watchCall(c topicCall, cancel context.CancelCauseFunc) (stop func()) {
	ts.mu.Lock()
	patience := ts.patience << min(max(0, ts.stateOf(c.topic).stalls-1), 8)
	ts.mu.Unlock()
	look := min(patience, maxPressedPatience)
	every := int(patience / max(1, look)) // looks count as one for the progress of others
	ended := make(chan struct{})
	var (
		mu       sync.Mutex // orders the first look after timer is set
		timer    *time.Timer
		looks    int
		progress int // times in a row that others made progress within the patience
		others   = c.others
	)
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(look, func() {
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-ended:
			return
		default:
		}
		now := ts.throughOfOthers(c.topic)
		if looks++; looks%every == 0 {
			if progress++; now == others {
				progress = 0
			}
			others = now
		}
		inTheWay := ts.isInTheWay(c, now) && (looks >= pressedLooks || look >= maxPressedPatience)
		if progress >= calmLooks || inTheWay {
			cancel(errStalled)
			return
		}
		timer.Reset(look)
	})
	return func() {
		close(ended)
		timer.Stop()
	}
}

// isInTheWay reports whether a call takes room of messages of other topics. others is how many of
// these got through by now.
func (ts *topics) isInTheWay(c topicCall, others uint64) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.currentPressure() != calm && others > c.others || ts.isStuckSince(ts.stateOf(c.topic), others)
}

// throughOfOthers returns how many messages of topics other than this one got through.
func (ts *topics) throughOfOthers(name string) uint64 {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.through - ts.stateOf(name).through
}

// A probe of a topic is due, with a message behind after if there is one.
type probe struct {
	topic     string
	after     int64
	vain      int  // probes of this stall
	unsettled bool // messages of the topic may be about to be kept aside
}

// takeDueProbes returns the probes to be sent now, those first that wait longest. No more than
// maxProbes run at the same time. The caller calls noteProbe or postponeProbe for each.
func (ts *topics) takeDueProbes() (due []probe) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	now, open := time.Now(), 0
	var names []string
	for name, t := range ts.known {
		if t.probing {
			open++
		}
		if t.stalled && !t.probing && !t.reached && !now.Before(t.probeAt) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return ts.known[a].probeAt.Compare(ts.known[b].probeAt) })
	for _, name := range names[:min(len(names), max(0, maxProbes-open))] {
		t := ts.known[name]
		t.probing = true
		due = append(due, probe{topic: name, after: t.probed, vain: t.probes})
	}
	return due
}

// nextProbeTime returns when the next topic is to be probed, and false if none is.
func (ts *topics) nextProbeTime() (at time.Time, stalled bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.known {
		if t.stalled && !t.probing && !t.reached && (!stalled || t.probeAt.Before(at)) {
			at, stalled = t.probeAt, true
		}
	}
	return at, stalled
}

// noteProbe notes the outcome of a probe, which was message id, 0 if there was none to send. After
// an answer the other stalled topics are probed too: the cause of their stall may be over as well.
func (ts *topics) noteProbe(name string, id int64, published *row, answered bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.stateOf(name)
	t.probing, t.probed, t.reached, t.published = false, id, answered, published
	if !answered {
		t.probes++
		t.probeAt = time.Now().Add(probePolicy.Wait(t.probes + 1))
		return
	}
	for _, other := range ts.known {
		if other.probeAt.After(time.Now()) {
			other.probeAt = time.Now()
		}
	}
}

// postponeProbe notes that there is no message to probe a topic with yet.
func (ts *topics) postponeProbe(name string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.stateOf(name)
	t.probing, t.probeAt = false, time.Now().Add(probePolicy.Wait(t.probes+1))
}

// forgetProbes forgets the outcomes of probes of an earlier tenure: a person may have changed their
// messages since.
func (ts *topics) forgetProbes() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.known {
		t.reached, t.published = false, nil
	}
}

// reachedTopic returns a stalled topic whose probe was answered, or "". It returns the message of
// the probe too if that is published and not settled.
func (ts *topics) reachedTopic() (name string, published *row) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for name, t := range ts.known {
		if t.reached {
			return name, t.published
		}
	}
	return "", nil
}

// forgetSettledProbe notes that the message of a probe is settled.
func (ts *topics) forgetSettledProbe(name string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.stateOf(name).published = nil
}

// resumeTopic ends the stall of a topic.
func (ts *topics) resumeTopic(name string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.stateOf(name)
	t.stalled, t.reached, t.vain, t.resumedAt = false, false, 0, time.Now()
	ts.changed()
}
