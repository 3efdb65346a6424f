package rabbitmq

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A fakeChannel answers as the broker does: it knows which deliveries are
// unacknowledged, and closes over any other tag.
type fakeChannel struct {
	mu       sync.Mutex
	unacked  []uint64 // in order
	acked    map[uint64]bool
	nacked   map[uint64]bool
	frames   []string
	wrong    []string
	nacking  chan struct{} // if set, told of each nack that is under way
	mayNack  chan struct{} // and then waited for
	lastSent uint64
}

func newFakeChannel() *fakeChannel {
	return &fakeChannel{acked: map[uint64]bool{}, nacked: map[uint64]bool{}}
}

// deliver sends n deliveries to a.
func (c *fakeChannel) deliver(a *acks, n int) {
	for range n {
		c.mu.Lock()
		c.lastSent++
		c.unacked = append(c.unacked, c.lastSent)
		tag := c.lastSent
		c.mu.Unlock()
		a.noteDelivery(tag)
	}
}

func (c *fakeChannel) settle(frame string, into map[uint64]bool, tag uint64, multiple bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames = append(c.frames, frame)
	i, ok := slices.BinarySearch(c.unacked, tag)
	if !ok {
		c.wrong = append(c.wrong, frame+" of a tag that is not outstanding")
		return errors.New("channel closed")
	}
	first := i
	if multiple {
		first = 0
	}
	for _, settled := range c.unacked[first : i+1] {
		into[settled] = true
	}
	c.unacked = slices.Delete(c.unacked, first, i+1)
	return nil
}

func (c *fakeChannel) Ack(tag uint64, multiple bool) error {
	frame := fmt.Sprint("ack ", tag)
	if multiple {
		frame = fmt.Sprint("ack to ", tag)
	}
	return c.settle(frame, c.acked, tag, multiple)
}

func (c *fakeChannel) Nack(tag uint64, multiple, requeue bool) error {
	if c.nacking != nil {
		c.nacking <- struct{}{}
		<-c.mayNack
	}
	return c.settle(fmt.Sprint("nack ", tag), c.nacked, tag, multiple)
}

// sent returns the frames since the last call.
func (c *fakeChannel) sent() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	frames := c.frames
	c.frames = nil
	return frames
}

func wantFrames(t *testing.T, after string, c *fakeChannel, want ...string) {
	t.Helper()
	if got := c.sent(); !slices.Equal(got, want) {
		t.Errorf("after %s: sent %q, want %q", after, got, want)
	}
}

func TestAcksAreCollected(t *testing.T) {
	t.Parallel()
	c := newFakeChannel()
	a := newAcks(c, 4, ackDelay)
	c.deliver(a, 12)
	for _, tag := range []uint64{3, 1, 2} {
		a.collectAck(tag)
	}
	wantFrames(t, "three acks of four", c)
	a.collectAck(4)
	wantFrames(t, "the fourth", c, "ack to 4")
	for _, tag := range []uint64{7, 6, 9, 5} {
		a.collectAck(tag)
	}
	wantFrames(t, "four with a gap", c, "ack to 7", "ack 9")
	a.sendNack(10, true)
	a.collectAck(11)
	a.flushAcks()
	wantFrames(t, "a nack and one behind the gap", c, "nack 10", "ack 11")
	a.collectAck(8)
	a.collectAck(12)
	a.flushAcks()
	wantFrames(t, "the gap is closed", c, "ack to 12")
	a.flushAcks()
	wantFrames(t, "nothing", c)
	if n := a.countOpen(); n != 0 || len(c.wrong)+len(c.unacked) != 0 {
		t.Errorf("%d deliveries open, want none; broker: %v, unacked %v", n, c.wrong, c.unacked)
	}
}

