package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"github.com/sagamill/sagamill/internal/drain"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testsignal"
	"github.com/sagamill/sagamill/outbox"
)

// A Consumer runs steps on what a subscriber delivers, and on what they have
// parked. Any number of them, in any processes, may share schema and queues.
type Consumer struct {
	db        *pgxpool.Pool
	sub       message.Subscriber
	outbox    *outbox.Writer
	opts      Options
	counters  *counters
	sql       queries
	retention retentionQueries
	effectSQL effectQueries
	steps     map[string]*Step
	stepNames []string
	ordered   []string // those of them that are Ordered
	routes    map[routeKey]route
	topics    []string
	lease     time.Duration       // parkedLease
	grace     time.Duration       // deafGrace
	formats   []string            // knownFormats
	marked    bool                // the subscriber marks redeliveries
	ready     atomic.Bool         // Run has made every subscription
	company   *semaphore.Weighted // held while handlers run: see joinCompany

	effectMargin time.Duration // effectMargin

	signals struct {
		decided    testsignal.Signal[verdict]
		settled    testsignal.Signal[string] // message id of a delivery that was acked
		ranParked  testsignal.Signal[int64]
		parkedPass testsignal.Signal[int]
	}
}

// A RedeliveryMarker is a subscriber that sets [outbox.PropertyRedelivered] on
// messages that may have been delivered before, as those of packages rabbitmq
// and inproc do. With any other subscriber every entry into a handler is counted
// in a commit of its own, so that a message which kills the process cannot do so
// for ever.
type RedeliveryMarker interface{ MarksRedelivered() bool }

// A SubscriptionTeller is a subscriber that knows how its subscriptions do, as that of
// package rabbitmq: whether messages of topic are delivered at present, and how often the
// broker has ended a subscription by itself, as when its queue was deleted. What it
// tells is in [Counters].
type SubscriptionTeller interface {
	Subscription(topic string) (served bool, cancelled uint64)
}

// New returns a Consumer of steps. It starts nothing: call [Consumer.Run]. A
// nil opts means the defaults. With a nil sub, Run only runs parked messages:
// deliveries come by [Consumer.Handle]. An error names the step or the option that
// cannot be used; two steps cannot take the same type from the same topic,
// since one delivery has one ack: give each a consumer with its own queue.
func New(db *pgxpool.Pool, sub message.Subscriber, steps []Step, opts *Options) (*Consumer, error) {
	if db == nil || len(steps) == 0 {
		return nil, errors.New("consumer: New needs a pool and at least one step")
	}
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: o.Schema})
	if err != nil {
		return nil, err
	}
	c := &Consumer{
		db: db, sub: sub, outbox: writer, opts: o, counters: newCounters(), company: semaphore.NewWeighted(everybody), sql: newQueries(o.Schema), retention: newRetentionQueries(o.Schema),
		steps: map[string]*Step{}, routes: map[routeKey]route{}, lease: parkedLease, grace: deafGrace, formats: knownFormats,
		effectSQL: newEffectQueries(o.Schema), effectMargin: effectMargin,
	}
	if marker, ok := sub.(RedeliveryMarker); ok {
		c.marked = marker.MarksRedelivered()
	}
	for _, s := range steps {
		if err := c.add(s); err != nil {
			return nil, fmt.Errorf("consumer: %w", err)
		}
	}
	c.stepNames = slices.Sorted(maps.Keys(c.steps))
	c.ordered = slices.DeleteFunc(slices.Clone(c.stepNames), func(name string) bool { return !c.steps[name].Ordered })
	return c, nil
}

func (c *Consumer) add(s Step) error {
	s, err := s.withDefaults()
	if err != nil {
		return err
	}
	if c.steps[s.Name] != nil {
		return fmt.Errorf("step %q is given twice", s.Name)
	}
	c.steps[s.Name] = &s
	c.counters.add(s.Name)
	seen := &traffic{}
	for k, in := range map[kind]Input{action: s.Action, compensation: s.Compensation} {
		if in.decode == nil {
			continue
		}
		key := routeKey{in.Topic, cmp.Or(in.Type, in.Topic)}
		if other, taken := c.routes[key]; taken {
			return fmt.Errorf("steps %q and %q both take type %q from topic %q", other.step.Name, s.Name, key.typ, key.topic)
		}
		c.routes[key] = route{step: &s, kind: k, input: in, traffic: seen}
		if !slices.Contains(c.topics, in.Topic) {
			c.topics = append(c.topics, in.Topic)
		}
	}
	slices.Sort(c.topics)
	return nil
}

