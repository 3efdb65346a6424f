package load

import "github.com/sagamill/sagamill/chaos/internal/record"

// A Kind is a kind of saga in the load.
type Kind struct {
	Saga  string // record.Order or record.Trip
	Name  string // an Op's Kind
	share int    // of a thousand orders, or trips
	body  string // of the request, with a verb for the amount or the budget

	// Ends are the allowed final states. A trip of any kind may also end compensated if some step took longer
	// than the saga's patience.
	Ends []string

	cancel int // milliseconds after the answer within which the customer cancels; 0: never
}

// The states that sagas end in.
const (
	Completed   = "completed"
	Cancelled   = "cancelled"   // an order
	Compensated = "compensated" // a trip
)

var (
	completed   = []string{Completed}
	cancelled   = []string{Cancelled}
	compensated = []string{Compensated}
	either      = []string{Completed, Compensated}
)

// cheap is a budget, in cents, below the price of every trip.
const cheap = 100

// Orders are the kinds of orders. About 60 % succeed and 35 % fail for a business reason. The other 5 % succeed
// or fail after the gateway has failed a few times.
var Orders = []Kind{
	{record.Order, "accepted", 590, `{"item":"book","quantity":1,"amount":%d,"currency":"EUR","card":"tok_ok"}`, completed, 0},
	{record.Order, "declined", 200, `{"item":"book","quantity":1,"amount":%d,"currency":"EUR","card":"tok_declined"}`, cancelled, 0},
	{record.Order, "unknown-card", 70, `{"item":"book","quantity":2,"amount":%d,"currency":"EUR","card":"` + record.Card + `"}`, cancelled, 0},
	{record.Order, "unshippable", 80, `{"item":"unshippable","quantity":1,"amount":%d,"currency":"EUR","card":"tok_ok"}`, cancelled, 0},
	{record.Order, "lost-reply", 25, `{"item":"book","quantity":1,"amount":%d,"currency":"EUR","card":"tok_lost_reply"}`, completed, 0},
	{record.Order, "lost-reply-unshippable", 8, `{"item":"unshippable","quantity":3,"amount":%d,"currency":"EUR","card":"tok_lost_reply"}`, cancelled, 0},
	{record.Order, "flaky", 17, `{"item":"book","quantity":1,"amount":%d,"currency":"EUR","card":"tok_flaky"}`, completed, 0},
	{record.Order, "flaky-unshippable", 5, `{"item":"unshippable","quantity":1,"amount":%d,"currency":"EUR","card":"tok_flaky"}`, cancelled, 0},
	{record.Order, "slow", 5, `{"item":"book","quantity":1,"amount":%d,"currency":"EUR","card":"tok_slow"}`, completed, 0},
}

// Trips are the kinds of trips: about 80 % succeed. The example has more of LH100, grand and compact than an
// int32 counts, four seats on ZZ9, and no full-house, convertible or GONE. A hundred thousand trips do not
// change that.
var Trips = []Kind{
	{record.Trip, "good", 540, `{"traveller":"Ada","flight":"LH100","hotel":"grand","budget":%d}`, completed, 0},
	{record.Trip, "car", 180, `{"traveller":"Ben","flight":"LH100","hotel":"grand","car":"compact","budget":%d}`, completed, 0},
	{record.Trip, "hotel-sold-out", 35, `{"traveller":"Dora","flight":"LH100","hotel":"full-house","car":"compact","budget":%d}`, compensated, 0},
	{record.Trip, "car-sold-out", 35, `{"traveller":"Egon","flight":"LH100","hotel":"grand","car":"convertible","budget":%d}`, compensated, 0},
	{record.Trip, "flight-gone", 20, `{"traveller":"Flo","flight":"GONE","hotel":"grand","car":"compact","budget":%d}`, compensated, 0},
	{record.Trip, "last-seats", 10, `{"traveller":"Fay","flight":"ZZ9","hotel":"grand","budget":%d}`, either, 0},
	{record.Trip, "no-such-hotel", 10, `{"traveller":"Gil","flight":"LH100","hotel":"castle","budget":%d}`, compensated, 0},
	{record.Trip, overBudget, 20, `{"traveller":"Gus","flight":"LH100","hotel":"grand","budget":%d}`, compensated, 0},
	{record.Trip, "no-ticket", 35, `{"traveller":"Nofly","flight":"LH100","hotel":"grand","car":"compact","budget":%d}`, compensated, 0},
	{record.Trip, "full-mailbox", 45, `{"traveller":"Fullbox","flight":"LH100","hotel":"grand","budget":%d}`, completed, 0},
	{record.Trip, "silent-hotel", 5, `{"traveller":"Hal","flight":"LH100","hotel":"silent-inn","budget":%d}`, compensated, 0},
	{record.Trip, "late-hotel", 5, `{"traveller":"Ida","flight":"LH100","hotel":"late-inn","budget":%d}`, either, 0},
	{record.Trip, "slow-hotel", 5, `{"traveller":"Jon","flight":"LH100","hotel":"slow-inn","budget":%d}`, completed, 0},
	{record.Trip, "cancelled", 15, `{"traveller":"Kim","flight":"LH100","hotel":"slow-inn","budget":%d}`, either, 20},
	{record.Trip, "cancelled-late", 40, `{"traveller":"Lea","flight":"LH100","hotel":"grand","budget":%d}`, either, 500},
}

const overBudget = "over-budget"

// FindKind returns the kind of that name. Each saga of the load has one.
func FindKind(saga, name string) (Kind, bool) {
	for _, k := range kindsOfSaga(saga) {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

func kindsOfSaga(saga string) []Kind {
	if saga == record.Trip {
		return Trips
	}
	return Orders
}
