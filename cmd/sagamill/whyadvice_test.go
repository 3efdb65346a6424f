package main

import (
	"strings"
	"testing"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/saga"
)

// why prints the exact commands that continue a held or stuck saga, and the next ones once those are run.
func TestWhySaysWhatFreesAStuckSaga(t *testing.T) {
	t.Parallel()
	for _, incarnation := range []string{"", "first"} { // of a saga that a request has begun
		t.Run(incarnation, func(t *testing.T) { t.Parallel(); freeStuckSaga(t, incarnation) })
	}
}

func freeStuckSaga(t *testing.T, incarnation string) {
	path := ""
	if incarnation != "" {
		path = " -path ." + incarnation
	}
	f := newTripsWith(t, saga.Participant)
	f.relay(f.home)
	f.relay(f.flights)
	f.answer(func() (any, error) { return nil, consumer.Terminal(errFull) })
	f.startID(saga.ID{Scope: "acme", Key: "k", Incarnation: incarnation})
	f.deliver("flight.reserve")
	f.deliver("saga.trip")
	f.why("k", "needs an operator: step flight: dead letter, terminal: it is full; ")
	f.why("k", "once the cause is fixed: sagamill dead redrive -schema flights -id 1; or, if it has been settled by other means, sagamill saga skip k -schema trips"+path+" -step flight -why \"…\"; its deadline passes at 20")
	f.command(0, "saga", "cancel", "k", "-why", "the customer has left")
	f.deliver("flight.cancel")
	f.deliver("saga.trip")
	f.why("k", "once the cause is fixed: sagamill dead redrive -schema flights -id 1,2, which does the step and then undoes it; or, if it has done nothing, or was undone by other means, sagamill saga skip k -schema trips"+path+" -step flight -why \"…\"\n")
	f.why("k", "1.1 in schema flights: terminal: it is full; sagamill dead show -schema flights -id 1\n")
	f.answer(func() (any, error) { return trip{"!"}, nil })
	f.command(0, "dead", "redrive", "-id", "1", "-schema", f.flights)
	f.why("k", "its action is no dead letter any more, so next: sagamill dead redrive -schema flights -id 2; or")

	f.command(0, "saga", "skip", "k", "-step", "flight", "-why", "undone by phone")
	f.why("k", "compensated, started at 20")
	f.why("k", "; the saga has ended, and a redrive could do work that nobody undoes: sagamill dead discard -schema flights -id 2\n")
	f.command(0, "dead", "discard", "-id", "2", "-schema", f.flights)
}

// Where the plan is not known, messages are found all the same, and nothing is advised that
// would be refused.
func TestWhyWithoutAPlan(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	f.start("k")
	f.why("k", "is not published yet")
	f.exec("UPDATE {home}.saga SET name = 'gone'")
	f.why("k", "step #1: command flight.reserve is not published yet")
	f.relay(f.home)
	out := f.why("k", "step #1: published, ")
	if strings.Contains(out, `""`) || strings.Contains(out, "saga retry") {
		t.Errorf("why says\n%s", out)
	}
}