// Topics returns the topics that the steps listen to, sorted.
func (c *Consumer) Topics() []string { return slices.Clone(c.topics) }

// Run subscribes to the topics of the steps and handles what comes, until ctx
// ends. Then it takes nothing more in, gives back what has not begun, finishes
// what has, for DrainTimeout at the most, and returns nil. It returns an error
// if a subscription cannot be made, or ends by itself, or if a handler still runs
// after DrainTimeout although its context has ended: that goroutine is left
// behind, and its transaction with it.
func (c *Consumer) Run(caller context.Context) error {
	ctx, stop := context.WithCancelCause(caller)
	defer stop(nil)
	work, cancel := drain.Context(ctx, c.opts.DrainTimeout)
	defer cancel()

	var lanes, intake sync.WaitGroup
	board := newBoard(&c.opts, len(c.steps))
	for range c.opts.Lanes {
		c.keepLane(&lanes, ctx, work, board)
	}
	intake.Go(func() { c.runParked(ctx, work) }) // parked messages need no broker
	for _, topic := range c.subscribed() {
		var deliveries <-chan *message.Message
		err := guard.Call(func() (err error) {
			deliveries, err = c.sub.Subscribe(ctx, topic)
			return err
		})
		if err != nil {
			stop(fmt.Errorf("consumer: subscribe to %s: %w", topic, err))
			break
		}
		intake.Go(func() {
			c.distribute(ctx, topic, deliveries, board)
			stop(fmt.Errorf("consumer: the subscription to %s ended by itself", topic))
		})
	}
	c.ready.Store(ctx.Err() == nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		intake.Wait()
		board.close()
		lanes.Wait()
	}()
	<-ctx.Done()
	c.ready.Store(false)
	return errors.Join(endCause(caller, ctx), c.awaitEnd(ended))
}

// subscribed returns the topics that Run subscribes to.
func (c *Consumer) subscribed() []string {
	if c.sub == nil {
		return nil
	}
	return c.topics
}

// endCause returns why Run ended, nil if the caller wanted it to.
func endCause(caller, ctx context.Context) error {
	if caller.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// awaitEnd waits for all that Run has started.
func (c *Consumer) awaitEnd(ended <-chan struct{}) error {
	timer := time.NewTimer(c.opts.DrainTimeout + c.grace)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("consumer: a handler still runs %s after its context has ended", c.grace)
	}
}

// Ready reports whether Run has made all its subscriptions and still holds
// them. It says nothing about a broker that went away since: that is the
// subscriber's to know.
func (c *Consumer) Ready() bool { return c.ready.Load() }

// Handle runs the step that msg belongs to, so that a Consumer fits a watermill
// Router, its middleware, or any loop of the caller's own. After nil, msg may
// be acked: its effect, its parked copy or its dead letter has committed. After
// an error nothing is decided, and msg must be delivered again.
//
// Run must run too, somewhere, for parked messages to be run again: where the
// deliveries come from a Router, in a Consumer that has no subscriber, or it would
// consume beside the Router. A message that is given to Handle has a transaction of its own.
// What cannot be decided now is an error at once: when it is given to Handle again is the caller's to say.
func (c *Consumer) Handle(ctx context.Context, topic string, msg *message.Message) error {
	j, rejected, err := c.accept(topic, msg)
	if err != nil {
		return err
	}
	if rejected != nil {
		return sqlschema.Explain(c.bury(ctx, topic, msg, rejected))
	}
	if err := c.handle(ctx, j); err != nil {
		return sqlschema.Explain(err)
	}
	c.committed(j)
	return nil
}

// HandlerFunc returns [Consumer.Handle] for topic as a watermill handler.
func (c *Consumer) HandlerFunc(topic string) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error { return c.Handle(msg.Context(), topic, msg) }
}
