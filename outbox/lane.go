package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// laneBatch is how many messages a lane hands to the broker at once.
	laneBatch = 512

	// maxStrikes is how often a message is sent alone with an unknown outcome,
	// others getting through in between, before it counts as refused: it is the
	// message that breaks the connection.
	maxStrikes = 3
)

// errUnknown is the refusal of such a message.
var errUnknown = fmt.Errorf("%w: its outcome was unknown %d times while others were published", ErrRefused, maxStrikes)

// A lane publishes the messages of its share of the ordering keys, in the order
// in which they come, one of each key at a time: had two of them been in flight, a
// refusal of the first would let the second overtake it. The messages of one
// call have different keys, so that it is one call for almost all of them.
//
// When the broker is away, a lane tries one message at a time, at growing
// intervals, and sends twice as many after each success. So a message over which
// the connection breaks is alone in the end.
type lane struct {
	r    *Relay
	in   chan []*item
	stop <-chan struct{} // closed when nothing more is to be waited for
	done chan<- struct{} // told when a page is decided, or the lane gives up
	ok   *atomic.Uint64  // messages that any lane has got through

	pending  []*item             // undecided, in order
	blocked  map[uint64]block    // keys with held messages
	suspects map[int64]suspicion // held messages that were given back
	size     int                 // messages in the next call
	failures int                 // calls in a row that the broker did not answer

	open   atomic.Int64 // messages handed to the lane and not decided
	gaveUp atomic.Bool  // the broker did not answer, and the relay is to stop

	mu    sync.Mutex
	freed []freed
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

// run publishes until ctx ends.
func (l *lane) run(ctx context.Context) {
	for l.receive(ctx) {
		wave := l.next()
		if len(wave) == 0 {
			continue
		}
		failure := l.publish(ctx, wave)
		l.sweep()
		if failure != nil && ctx.Err() == nil && !l.pause(ctx, failure) {
			l.gaveUp.Store(true)
			l.tell()
			return
		}
	}
}

// receive takes in what has come, waiting if there is nothing to do.
func (l *lane) receive(ctx context.Context) bool {
	if len(l.pending) == 0 {
		select {
		case items := <-l.in:
			l.take(items)
		case <-ctx.Done():
			return false
		}
	}
	for {
		select {
		case items := <-l.in:
			l.take(items)
		default:
			return ctx.Err() == nil
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

// next picks the messages of the next call, the first of each key, and decides
// those that are not to be sent.
func (l *lane) next() []*item {
	l.applyFreed()
	var wave []*item
	taken := make(map[uint64]bool, min(len(l.pending), l.size))
	for _, m := range l.pending {
		if len(wave) >= l.size {
			break
		}
		if taken[m.key] {
			continue
		}
		b, blocked := l.blocked[m.key]
		switch {
		case blocked && !m.held:
			l.blocked[m.key] = block{b.head, m.page.seq}
			l.decide(m, queued)
		case blocked && b.head < m.ID && b.through == m.page.seq:
			l.decide(m, skipped) // a held message waits where it is
		case m.strikes > 0 && len(wave) > 0: // suspects go alone
			taken[m.key] = true
		default:
			taken[m.key] = true
			wave = append(wave, m)
			if m.strikes > 0 {
				l.sweep()
				return wave
			}
		}
	}
	l.sweep()
	return wave
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

// publish sends wave and decides what the broker has answered. It returns an
// error of the rest.
func (l *lane) publish(ctx context.Context, wave []*item) error {
	results := l.r.publishWave(ctx, wave)
	var unknown error
	through := 0
	for i, m := range wave {
		switch err := results[i]; {
		case err == nil:
			through++
			l.decide(m, published)
		case errors.Is(err, ErrRefused):
			l.refuse(m, err)
		default:
			unknown = err
			if len(wave) == 1 {
				l.strike(m, err)
			}
			if m.held && m.outcome == undecided {
				l.giveBack(m)
			}
		}
	}
	l.ok.Add(uint64(through))
	if unknown == nil {
		l.failures, l.size = 0, min(2*l.size, laneBatch)
	}
	return unknown
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

// strike counts an unknown outcome against m if others have got through since
// the last one, so that the broker is there.
func (l *lane) strike(m *item, err error) {
	if ok := l.ok.Load(); m.strikes == 0 || ok != m.progress {
		m.strikes, m.progress = m.strikes+1, ok
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

// pause waits for the broker. What comes next is one message, and another one
// than last time, if there is one, to tell a broker that is away from a message
// that breaks the connection. It returns false if the relay is to stop: a broker
// that is away is not waited for.
func (l *lane) pause(ctx context.Context, failure error) bool {
	l.failures++
	l.size = 1
	if len(l.pending) > 1 && l.pending[0].strikes > 0 {
		l.rotate()
	}
	l.r.opts.Logger.ErrorContext(ctx, "outbox: the broker has not taken all messages, trying again", "schema", l.r.opts.Schema, "failures", l.failures, "error", failure)
	l.r.signals.rested.Send(failure)
	timer := time.NewTimer(failurePolicy.Wait(l.failures))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.stop:
		return false
	case <-ctx.Done():
	}
	return true
}

// rotate moves the suspect in front, and what is behind it in its key, to the
// end.
func (l *lane) rotate() {
	key := l.pending[0].key
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