// Both the first ack, and one behind a delivery that stays unsettled, wait for
// ackDelay and no longer. The clock is that of the oldest ack.
func TestAcksDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newFakeChannel()
		a := newAcks(c, 100, ackDelay)
		gone := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			a.sendAcksUntil(gone)
		}()
		wait := func() {
			time.Sleep(ackDelay / 2) // of the bubble's clock
			synctest.Wait()
		}
		c.deliver(a, 8)
		for _, step := range []struct {
			tags []uint64
			want []string
		}{{[]uint64{1, 2}, []string{"ack to 2"}}, {[]uint64{4, 5}, []string{"ack 4", "ack 5"}}} {
			a.collectAck(step.tags[0])
			wait()
			a.collectAck(step.tags[1])
			wantFrames(t, "half of ackDelay", c)
			wait()
			wantFrames(t, "ackDelay", c, step.want...)
		}
		a.collectAck(6)
		wait()
		a.flushAcks()
		c.sent()
		a.collectAck(7)
		wait()
		wantFrames(t, "half of ackDelay, and more since an ack that was sent", c)
		wait()
		wantFrames(t, "ackDelay", c, "ack 7")
		close(gone)
		<-ended
	})
}

// A nack takes the collected acks with it.
func TestANackSendsTheCollectedAcks(t *testing.T) {
	t.Parallel()
	c := newFakeChannel()
	a := newAcks(c, 100, ackDelay)
	c.deliver(a, 4)
	a.collectAck(1)
	a.collectAck(3)
	a.sendNack(2, true)
	wantFrames(t, "two acks and a nack", c, "ack to 1", "ack 3", "nack 2")
	a.collectAck(4)
	a.flushAcks()
	wantFrames(t, "the last ack", c, "ack to 4")
	if len(c.wrong)+len(c.unacked) != 0 {
		t.Errorf("broker: %v, unacked %v", c.wrong, c.unacked)
	}
}

// Collected acks leave the broker most of its credit, and none are collected where it has little.
func TestAckLimit(t *testing.T) {
	t.Parallel()
	for prefetch, want := range map[int]int{1: 1, 3: 1, 7: 1, 8: 2, 100: 25, 256: 64, 65535: 64} {
		if got := ackLimit(prefetch); got != want {
			t.Errorf("ackLimit(%d) = %d, want %d", prefetch, got, want)
		}
	}
}

// While a nack is on its way an ack of several must not cover it.
func TestAcksDoNotOvertakeANack(t *testing.T) {
	t.Parallel()
	c := newFakeChannel()
	c.nacking, c.mayNack = make(chan struct{}), make(chan struct{})
	a := newAcks(c, 2, ackDelay)
	c.deliver(a, 3)
	var work sync.WaitGroup
	work.Go(func() { a.sendNack(1, true) })
	<-c.nacking
	work.Go(func() { a.collectAck(2); a.collectAck(3) })
	work.Go(a.flushAcks)
	close(c.mayNack)
	work.Wait()
	a.flushAcks()
	if !c.nacked[1] || c.acked[1] || len(c.wrong)+len(c.unacked) != 0 {
		t.Errorf("sent %q; nacked %v, acked %v, wrong %v", c.sent(), c.nacked, c.acked, c.wrong)
	}
}

// The broker learns each handler's decision about each delivery of a window, for any order of settling and
// from any goroutine.
func TestAcksTellTheTruth(t *testing.T) {
	t.Parallel()
	const window, total = 32, 4000
	c := newFakeChannel()
	a := newAcks(c, 5, ackDelay)
	nacks := map[uint64]bool{}
	room := make(chan struct{}, window)
	var handlers sync.WaitGroup
	for tag := uint64(1); tag <= total; tag++ {
		room <- struct{}{}
		c.deliver(a, 1)
		nack := rand.N(10) == 0
		nacks[tag] = nack
		handlers.Go(func() {
			defer func() { <-room }()
			if nack {
				a.sendNack(tag, true)
				return
			}
			a.collectAck(tag)
		})
		if rand.N(20) == 0 {
			handlers.Go(a.flushAcks)
		}
	}
	handlers.Wait()
	a.flushAcks()
	for tag, nack := range nacks {
		if c.nacked[tag] != nack || c.acked[tag] == nack {
			t.Errorf("delivery %d: broker has acked %t, nacked %t; want nacked %t", tag, c.acked[tag], c.nacked[tag], nack)
		}
	}
	for _, wrong := range c.wrong {
		t.Error(wrong)
	}
	if frames := len(c.sent()); frames >= total {
		t.Errorf("%d frames for %d deliveries", frames, total)
	}
}
