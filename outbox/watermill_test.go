package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A publisherFunc is a watermill publisher of one message at a time.
type publisherFunc func(*message.Message) error

func (f publisherFunc) Publish(_ string, messages ...*message.Message) error { return f(messages[0]) }
func (publisherFunc) Close() error                                           { return nil }

var errNo = errors.New("no")

// publications returns n whose payloads are their numbers, from 0.
func publications(n int) []Publication {
	batch := make([]Publication, n)
	for i := range batch {
		batch[i] = Publication{Topic: "t", Message: message.NewMessage(fmt.Sprint("id", i), fmt.Append(nil, i))}
	}
	return batch
}

// Several calls are under way. Those of all batches of a topic together are three quarters
// of what the option allows.
func TestAWatermillPublisherIsCalledSoManyTimesAtOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ concurrency, want int }{{0, 12}, {1, 1}, {5, 4}, {-1, 1}, {1000, 192}} {
		synctest.Test(t, func(t *testing.T) {
			var now, most atomic.Int64
			pub := FromWatermill(publisherFunc(func(*message.Message) error {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Second) // until no other call can begin
				now.Add(-1)
				return nil
			}), &WatermillOptions{Concurrency: tt.concurrency})
			var lanes sync.WaitGroup
			for range 3 {
				lanes.Go(func() {
					for i, err := range pub.PublishBatch(t.Context(), publications(100)) {
						if err != nil {
							t.Errorf("message %d: %v", i, err)
						}
					}
				})
			}
			lanes.Wait()
			if got := int(most.Load()); got != tt.want {
				t.Errorf("Concurrency %d: %d calls at once, want %d", tt.concurrency, got, tt.want)
			}
		})
	}
}

// The broker counts as away after three errors in a row: the calls that are under
// way then are the last. A refusal is an answer.
func TestAWatermillPublisherThatIsAwayIsNotAskedForEachMessage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		concurrency, most int
		err               error
	}{
		{1, awayAfter, errNo},
		{4, awayAfter + 4 - 1, errNo},
		{4, 50, fmt.Errorf("too large: %w", ErrRefused)},
	} {
		var asked atomic.Int64
		pub := FromWatermill(publisherFunc(func(*message.Message) error { asked.Add(1); return tt.err }), &WatermillOptions{Concurrency: tt.concurrency})
		for range 500 { // whether an answer or a free call comes first is a matter of luck
			asked.Store(0)
			for i, err := range pub.PublishBatch(t.Context(), publications(50)) {
				if !errors.Is(err, tt.err) {
					t.Fatalf("message %d: %v, want %v", i, err, tt.err)
				}
			}
			if got := int(asked.Load()); got < awayAfter || got > tt.most || tt.most == 50 && got != 50 {
				t.Fatalf("Concurrency %d, %v: asked %d times, want at most %d", tt.concurrency, tt.err, got, tt.most)
			}
		}
	}
}

// Each result is that of its own message, whatever the order of the answers.
func TestResultsOfAWatermillPublisherAreInTheOrderOfTheBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pub := FromWatermill(publisherFunc(func(m *message.Message) error {
			n := int(m.Payload[0] - '0')
			time.Sleep(time.Duration(10-n) * time.Second)
			switch n {
			case 3:
				return errNo
			case 5:
				panic("cannot marshal")
			case 7:
				runtime.Goexit()
			}
			return nil
		}), nil)
		for i, err := range pub.PublishBatch(t.Context(), publications(10)) {
			want := map[int]error{3: errNo, 5: ErrRefused, 7: errNoAnswer}[i]
			if !errors.Is(err, want) {
				t.Errorf("message %d: %v, want %v", i, err, want)
			}
		}
	})
}

