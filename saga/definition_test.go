package saga_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/saga"
)

func nop(context.Context, pgx.Tx, saga.Turn, *trip) error { return nil }

// after returns s as a step behind a pivot has to be.
func after(s saga.Step[trip]) saga.Step[trip] {
	s.Undo, s.Retry = saga.Action[trip]{}, saga.Retry{Attempts: 5}
	return s
}

// The plan of a trip: what can be undone first, then the step that cannot, then
// what only has to be tried often enough.
func ExampleDefine() {
	type Trip struct{ Traveller, Flight, Hotel string }
	type Booking struct{ Traveller string }
	type Confirmed struct{ Number string }
	ask := func(t *Trip) Booking { return Booking{t.Traveller} }

	d, err := saga.Define("trip", 1,
		saga.Step[Trip]{Name: "book", All: []saga.Step[Trip]{
			{
				Name:     "flight",
				Do:       saga.Remote("flight.book", ask, func(t *Trip, c Confirmed) { t.Flight = c.Number }),
				Undo:     saga.Tell("flight.cancel", ask),
				Deadline: time.Minute,
			},
			{
				Name: "hotel",
				Do:   saga.Remote("hotel.book", ask, func(t *Trip, c Confirmed) { t.Hotel = c.Number }),
				Undo: saga.Tell("hotel.cancel", ask),
				When: func(t *Trip) bool { return t.Hotel != "at home" },
			},
		}},
		saga.Step[Trip]{Name: "ticket", Do: saga.Tell("ticket.issue", ask), Pivot: true},
		saga.Step[Trip]{Name: "mail", Do: saga.Tell("mail.send", ask), Retry: saga.Retry{Attempts: 20}},
	)
	fmt.Println(d, err)
	// Output:
	// saga trip, version 1
	//   book: all of
	//     flight: on flight.book, undone on flight.cancel, within 1m0s
	//     hotel: on hotel.book, undone on hotel.cancel, if asked for
	//   ticket: on ticket.issue, pivot
	//   mail: on mail.send, up to 20 attempts
	//  <nil>
}

func TestDefineRefuses(t *testing.T) {
	t.Parallel()
	var (
		flight = book("flight")
		ticket = saga.Step[trip]{Name: "ticket", Do: saga.Tell("ticket.issue", (*trip).request), Pivot: true}
		inner  = saga.Must(saga.Define("inner", 1, book("room")))
		pivot  = saga.Must(saga.Define("pivot", 1, ticket))
		fresh  = func(s *trip) trip { return *s }
	)
	nest := func(d *saga.Definition[trip], change func(*saga.Step[trip])) saga.Step[trip] {
		s := saga.Step[trip]{Name: "nested", Do: saga.Nested(d, fresh, nil)}
		if change != nil {
			change(&s)
		}
		return s
	}
	deep := inner
	for i := range flow.MaxLevels {
		next, err := saga.Define(fmt.Sprint("level", i), 1, nest(deep, nil))
		if err == nil {
			deep = next
		}
	}
	with := func(s saga.Step[trip], change func(*saga.Step[trip])) saga.Step[trip] {
		change(&s)
		return s
	}
	many := make([]saga.Step[trip], machine.MaxSteps+1)
	for i := range many {
		many[i] = book(fmt.Sprint("s", i))
	}
	for want, steps := range map[string][]saga.Step[trip]{
		"there is no step":                          nil,
		`step "Flight": `:                           {with(flight, func(s *saga.Step[trip]) { s.Name = "Flight" })},
		`step "flight" is given twice`:              {flight, flight},
		"there are 101 steps, more than 100":        many,
		`step "flight" has none of Do, All and Seq`: {with(flight, func(s *saga.Step[trip]) { s.Do = saga.Action[trip]{} })},
		`step "flight" has more than one of Do`:     {with(flight, func(s *saga.Step[trip]) { s.All = []saga.Step[trip]{ticket} })},
		`step "both" has more than one of Do`:       {{Name: "both", All: []saga.Step[trip]{flight}, Seq: []saga.Step[trip]{ticket}}},
		"only those can be a pivot":                 {{Name: "book", All: []saga.Step[trip]{flight}, Pivot: true}},
		"has no topic for its command":              {with(flight, func(s *saga.Step[trip]) { s.Do.Topic = "" })},
		"has no topic for its compensation":         {with(flight, func(s *saga.Step[trip]) { s.Undo.Topic = "" })},
		"is set off and undone by the same message": {with(flight, func(s *saga.Step[trip]) { s.Undo = s.Do })},
		"is the pivot: after it nothing is undone":  {with(flight, func(s *saga.Step[trip]) { s.Pivot = true })},
		`is a pivot, and so is "ticket"`:            {ticket, with(ticket, func(s *saga.Step[trip]) { s.Name = "second" })},
		"is a pivot beside parallel steps":          {{Name: "book", All: []saga.Step[trip]{flight, ticket}}},
		"has a compensation, which could never":     {ticket, with(flight, func(s *saga.Step[trip]) { s.Retry.Attempts = 3 })},
		"it needs a retry of two attempts":          {ticket, with(after(flight), func(s *saga.Step[trip]) { s.Retry = saga.Retry{} })},
		"cannot have a deadline":                    {{Name: "note", Do: saga.Local(nop), Deadline: 1}},
		"has a nil function":                        {{Name: "note", Do: saga.Local[trip](nil)}},
		"there is nothing to retry":                 {{Name: "note", Do: saga.Local(nop), UndoRetry: saga.Retry{Attempts: 2}}},
		"retry of 1001 attempts":                    {with(flight, func(s *saga.Step[trip]) { s.Retry.Attempts = 1001 })},
		"is shorter than its first":                 {with(flight, func(s *saga.Step[trip]) { s.Retry = saga.Retry{Base: 2, Cap: 1} })},
		"has the deadline -1ns":                     {with(flight, func(s *saga.Step[trip]) { s.Deadline = -1 })},
		"which undoes itself":                       {nest(inner, func(s *saga.Step[trip]) { s.Undo = saga.Local(nop) })},
		"without a function that makes its state":   {{Name: "nested", Do: saga.Nested[trip, trip](inner, nil, nil)}},
		"without a definition":                      {nest(nil, nil)},
		"has a nested saga as its Undo":             {with(flight, func(s *saga.Step[trip]) { s.Undo = saga.Nested(inner, fresh, nil) })},
		"has a pivot and so could not be undone":    {nest(pivot, nil)},
		"sagas are nested deeper than 3":            {nest(deep, nil)},
	} {
		_, err := saga.Define("trip", 1, steps...)
		if !errors.Is(err, saga.ErrInvalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "saga trip") {
			t.Errorf("Define = %v, want an ErrInvalid that says %s", err, want)
		}
	}
	if _, err := saga.Define("trip", 1, flight, ticket, nest(pivot, func(s *saga.Step[trip]) { s.Retry.Attempts = 2 })); err != nil {
		t.Errorf("a saga with a pivot, nested behind the pivot: %v", err)
	}
}

