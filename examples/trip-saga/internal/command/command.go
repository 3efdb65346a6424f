// Package command has the commands of the trip saga, and the ledgers by which the demo checks the
// services. Package saga defines the form of replies.
package command

import "time"

// The services that book something. Each is also the name of its step, and the part before the dot
// in the topics of its commands.
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

// BookTopic returns the topic of bookings for a service.
func BookTopic(service string) string { return service + ".book" }

// CancelTopic returns the topic of cancellations of bookings.
func CancelTopic(service string) string { return service + ".cancel" }

// A Booking asks for a seat, a room or a car, or gives it back.
type Booking struct {
	Item      string `json:"item"`
	Traveller string `json:"traveller"`

	// AnswerWithin is how long the saga waits for the answer. Only the example's hotels that delay
	// their answer need it.
	AnswerWithin time.Duration `json:"answer_within"`
}

// A Booked is the answer to a Booking.
type Booked struct {
	Number string `json:"number"`
}

// A Ticketing asks for the ticket of a trip whose bookings are complete.
type Ticketing struct {
	Traveller string   `json:"traveller"`
	Numbers   []string `json:"numbers"`
}

// A Confirmation asks for the mail to a traveller who has the ticket.
type Confirmation struct {
	Traveller string `json:"traveller"`
	Ticket    string `json:"ticket"`
}

// A Ledger is the body of GET /ledger/{service}.
type Ledger struct {
	Stock   []Stock `json:"stock,omitempty"`
	Entries []Entry `json:"entries"`
}

// A Stock is the initial and the free number of units of an item.
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
