// Package booking is the services that hold seats, rooms and cars: three of a kind,
// each with tables of its own.
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

// plenty is more than anybody books.
const unlimited = math.MaxInt32

// stock is what the services begin with.
var stock = map[string]map[string]int64{
	command.Flight: {"LH100": unlimited, "ZZ9": 4, "GONE": 0},
	command.Hotel:  {"grand": unlimited, "full-house": 0, slowInn: unlimited, lateInn: unlimited, silentInn: unlimited},
	command.Car:    {"compact": unlimited, "convertible": 0},
}

// The odd hotels.
const (
	slowInn   = "slow-inn"   // answers in time, but not at once
	lateInn   = "late-inn"   // takes the booking, and answers when nobody waits any more
	silentInn = "silent-inn" // never comes to it
)

// A Service holds units of one kind of thing.
type Service struct {
	db           *pgxpool.Pool
	name, schema string
}

// NewService returns the service of that name, whose tables are in schema.
func NewService(db *pgxpool.Pool, name, schema string) *Service {
	return &Service{db: db, name: name, schema: schema}
}

// FillStock puts what there is to book on sale, unless it is. It may be called by any
// number of processes.
func (s *Service) FillStock(ctx context.Context) error {
	for item, n := range stock[s.name] {
		_, err := s.db.Exec(ctx, "INSERT INTO "+s.schema+".stock (item, capacity, free) VALUES ($1, $2, $2) ON CONFLICT DO NOTHING", item, n)
		if err != nil {
			return fmt.Errorf("booking: fill: %w", err)
		}
	}
	return nil
}

// BuildSteps are the service's part in the saga. Its handlers do nothing outside of their
// transaction, so that a cancellation need not wait for a booking that is
// yet to be tried again.
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

// bookUnit takes a unit, if there is one.
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

// takeUnit notes who holds the unit that it takes. The stock's row is locked then until
// the transaction ends, so that the last unit is sold once.
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

// releaseUnits gives back what the booking holds. It need not ask whether there is one, or
// whether it was given back before: the inbox sees to it that it is called for a
// booking that was made, and once.
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

// bookHotelRoom is book for the hotels, of which some keep the saga waiting: what is
// to be published later is still decided now, in this transaction.
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
		return saga.Refuse(emit, in.Delivery, s.formatSoldOut(in.Body))
	}
	return saga.Done(delayMessages(emit, wait), in.Delivery, command.Booked{Number: number})
}

// delayMessages returns emit for messages that wait in the outbox.
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
