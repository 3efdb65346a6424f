package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
)

const (
	// stalledHold is after how long a message that waits for its stalled topic is due if nothing
	// has resumed the topic. Every tenure begins by making all of them due, except a tenure of an
	// older release's relay, which knows nothing of stalled topics.
	stalledHold = 30 * time.Second

	// probeTimeout bounds the first probe of a stall. It doubles with each vain probe, up to
	// PublishTimeout: a message may take long.
	probeTimeout = 2 * time.Second

	// resumeRows is how many messages of a topic are made due at once when it resumes.
	resumeRows = 1000
)

// deferralPolicy spaces the tries of a message that was deferred while others of its topic got
// through.
var deferralPolicy = backoff.Policy{Base: 2 * time.Second, Cap: 2 * time.Second}

// deferralOf returns after how long a deferred message of a topic is due again.
func (s *core) deferralOf(topic string) time.Duration {
	if !s.topics.isStalled(topic) {
		return deferralPolicy.Wait(1)
	}
	return stalledHold
}

// A topicProber probes stalled topics, and makes their messages due once a probe is answered.
type topicProber struct {
	*core
	epoch     int64
	resumeAll bool            // messages that an earlier tenure deferred must still be made due
	probing   *sync.WaitGroup // of goroutines that send probes
}

// sendProbes probes the stalled topics whose turn it is, in goroutines, and calls done after
// each. unsettled reports whether messages of a topic are on their way into outbox_held.
func (p *topicProber) sendProbes(ctx context.Context, unsettled func(topic string) bool, done func()) {
	for _, due := range p.topics.takeDueProbes() {
		due.unsettled = unsettled(due.topic) // before the probe looks for a message
		p.probing.Go(func() {
			p.sendProbe(ctx, due)
			done()
		})
	}
}

// sendProbe publishes a message that waits because its topic stalls. Without such a message the
// topic counts as reached, unless one is to come: the next message tells.
func (p *topicProber) sendProbe(ctx context.Context, due probe) {
	reading, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var rows []row
	err := guard.Call(func() error {
		return p.queryByIndex(reading, appendRows(&rows, scanHeldRow), p.sql.fetchProbe, due.topic, due.after)
	})
	if err != nil {
		p.opts.Logger.WarnContext(ctx, "outbox: cannot read a message to probe a stalled topic with; it is tried again later", "schema", p.opts.Schema, "topic", due.topic, "error", err)
		p.topics.noteProbe(due.topic, due.after, nil, false)
		return
	}
	if len(rows) == 0 && due.unsettled {
		p.topics.postponeProbe(due.topic)
		return
	}
	if len(rows) == 0 {
		p.topics.noteProbe(due.topic, 0, nil, true)
		return
	}
	sending, cancel := context.WithTimeout(ctx, min(probeTimeout<<min(due.vain, 16), p.opts.PublishTimeout))
	defer cancel()
	err = sender{p.core}.publishWave(sending, []*item{{row: rows[0]}})[0]
	var published *row
	if err == nil {
		published = &rows[0]
	}
	p.topics.noteProbe(due.topic, rows[0].ID, published, err == nil || errors.Is(err, ErrRefused))
	p.opts.Logger.DebugContext(ctx, "outbox: probed a stalled topic", "schema", p.opts.Schema, "topic", due.topic, "error", err)
}

// A resumption is what resumeNext has done.
type resumption struct {
	messages     int      // settled or made due
	probeSettled bool     // the message of a probe is removed from outbox_held
	openKeys     []string // then: its key, if nothing is held of that any more
	madeDue      bool     // messages may be due
}

// resumeNext makes messages due whose topic was reached by a probe, and ends the stall of the
// topic when all are. A tenure begins with all messages that wait for their topics, because a
// relay's memory of topics ends with its tenure.
func (p *topicProber) resumeNext(ctx context.Context) (resumption, error) {
	name, published := p.topics.reachedTopic()
	if name == "" && !p.resumeAll {
		return resumption{}, nil
	}
	if published != nil {
		open, err := p.settleProbe(ctx, name, published)
		return resumption{messages: 1, probeSettled: err == nil, openKeys: open}, err
	}
	if p.resumeAll {
		name = ""
	}
	n, err := p.makeTopicDue(ctx, name)
	if err != nil {
		return resumption{}, err
	}
	switch {
	case n == p.limits.resume: // there may be more
	case p.resumeAll:
		p.resumeAll = false
	default:
		p.topics.resumeTopic(name)
		p.opts.Logger.InfoContext(ctx, "outbox: the broker takes messages of the topic again", "schema", p.opts.Schema, "topic", name)
	}
	return resumption{messages: n, madeDue: true}, nil
}

// settleProbe notes that the message of a probe is published. It removes the message, whatever a
// person has made of it meanwhile, and lets the messages behind it go. It returns the message's
// key if nothing is held of that.
func (p *topicProber) settleProbe(ctx context.Context, topic string, m *row) (open []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	err = p.runFencedTx(ctx, p.epoch, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(p.sql.planByIndex)
		batch.Queue(p.sql.deleteHeld, []int64{m.ID})
		batch.Queue(p.sql.promote, []string{m.OrderingKey}).Query(func(rows pgx.Rows) (err error) {
			open, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		err := tx.SendBatch(ctx, batch).Close()
		p.counters.published.Add(1)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: settle a probe: %w", err)
	}
	p.topics.forgetSettledProbe(topic)
	return open, nil
}

// makeTopicDue makes up to limits.resume messages of a stalled topic due, of all topics if name
// is empty. If it returns the limit, there may be more.
func (p *topicProber) makeTopicDue(ctx context.Context, name string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var n int64
	err := p.queryByIndex(ctx, func(rows pgx.Rows) error {
		rows.Close()
		n = rows.CommandTag().RowsAffected()
		return rows.Err()
	}, p.sql.makeTopicDue, name, p.limits.resume)
	if err != nil {
		return 0, fmt.Errorf("outbox: resume topic %q: %w", name, err)
	}
	return int(n), nil
}

// sqlFetchProbe reads a message that waits because the topic $1 stalls: the one that is due next
// after message $2, or the first if there is none.
const sqlFetchProbe = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, attempts
FROM {schema}.outbox_held WHERE id = (
	SELECT id FROM (
		(SELECT id FROM {schema}.outbox_held
			WHERE state = 'waiting' AND due_at < 'infinity' AND topic = $1
				AND (due_at, id) > ((SELECT due_at FROM {schema}.outbox_held WHERE id = $2), $2) ORDER BY due_at, id LIMIT 1)
		UNION ALL
		(SELECT id FROM {schema}.outbox_held
			WHERE state = 'waiting' AND due_at < 'infinity' AND topic = $1 ORDER BY due_at, id LIMIT 1)) candidates LIMIT 1)`

// sqlMakeTopicDue makes up to $2 messages due that wait because the topic $1 stalled, or any
// topic if $1 is empty. It needs no fence: a message that is due too soon is deferred anew.
const sqlMakeTopicDue = sqlHeldTopics + `
UPDATE {schema}.outbox_held SET due_at = clock_timestamp()
WHERE id = ANY (ARRAY(
	SELECT id FROM {schema}.outbox_held WHERE id = ANY (ARRAY(
		SELECT d.id FROM topics t, LATERAL (
			SELECT id FROM {schema}.outbox_held
			WHERE state = 'waiting' AND topic = t.topic AND due_at > (SELECT clock_timestamp()) AND due_at < 'infinity'
			ORDER BY due_at, id LIMIT $2) d
		WHERE $1 = '' OR t.topic = $1 LIMIT $2))
	FOR UPDATE SKIP LOCKED))`
