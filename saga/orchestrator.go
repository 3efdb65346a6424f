package saga

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// An Orchestrator runs the instances of definitions: it takes replies and acts on deadlines. Any number of
// orchestrators, in any processes, may share schema and queues.
type Orchestrator struct {
	db       pg.Own
	sql      *statements
	opts     Options
	plans    *planSet
	consumer *consumer.Consumer
	receiver *receiver
	timers   *timers
	keeper   *housekeeper
	counters counters
}

// NewOrchestrator returns an Orchestrator of plans, which are [Definition]s: of a saga that has changed, every
// version that has live instances. The sagas nested in them are included. It starts nothing: call
// [Orchestrator.Run]. A nil opts means the defaults. An error names the plan or the option that cannot be used.
func NewOrchestrator(db *pgxpool.Pool, sub message.Subscriber, plans []Plan, opts *Options) (*Orchestrator, error) {
	if db == nil || len(plans) == 0 {
		return nil, errors.New("saga: NewOrchestrator needs a pool and at least one definition")
	}
	o := &Orchestrator{db: pg.NewOwn(db)}
	if opts != nil {
		o.opts = *opts
	}
	if err := o.opts.setDefaults(); err != nil {
		return nil, fmt.Errorf("saga: %w", err)
	}
	var err error
	if o.plans, err = newPlanSet(plans); err != nil {
		return nil, err
	}
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: o.opts.Schema})
	if err != nil {
		return nil, err
	}
	o.connectStages(writer)
	if o.opts.NamedReplies {
		o.opts.Consumer.Verify = o.receiver.verifyAfter(o.opts.Consumer.Verify)
	}
	if o.consumer, err = consumer.New(db, sub, o.receiver.consumerSteps(), &o.opts.Consumer); err != nil {
		return nil, fmt.Errorf("saga: option Consumer: %w", err)
	}
	return o, nil
}

// connectStages makes the stages: replies, timers and housekeeping all lead to the decider.
func (o *Orchestrator) connectStages(writer *outbox.Writer) {
	log := o.opts.Logger
	o.sql = newStatements(o.opts.Schema)
	d := &decider{counters: &o.counters, log: log}
	o.receiver = &receiver{
		db: o.db, sql: o.sql, plans: o.plans, decider: d, lockWait: lockWait, named: o.opts.NamedReplies, counters: &o.counters, log: log,
	}
	check := cmp.Or(o.opts.Consumer.ConnectionCheck, txguard.DefaultConnectionCheck)
	m := &mover{
		db: o.db, sql: o.sql, limitTransaction: txguard.BindConnectionCheck(txguard.LimitTransaction, check),
		plans: o.plans, decider: d, writer: writer, wake: o.opts.Wake, log: log,
	}
	o.timers = &timers{db: o.db, sql: o.sql, plans: o.plans, mover: m, log: log, poll: o.opts.TimerPoll, workers: o.opts.TimerWorkers}
	o.keeper = &housekeeper{
		db: o.db, sql: o.sql, plans: o.plans, mover: m, log: log,
		poll: o.opts.HousekeepPoll, patience: o.opts.Patience, retention: o.opts.Retention,
	}
}

// consumerSteps returns the steps of the consumer of replies: two for each saga, whatever its versions. One Preparer
// locks the instances for all of them.
func (r *receiver) consumerSteps() []consumer.Step {
	var all []consumer.Step
	preparer := consumer.NewPreparer(r.prepareBatch)
	seen := map[string]bool{}
	for _, name := range r.plans.names {
		if seen[name] {
			continue
		}
		seen[name] = true
		replies, revocations := consumer.On(Topic(name), r.takeReplyMessage), consumer.On(Topic(name), r.takeRevocation)
		replies.Type, revocations.Type = TypeReply, TypeRevoke
		for _, in := range []struct {
			step string
			consumer.Input
		}{{"saga-" + name, replies}, {"revoke-" + name, revocations}} {
			all = append(all, consumer.Step{
				Name: in.step, Action: in.Input, MaxAttempts: replyAttempts, RetryCap: replyPause, Prepare: preparer,
			})
		}
	}
	return all
}

// Topics returns the topics that Run subscribes to, sorted.
func (o *Orchestrator) Topics() []string { return o.consumer.Topics() }

// Ready reports whether Run has subscribed.
func (o *Orchestrator) Ready() bool { return o.consumer.Ready() }

// Consumer returns the consumer of replies, for its counters and its Handle. Its Run is part of the Orchestrator's.
func (o *Orchestrator) Consumer() *consumer.Consumer { return o.consumer }

