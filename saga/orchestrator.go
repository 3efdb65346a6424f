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
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testsignal"
	"github.com/sagamill/sagamill/outbox"
)

// Options are what most callers leave alone. The zero value is usable.
type Options struct {
	Schema string // Postgres schema of instances, inbox and outbox; default: sagamill

	Patience      time.Duration // how long a step without a Deadline may go without a reply before it is stuck; default: 24 h
	Retention     time.Duration // how long instances are kept after their end, and with them what their keys stand for; default: 30 days
	TimerPoll     time.Duration // longest pause between looks for deadlines that have passed; default: 250 ms
	TimerWorkers  int           // instances whose timers run at once; default: 4, at most 64
	HousekeepPoll time.Duration // pause between looks for instances that are silent, or ended long ago; default: 1 min

	// Partial lets Run begin although there are live instances of versions that are
	// not registered: another binary finishes them. Default: Run returns an [UnfinishableError].
	Partial bool

	// NamedReplies refuses a reply whose step key does not name the step that its n
	// stands for, before anything else that it says is believed, as Consumer.Verify refuses one.
	// With it a signing.Sender's Steps are the steps that a participant may answer for; without it,
	// the n of another's step under an own name would do. Replies of [On] and [OnUndo] name their
	// step, and those of a nested saga are named saga- and its name. Default: a reply may name
	// any step.
	NamedReplies bool

	Consumer consumer.Options // of the consumer of replies, without its Schema, Wake and Logger

	Wake   func()       // called after a commit that put messages into the outbox, such as Relay.Wake; default: none
	Logger *slog.Logger // default: slog.Default()
}

// An Orchestrator runs the instances of definitions: it takes replies and sees to
// deadlines. Any number of them, in any processes, may share schema and queues.
type Orchestrator struct {
	db       *pgxpool.Pool
	opts     Options
	sql      queries
	writer   *outbox.Writer
	consumer *consumer.Consumer
	flows    map[versionKey]*flow.Flow
	plans    []Plan // with those nested in them
	known    knownVersions
	lockWait time.Duration
	counters counters

	suspected time.Time // when the timers' goroutine has looked for suspects last

	signals struct {
		timed      testsignal.Signal[string] // key of an instance whose timer has run
		timerPass  testsignal.Signal[int]
		housekeept testsignal.Signal[int] // instances that are stuck now, and that were removed
	}
}

type versionKey struct {
	name    string
	version int
}

// knownVersions are the registered ones, as arguments of statements.
type knownVersions struct {
	names    []string
	versions []int32
	hashes   []string // of their plans, as instances remember them
}

// NewOrchestrator returns an Orchestrator of plans, which are [Definition]s: of a
// saga that has changed, every version that has live instances. Those nested in them are
// included. It starts nothing: call [Orchestrator.Run]. A nil opts means the
// defaults. An error names the plan or the option that cannot be used.
func NewOrchestrator(db *pgxpool.Pool, sub message.Subscriber, plans []Plan, opts *Options) (*Orchestrator, error) {
	if db == nil || len(plans) == 0 {
		return nil, errors.New("saga: NewOrchestrator needs a pool and at least one definition")
	}
	o := &Orchestrator{db: db, flows: map[versionKey]*flow.Flow{}, lockWait: lockWait}
	if opts != nil {
		o.opts = *opts
	}
	if err := o.opts.complete(); err != nil {
		return nil, fmt.Errorf("saga: %w", err)
	}
	o.sql = newQueries(o.opts.Schema)
	if o.opts.NamedReplies {
		o.opts.Consumer.Verify = o.verifyNames(o.opts.Consumer.Verify)
	}
	for _, p := range plans {
		if err := o.add(p); err != nil {
			return nil, err
		}
	}
	var err error
	if o.writer, err = outbox.NewWriter(&outbox.WriterOptions{Schema: o.opts.Schema}); err != nil {
		return nil, err
	}
	if o.consumer, err = consumer.New(db, sub, o.steps(), &o.opts.Consumer); err != nil {
		return nil, fmt.Errorf("saga: option Consumer: %w", err)
	}
	return o, nil
}

const maxTimerWorkers = 64

func (o *Options) complete() error {
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

func (o *Orchestrator) add(p Plan) error {
	if p == nil {
		return errors.New("saga: a definition is nil")
	}
	key := versionKey{p.Name(), p.Version()}
	if other, ok := o.flows[key]; ok {
		if other.Machine.Plan().Hash() != p.Hash() {
			return fmt.Errorf("saga: there are two definitions of %s, version %d", key.name, key.version)
		}
		return nil
	}
	o.flows[key] = p.Flow()
	o.plans = append(o.plans, p)
	o.known.names, o.known.versions = append(o.known.names, key.name), append(o.known.versions, int32(key.version))
	o.known.hashes = append(o.known.hashes, p.Flow().Hash)
	for _, child := range p.nested() {
		if err := o.add(child); err != nil {
			return err
		}
	}
	return nil
}

// steps are those of the consumer: two for each saga, whatever its versions.
func (o *Orchestrator) steps() []consumer.Step {
	var all []consumer.Step
	preparer := consumer.NewPreparer(o.prepare)
	seen := map[string]bool{}
	for _, name := range o.known.names {
		if seen[name] {
			continue
		}
		seen[name] = true
		replies, revocations := consumer.On(Topic(name), o.reply), consumer.On(Topic(name), o.revoke)
		replies.Type, revocations.Type = TypeReply, TypeRevoke
		all = append(all, o.step("saga-"+name, replies, preparer), o.step("revoke-"+name, revocations, preparer))
	}
	return all
}

// step returns one that is prepared with all others: they lock instances of the same sagas.
func (*Orchestrator) step(name string, in consumer.Input, preparer *consumer.Preparer) consumer.Step {
	return consumer.Step{Name: name, Action: in, MaxAttempts: replyAttempts, RetryCap: replyPause, Prepare: preparer}
}

// replyAttempts is how often a reply is tried: for about half a day, since an
// orchestrator that does not know the version yet may be on its way out.
const (
	replyAttempts = 1000
	replyPause    = time.Minute // the longest between two
)

// Topics returns the topics that Run subscribes to, sorted.
func (o *Orchestrator) Topics() []string { return o.consumer.Topics() }

// Ready reports whether Run has subscribed.
func (o *Orchestrator) Ready() bool { return o.consumer.Ready() }

// Consumer returns the consumer of replies, for its counters and its Handle. Its
// Run is part of the Orchestrator's.
func (o *Orchestrator) Consumer() *consumer.Consumer { return o.consumer }

// Run takes replies and sees to deadlines until ctx ends; what is in hand then is
// finished, as [consumer.Consumer.Run] does, and Run returns nil. It first registers
// the definitions, as soon as there is a database, and returns an [UnfinishableError] if there are live instances that it could not
// finish. Any other error is the consumer's, or says why the definitions cannot be registered.
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
	wg.Go(func() { o.runTimers(ctx) })
	wg.Go(func() { o.housekeep(ctx) })
	err := o.consumer.Run(ctx)
	stop()
	wg.Wait()
	return err
}
