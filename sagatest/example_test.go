package sagatest_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/sagatest"
)

// t stands for the test's own.
var t testing.TB = &recorder{ctx: context.Background()}

// A Booking is the state of the examples' saga.
type Booking struct {
	Guest, Room string
}

// A Reserve is the command to the hotel.
type Reserve struct{ Guest string }

// A Reserved is the hotel's answer.
type Reserved struct{ Room string }

func reserve() saga.Step[Booking] {
	return saga.Step[Booking]{
		Name:     "hotel",
		Do:       saga.Remote("hotel.reserve", func(b *Booking) Reserve { return Reserve{b.Guest} }, func(b *Booking, r Reserved) { b.Room = r.Room }),
		Undo:     saga.Remote[Booking, Reserve, any]("hotel.release", func(b *Booking) Reserve { return Reserve{b.Guest} }, nil),
		Deadline: 10 * time.Minute,
	}
}

func ExampleStart() {
	stay := saga.Must(saga.Define("stay", 1, reserve()))
	run := sagatest.Start(t, stay, "key-1", Booking{Guest: "Ada"})
	run.ExpectCommand("hotel", Reserve{Guest: "Ada"})
	run.Reply("hotel", Reserved{Room: "12"})
	run.ExpectStatus(saga.StatusCompleted)
	fmt.Println(run.State().Room)
	// Output: 12
}

// A deadline passes, and the answer comes late.
func ExampleRun_Advance() {
	stay := saga.Must(saga.Define("stay", 1, reserve()))
	run := sagatest.Start(t, stay, "key-1", Booking{Guest: "Ada"})
	run.ExpectCommand("hotel")
	run.Advance(10 * time.Minute)
	run.ExpectUndo("hotel")
	run.Late("hotel").Reply(Reserved{Room: "12"})
	run.Undone("hotel")
	run.ExpectStatus(saga.StatusCompensated)
	fmt.Println(run.Reason())
	// Output: step hotel: no reply within 10m0s
}

func ExampleExpect() {
	stay := saga.Must(saga.Define("stay", 1, reserve()))
	run := sagatest.Start(t, stay, "key-1", Booking{Guest: "Ada"})
	fmt.Println(sagatest.Expect[Reserve](run, "hotel").Guest)
	run.Reject("hotel", "no rooms")
	fmt.Println(run.Status())
	// Output:
	// Ada
	// compensated
}

func ExampleChild() {
	stay := saga.Must(saga.Define("stay", 1, reserve()))
	trip := saga.Must(saga.Define("trip", 1, saga.Step[Booking]{
		Name: "stay",
		Do:   saga.Nested(stay, func(b *Booking) Booking { return *b }, func(b *Booking, done Booking) { *b = done }),
	}))
	run := sagatest.Start(t, trip, "key-1", Booking{Guest: "Ada"})
	sagatest.Child[Booking](run, "stay").Reply("hotel", Reserved{Room: "12"})
	fmt.Println(run.Status(), run.State().Room)
	// Output: completed 12
}

func ExampleRun_Operator() {
	stay := saga.Must(saga.Define("stay", 1, reserve()))
	run := sagatest.Start(t, stay, "key-1", Booking{Guest: "Ada"})
	run.ExpectCommand("hotel")
	run.Operator().Cancel("the guest has called")
	run.Undone("hotel")
	fmt.Println(run.Timeline())
	// Output:
	//   0s        start      stay, version 1, key key-1
	//   0s        command    hotel, attempt 1, to hotel.reserve {"Guest":"Ada"}
	//   0s        status     the saga is running
	//   0s        operator   cancel  the guest has called
	//   0s        undo       hotel, attempt 1, to hotel.release {"Guest":"Ada"}
	//   0s        status     the saga is compensating: cancelled: the guest has called
	//   0s        answer     hotel, attempt 1, undone
	//   0s        status     the saga is compensated: cancelled: the guest has called
}

// A printer stands for a test whose errors are to be seen.
type printer struct{ recorder }

func (p *printer) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// A House is the world of the examples' participant.
type House struct{ Taken int }

// stayModel is a stay in a house whose desk should have been given to saga.Participant.
func stayModel() sagatest.Model[House, Booking] {
	return sagatest.Model[House, Booking]{
		Saga:  func(*House) *saga.Definition[Booking] { return saga.Must(saga.Define("stay", 1, reserve())) },
		State: Booking{Guest: "Ada"},
		Steps: func(h *House) []consumer.Step {
			return []consumer.Step{{
				Name: "hotel",
				Action: saga.On("hotel.reserve", func(context.Context, pgx.Tx, consumer.Message[Reserve]) (Reserved, error) {
					h.Taken++
					return Reserved{Room: "12"}, nil
				}),
				Compensation: saga.OnUndo("hotel.release", func(context.Context, pgx.Tx, consumer.Message[Reserve]) error {
					h.Taken--
					return nil
				}),
			}}
		},
		Rest: func(h *House, o sagatest.Outcome[Booking]) error {
			if o.Status == saga.StatusCompensated && h.Taken != 0 {
				return fmt.Errorf("the saga is compensated, and %d rooms are taken", h.Taken)
			}
			return nil
		},
	}
}

