package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// maxStrikes is after how many strikes a message counts as refused, because it breaks the
// connection. A strike is an unknown outcome of a message that was sent alone, while others of its
// topic got through.
const maxStrikes = 3

// errUnknown is the refusal of such a message.
var errUnknown = fmt.Errorf("%w: its outcome was unknown %d times while others of its topic were published", ErrRefused, maxStrikes)

// A suspicion is what a lane remembers of a suspect that it has given back.
type suspicion struct {
	strikes  int
	progress uint64
}

// takeResults decides the messages that the broker has answered for. If it has not answered for
// each message, the flow backs off.
func (l *lane) takeResults(ctx context.Context, c *call) {
	l.calls--
	c.flow.calling = false
	unknown := l.decideResults(c)
	l.dropDecided()
	switch {
	case unknown == nil:
		c.flow.failures = 0
		c.flow.adaptSize(c.took)
	case ctx.Err() == nil:
		l.backOff(ctx, c.flow, unknown)
	}
	if len(l.flows) > maxTopics {
		l.forgetIdleFlows()
	}
}

// adaptSize doubles the size of the next call, or halves it after a call that took long: short
// calls are not taken for calls that hang.
func (f *flow) adaptSize(took time.Duration) {
	if took > stallPatience/2 {
		f.size = max(1, f.size/2)
		return
	}
	f.size = min(2*f.size, laneBatch)
}

// forgetIdleFlows forgets the flows in their initial state.
func (l *lane) forgetIdleFlows() {
	for topic, f := range l.flows {
		if !f.calling && f.failures == 0 {
			delete(l.flows, topic)
		}
	}
}

// decideResults decides the messages of c. It returns an error of those that it cannot decide.
func (l *lane) decideResults(c *call) (unknown error) {
	for i, m := range c.wave {
		delete(l.busy, m.key)
		switch err := c.results[i]; {
		case err == nil:
			l.decideItem(m, published)
		case errors.Is(err, ErrRefused):
			l.refuseItem(m, err)
		case l.topics.isStalled(m.Topic):
			l.deferItem(m, err)
		case errors.Is(err, ErrDeferred) && (len(c.wave) == 1 || slices.ContainsFunc(c.results, isNilError)):
			unknown = err
			l.deferItem(m, err) // others of the topic may get through
		default:
			unknown = err
			l.handleUnknown(m, err, len(c.wave) == 1)
		}
	}
	return unknown
}

func isNilError(err error) bool { return err == nil }

// handleUnknown deals with a message whose outcome is not known.
func (l *lane) handleUnknown(m *item, err error, alone bool) {
	if alone {
		l.countStrike(m, err)
	}
	if m.held && m.outcome == undecided {
		l.giveBackItem(m)
	}
}

// refuseItem leaves the decision about later messages of the key to the database, which holds
// them with this one. For a dead message that is until the death is noted. If the relay dies
// before, the next one sends the message again.
func (l *lane) refuseItem(m *item, err error) {
	m.refusal = err
	m.dead = m.Attempts+1 >= l.opts.MaxAttempts
	l.blocked[m.key] = block{m.ID, m.page.seq}
	l.decideItem(m, refused)
}

// deferItem keeps m aside, without an attempt spent, and later messages of its key with it.
func (l *lane) deferItem(m *item, err error) {
	m.refusal = err
	l.blocked[m.key] = block{m.ID, m.page.seq}
	l.decideItem(m, deferred)
}

// countStrike counts an unknown outcome against m if others of its topic have got through since
// the last one. Then the broker and the topic's queues are there.
func (l *lane) countStrike(m *item, err error) {
	if through := l.topics.throughOf(m.Topic); m.strikes == 0 || through != m.progress {
		m.strikes, m.progress = m.strikes+1, through
	}
	if m.strikes >= maxStrikes {
		l.refuseItem(m, fmt.Errorf("%w: %w", errUnknown, err))
	}
}

// giveBackItem leaves a held message where it is, due, and later messages of its key with it. If
// it waited for its outcome here, other due messages would not be read.
func (l *lane) giveBackItem(m *item) {
	l.blocked[m.key] = block{m.ID, m.page.seq}
	if m.strikes > 0 {
		l.suspects[m.ID] = suspicion{m.strikes, m.progress}
	}
	l.decideItem(m, skipped)
}

// backOff makes a flow wait for the broker. Its next call has one message, if possible another
// one than the last. That tells an absent broker from a message that breaks the connection.
func (l *lane) backOff(ctx context.Context, f *flow, failure error) {
	f.failures++
	f.size = 1
	f.restUntil = time.Now().Add(failurePolicy.Wait(f.failures))
	l.moveSuspectBack(f.topic)
	level := slog.LevelError
	if !l.topics.mayComplain(time.Now()) {
		level = slog.LevelDebug // other lanes and topics meet the same broker
	}
	l.opts.Logger.Log(ctx, level, "outbox: the broker has not taken all messages, trying again",
		"schema", l.opts.Schema, "topic", f.topic, "failures", f.failures, "error", failure)
	l.signals.rested.Send(failure)
}

// moveSuspectBack moves the first message of a topic to the end if it is a suspect, with the
// messages behind it in its key.
func (l *lane) moveSuspectBack(topic string) {
	i := slices.IndexFunc(l.pending, func(m *item) bool { return m.Topic == topic })
	if i < 0 || l.pending[i].strikes == 0 {
		return
	}
	key := l.pending[i].key
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
