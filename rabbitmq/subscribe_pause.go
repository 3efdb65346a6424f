package rabbitmq

import (
	"context"
	"sync"
)

// Pause gives all unsettled messages of topic back to the broker and consumes nothing of topic until
// [Subscriber.Resume]. For each subscription it closes the channel, which is one step for the broker: it requeues the
// messages in their order, and then another consumer of the queue gets them. A consumer that was cancelled instead
// would make the broker send later messages of a key to the next one while earlier ones are in hand here.
//
// After Pause has returned, the subscriptions to topic send no message. An ack or a nack of an earlier message has no
// effect, as after a lost channel; the message itself stays readable. A broker that does not answer delays the return
// by the connection's RequestTimeout; then the connection is dropped, which gives the messages back, too. For the
// broker, each message that it had sent counts as delivered once more.
//
// The subscriptions stay: their channels of messages are open. A subscription that is made while the topic is paused
// waits for Resume. Pausing a paused topic changes nothing, and Close ends paused subscriptions as well.
func (s *Subscriber) Pause(topic string) { s.stateOf(topic).pause.beginPause() }

// Resume ends the effect of [Subscriber.Pause]. The subscriptions to topic consume again, behind consumers that have
// become active meanwhile. Without a Pause it does nothing.
func (s *Subscriber) Resume(topic string) { s.stateOf(topic).pause.endPause() }

// A pause holds the subscriptions to a topic back.
type pause struct {
	mu       sync.Mutex
	begun    chan struct{} // closed once the present pause has begun, or else the next one
	over     chan struct{} // closed once the present pause is over; nil: there is none
	channels int           // that are consumed from, or are being closed
	left     sync.Cond     // channels has become less, or the pause is over
}

func newPause() *pause {
	p := &pause{begun: make(chan struct{})}
	p.left.L = &p.mu
	return p
}

// beginPause returns when nothing is consumed any more, or when the pause is over.
func (p *pause) beginPause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over == nil {
		p.over = make(chan struct{})
		close(p.begun)
	}
	for over := p.over; p.channels > 0 && p.over == over; {
		p.left.Wait()
	}
}

func (p *pause) endPause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over == nil {
		return
	}
	close(p.over)
	p.begun, p.over = make(chan struct{}), nil
	p.left.Broadcast()
}

// awaitEnd waits until the topic is not paused. It returns an error if ctx ends first.
func (p *pause) awaitEnd(ctx context.Context) error {
	p.mu.Lock()
	over := p.over
	p.mu.Unlock()
	if over == nil {
		return ctx.Err()
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enterChannel counts a channel that is consumed from, and returns what is closed once it must not be any more.
func (p *pause) enterChannel() (begun <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.channels++
	return p.begun
}

// leaveChannel says that nothing is consumed from a channel any more and, if the topic is paused, that it is closed.
func (p *pause) leaveChannel() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.channels--
	p.left.Broadcast()
}
