// Package command is what the services of the trip saga say to each other: the
// only thing they share. How they answer is package saga's.
package command

import "time"

// The services that book something. Each is also the name of its step, and of
// the step's messages what comes before the dot.
const (
	Flight = "flight"
	Hotel  = "hotel"
	Car    = "car"
)

// The topics. Each is also the type of the messages that are published to it.
const (
	Ticket = "ticket.issue"
	Mail   = "mail.send"
)

// BookTopic is the topic on which a service takes bookings.
func BookTopic(service string) string { return service + ".book" }

// CancelTopic is the topic on which a service undoes them.
func CancelTopic(service string) string { return service + ".cancel" }

// A Booking asks for a seat, a room or a car, or gives it back.
type Booking struct {
	Item      string `json:"item"`
	Traveller string `json:"traveller"`

	// AnswerWithin is how long the answer is waited for. The services need not know; the
	// odd hotels of the example do, to be late.
	AnswerWithin time.Duration `json:"answer_within"`
}

// A Booked is the answer.
type Booked struct {
	Number string `json:"number"`
}

// A Ticketing asks for the ticket of a trip of which everything is booked.
type Ticketing struct {
	Traveller string   `json:"traveller"`
	Numbers   []string `json:"numbers"`
}

// A Confirmation asks for the mail to a traveller who has the ticket.
type Confirmation struct {
	Traveller string `json:"traveller"`
	Ticket    string `json:"ticket"`
}

// A Ledger is what a service tells of its work: GET /ledger/{service}.
type Ledger struct {
	Stock   []Stock `json:"stock,omitempty"`
	Entries []Entry `json:"entries"`
}

// A Stock is how much of an item there was, and is left.
type Stock struct {
	Item     string `json:"item"`
	Capacity int64  `json:"capacity"`
	Free     int64  `json:"free"`
}

// An Entry is something that was done for a trip.
type Entry struct {
	TripID string    `json:"trip_id"`
	Item   string    `json:"item"`
	State  string    `json:"state"`
	Number string    `json:"number"`
	At     time.Time `json:"at"`
}
