package browsertest

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/saga"
)

// bookingOf returns the step of a participant that notes what it does.
func bookingOf(service, topic string) consumer.Step {
	return saga.Participant(consumer.Step{Name: "book", CancelParked: true,
		Action: saga.On(topic, func(ctx context.Context, tx pgx.Tx, in consumer.Message[trip]) (trip, error) {
			return in.Body, note(ctx, tx, service, in.Key, topic)
		}),
	})
}

func ask(s *trip) trip { return *s }

// tripOf returns a definition: a flight, and a hotel for which the saga waits for deadline.
func tripOf(deadline time.Duration) *saga.Definition[trip] {
	return saga.Must(saga.Define("trip", 1,
		saga.Step[trip]{Name: "flight", Do: saga.Remote("flight.book", ask, func(*trip, trip) {}), Pivot: true, Retry: saga.Retry{Attempts: 2}},
		saga.Step[trip]{Name: "hotel", Do: saga.Remote("hotel.book", ask, func(*trip, trip) {}), Deadline: deadline, Retry: saga.Retry{Attempts: 2, Base: time.Millisecond}},
	))
}

// A participant is down: it refuses each command until the attempts are used up, and the sagas are stuck. A person sees it
// on the first page. When the participant is back, the person retries one saga, and then the others.
func TestAStuckSagaGoesOnWhenItsParticipantIsBack(t *testing.T) {
	t.Parallel()
	w := newTown(t, "trips", "flights", "hotels")
	var down atomic.Bool
	down.Store(true)
	hotel := saga.Participant(consumer.Step{Name: "book", CancelParked: true,
		Action: saga.On("hotel.book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[trip]) (trip, error) {
			if down.Load() {
				return trip{}, saga.Reject("the booking system of the hotels does not answer")
			}
			return in.Body, note(ctx, tx, "hotels", in.Key, "hotel.book")
		}),
	})
	w.serve(sagamill.Config{Name: "hotels", Steps: []consumer.Step{hotel}})
	w.serve(sagamill.Config{Name: "flights", Steps: []consumer.Step{bookingOf("flights", "flight.book")}})
	definition := tripOf(0)
	trips, _ := w.serve(sagamill.Config{Name: "trips", Sagas: []saga.Plan{definition}})
	w.start(trips, definition, 3)

	w.open("")
	w.see("Sagas are stuck.")
	w.await("three stuck sagas", "document.querySelector('.card-stuck .figure')?.innerText === '3'")
	w.screenshot("overview")
	w.press("Sagas are stuck.")
	w.see("3 match")
	w.screenshot("stuck")
	w.open("why?q=trip-001") // one of them, as a page for a colleague
	w.see("Link for a colleague")
	w.see("the booking system of the hotels does not answer")
	w.screenshot("why")

	down.Store(false)
	w.open("sagas?state=stuck") // one is tried first, on its own page
	w.press("trip-001")
	w.see("Why it waits")
	w.see("the booking system of the hotels does not answer")
	w.screenshot("one")
	w.press("Retry…")
	w.confirm(1)
	w.see("Changed 1 of 1")
	w.awaitQuery("SELECT count(*) FROM trips.saga WHERE status = 'completed'", "1")

	w.open("sagas?state=stuck") // then the others
	w.see("2 match")
	w.press("Retry…")
	w.see("What it would do now")
	w.screenshot("preview")
	w.confirm(2)
	w.see("Changed 2 of 2")
	w.see("done by ann")
	w.screenshot("done")

	w.awaitQuery("SELECT count(*) FROM trips.saga WHERE status = 'completed'", "3")
	w.open("sagas?state=completed")
	w.see("3 match")
	w.checkOnce("hotels", 3)
	w.checkOnce("flights", 3)
	w.check("SELECT string_agg(DISTINCT who || ' ' || verb || ': ' || why, ', ') || ' ' || count(*) FROM trips.saga_journal", "ann retry: "+why+" 3")
}

// A queue is deleted with the commands that are in it. A person finds the sagas that wait at its step, and sends their
// commands again.
func TestCommandsOfADeletedQueueAreSentAgain(t *testing.T) {
	t.Parallel()
	w := newTown(t, "trips", "flights", "hotels")
	w.useRabbitMQ(map[string][]string{"trips": {"saga.trip"}, "flights": {"flight.book"}, "hotels": {"hotel.book"}})
	hotels := sagamill.Config{Name: "hotels", Steps: []consumer.Step{bookingOf("hotels", "hotel.book")}}
	_, stopHotels := w.serve(hotels)
	stopHotels()
	w.serve(sagamill.Config{Name: "flights", Steps: []consumer.Step{bookingOf("flights", "flight.book")}})
	definition := tripOf(0)
	trips, _ := w.serve(sagamill.Config{Name: "trips", Sagas: []saga.Plan{definition}})
	w.start(trips, definition, 12)
	queue, channel := w.queue("hotel.book", "hotels"), rabbittest.Channel(t, rabbittest.URL())
	w.awaitThat("12 commands in the queue", func() bool {
		q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err == nil && q.Messages == 12
	})
	if lost, err := channel.QueueDelete(queue, false, false, false); err != nil || lost != 12 {
		t.Fatalf("QueueDelete = %d, %v; want 12 messages", lost, err)
	}
	w.serve(hotels) // declares the queue again, and gets nothing

	w.open("sagas")
	w.fill("Step", "hotel")
	w.fill("State", "live")
	w.press("Search")
	w.see("trip-012")
	w.screenshot("waiting")
	w.press("Retry…")
	w.confirm(12)
	w.see("Changed 12 of 12")
	w.screenshot("done")

	w.awaitQuery("SELECT count(*) FROM trips.saga WHERE status = 'completed'", "12")
	w.checkOnce("hotels", 12)
	w.checkOnce("flights", 12)
	w.check("SELECT string_agg(DISTINCT who || ' ' || verb || ': ' || why, ', ') || ' ' || count(*) FROM trips.saga_journal", "ann retry: "+why+" 12")
}

// An upstream has answered requests with 502. Asked on the telephone, it has booked one and not the other: a person keeps an
// answer for one key and lets the other run again.
func TestRequestsWithAnUnknownOutcomeAreDecided(t *testing.T) {
	t.Parallel()
	w := newTown(t, "trips")
	w.request("trips", http.StatusBadGateway, "booked", "lost")
	w.open("requests")
	w.see("Requests whose outcome is unknown")
	w.screenshot("keys")
	w.press("Show keys and scopes")
	w.see("booked")
	w.press(digestOf("booked"))
	w.see("Nobody knows whether it had its effect")
	w.screenshot("key")
	w.fill("Status", "201")
	w.fill("Body", `{"booking":"B-7"}`)
	w.press("Complete…")
	w.screenshot("key-preview")
	w.confirm(1)
	w.see("Changed 1 of 1")
	w.screenshot("key-done")
	w.open("requests?plain=yes")
	w.press(digestOf("lost"))
	w.press("Release…")
	w.confirm(1)
	w.see("Changed 1 of 1")
	w.open("requests")
	w.see("No request has an unknown outcome")
	if got := w.request("trips", http.StatusOK, "booked", "lost"); !slices.Equal(got, []int{http.StatusCreated, http.StatusOK}) {
		t.Errorf("the retries get %d, want 201, kept, and 200, run again", got)
	}
	w.check("SELECT string_agg(who || ' ' || verb || ': ' || why, ', ' ORDER BY verb) FROM trips.operator_journal", "ann keys complete: "+why+", ann keys release: "+why)
}