// A call that does not heed its context is left behind, and its slot with it.
func TestAHangingWatermillPublisherDoesNotHoldUpTheRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var asked atomic.Int64
		pub := FromWatermill(publisherFunc(func(m *message.Message) error {
			asked.Add(1)
			if string(m.Payload) != "1" {
				return nil
			}
			if _, limited := m.Context().Deadline(); !limited {
				t.Error("the message has not the context of its batch")
			}
			<-answer
			return nil
		}), &WatermillOptions{Concurrency: 2})
		batch := func() []error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return pub.PublishBatch(ctx, publications(3))
		}
		for i, err := range batch() {
			if want := map[int]error{1: context.DeadlineExceeded}[i]; !errors.Is(err, want) {
				t.Errorf("message %d: %v, want %v", i, err, want)
			}
		}
		for i, err := range batch() { // one call is left, and then none
			if want := map[int]error{1: context.DeadlineExceeded, 2: context.DeadlineExceeded}[i]; !errors.Is(err, want) {
				t.Errorf("message %d, the second time: %v, want %v", i, err, want)
			}
		}
		if got := asked.Load(); got != 5 {
			t.Errorf("asked %d times, want 5", got)
		}
		close(answer)
		synctest.Wait()
		for i, err := range batch() {
			if err != nil {
				t.Errorf("message %d, after the broker is back: %v", i, err)
			}
		}
	})
}

// Calls of one topic that hang leave some to the other topics. When all that the topic may
// have hang, its messages are deferred at once, until a call returns.
func TestHangingCallsOfATopicLeaveSomeToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		pub := FromWatermill(topicPublisherFunc(func(topic string) error {
			if topic == "red" {
				<-answer
			}
			return nil
		}), &WatermillOptions{Concurrency: 4})
		publish := func(topic string) []error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			batch := publications(10)
			for i := range batch {
				batch[i].Topic = topic
			}
			return pub.PublishBatch(ctx, batch)
		}
		for _, step := range []struct {
			topic string
			want  error
		}{{"red", context.DeadlineExceeded}, {"blue", nil}, {"red", ErrDeferred}, {"blue", nil}} {
			for i, err := range publish(step.topic) {
				if !errors.Is(err, step.want) {
					t.Fatalf("message %d of %s: %v, want %v", i, step.topic, err, step.want)
				}
			}
		}
		close(answer)
		synctest.Wait()
		for i, err := range publish("red") {
			if err != nil {
				t.Errorf("message %d after the calls have returned: %v", i, err)
			}
		}
	})
}

// A topicPublisherFunc is a watermill publisher.
type topicPublisherFunc func(topic string) error

func (f topicPublisherFunc) Publish(topic string, _ ...*message.Message) error { return f(topic) }
func (topicPublisherFunc) Close() error                                        { return nil }

// poisonedPublisher fails over one payload, as watermill publishers do: with any
// error.
type poisonedPublisher struct {
	mu   sync.Mutex
	sent []string
}

func (p *poisonedPublisher) Publish(_ string, messages ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range messages {
		if string(m.Payload) == "poison" {
			return errNo
		}
		p.sent = append(p.sent, string(m.Payload))
	}
	return nil
}
func (*poisonedPublisher) Close() error { return nil }

// A message that never gets through while others do is refused in the end, and
// goes the way of a refused one.
func TestAPoisonMessageOfAWatermillPublisherIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pub := &poisonedPublisher{}
	r, err := NewRelay(f.pool, FromWatermill(pub, nil), &RelayOptions{Schema: f.schema, Lanes: 2, MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	f.write(t, msg("a", "poison"), msg("a", "behind"))
	r.signals.rested.Enable()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	written := 0
	for f.stats(t, r).Dead == 0 { // with nothing else to publish it could be the broker
		f.write(t, msg(fmt.Sprint("k", written), "other"))
		written++
		r.signals.rested.Wait(t)
	}
	for f.stats(t, r) != (counts{Dead: 1}) {
		r.signals.rested.Wait(t)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
	if !slices.Contains(pub.sent, "behind") || len(pub.sent) != written+1 {
		t.Errorf("published %q, want %d others and the one behind the poison", pub.sent, written)
	}
	if s := f.stats(t, r); s != (counts{Dead: 1}) {
		t.Errorf("left over: %+v, want the poison", s)
	}
	var reason string
	if err := f.pool.QueryRow(t.Context(), "SELECT reason FROM "+f.schema+".outbox_held").Scan(&reason); err != nil || reason != fmt.Errorf("%w: %w", errUnknown, errNo).Error() {
		t.Errorf("reason %q, %v; want the publisher's error", reason, err)
	}
}
