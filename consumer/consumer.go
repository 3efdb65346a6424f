package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"github.com/sagamill/sagamill/internal/drain"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testsignal"
	"github.com/sagamill/sagamill/outbox"
)

// A Consumer runs steps on the messages that a subscriber delivers, and on those that were parked. Any number of
// them, in any processes, may share schema and queues.
type Consumer struct {
	opts     Options
	sub      message.Subscriber
	steps    map[string]*Step
	topics   []string
	counters *counters
	signals  *signals
	grace    time.Duration // deafGrace
	ready    atomic.Bool   // Run has made every subscription

	router   *router
	receiver *receiver
	executor *executor
	settler  *settler
	retrier  *retrier
	outage   *outageWatch
}

// signals tell tests about events.
type signals struct {
	decided    testsignal.Signal[verdict]
	settled    testsignal.Signal[string] // message id of a delivery that was acked
	ranParked  testsignal.Signal[int64]
	parkedPass testsignal.Signal[int]
}

// A RedeliveryMarker is a subscriber that sets [outbox.PropertyRedelivered] on messages that may have been delivered
// before, as those of packages rabbitmq and inproc do. With any other subscriber every entry into a handler is
// counted in a separate commit. So a message that kills the process cannot do so for ever.
type RedeliveryMarker interface{ MarksRedelivered() bool }

// A SubscriptionTeller is a subscriber that knows the state of its subscriptions, as that of package rabbitmq:
// whether messages of topic are delivered at present, and how often the broker has ended a subscription, as when its
// queue was deleted. [Counters] show it.
type SubscriptionTeller interface {
	Subscription(topic string) (served bool, cancelled uint64)
}

// New returns a Consumer of steps. It starts nothing: call [Consumer.Run]. A nil opts means the defaults. With a nil
// sub, Run only runs parked messages: deliveries come by [Consumer.Handle]. An error names the step or the option
// that cannot be used. Two steps cannot take the same type from the same topic, since one delivery has one ack: give
// each a consumer with its own queue.
func New(db *pgxpool.Pool, sub message.Subscriber, steps []Step, opts *Options) (*Consumer, error) {
	if db == nil || len(steps) == 0 {
		return nil, errors.New("consumer: New needs a pool and at least one step")
	}
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if err := o.completeOptions(); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: o.Schema})
	if err != nil {
		return nil, err
	}
	c := &Consumer{opts: o, sub: sub, steps: map[string]*Step{}, counters: newCounters(), signals: &signals{}, grace: deafGrace}
	routes := map[routeKey]route{}
	for _, s := range steps {
		if err := c.addStep(routes, s); err != nil {
			return nil, fmt.Errorf("consumer: %w", err)
		}
	}
	marker, ok := sub.(RedeliveryMarker)
	c.connectStages(db, writer, routes, ok && marker.MarksRedelivered())
	return c, nil
}

