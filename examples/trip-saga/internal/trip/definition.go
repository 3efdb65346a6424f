package trip

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
	"github.com/sagamill/sagamill/saga"
)

// Name is the saga's name.
const Name = "trip"

// version is raised whenever the steps below change. The program keeps defining the previous version
// until its last trip has ended.
const version = 1

// A State is the saga's data about a trip.
type State struct {
	Traveller string `json:"traveller"`
	Flight    string `json:"flight"`
	Hotel     string `json:"hotel"`
	Car       string `json:"car,omitempty"` // empty: no car is wanted
	Budget    int64  `json:"budget"`        // in cents

	Price        int64  `json:"price,omitempty"`
	FlightNumber string `json:"flight_number,omitempty"`
	HotelNumber  string `json:"hotel_number,omitempty"`
	CarNumber    string `json:"car_number,omitempty"`
	Ticket       string `json:"ticket,omitempty"`
}

// DefineSaga returns the saga of a trip, for a service whose tables are in schema. The deadline of a
// booking is patience, and the deadline of all steps before the ticket is twice as long.
func DefineSaga(schema string, patience time.Duration) (*saga.Definition[State], error) {
	own := localSteps{schema}
	b := bookings{patience}
	car := b.newBookingStep(command.Car, func(s *State) (string, *string) { return s.Car, &s.CarNumber })
	car.When = func(s *State) bool { return s.Car != "" }
	d, err := saga.Define(Name, version,
		saga.Step[State]{Name: "quote", Do: saga.Local(own.quotePrice)},
		saga.Step[State]{Name: "book", All: []saga.Step[State]{
			b.newBookingStep(command.Flight, func(s *State) (string, *string) { return s.Flight, &s.FlightNumber }),
			b.newBookingStep(command.Hotel, func(s *State) (string, *string) { return s.Hotel, &s.HotelNumber }),
			car,
		}},
		saga.Step[State]{Name: "ticket", Do: saga.Remote(command.Ticket, (*State).newTicketing, (*State).keepTicket), Pivot: true},
		saga.Step[State]{
			Name:  "mail",
			Do:    saga.Remote[State, command.Confirmation, any](command.Mail, (*State).newConfirmation, nil),
			Retry: saga.Retry{Attempts: 20, Base: 100 * time.Millisecond, Cap: time.Minute},
		},
		saga.Step[State]{Name: "itinerary", Do: saga.Local(own.writeItinerary)},
	)
	if err != nil {
		return nil, err
	}
	return d.Within(2 * patience)
}

// bookings make the steps that book a unit.
type bookings struct{ patience time.Duration }

// newBookingStep returns a step that books the item that about returns. It stores the booking's
// number at the address that about returns.
func (b bookings) newBookingStep(service string, about func(*State) (item string, number *string)) saga.Step[State] {
	body := func(s *State) command.Booking {
		item, _ := about(s)
		return command.Booking{Item: item, Traveller: s.Traveller, AnswerWithin: b.patience}
	}
	booked := func(s *State, r command.Booked) {
		_, number := about(s)
		*number = r.Number
	}
	return saga.Step[State]{
		Name:     service,
		Do:       saga.Remote(command.BookTopic(service), body, booked),
		Undo:     saga.Remote[State, command.Booking, any](command.CancelTopic(service), body, nil),
		Deadline: b.patience,
	}
}

func (s *State) newTicketing() command.Ticketing {
	t := command.Ticketing{Traveller: s.Traveller}
	for _, number := range []string{s.FlightNumber, s.HotelNumber, s.CarNumber} {
		if number != "" {
			t.Numbers = append(t.Numbers, number)
		}
	}
	return t
}

func (s *State) keepTicket(number string) { s.Ticket = number }

func (s *State) newConfirmation() command.Confirmation {
	return command.Confirmation{Traveller: s.Traveller, Ticket: s.Ticket}
}

// localSteps are the steps that the trip service does itself.
type localSteps struct{ schema string }

// quotePrice adds up the prices of the trip. As the first step it runs in the transaction of the
// request. So a trip over the budget has ended when its customer gets the answer.
func (l localSteps) quotePrice(ctx context.Context, tx pgx.Tx, _ saga.Turn, s *State) error {
	for _, part := range [][2]string{{command.Flight, s.Flight}, {command.Hotel, s.Hotel}, {command.Car, s.Car}} {
		if part[1] == "" {
			continue
		}
		var price int64
		err := tx.QueryRow(ctx, "SELECT price FROM "+l.schema+".tariff WHERE kind = $1 AND item = $2", part[0], part[1]).Scan(&price)
		if errors.Is(err, pgx.ErrNoRows) {
			return saga.Reject("there is no " + part[0] + " " + part[1])
		}
		if err != nil {
			return fmt.Errorf("trip: quote: %w", err)
		}
		s.Price += price
	}
	if s.Price > s.Budget {
		return saga.Reject(fmt.Sprintf("the trip costs %d, and the budget is %d", s.Price, s.Budget))
	}
	return nil
}

// writeItinerary stores the itinerary.
func (l localSteps) writeItinerary(ctx context.Context, tx pgx.Tx, t saga.Turn, s *State) error {
	lines := []string{
		"itinerary of " + s.Traveller + ", ticket " + s.Ticket,
		"flight " + s.Flight + ", " + s.FlightNumber,
		"hotel " + s.Hotel + ", " + s.HotelNumber,
	}
	if s.Car != "" {
		lines = append(lines, "car "+s.Car+", "+s.CarNumber)
	}
	_, err := tx.Exec(ctx, "INSERT INTO "+l.schema+".itinerary (trip_id, text) VALUES ($1, $2)", t.ID, strings.Join(lines, "\n"))
	if err != nil {
		return fmt.Errorf("trip: itinerary: %w", err)
	}
	return nil
}
