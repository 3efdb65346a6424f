package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// Stats describe the messages that a consumer's schema has parked. They are
// read from the database, so that every process of a service sees the same. Of
// more than [outbox.CountLimit] of a state only so many are counted: those that
// are due first, and the oldest dead letters.
type Stats struct {
	Retrying int // will run again
	Calling  int // calls of an Effect are under way, or ended with their process and go on when their lease is over
	Dead     int // dead letters; a person is needed

	// Overdue is how long the message that is to run next has been due: the
	// time for which nobody had a worker free for it. 0 if none is due.
	Overdue time.Duration

	Parked []ParkedStats // the same messages by step, kind, state and reason; sorted so
}

// ParkedStats are those of the messages of one step that are parked for one
// reason.
type ParkedStats struct {
	Step     string // empty: the messages belong to no step
	Undo     bool   // they are compensations
	Dead     bool
	Reason   Reason
	Messages int
	Oldest   time.Duration // since the first of them was parked
}

// State is dead, calling or retrying, as in [Stats].
func (p *ParkedStats) State() string {
	switch {
	case p.Dead:
		return "dead"
	case p.Reason == ReasonCalling:
		return "calling"
	}
	return "retrying"
}

// sqlReadStats counts parked messages by what a person would ask for. It takes
// no lock. The two lists come in the order of their indexes, so that the limit
// ($1) bounds what is read.
const sqlReadStats = `
WITH parked AS (
	(SELECT step, kind, state, reason, first_at, due_at FROM {schema}.parked WHERE state = 'retrying' ORDER BY due_at LIMIT $1)
	UNION ALL
	(SELECT step, kind, state, reason, first_at, NULL FROM {schema}.parked WHERE state = 'dead' ORDER BY last_at LIMIT $1)
)
SELECT coalesce(step, ''), kind = 'compensation', state = 'dead', reason, count(*),
	(extract(epoch FROM clock_timestamp() - min(first_at)) * 1000000)::bigint,
	coalesce(extract(epoch FROM clock_timestamp() - min(due_at)) * 1000000, 0)::bigint
FROM parked
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4`

// Stats reads them. They are of one instant.
func (c *Consumer) Stats(ctx context.Context) (s Stats, err error) {
	rows, _ := c.db.Query(ctx, c.sql.readStats, outbox.CountLimit)
	var p ParkedStats
	var oldest, due int64
	_, err = pgx.ForEachRow(rows, []any{&p.Step, &p.Undo, &p.Dead, &p.Reason, &p.Messages, &oldest, &due}, func() error {
		p.Oldest = max(time.Duration(oldest)*time.Microsecond, 0)
		s.add(p, time.Duration(due)*time.Microsecond)
		return nil
	})
	if err != nil {
		return Stats{}, fmt.Errorf("consumer: read stats: %w", sqlschema.Explain(err))
	}
	return s, nil
}

func (s *Stats) add(p ParkedStats, due time.Duration) {
	switch p.State() {
	case "dead":
		s.Dead += p.Messages // which are never due
	case "calling":
		s.Calling += p.Messages
	default:
		s.Retrying += p.Messages
	}
	s.Overdue = max(s.Overdue, due)
	s.Parked = append(s.Parked, p)
}