// connectStages makes the stages. Each one knows those behind it, and none before it.
func (c *Consumer) connectStages(db *pgxpool.Pool, writer *outbox.Writer, routes map[routeKey]route, marked bool) {
	o := &c.opts
	sql, retention := newQueries(o.Schema, o.ConnectionCheck), newRetentionQueries(o.Schema)
	reporter := &reporter{observer: o.Observer, log: o.Logger, counters: c.counters}
	c.outage = newOutageWatch(c.sub, c.topics, db, o.Logger)
	database := &database{db: pg.NewOwn(db), sql: sql, outage: c.outage}
	retries := make(chan struct{}, 1)
	c.settler = &settler{
		sql: sql, retention: retention, outbox: writer, wake: o.Wake, retries: retries, signals: c.signals,
		database: database, reporter: reporter,
	}
	handlers := &handlers{reporter: reporter}
	c.executor = &executor{
		sql: sql, marked: marked, batchSize: o.BatchSize, batchTime: o.BatchTime, slots: semaphore.NewWeighted(exclusiveWeight), signals: c.signals,
		claimer: &claimer{sql: sql, retention: retention, database: database}, handlers: handlers, settler: c.settler,
		effects: &effects{
			sql: sql, effectSQL: newEffectQueries(o.Schema), effectMargin: effectMargin,
			handlers: handlers, settler: c.settler, database: database, reporter: reporter,
		},
		database: database, outage: c.outage, reporter: reporter,
	}
	c.receiver = &receiver{routes: routes, formats: knownFormats, open: o.Open, verifier: o.Verify, identity: o.Identity, maxPayload: o.MaxPayload}
	c.router = &router{
		routes: routes, batchSize: o.BatchSize, batchTime: o.BatchTime,
		receiver: c.receiver, executor: c.executor, settler: c.settler, outage: c.outage, reporter: reporter,
	}
	names := slices.Sorted(maps.Keys(c.steps))
	c.retrier = &retrier{
		steps: c.steps, stepNames: names, sql: sql, lease: parkedLease, workers: o.ParkedWorkers, poll: o.ParkedPoll, retries: retries, signals: c.signals,
		ordered:  slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !c.steps[name].Ordered }),
		receiver: c.receiver, executor: c.executor, settler: c.settler, database: database, reporter: reporter,
	}
}

// addStep completes s and adds its routes and its topics.
func (c *Consumer) addStep(routes map[routeKey]route, s Step) error {
	s, err := s.withDefaults()
	if err != nil {
		return err
	}
	if c.steps[s.Name] != nil {
		return fmt.Errorf("step %q is given twice", s.Name)
	}
	c.steps[s.Name] = &s
	c.counters.addStep(s.Name)
	seen := &stepLoad{}
	for k, in := range map[kind]Input{action: s.Action, compensation: s.Compensation} {
		if in.decode == nil {
			continue
		}
		key := routeKey{in.Topic, cmp.Or(in.Type, in.Topic)}
		if other, taken := routes[key]; taken {
			return fmt.Errorf("steps %q and %q both take type %q from topic %q", other.step.Name, s.Name, key.typ, key.topic)
		}
		routes[key] = route{step: &s, kind: k, input: in, load: seen}
		if !slices.Contains(c.topics, in.Topic) {
			c.topics = append(c.topics, in.Topic)
		}
	}
	slices.Sort(c.topics)
	return nil
}

// Topics returns the topics that the steps listen to, sorted.
func (c *Consumer) Topics() []string { return slices.Clone(c.topics) }

// Run subscribes to the topics of the steps and handles their messages until ctx ends. Then it takes in no more,
// nacks what has not begun, finishes what has, within DrainTimeout, and returns nil. It returns an error if a
// subscription cannot be made or ends too early. It also returns an error if a handler still runs after DrainTimeout
// although its context has ended: that goroutine and its transaction are left behind.
func (c *Consumer) Run(caller context.Context) error {
	ctx, stop := context.WithCancelCause(caller)
	defer stop(nil)
	work, cancel := drain.Context(ctx, c.opts.DrainTimeout)
	defer cancel()

	var lanes, intake sync.WaitGroup
	board := newBoard(&c.opts, len(c.steps), c.outage)
	for range c.opts.Lanes {
		c.router.startLane(&lanes, ctx, work, board)
	}
	intake.Go(func() { c.retrier.runLoop(ctx, work) }) // parked messages need no broker
	intake.Go(func() { c.outage.runLoop(ctx, board) })
	for _, topic := range c.subscribedTopics() {
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
			c.router.receiveTopic(ctx, topic, deliveries, board)
			stop(fmt.Errorf("consumer: the subscription to %s ended by itself", topic))
		})
	}
	c.ready.Store(ctx.Err() == nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		intake.Wait()
		board.closeBoard()
		lanes.Wait()
	}()
	<-ctx.Done()
	c.ready.Store(false)
	return errors.Join(endCause(caller, ctx), c.awaitEnd(ended))
}

// subscribedTopics returns the topics that Run subscribes to.
func (c *Consumer) subscribedTopics() []string {
	if c.sub == nil {
		return nil
	}
	return c.topics
}

