package trip_test

import (
	"context"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/trip"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/sagatest"
)

const patience = 10 * time.Second

// startTrip starts a saga in memory. Its local steps run in a transaction that has the tables of the service, and that
// is rolled back.
func startTrip(t *testing.T, wanted trip.State) *sagatest.Run[trip.State] {
	t.Helper()
	tx, err := pgtest.Pool(t, pgtest.URL()).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	schema := pgtest.Name()
	migration, err := fs.ReadFile(trip.Migrations, "001_trip.sql")
	if err != nil {
		t.Fatal(err)
	}
	tables, _, _ := strings.Cut(strings.ReplaceAll(string(migration), "{{.schema}}", schema), "---- create above")
	tables += "; ALTER TABLE " + schema + ".itinerary DROP CONSTRAINT itinerary_trip_id_fkey" // no request has stored the trip
	if _, err := tx.Exec(t.Context(), "CREATE SCHEMA "+schema+";"+tables, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	d, err := trip.DefineSaga(schema, patience)
	if err != nil {
		t.Fatal(err)
	}
	return sagatest.Start(t, d, "key-1", wanted, sagatest.WithTx(tx))
}

var ada = trip.State{Traveller: "Ada", Flight: "LH100", Hotel: "grand", Budget: 90_000}

func TestAFullHotelGivesTheFlightBack(t *testing.T) {
	t.Parallel()
	run := startTrip(t, ada)
	run.ExpectCommand("flight", command.Booking{Item: "LH100", Traveller: "Ada", AnswerWithin: patience})
	run.Reply("flight", command.Booked{Number: "F-1"})
	run.Reject("hotel", "hotel grand is sold out")
	run.Undone("flight")
	run.ExpectStatus(saga.StatusCompensated)
}

// Nobody knows whether a silent hotel has booked the room, so the saga cancels that booking too.
func TestASilentHotelIsCancelledToo(t *testing.T) {
	t.Parallel()
	run := startTrip(t, ada)
	run.Reply("flight", command.Booked{Number: "F-1"})
	run.ExpectCommand("hotel")
	run.Advance(patience)
	run.Undone("flight")
	run.Late("hotel").Reply(command.Booked{Number: "H-1"})
	run.Undone("hotel")
	run.ExpectStatus(saga.StatusCompensated)
}

// Behind the ticket the saga only goes forward: a bounced mail is sent again.
func TestABouncedMailIsSentAgain(t *testing.T) {
	t.Parallel()
	run := startTrip(t, ada)
	run.Reply("flight", command.Booked{Number: "F-1"})
	run.Reply("hotel", command.Booked{Number: "H-1"})
	if got := sagatest.Expect[command.Ticketing](run, "ticket").Numbers; len(got) != 2 {
		t.Errorf("the ticket is for %q, want the flight and the hotel", got)
	}
	run.Reply("ticket", "T-1")
	run.Reject("mail", "the mailbox is full")
	run.Advance(time.Second)
	run.ExpectCommand("mail", command.Confirmation{Traveller: "Ada", Ticket: "T-1"})
	run.Reply("mail", nil)
	run.ExpectStatus(saga.StatusCompleted)
}

// The first step runs in the transaction of the request, and no command is sent.
func TestATripOverTheBudgetEndsAtOnce(t *testing.T) {
	t.Parallel()
	poor := ada
	poor.Budget = 100
	run := startTrip(t, poor)
	run.ExpectNothing()
	run.ExpectStatus(saga.StatusCompensated)
	if got, want := run.Reason(), "step quote was rejected: the trip costs 50000, and the budget is 100"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
}