// Run takes replies and acts on deadlines until ctx ends. Then it finishes the work that has begun, as
// [consumer.Consumer.Run] does, and returns nil. Run first registers the definitions, as soon as there is a database.
// It returns an [UnfinishableError] if there are live instances that it could not finish. Any other error is the
// consumer's, or says why the definitions cannot be registered.
func (o *Orchestrator) Run(ctx context.Context) error {
	if err := o.registerPatiently(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { o.timers.runTimerLoop(ctx) })
	wg.Go(func() { o.keeper.runHousekeeping(ctx) })
	err := o.consumer.Run(ctx)
	stop()
	wg.Wait()
	return err
}

// Options are settings that most callers leave at their defaults. The zero value is usable.
type Options struct {
	Schema string // PostgreSQL schema of instances, inbox and outbox; default: sagamill

	Patience      time.Duration // time for which a step waits for a reply if it has no Deadline, or has passed it with OnDeadline: Wait; then the step is stuck, unless a dead letter holds it; default: 24 h
	Retention     time.Duration // time for which an instance is kept after its end; during this time, Start with the same scope, key and incarnation returns this instance; default: 30 days
	TimerPoll     time.Duration // longest pause between two searches for deadlines that have passed; default: 250 ms
	TimerWorkers  int           // number of instances that the timers handle at the same time, for due deadlines, retries and postponed work; default: 4, at most 64
	HousekeepPoll time.Duration // pause between two searches for instances that wait longer than Patience, and for instances that ended longer ago than Retention; default: 1 min

	// With Partial, Run starts even if a live instance has a version of its saga that is not registered in this
	// process; a process with another binary must finish this instance. Default: Run returns an [UnfinishableError].
	Partial bool

	// With NamedReplies, the orchestrator refuses a reply if the step in its header x-idempotency-key is not the step
	// that the reply is about. It does so before anything else in the reply is trusted, as Consumer.Verify does. With
	// NamedReplies, a participant may answer for the Steps of its signing.Sender only. Without it, a participant could
	// answer for another's step and name its step in the reply. Replies of [On] and [OnUndo] name their step; those of
	// a nested saga are named saga- and its name. Default: a reply may name any step.
	NamedReplies bool

	Consumer consumer.Options // options of the consumer that receives replies; the orchestrator itself sets Consumer.Schema, Consumer.Wake and Consumer.Logger; its timers also use Consumer.ConnectionCheck

	Wake   func()       // Wake is called after a commit that wrote messages to the outbox; usually Wake is Relay.Wake; default: none
	Logger *slog.Logger // Logger gets errors of replies, of timers and of housekeeping; default: slog.Default()
}

const maxTimerWorkers = 64

// setDefaults fills in the defaults, and checks the options.
func (o *Options) setDefaults() error {
	o.Schema = cmp.Or(o.Schema, sqlschema.Default)
	o.Patience = cmp.Or(o.Patience, 24*time.Hour)
	o.Retention = cmp.Or(o.Retention, 30*24*time.Hour)
	o.TimerPoll = cmp.Or(o.TimerPoll, 250*time.Millisecond)
	o.TimerWorkers = cmp.Or(o.TimerWorkers, 4)
	o.HousekeepPoll = cmp.Or(o.HousekeepPoll, time.Minute)
	o.Logger = guard.Logger(cmp.Or(o.Logger, slog.Default()))
	if err := sqlschema.Check(o.Schema); err != nil {
		return fmt.Errorf("option Schema: %w", err)
	}
	switch {
	case o.Patience < time.Second:
		return fmt.Errorf("option Patience: %s is less than a second", o.Patience)
	case o.Retention < time.Hour:
		return fmt.Errorf("option Retention: %s is less than an hour", o.Retention)
	case o.TimerPoll < time.Millisecond:
		return fmt.Errorf("option TimerPoll: %s is less than a millisecond", o.TimerPoll)
	case o.TimerWorkers < 1 || o.TimerWorkers > maxTimerWorkers:
		return fmt.Errorf("option TimerWorkers: %d is not between 1 and %d", o.TimerWorkers, maxTimerWorkers)
	case o.HousekeepPoll < time.Millisecond:
		return fmt.Errorf("option HousekeepPoll: %s is less than a millisecond", o.HousekeepPoll)
	case o.Consumer.Schema != "" || o.Consumer.Wake != nil || o.Consumer.Logger != nil:
		return errors.New("option Consumer: Schema, Wake and Logger are those of the orchestrator")
	}
	o.Consumer.Schema, o.Consumer.Wake, o.Consumer.Logger = o.Schema, o.Wake, o.Logger
	return nil
}