// endCause returns why Run ended, nil if the caller ended it.
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

// Ready reports whether Run has made all its subscriptions and still holds them. It is false while the queues are handed
// over because the database is lost: see [Pauser]. It does not notice a broker that is gone since: the subscriber knows
// that.
func (c *Consumer) Ready() bool { return c.ready.Load() && !c.outage.isPaused() }

// Handle runs the step to which msg belongs. With it a Consumer fits a watermill Router, its middleware, or a loop
// of the caller. After nil, msg may be acked: its effect, its parked copy or its dead letter has committed. After an
// error nothing is decided, and msg must be delivered again.
//
// Run must run too, in some process, so that parked messages run again. If the deliveries come from a Router, call
// Run of a Consumer without a subscriber: else it would consume beside the Router. A message that is given to Handle
// has a transaction without others. If nothing can be decided now, Handle returns the error at once, and the caller
// decides when to call it again.
func (c *Consumer) Handle(ctx context.Context, topic string, msg *message.Message) error {
	m, rejected, err := c.receiver.receive(topic, msg)
	if err != nil {
		return err
	}
	if rejected != nil {
		return sqlschema.Explain(c.settler.storeRejected(ctx, topic, msg, rejected))
	}
	a := newAttempt(m)
	if err := c.executor.executeAttempt(ctx, a); err != nil {
		return sqlschema.Explain(err)
	}
	c.settler.wakeAfterCommit(a)
	return nil
}

// HandlerFunc returns [Consumer.Handle] for topic as a watermill handler.
func (c *Consumer) HandlerFunc(topic string) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error { return c.Handle(msg.Context(), topic, msg) }
}

// headerReader is a receiver without steps. It reads headers and knows no type.
var headerReader = &receiver{maxPayload: math.MaxInt, formats: knownFormats}

// Inspect reads a stored message as c reads it when the message is redriven, and reports the result. It calls the
// decoder of the step, and Options.Verify for a message that was never verified. It enters no handler and changes
// nothing. A nil Consumer reads headers alone. Package operator previews redrives with it.
func (c *Consumer) Inspect(stored inbox.StoredMessage) inbox.Reading {
	row := &parkedRow{
		Kind: stored.Kind, Scope: stored.Scope, Key: stored.Key, Step: stored.Step, N: stored.N, Topic: stored.Topic, MessageID: []byte(stored.ID),
		Payload: stored.Payload, Digest: stored.Digest, Reason: Reason(stored.Reason),
	}
	row.HeaderNames, row.HeaderValues = headerColumns(stored.Headers)
	switch {
	case c == nil:
		return inspectHeaders(row)
	case !c.takes(row):
		return inbox.Reading{}
	}
	m, rejected := c.retrier.readAgain(row, row.message())
	if rejected != nil {
		cancels := row.Kind != unread && c.steps[row.Step].CancelParked
		return inbox.Reading{Taken: true, CancelParked: cancels, Err: fmt.Errorf("%s: %w", rejected.reason, rejected.err)}
	}
	return inbox.Reading{
		Taken: true, CancelParked: m.step.CancelParked,
		Kind: m.kind, Identity: inbox.Identity{Scope: m.Scope, Key: m.Key, Step: m.Step, N: m.joinedN()}, Digest: m.digest,
	}
}

// inspectHeaders reads row without any step: every type is unknown, which is no error here.
func inspectHeaders(row *parkedRow) (r inbox.Reading) {
	if _, rejected := headerReader.readMessage(row.Topic, row.message()); rejected.reason != ReasonTypeUnknown {
		r.Err = fmt.Errorf("%s: %w", rejected.reason, rejected.err)
	}
	return r
}

// takes reports whether c retries row when row is redriven.
func (c *Consumer) takes(row *parkedRow) bool {
	if row.Kind == unread {
		return slices.Contains(c.topics, row.Topic)
	}
	return c.steps[row.Step] != nil
}
