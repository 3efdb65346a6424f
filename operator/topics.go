package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/saga"
)

// A TopicUse says that a schema sends or receives messages of a topic, by what its tables have. A service may use more
// topics: package topology describes all that a service declares.
type TopicUse struct {
	Topic string
	Type  string // of the messages; "": any
	Sends bool   // else it receives
	Step  string // of the saga that sends, or that receives
	Saga  string // the definition that this is from; "": it was seen in the outbox, or in parked messages
	Undo  bool   // the message is a compensation

	Messages int       // that were seen, among the newest 10,000; 0 of a definition
	Last     time.Time // of those
}

// ListTopics lists the topics that the newest messages of the log and of the parked messages have, and those of the
// newest version of each saga: at most [MaxList] of each.
func (r *Reader) ListTopics(ctx context.Context) (all []TopicUse, err error) {
	for _, read := range []func(context.Context, pgx.Tx) ([]TopicUse, error){r.listSent, r.listReceived, r.listPlanned} {
		var uses []TopicUse
		err := r.readByIndex(ctx, func(tx pgx.Tx) (err error) {
			uses, err = read(ctx, tx)
			return err
		})
		switch {
		case sqlschema.Missing(err): // the schema does not have the part
		case err != nil:
			return nil, fmt.Errorf("operator: list topics: %w", err)
		}
		all = append(all, uses...)
	}
	return all, nil
}

func (r *Reader) listSent(ctx context.Context, tx pgx.Tx) ([]TopicUse, error) {
	rows, _ := tx.Query(ctx, r.sql.listSent, maxSampled, MaxList)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (u TopicUse, err error) {
		u.Sends = true
		return u, row.Scan(&u.Topic, &u.Type, &u.Messages, (*zeronull.Timestamptz)(&u.Last))
	})
}

func (r *Reader) listReceived(ctx context.Context, tx pgx.Tx) ([]TopicUse, error) {
	rows, _ := tx.Query(ctx, r.sql.listReceived, maxSampled, MaxList)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (u TopicUse, err error) {
		return u, row.Scan(&u.Topic, &u.Step, &u.Undo, &u.Messages, (*zeronull.Timestamptz)(&u.Last))
	})
}

// listPlanned lists the commands of sagas, and the topics of their replies.
func (r *Reader) listPlanned(ctx context.Context, tx pgx.Tx) (all []TopicUse, err error) {
	rows, _ := tx.Query(ctx, r.sql.listPlans, MaxList)
	var name, text string
	var version int
	_, err = pgx.ForEachRow(rows, []any{&name, &version, &text}, func() error {
		var plan machine.Plan
		if err := json.Unmarshal([]byte(text), &plan); err != nil {
			return nil // of a newer version of this module: what it sends is not known
		}
		all = append(all, TopicUse{Topic: saga.Topic(name), Type: saga.TypeReply, Saga: name})
		all = appendCommands(all, name, plan.Nodes)
		return nil
	})
	return all, err
}

func appendCommands(all []TopicUse, name string, nodes []machine.Node) []TopicUse {
	for i := range nodes {
		n := &nodes[i]
		if n.Topic != "" {
			all = append(all, TopicUse{Topic: n.Topic, Type: n.Type, Sends: true, Step: n.Name, Saga: name})
		}
		if n.UndoTopic != "" {
			all = append(all, TopicUse{Topic: n.UndoTopic, Type: n.UndoType, Sends: true, Step: n.Name, Saga: name, Undo: true})
		}
		all = appendCommands(all, name, n.Nodes)
	}
	return all
}
