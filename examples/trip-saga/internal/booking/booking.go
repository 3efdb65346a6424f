// Package booking is the three services that hold seats, rooms and cars. Each has its own tables.
package booking

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/api"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

//go:embed migrations
var files embed.FS

// Migrations are the tables of each of the services.
var Migrations, _ = fs.Sub(files, "migrations") // the folder is embedded: there is no error

// unlimited is more than a demo books.
const unlimited = math.MaxInt32

// stock is the initial stock of each service, by item.
var stock = map[string]map[string]int64{
	command.Flight: {"LH100": unlimited, "ZZ9": 4, "GONE": 0},
	command.Hotel:  {"grand": unlimited, "full-house": 0, slowInn: unlimited, lateInn: unlimited, silentInn: unlimited},
	command.Car:    {"compact": unlimited, "convertible": 0},
}

// The hotels that delay their answer.
const (
	slowInn   = "slow-inn"   // answers after half of the deadline
	lateInn   = "late-inn"   // takes the booking, and answers after the deadline
	silentInn = "silent-inn" // takes no booking and never answers
)

// A Service holds seats, rooms or cars.
type Service struct {
	db           *pgxpool.Pool
	name, schema string
}

// NewService returns the service called name, whose tables are in schema.
func NewService(db *pgxpool.Pool, name, schema string) *Service {
	return &Service{db: db, name: name, schema: schema}
}

// FillStock stores the initial stock of the items that are not in stock yet. Any number of processes
// may call it.
func (s *Service) FillStock(ctx context.Context) error {
	for item, n := range stock[s.name] {
		_, err := s.db.Exec(ctx, "INSERT INTO "+s.schema+".stock (item, capacity, free) VALUES ($1, $2, $2) ON CONFLICT DO NOTHING", item, n)
		if err != nil {
			return fmt.Errorf("booking: fill: %w", err)
		}
	}
	return nil
}

// BuildSteps returns the service's step. Its handlers do nothing outside of their transaction.
// Therefore a cancellation need not wait for a booking that is retrying.
func (s *Service) BuildSteps() []consumer.Step {
	book := saga.On(command.BookTopic(s.name), s.bookUnit)
	if s.name == command.Hotel {
		book = consumer.On(command.BookTopic(s.name), s.bookHotelRoom)
	}
	return []consumer.Step{saga.Participant(consumer.Step{
		Name:         s.name,
		Action:       book,
		Compensation: saga.OnUndo(command.CancelTopic(s.name), s.releaseUnits),
		CancelParked: true,
	})}
}

// bookUnit takes a unit, or rejects the booking if none is free.
func (s *Service) bookUnit(ctx context.Context, tx pgx.Tx, in consumer.Message[command.Booking]) (command.Booked, error) {
	number, ok, err := s.takeUnit(ctx, tx, in)
	if err == nil && !ok {
		err = saga.Reject(s.formatSoldOut(in.Body))
	}
	return command.Booked{Number: number}, err
}

func (s *Service) formatSoldOut(b command.Booking) string {
	return s.name + " " + b.Item + " is sold out"
}

// takeUnit takes a unit for the trip and returns its number. If none is free, ok is false. The
// stock's row stays locked until the transaction ends, so that the last unit is sold once.
func (s *Service) takeUnit(ctx context.Context, tx pgx.Tx, in consumer.Message[command.Booking]) (number string, ok bool, err error) {
	tag, err := tx.Exec(ctx, "UPDATE "+s.schema+".stock SET free = free - 1 WHERE item = $1 AND free > 0", in.Body.Item)
	if err != nil {
		return "", false, fmt.Errorf("booking: take: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return "", false, nil
	}
	number = strings.ToUpper(s.name[:1]) + "-" + in.CorrelationID[len(in.CorrelationID)-8:]
	_, err = tx.Exec(ctx, "INSERT INTO "+s.schema+".booking (trip_id, n, item, state, number) VALUES ($1, $2, $3, 'held', $4)",
		in.CorrelationID, in.N, in.Body.Item, number)
	if err != nil {
		return "", false, fmt.Errorf("booking: note: %w", err)
	}
	return number, true, nil
}

// releaseUnits gives the booking's unit back. It need not check that the booking exists, or that it
// was not given back before: the inbox runs it only for a booking that was made, and only once.
func (s *Service) releaseUnits(ctx context.Context, tx pgx.Tx, in consumer.Message[command.Booking]) error {
	rows, err := tx.Query(ctx, "UPDATE "+s.schema+".booking SET state = 'released' WHERE trip_id = $1 AND n = $2 RETURNING item",
		in.CorrelationID, in.N)
	if err != nil {
		return fmt.Errorf("booking: release: %w", err)
	}
	items, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("booking: release: %w", err)
	}
	for _, item := range items {
		if _, err := tx.Exec(ctx, "UPDATE "+s.schema+".stock SET free = free + 1 WHERE item = $1", item); err != nil {
			return fmt.Errorf("booking: give back: %w", err)
		}
	}
	return nil
}

var errSilent = errors.New("the hotel does not answer")

// bookHotelRoom is bookUnit for hotels, some of which delay their answer. This transaction writes
// the answer, and the outbox publishes it after the delay.
func (s *Service) bookHotelRoom(ctx context.Context, tx pgx.Tx, in consumer.Message[command.Booking], emit consumer.Emit) error {
	var wait time.Duration
	switch in.Body.Item {
	case silentInn:
		return consumer.RetryAfter(errSilent, consumer.MaxRetryAfter)
	case slowInn:
		wait = in.Body.AnswerWithin / 2
	case lateInn:
		wait = in.Body.AnswerWithin * 3 / 2
	}
	number, ok, err := s.takeUnit(ctx, tx, in)
	switch {
	case err != nil:
		return err
	case !ok:
		return saga.Rejected(emit, in.Delivery, s.formatSoldOut(in.Body))
	}
	return saga.Done(delayMessages(emit, wait), in.Delivery, command.Booked{Number: number})
}

// delayMessages returns emit for messages that wait in the outbox so long.
func delayMessages(emit consumer.Emit, wait time.Duration) consumer.Emit {
	return func(msgs ...outbox.Message) {
		for i := range msgs {
			msgs[i].Delay = wait
		}
		emit(msgs...)
	}
}

// AddRoutes adds the service's HTTP interface to mux.
func (s *Service) AddRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /ledger/"+s.name, api.ServeLedger(s.readLedger))
}

func (s *Service) readLedger(ctx context.Context) (l command.Ledger, err error) {
	rows, _ := s.db.Query(ctx, "SELECT item, capacity, free FROM "+s.schema+".stock ORDER BY item")
	if l.Stock, err = pgx.CollectRows(rows, pgx.RowToStructByPos[command.Stock]); err != nil {
		return l, err
	}
	rows, _ = s.db.Query(ctx, "SELECT trip_id::text, item, state, number, at FROM "+s.schema+".booking ORDER BY id")
	l.Entries, err = pgx.CollectRows(rows, pgx.RowToStructByPos[command.Entry])
	return l, err
}
