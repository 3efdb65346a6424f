package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/saga"
)

const (
	serviceName = "shop"
	schema      = "shop"
	scope       = "acme"
	payloadSize = 300
	poolConns   = 48
)

// The steps of the saga. The first three can be undone.
var stepNames = []string{"reserve-stock", "take-payment", "book-courier", "send-invoice", "notify-customer"}

const undoable = 3

// A course says how a saga ends.
type course string

const (
	courseDone     course = "done"
	courseRejected course = "rejected" // the courier rejects, and the saga compensates
	courseFailing  course = "failing"  // the courier fails, and is tried again
	courseParked   course = "parked"   // the payment is a dead letter, and the saga waits for a person
	courseStuck    course = "stuck"    // the payment and its compensation are dead letters
	courseUndoing  course = "undoing"  // the courier rejects, and the refund is tried again
)

// An order is the state of a saga, and the body of its commands.
type order struct {
	OrderID  string `json:"order_id"`
	Course   course `json:"course"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
	Amount   int64  `json:"amount"`
	Note     string `json:"note"`
}

func newOrder(c course) order {
	return order{OrderID: uuid.NewString(), Course: c, Item: "sku-4711", Quantity: 2, Amount: 4200, Note: strings.Repeat("x", payloadSize)}
}

// sqlCreateEffects creates the table of what the steps do.
const sqlCreateEffects = `CREATE TABLE IF NOT EXISTS shop.effect (order_id uuid NOT NULL, step text NOT NULL, done_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (order_id, step))`

const (
	sqlAddEffect    = `INSERT INTO shop.effect (order_id, step) VALUES ($1, $2)`
	sqlRemoveEffect = `DELETE FROM shop.effect WHERE order_id = $1 AND step = $2`
)

func doTopic(step string) string   { return "shop." + step }
func undoTopic(step string) string { return "shop." + step + ".undo" }

// defineSaga returns the saga: each step is a command to a participant, which is the same service.
func defineSaga() (*saga.Definition[order], error) {
	body := func(o *order) order { return *o }
	var steps []saga.Step[order]
	for i, name := range stepNames {
		step := saga.Step[order]{Name: name, Do: saga.Remote[order, order, any](doTopic(name), body, nil)}
		if i < undoable {
			step.Undo = saga.Tell(undoTopic(name), body)
		}
		steps = append(steps, step)
	}
	return saga.Define("place-order", 1, steps...)
}

func participantSteps() (steps []consumer.Step) {
	for i, name := range stepNames {
		step := consumer.Step{Name: name, Action: saga.On(doTopic(name), actionOf(name))}
		if i < undoable {
			step.Compensation = saga.OnUndo(undoTopic(name), undoOf(name))
		}
		steps = append(steps, saga.Participant(step))
	}
	return steps
}

func actionOf(name string) saga.Handler[order, any] {
	return func(_ context.Context, _ pgx.Tx, in consumer.Message[order]) (any, error) {
		c := in.Body.Course
		switch {
		case name == "book-courier" && (c == courseRejected || c == courseUndoing):
			return nil, saga.Reject("no courier drives to this address")
		case name == "book-courier" && c == courseFailing:
			return nil, fmt.Errorf("courier: POST https://courier.test/bookings: status 503 for order %q", in.Body.OrderID)
		case name == "take-payment" && c == courseParked:
			return nil, consumer.Park(fmt.Errorf("payment of %d for order %q is over the limit", in.Body.Amount, in.Body.OrderID))
		case name == "take-payment" && c == courseStuck:
			return nil, consumer.Terminal(fmt.Errorf("payment: account of order %q is closed", in.Body.OrderID))
		}
		in.Queue(sqlAddEffect, in.Body.OrderID, name)
		return nil, nil
	}
}

func undoOf(name string) saga.UndoHandler[order] {
	return func(_ context.Context, _ pgx.Tx, in consumer.Message[order]) error {
		if name == "take-payment" && in.Body.Course == courseUndoing {
			return errors.New("payment: the refund was not answered in time")
		}
		in.Queue(sqlRemoveEffect, in.Body.OrderID, name)
		return nil
	}
}

// newShop returns the service, which does not run yet, and its starter.
func newShop(databaseURL, brokerURL string) (*sagamill.Service, *saga.Starter[order], error) {
	plan, err := defineSaga()
	if err != nil {
		return nil, nil, err
	}
	separator := "?"
	if strings.Contains(databaseURL, "?") {
		separator = "&"
	}
	s, err := sagamill.New(sagamill.Config{
		Name: serviceName, Schema: schema, DatabaseURL: databaseURL + separator + fmt.Sprintf("pool_max_conns=%d", poolConns), BrokerURL: brokerURL,
		Steps: participantSteps(), Sagas: []saga.Plan{plan}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, nil, err
	}
	starter, err := sagamill.Starter(s, plan)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, starter, nil
}

// startOrder starts a saga in one round trip.
func startOrder(ctx context.Context, s *sagamill.Service, starter *saga.Starter[order], o order) error {
	batch := &pgx.Batch{}
	if _, err := starter.Queue(ctx, batch, saga.ID{Scope: scope, Key: o.OrderID}, o); err != nil {
		return err
	}
	if err := s.Database().SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	s.Relay().Wake()
	return nil
}
