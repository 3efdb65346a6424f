package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

// WatermillOptions are settings that most callers leave at their defaults. The zero value is usable.
type WatermillOptions struct {
	// Concurrency is how many calls of the watermill publisher may run at the same time, for all lanes (workers) of the
	// relay together; at most three quarters of these calls may be for one topic. Default: 16; a negative number counts
	// as 1, more than 256 as 256.
	Concurrency int
}

const (
	defaultConcurrency = 16
	maxConcurrency     = 256

	// awayAfter is how many errors in a row mean that the broker is away.
	awayAfter = 3
)

// FromWatermill returns a Publisher on any watermill publisher. A message counts as published when
// pub.Publish returns nil. The worth of that, and whether a crash of the broker loses the message,
// depends on pub. A nil opts means the defaults.
//
// Each message is a separate call, so that its outcome is known. Several calls run at once, since
// each waits for the broker: pub must be safe for that, as watermill demands. Their messages have
// different ordering keys.
//
// An error of pub that wraps [ErrRefused] is a refusal, and so is a panic. After any other error the
// outcome is unknown: watermill does not tell an absent broker from one that refuses the message.
// After three of them in a row the rest of the batch is not tried. A message that fails three times,
// others getting through in between, counts as refused.
//
// Each message has the context of its batch. A call that goes on when that has ended is left behind,
// also when the relay stops: its message counts as unknown, and there is one call fewer until it
// returns. One topic uses at most three quarters of the calls. If all of these hang, its messages are
// [ErrDeferred] until one returns. Give pub timeouts: if calls of several topics hang for
// good, nothing is published any more.
func FromWatermill(pub message.Publisher, opts *WatermillOptions) Publisher {
	if opts == nil {
		opts = &WatermillOptions{}
	}
	calls := min(max(cmp.Or(opts.Concurrency, defaultConcurrency), 1), maxConcurrency)
	return &watermillPublisher{pub: pub, slots: make(chan struct{}, calls)}
}

type watermillPublisher struct {
	pub   message.Publisher
	slots chan struct{} // one for each call of pub

	mu     sync.Mutex
	topics map[string]*watermillTopic
}

// A watermillTopic is the calls for one topic, three quarters of all at most: the others are for
// other topics.
type watermillTopic struct {
	slots      chan struct{}
	leftBehind int
}

// A watermillCall is one of pub. It is left behind if its batch ends before.
type watermillCall struct{ state atomic.Int32 }

const (
	callRuns int32 = iota
	callAnswered
	callLeft
)

// errLeftBehind is the result of a message whose topic has all its calls left behind.
var errLeftBehind = fmt.Errorf("%w: calls of the publisher for it do not return", ErrDeferred)

// An answer is pub's result for one message of a batch.
type answer struct {
	i   int
	err error
}

// errNoAnswer is the result of a call that neither returned nor panicked.
var errNoAnswer = errors.New("outbox: the publisher ended its goroutine")

// PublishBatch implements [Publisher].
func (w *watermillPublisher) PublishBatch(ctx context.Context, batch []Publication) []error {
	results := make([]error, len(batch))
	if len(batch) == 0 {
		return results
	}
	topicSlots, hanging := w.slotsOfTopic(batch[0].Topic)
	if hanging {
		for i := range results {
			results[i] = errLeftBehind
		}
		return results
	}
	b := &watermillBatch{
		results: results, open: make(map[int]*watermillCall, cap(w.slots)),
		answers: make(chan answer, len(batch)), // of calls left behind too: they must not wait
	}
	w.runCalls(ctx, batch, b, topicSlots)
	if err := ctx.Err(); err != nil {
		b.last = err
	}
	for i := range results {
		if b.open[i] != nil || i >= b.sent {
			results[i] = b.last
		}
	}
	for i, call := range b.open {
		if call.state.CompareAndSwap(callRuns, callLeft) {
			w.countLeftBehind(batch[i].Topic, 1)
		}
	}
	return results
}

// A watermillBatch is the calls for one batch.
type watermillBatch struct {
	results []error
	open    map[int]*watermillCall // by message
	answers chan answer
	sent    int   // messages
	failed  int   // answers in a row without an outcome
	last    error // the last of them
}

// runCalls makes the calls for batch until all are answered, the broker seems to be away, or ctx
// ends.
func (w *watermillPublisher) runCalls(ctx context.Context, batch []Publication, b *watermillBatch, topicSlots chan struct{}) {
	for ctx.Err() == nil {
		slots := topicSlots
		if b.sent == len(batch) || b.failed >= awayAfter {
			if len(b.open) == 0 {
				return
			}
			slots = nil
		}
		select {
		case slots <- struct{}{}:
			if len(b.answers) > 0 || !w.takeSlot(ctx) { // it may be the third error
				<-slots
				continue
			}
			b.open[b.sent] = &watermillCall{}
			go w.publishOne(ctx, batch[b.sent], b.sent, b.open[b.sent], func(a answer) { b.answers <- a; <-topicSlots })
			b.sent++
		case a := <-b.answers:
			delete(b.open, a.i)
			b.results[a.i] = a.err
			if a.err == nil || errors.Is(a.err, ErrRefused) {
				b.failed = 0
			} else {
				b.failed, b.last = b.failed+1, a.err
			}
		case <-ctx.Done():
		}
	}
}

// takeSlot waits for one of all calls. It reports false if ctx has ended.
func (w *watermillPublisher) takeSlot(ctx context.Context) bool {
	select {
	case w.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// slotsOfTopic returns the slots of a topic's calls, and whether all of them are left behind.
func (w *watermillPublisher) slotsOfTopic(topic string) (slots chan struct{}, hanging bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.topics[topic]
	if t == nil {
		if w.topics == nil || len(w.topics) >= maxTopics {
			w.topics = make(map[string]*watermillTopic)
		}
		t = &watermillTopic{slots: make(chan struct{}, cap(w.slots)-cap(w.slots)/4)}
		w.topics[topic] = t
	}
	return t.slots, t.leftBehind == cap(t.slots)
}

// countLeftBehind counts calls for a topic that are left behind, or have come back.
func (w *watermillPublisher) countLeftBehind(topic string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.topics[topic]; t != nil {
		t.leftBehind += n
	}
}

// publishOne makes one call of pub, in the slot that its caller has taken.
func (w *watermillPublisher) publishOne(ctx context.Context, p Publication, i int, call *watermillCall, done func(answer)) {
	err := errNoAnswer
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("%w: the publisher panicked: %v", ErrRefused, value)
		}
		done(answer{i, err})
		if !call.state.CompareAndSwap(callRuns, callAnswered) {
			w.countLeftBehind(p.Topic, -1)
		}
		<-w.slots
	}()
	p.Message.SetContext(ctx)
	err = w.pub.Publish(p.Topic, p.Message)
}