func TestDefineRefusesNamesVersionsAndDeadlines(t *testing.T) {
	t.Parallel()
	step := book("flight")
	d := saga.Must(saga.Define("inner", 1, step))
	for want, define := range map[string]func() (*saga.Definition[trip], error){
		"name: ":                  func() (*saga.Definition[trip], error) { return saga.Define("", 1, step) },
		"name has 51 bytes":       func() (*saga.Definition[trip], error) { return saga.Define(strings.Repeat("x", 51), 1, step) },
		"version 0 is not":        func() (*saga.Definition[trip], error) { return saga.Define("x", 0, step) },
		"deadline -1s is not":     func() (*saga.Definition[trip], error) { return d.Within(-time.Second) },
		"deadline 87601h0m0s is ": func() (*saga.Definition[trip], error) { return d.Within(machine.MaxDeadline + time.Hour) },
	} {
		if _, err := define(); !errors.Is(err, saga.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an ErrInvalid that says %s", err, want)
		}
	}
}

func TestHashIsOfWhatInstancesRelyOn(t *testing.T) {
	t.Parallel()
	define := func(change func(*saga.Step[trip])) *saga.Definition[trip] {
		s := book("flight")
		if change != nil {
			change(&s)
		}
		return saga.Must(saga.Define("x", 1, s, book("hotel")))
	}
	d := define(nil)
	patient := saga.Must(define(func(s *saga.Step[trip]) { s.Deadline, s.Retry.Attempts = time.Hour, 7 }).Within(time.Hour))
	if patient.Hash() != d.Hash() {
		t.Error("deadlines and retries are in the hash: they could not be changed while instances run")
	}
	for what, other := range map[string]*saga.Definition[trip]{
		"name":      saga.Must(saga.Define("y", 1, book("flight"), book("hotel"))),
		"version":   saga.Must(saga.Define("x", 2, book("flight"), book("hotel"))),
		"order":     saga.Must(saga.Define("x", 1, book("hotel"), book("flight"))),
		"a step":    saga.Must(saga.Define("x", 1, book("flight"))),
		"topic":     define(func(s *saga.Step[trip]) { s.Do.Topic = "other" }),
		"type":      define(func(s *saga.Step[trip]) { s.Undo.Type = "other" }),
		"no undo":   define(func(s *saga.Step[trip]) { s.Undo = saga.Action[trip]{} }),
		"condition": define(func(s *saga.Step[trip]) { s.When = func(*trip) bool { return true } }),
		"kind":      define(func(s *saga.Step[trip]) { s.Do, s.Undo = saga.Local(nop), saga.Local(nop) }),
	} {
		if other.Hash() == d.Hash() {
			t.Errorf("another %s has the same hash", what)
		}
	}
}

// A saga may be called what another one's step is called in the inbox.
func TestSagasWhoseNamesAreAlike(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.orchestrate(nil, saga.Must(saga.Define("trip", 1, book("flight"))), saga.Must(saga.Define("trip-revoke", 1, book("flight"))))
	p.participate(p.booking("flight"))
	start(p, saga.Must(saga.Define("trip-revoke", 1, book("flight"))), "k", trip{})
	p.until("k", saga.StatusCompleted)
}