func ExampleExplore() {
	t := &printer{recorder{ctx: context.Background()}}
	sagatest.Explore(t, stayModel(), nil)
	// Output:
	// saga stay waits for ever: it is compensating, step hotel is undoing and nobody answers
	//    1. the saga is started
	//    2. hotel gets hotel.reserve of 1.1: a dead letter: an injected error; the handler was made to fail until its attempts were used up
	//    3. it is 10m0s later: compensating (step hotel: no reply within 10m0s)
	//    4. hotel gets hotel.release of 1.1: a dead letter: the action is a dead letter
	// again: sagatest.Replay(t, model, "0:7")
}

// SQL handlers work in Tx, which the test begins and rolls back: nothing is ever committed.
func ExampleModel() {
	test := func(t *testing.T) {
		url := os.Getenv("DATABASE_URL")
		if url == "" {
			t.Skip("DATABASE_URL is not set")
		}
		db, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close(context.Background())
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "CREATE TABLE taken (key text PRIMARY KEY)"); err != nil {
			t.Fatal(err)
		}
		sagatest.Explore(t, rowModel(tx), &sagatest.ExploreOptions{Faults: 1})
	}
	_ = test // it is a test: func TestStay(t *testing.T)
}

// rowModel is a stay whose desk keeps a row for each room that is taken.
func rowModel(tx pgx.Tx) sagatest.Model[struct{}, Booking] {
	return sagatest.Model[struct{}, Booking]{ // the world is in the tables
		Saga:  func(*struct{}) *saga.Definition[Booking] { return saga.Must(saga.Define("stay", 1, reserve())) },
		State: Booking{Guest: "Ada"},
		Steps: func(*struct{}) []consumer.Step {
			return []consumer.Step{saga.Participant(consumer.Step{
				Name: "hotel",
				Action: saga.On("hotel.reserve", func(ctx context.Context, tx pgx.Tx, in consumer.Message[Reserve]) (Reserved, error) {
					_, err := tx.Exec(ctx, "INSERT INTO taken (key) VALUES ($1)", in.Key)
					return Reserved{Room: "12"}, err
				}),
				Compensation: saga.OnUndo("hotel.release", func(ctx context.Context, tx pgx.Tx, in consumer.Message[Reserve]) error {
					_, err := tx.Exec(ctx, "DELETE FROM taken WHERE key = $1", in.Key)
					return err
				}),
			})}
		},
		Tx:          tx,
		Fingerprint: "SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM taken",
		Rest: func(_ *struct{}, o sagatest.Outcome[Booking]) error {
			var taken int
			err := o.Tx.QueryRow(context.Background(), "SELECT count(*) FROM taken").Scan(&taken)
			if err == nil && o.Status == saga.StatusCompensated && taken != 0 {
				err = fmt.Errorf("the saga is compensated, and %d rooms are taken", taken)
			}
			return err
		},
	}
}

func ExampleReplay() {
	t := &printer{recorder{ctx: context.Background()}}
	sagatest.Replay(t, stayModel(), "0:8 1:1")
	// Output:
	// saga stay waits for ever: it is compensating, step hotel is undoing and nobody answers
	//    1. the saga is started
	//    2. it is 10m0s later: compensating (step hotel: no reply within 10m0s)
	//    3. hotel gets hotel.release of 1.1: nothing to undo, a tombstone is left
	//    4. hotel gets hotel.reserve of 1.1: superseded
	// again: sagatest.Replay(t, model, "0:8 1:1")
}

// What most tests leave alone: the tenant, the time from which on an instance is said to
// be stuck, local steps with a database, and what nobody looks at.
func ExampleOption() {
	test := func(t *testing.T, tx pgx.Tx) {
		stay := saga.Must(saga.Define("stay", 1, reserve()))
		run := sagatest.Start(t, stay, "key-1", Booking{Guest: "Ada"},
			sagatest.WithScope("acme"), sagatest.WithPatience(time.Hour), sagatest.WithTx(tx), sagatest.AllowLeftovers())
		run.Advance(time.Hour)
	}
	_ = test
}

func ExampleExpectUndo() {
	stay := saga.Must(saga.Define("stay", 1, reserve()))
	run := sagatest.Start(t, stay, "key-1", Booking{Guest: "Ada"})
	run.ExpectCommand("hotel")
	run.Advance(10 * time.Minute)
	fmt.Println(sagatest.ExpectUndo[Reserve](run, "hotel").Guest)
	run.Undone("hotel")
	// Output: Ada
}
