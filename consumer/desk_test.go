package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A Desk does what package operator does with the dead letters of a schema. Package operator
// imports this one, so that tests in package consumer reach it through OpenDesk.
type Desk interface {
	Redrive(ctx context.Context, ids ...int64) (outcomes map[string]int, err error) // without ids: all
	Bury(ctx context.Context, ids ...int64) (int, error)
	RetryNow(ctx context.Context) (int, error)
	Edit(ctx context.Context, id int64, e DeskEdit) error
	Preview(ctx context.Context, c *Consumer) (outcomes []string, err error)
}

// A DeskEdit is an edit of a dead letter by a tester.
type DeskEdit struct {
	Payload []byte
	Set     map[string]string
	Remove  []string
}

// OpenDesk is set by package consumer_test.
var OpenDesk func(db *pgxpool.Pool, schema string) (Desk, error)

// desk opens the dead letters of f's schema.
func (f *fixture) desk(t *testing.T) Desk {
	t.Helper()
	d, err := OpenDesk(f.pool, f.schema)
	if err != nil {
		t.Fatalf("OpenDesk: %v", err)
	}
	return d
}

// A letterFixture has a consumer of one step whose handlers fail while they are broken: their
// messages are dead letters at once then.
type letterFixture struct {
	*fixture
	c       *Consumer
	letters Desk
	broken  atomic.Bool
}

func newLetterFixture(t *testing.T) *letterFixture {
	t.Helper()
	f := &letterFixture{fixture: newFixture(t)}
	f.broken.Store(true)
	f.c = f.consumer(t, Options{}, f.step(f.unlessBroken("paid"), f.unlessBroken("refunded")))
	f.letters = f.desk(t)
	return f
}

func (f *letterFixture) unlessBroken(what string) Handler[payment] {
	work := f.effect(what)
	return func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if f.broken.Load() {
			return Terminal(errors.New(what + " went wrong"))
		}
		return work(ctx, tx, in, emit)
	}
}

// working hands msgs over while the handlers work.
func (f *letterFixture) working(t *testing.T, msgs ...*message.Message) {
	t.Helper()
	f.broken.Store(false)
	handle(t, f.c, msgs...)
	f.broken.Store(true)
}

// runAll runs parked messages until none is due.
func (f *letterFixture) runAll(t *testing.T) {
	t.Helper()
	f.broken.Store(false)
	for range 50 {
		if runParkedOnce(t, f.c) == 0 {
			return
		}
	}
	t.Fatal("parked messages are retried for ever")
}

// redriveID redrives dead letters and returns the outcomes.
func (f *letterFixture) redriveID(t *testing.T, ids ...int64) map[string]int {
	t.Helper()
	outcomes, err := f.letters.Redrive(t.Context(), ids...)
	if err != nil {
		t.Fatalf("Redrive: %v", err)
	}
	return outcomes
}

// deliver hands msg over from a topic that need not be its type.
func deliver(t *testing.T, f *letterFixture, topic string, msg *message.Message) {
	t.Helper()
	if err := f.c.Handle(t.Context(), topic, msg); err != nil {
		t.Fatalf("Handle: %v", err)
	}
}

func without(msg *message.Message, header string) *message.Message {
	delete(msg.Metadata, header)
	return msg
}

func saying(msg *message.Message, payload string) *message.Message {
	msg.Payload = []byte(payload)
	return msg
}
