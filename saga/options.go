package saga

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// Options are what most callers leave alone. The zero value is usable.
type Options struct {
	Schema string // Postgres schema of instances, inbox and outbox; default: sagamill

	Patience      time.Duration // how long a step without a Deadline may go without a reply before it is stuck; default: 24 h
	Retention     time.Duration // how long instances are kept after their end, and with them the meaning of their keys; default: 30 days
	TimerPoll     time.Duration // longest pause between looks for deadlines that have passed; default: 250 ms
	TimerWorkers  int           // instances whose timers run at once; default: 4, at most 64
	HousekeepPoll time.Duration // pause between looks for instances that are silent, or ended long ago; default: 1 min

	// Partial lets Run start although there are live instances of versions that are not registered: another binary
	// finishes them. Default: Run returns an [UnfinishableError].
	Partial bool

	// NamedReplies refuses a reply whose step key does not name the step that its n stands for. It does so before
	// anything else in the reply is trusted, as Consumer.Verify does. With NamedReplies, a participant may answer for
	// the Steps of its signing.Sender only. Without it, a participant could answer for another's step and name its
	// step in the reply. Replies of [On] and [OnUndo] name their step; those of a nested saga are named saga- and its
	// name. Default: a reply may name any step.
	NamedReplies bool

	Consumer consumer.Options // of the consumer of replies, without its Schema, Wake and Logger

	Wake   func()       // called after a commit that put messages into the outbox, such as Relay.Wake; default: none
	Logger *slog.Logger // default: slog.Default()
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
