package saga_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A Voyage is the state of a saga of which a journey is a part.
type Voyage struct {
	Traveller string
	Budget    int64
	Flight    string
}

// Steps that are not messages: one is rows of the orchestrator's own database, in the
// transaction that moves the instance; the other is a saga of its own.
var voyage = saga.Must(saga.Define("voyage", 1,
	saga.Step[Voyage]{
		Name: "budget",
		Do: saga.Local(func(ctx context.Context, tx pgx.Tx, t saga.Turn, s *Voyage) error {
			if s.Budget > 1_000_000 {
				return saga.Reject("over the limit") // a business answer: what was done is undone
			}
			t.Queue("INSERT INTO journeys.budget (voyage, cents) VALUES ($1, $2)", t.ID, s.Budget)
			t.Emit(outbox.Message{Topic: "voyage.planned", Payload: []byte(`{}`)}) // for whom it may concern
			return nil
		}),
		Undo: saga.Local(func(ctx context.Context, tx pgx.Tx, t saga.Turn, s *Voyage) error {
			t.Queue("DELETE FROM journeys.budget WHERE voyage = $1", t.ID)
			return nil
		}),
	},
	saga.Step[Voyage]{
		Name: "journey",
		Do: saga.Nested(journey,
			func(s *Voyage) Journey { return Journey{Traveller: s.Traveller} },
			func(s *Voyage, done Journey) { s.Flight = done.Flight }),
		Pivot: true, // journey has one, so that it cannot be undone for certain
	},
))

func ExampleLocal() {
	fmt.Println(voyage.Name(), "hears of its participants on", saga.Topic(voyage.Name()))
	// Output: voyage hears of its participants on saga.voyage
}

// A participant with an effect in another system replies when it has recorded the effect.
func ExampleDone() {
	type booked struct{ Number, Rejected string }
	call := func(ctx context.Context, in consumer.Message[Wanted], key string) (booked, error) {
		return booked{Number: "LH 1"}, nil // asks the airline, with key as the idempotency key
	}
	reply := func(ctx context.Context, tx pgx.Tx, in consumer.Message[Wanted], b booked, emit consumer.Emit) error {
		if b.Rejected != "" {
			return saga.Rejected(emit, in.Delivery, b.Rejected)
		}
		return saga.Done(emit, in.Delivery, Reserved{Number: b.Number})
	}
	cancelled := func(ctx context.Context, tx pgx.Tx, in consumer.Message[Wanted], _ booked, emit consumer.Emit) error {
		return saga.Undone(emit, in.Delivery)
	}
	_ = saga.Participant(consumer.Step{
		Name:         "book-flight",
		Action:       consumer.Effect("flight.book", call, nil, reply),
		Compensation: consumer.Effect("flight.cancel", call, nil, cancelled),
		Timeout:      10 * time.Second,
	})
}

// Before a release is deployed: the new binary has printed its manifest, and whoever
// deploys it looks whether it can finish all that is under way.
func ExampleNewManifest() {
	must(json.NewEncoder(os.Stdout).Encode(saga.NewManifest(voyage))) // shop-orchestrator -manifest > manifest.json

	check := func(ctx context.Context, db *pgxpool.Pool) {
		file := get(os.Open("manifest.json"))
		defer file.Close()
		manifest := get(saga.ReadManifest(file))
		for _, v := range get(manifest.Check(ctx, db, "journeys")) {
			if v.Problem != "" {
				log.Fatalf("%d instances of %s, version %d: %s", v.Instances, v.Saga, v.Version, v.Problem)
			}
		}
	}
	_ = check
}

// A saga that is begun by a message and not by a request: the message that comes a second
// time finds the instance.
func ExampleExists() {
	begin := func(ctx context.Context, tx pgx.Tx, starter *saga.Starter[Journey], order string) error {
		batch := &pgx.Batch{}
		if _, err := starter.Queue(ctx, batch, saga.ID{Scope: "acme", Key: order}, Journey{Traveller: "Ada"}); err != nil {
			return err
		}
		err := tx.SendBatch(ctx, batch).Close()
		if saga.Exists(err) {
			log.Print("begun before: the transaction is to be rolled back, and there is nothing left to do")
		}
		return err
	}
	_ = begin
}
