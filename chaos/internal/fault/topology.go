package fault

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/rabbitmq"
)

// The limits of the faults that delete something.
const (
	dialPatience    = 10 * time.Second
	redeclareLimit  = 3 * time.Second // for the services to notice, before the operator declares it
	redeclarePause  = 50 * time.Millisecond
	repairPause     = 500 * time.Millisecond
	declarePatience = 30 * time.Second
)

// sqlRepeat inserts again each message of a topic, up to a moment, that a service has not settled, and returns
// these messages. A consumer that still gets the first copy ignores the second. sqlRepeat also repeats messages
// that the services lost long before, so the judge checks the age of each.
const sqlRepeat = `
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at)
SELECT message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at
FROM (SELECT DISTINCT ON (o.message_id) o.*
	FROM {schema}.outbox o
	WHERE o.topic = $1 AND o.created_at < $2 AND NOT EXISTS (
		SELECT FROM {inbox}.inbox i
		WHERE i.scope = o.scope AND i.key = o.key AND i.step = $3 AND i.n = o.n AND i.state <> 'open')
	ORDER BY o.message_id, o.id) missed
ORDER BY id
RETURNING message_id::text, created_at`

// sqlNow reads the clock that dates messages.
const sqlNow = `SELECT clock_timestamp()`

// findTopic returns the topic of that name.
func findTopic(name string) (site.Topic, error) {
	all := site.AllTopics()
	i := slices.IndexFunc(all, func(t site.Topic) bool { return t.Name == name })
	if i < 0 {
		return site.Topic{}, fmt.Errorf("fault: there is no topic %q", name)
	}
	return all[i], nil
}

// deleteQueues deletes all queues of a topic with their messages, and repairs the loss once they are back. Its
// hits are these messages and the consumers.
func (c *carrier) deleteQueues(p *record.Planned) outcome {
	return c.deleteTopology(p, func(t site.Topic, ch *amqp.Channel) (n int, err error) {
		for _, service := range t.Services {
			queue, err := ch.QueueDeclarePassive(c.site.QueueName(t, service), true, false, false, false, nil)
			if err != nil {
				return n, err
			}
			messages, err := ch.QueueDelete(queue.Name, false, false, false)
			if err != nil {
				return n, err
			}
			n += messages + queue.Consumers
		}
		return n, nil
	})
}

// deleteBindings deletes all bindings of a topic.
func (c *carrier) deleteBindings(p *record.Planned) outcome {
	return c.deleteTopology(p, func(t site.Topic, ch *amqp.Channel) (n int, err error) {
		for _, service := range t.Services {
			if err := ch.QueueUnbind(c.site.QueueName(t, service), "", c.site.Exchange(t), nil); err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	})
}

// deleteExchange deletes a topic's exchange, and with it all bindings.
func (c *carrier) deleteExchange(p *record.Planned) outcome {
	return c.deleteTopology(p, func(t site.Topic, ch *amqp.Channel) (int, error) {
		return 1, ch.ExchangeDelete(c.site.Exchange(t), false, false)
	})
}

// deleteTopology strikes, waits, declares what the services have not redeclared, and repeats messages that may
// have been lost.
func (c *carrier) deleteTopology(p *record.Planned, strike func(site.Topic, *amqp.Channel) (int, error)) outcome {
	t, err := findTopic(p.Target)
	if err != nil {
		return failedOutcome(err)
	}
	if len(t.Steps) == 0 && (p.Fault == QueueDelete || len(t.Services) > 1) {
		return failedOutcome(fmt.Errorf("fault: the queues of %s must not be deleted: no inbox shows which messages are lost", t.Name))
	}
	defer c.site.BeginTrouble()()
	ctx, cancel := c.finishContext()
	defer cancel()
	hits, err := c.withChannel(func(ch *amqp.Channel) (int, error) { return strike(t, ch) })
	struck := err
	c.waitFor(p.For)
	by, err := c.redeclare(ctx, t)
	if err != nil {
		return outcome{hits: hits, err: firstError(struck, err)}
	}
	o := outcome{hits: hits, note: "declared again by " + by, err: struck}
	if p.Fault == QueueDelete || len(t.Services) > 1 {
		o.repeated, err = c.repairTopology(ctx, t)
		o.note += fmt.Sprintf("; %d messages that no inbox has settled written once more", len(o.repeated))
		o.err = firstError(struck, err)
	}
	return o
}

// withChannel opens a channel and calls do with it.
func (c *carrier) withChannel(do func(*amqp.Channel) (int, error)) (int, error) {
	connection, err := amqp.DialConfig(c.site.AMQPURL(), amqp.Config{Dial: amqp.DefaultDial(dialPatience)})
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	ch, err := connection.Channel()
	if err != nil {
		return 0, err
	}
	return do(ch)
}

// redeclare waits until the services have redeclared the queues, declares missing ones, and returns which side
// did it. AMQP cannot query bindings, so redeclare always declares them.
func (c *carrier) redeclare(ctx context.Context, t site.Topic) (by string, err error) {
	by = "the services"
	for began := time.Now(); ; {
		_, err = c.withChannel(func(ch *amqp.Channel) (int, error) {
			for _, service := range t.Services {
				if _, err := ch.QueueDeclarePassive(c.site.QueueName(t, service), true, false, false, false, nil); err != nil {
					return 0, err
				}
			}
			return 0, nil
		})
		if err == nil {
			break
		}
		if time.Since(began) > redeclareLimit {
			by = "the operator"
			break
		}
		c.waitFor(redeclarePause)
	}
	ctx, cancel := context.WithTimeout(ctx, declarePatience)
	defer cancel()
	for _, service := range t.Services {
		cfg, err := rabbitmq.NewConfig(c.site.AMQPURL(), service, &rabbitmq.ConfigOptions{Prefix: c.site.Namespace(t.Saga) + "."})
		if err != nil {
			return by, err
		}
		if err := rabbitmq.DeclareTopology(ctx, cfg, t.Name); err != nil {
			return by, err
		}
	}
	return by, nil
}

// repairTopology repeats messages of t that some listening service has not settled. It retries until it
// succeeds: the harness must lose no message.
func (c *carrier) repairTopology(ctx context.Context, t site.Topic) (repeated []record.Repeat, err error) {
	for {
		if repeated, err = c.repeatMessages(ctx, t); err == nil || ctx.Err() != nil {
			return repeated, err
		}
		_ = backoff.Sleep(ctx, repairPause)
	}
}

// repeatMessages is one attempt of repairTopology, in one transaction.
func (c *carrier) repeatMessages(ctx context.Context, t site.Topic) (repeated []record.Repeat, err error) {
	tx, err := c.beginTx(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }() // returns an error after a commit
	var until time.Time
	if err := tx.QueryRow(ctx, sqlNow).Scan(&until); err != nil {
		return nil, err
	}
	for i, service := range t.Services {
		statement := sqlschema.Bind(site.SchemaOf(t.From), strings.ReplaceAll(sqlRepeat, "{inbox}", site.SchemaOf(service)))
		rows, _ := tx.Query(ctx, statement, t.Name, until, t.Steps[i])
		missed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[record.Repeat])
		if err != nil {
			return nil, err
		}
		repeated = append(repeated, missed...)
	}
	return repeated, tx.Commit(ctx)
}
