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
	// stalledHold is after how long a message that waits for its stalled topic is due if
	// nothing has resumed the topic. Every tenure begins by making all of them due, except
	// that of an older release's relay, which knows nothing of stalled topics.
	stalledHold = 30 * time.Second

	// probeTimeout bounds the first probe of a stall. It doubles with each probe in vain, up
	// to PublishTimeout: a message may take long.
	probeTimeout = 2 * time.Second

	// resumeRows is how many messages of a topic are made due at once when it is resumed.
	resumeRows = 1000
)

// deferralPolicy spaces the tries of a message that was deferred while others of its topic
// got through.
var deferralPolicy = backoff.Policy{Base: 2 * time.Second, Cap: 2 * time.Second}

// deferral returns after how long a message of a topic that was deferred is due again.
func (r *Relay) deferral(topic string) time.Duration {
	if !r.topics.isStalled(topic) {
		return deferralPolicy.Wait(1)
	}
	return stalledHold
}

// sendProbes probes the stalled topics whose turn it is, in goroutines of probing, and calls
// told after each. unsettled reports whether messages of a topic are on their way into
// outbox_held.
func (r *Relay) sendProbes(ctx context.Context, probing *sync.WaitGroup, unsettled func(topic string) bool, told func()) {
	for _, p := range r.topics.dueProbes() {
		p.unsettled = unsettled(p.topic) // before the probe looks for one
		probing.Go(func() {
			r.sendProbe(ctx, p)
			told()
		})
	}
}

// sendProbe publishes a message that waits because its topic stalls. Without such a message
// the topic counts as reached, unless one is to come: the next message tells.
func (r *Relay) sendProbe(ctx context.Context, p probe) {
	reading, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var rows []row
	err := guard.Call(func() error {
		return r.queryByIndex(reading, collect(&rows, scanHeld), r.sql.fetchProbe, p.topic, p.after)
	})
	if err != nil {
		r.opts.Logger.WarnContext(ctx, "outbox: cannot read a message to probe a stalled topic with; it is tried again later", "schema", r.opts.Schema, "topic", p.topic, "error", err)
		r.topics.probed(p.topic, p.after, nil, false)
		return
	}
	if len(rows) == 0 && p.unsettled {
		r.topics.probeLater(p.topic)
		return
	}
	if len(rows) == 0 {
		r.topics.probed(p.topic, 0, nil, true)
		return
	}
	sending, cancel := context.WithTimeout(ctx, min(probeTimeout<<min(p.vain, 16), r.opts.PublishTimeout))
	defer cancel()
	err = r.publishWave(sending, []*item{{row: rows[0]}})[0]
	var published *row
	if err == nil {
		published = &rows[0]
	}
	r.topics.probed(p.topic, rows[0].ID, published, err == nil || errors.Is(err, ErrRefused))
	r.opts.Logger.DebugContext(ctx, "outbox: probed a stalled topic", "schema", r.opts.Schema, "topic", p.topic, "error", err)
}

// resumeTopics makes messages due whose topic was reached by a probe, and ends the stall
// of the topic when all are. So it does at the begin of a tenure with all that wait for
// their topics: what a relay knows of topics ends with it.
func (l *leader) resumeTopics(ctx context.Context) (int, error) {
	name, published := l.r.topics.reachedName()
	if name == "" && !l.resumeAll {
		return 0, nil
	}
	if published != nil {
		return 1, l.settleProbe(ctx, name, published)
	}
	if l.resumeAll {
		name = ""
	}
	n, err := l.r.makeTopicDue(ctx, name)
	if err != nil {
		return 0, err
	}
	l.retryAt = time.Time{}
	if n == l.r.limits.resume {
		return n, nil // there may be more
	}
	if l.resumeAll {
		l.resumeAll = false
		return n, nil
	}
	l.r.resumeTopic(ctx, name)
	return n, nil
}

// settleProbe notes that the message of a probe is published.
func (l *leader) settleProbe(ctx context.Context, topic string, m *row) error {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var open []string
	err := l.r.begin(ctx, func(tx pgx.Tx) error {
		var epoch int64
		if err := tx.QueryRow(ctx, l.r.sql.fence, l.tenure.epoch).Scan(&epoch); err != nil {
			return overtaken(err)
		}
		var err error
		open, err = l.r.forgetProbe(ctx, tx, m)
		return err
	})
	if err != nil {
		return fmt.Errorf("outbox: settle a probe: %w", err)
	}
	l.r.topics.settledProbe(topic)
	l.freeKeys(open, l.seq-uint64(len(l.pages)))
	return nil
}

// forgetProbe removes a message that a probe has published, whatever somebody has made of it
// meanwhile, and lets go what waits behind it. It returns its key if nothing is held of that.
func (r *Relay) forgetProbe(ctx context.Context, tx pgx.Tx, m *row) (open []string, err error) {
	batch := &pgx.Batch{}
	batch.Queue(r.sql.planByIndex)
	batch.Queue(r.sql.deleteHeld, []int64{m.ID})
	batch.Queue(r.sql.promote, []string{m.OrderingKey}).Query(func(rows pgx.Rows) (err error) {
		open, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	err = tx.SendBatch(ctx, batch).Close()
	r.counters.published.Add(1)
	return open, err
}

// resumeTopic ends the stall of a topic whose messages are due.
func (r *Relay) resumeTopic(ctx context.Context, name string) {
	r.topics.resume(name)
	r.opts.Logger.InfoContext(ctx, "outbox: the broker takes messages of the topic again", "schema", r.opts.Schema, "topic", name)
}

// makeTopicDue makes up to limits.resume messages of a stalled topic due, of all topics if
// name is empty. If it returns the limit, there may be more.
func (r *Relay) makeTopicDue(ctx context.Context, name string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var n int64
	err := r.queryByIndex(ctx, func(rows pgx.Rows) error {
		rows.Close()
		n = rows.CommandTag().RowsAffected()
		return rows.Err()
	}, r.sql.makeTopicDue, name, r.limits.resume)
	if err != nil {
		return 0, fmt.Errorf("outbox: resume topic %q: %w", name, err)
	}
	return int(n), nil
}
