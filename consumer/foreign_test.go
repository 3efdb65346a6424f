package consumer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// byOrder is a foreign message whose key is in its metadata.
func byOrder(uuid, order string) *message.Message {
	msg := foreign(uuid, `{"amount":1}`)
	msg.Metadata.Set("order", order)
	return msg
}

// Deliveries that a lane leaves go back to the queues that they came from, although they got their key in the lane. Here
// a lane leaves what has the identity of another one in its load.
func TestForeignMessagesThatALaneLeavesAreHandled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{Identity: IdentityFromMetadata("legacy", "order"), Lanes: 1}, f.step(f.effect("paid"), nil))
	c.signals.settled.Enable()
	const deliveries = 10
	for i := range deliveries {
		f.sub.queue("pay") <- byOrder("same", fmt.Sprint("k", i%2))
	}
	stop := start(t, c)
	for range deliveries {
		c.signals.settled.Wait(t)
	}
	stop()
	if got := f.texts(t, "SELECT what FROM {schema}.effect ORDER BY what"); !gocmp.Equal(got, []string{"paid k0 1", "paid k1 1"}) {
		t.Errorf("effects %q", got)
	}
}

// A handler that hangs at a foreign message holds up no other foreign message, of its step or of another one.
func TestAForeignMessageHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release, began, done := make(chan struct{}), make(chan struct{}), make(chan string)
	slow := func(msg *message.Message) error {
		if msg.UUID == "hangs" {
			close(began)
			<-release
			return nil
		}
		done <- "slow"
		return nil
	}
	c := f.consumer(t, Options{Identity: IdentityFromUUID("legacy")},
		FromWatermill("slow", "slow", slow), FromWatermill("fast", "fast", func(*message.Message) error { done <- "fast"; return nil }))
	stop := start(t, c)
	f.sub.queue("slow") <- foreign("hangs", "x")
	<-began
	for _, step := range []string{"fast", "slow"} {
		f.sub.queue(step) <- foreign("another", "x")
		select {
		case got := <-done:
			if got != step {
				t.Errorf("%s ran, want %s", got, step)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("a message of %s waits for the one whose handler hangs", step)
			go func() { <-done }()
		}
	}
	close(release)
	stop()
}

// Foreign messages for an ordered step stay in one queue, since any two of them may have one key.
func TestForeignMessagesOfAnOrderedStepStayInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, ordered := range []bool{false, true} {
		s := f.step(f.effect("paid"), nil)
		s.Ordered = ordered
		c := f.consumer(t, Options{Identity: IdentityFromMetadata("legacy", "order")}, s)
		a, b := c.router.newBoardEntry("pay", byOrder("a", "k")), c.router.newBoardEntry("pay", byOrder("b", "k"))
		if got := a.queue == b.queue; got != ordered || a.load == nil || a.alone {
			t.Errorf("ordered %t: one queue %t, entry %+v", ordered, got, a)
		}
	}
}

// A timestamp in another format than RFC 3339 does not make the age of a foreign message unknown: after a sweep, each of
// them would be a dead letter.
func TestAForeignTimestampIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{Identity: IdentityFromUUID("legacy")}, f.step(f.effect("paid"), nil))
	f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = clock_timestamp() - interval '1 day'")
	msg := foreign("a", `{"amount":1}`)
	msg.Metadata.Set(outbox.PropertyTimestamp, "1732300000")
	deliverTo(t, c, "pay", msg)
	compareStored(t, stored{Effects: "paid a 1"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
}

// A redriven message gets its identity once too: its retries keep the one that it got then.
func TestIdentityIsKeptForRetriesOfARedrive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	calls, failures := 0, 2
	identity := func(*message.Message) (string, string, string, error) {
		if calls++; calls == 1 {
			return "", "", "", errors.New("not yet")
		}
		return "legacy", fmt.Sprint("call", calls), "", nil
	}
	c := f.consumer(t, Options{Identity: identity}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if failures--; failures >= 0 {
			return errors.New("not now")
		}
		return f.effect("paid")(ctx, tx, in, emit)
	}, nil))
	deliverTo(t, c, "pay", foreign("a", `{"amount":1}`))
	if _, err := f.desk(t).Redrive(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp() WHERE state = 'retrying'")
		runParkedOnce(t, c)
	}
	compareStored(t, stored{Effects: "paid call2 1"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
}

// A handler of a Router sees the type with which its message came, though another type routed it, in a retry too.
func TestFromWatermillKeepsTheType(t *testing.T) {
	t.Parallel()
	for own, typed := range map[string]bool{"order-placed": true, "orders": true, "": false} {
		t.Run(own, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var saw []message.Metadata
			step := FromWatermill("ship", "orders", func(msg *message.Message) error {
				if saw = append(saw, msg.Metadata); len(saw) == 1 {
					return errors.New("not now")
				}
				return nil
			})
			step.RetryBase, step.RetryCap = 1, 1
			c := f.consumer(t, Options{Identity: IdentityFromUUID("legacy")}, step)
			msg := foreign("a", "x")
			if typed {
				msg.Metadata.Set(outbox.PropertyType, own)
			}
			deliverTo(t, c, "orders", msg)
			runParkedOnce(t, c)
			if len(saw) != 2 {
				t.Fatalf("the handler was entered %d times", len(saw))
			}
			for _, metadata := range saw {
				if got, has := metadata[outbox.PropertyType]; got != own || has != typed || metadata[headerOwnType] != "" {
					t.Errorf("the handler saw the metadata %v, want the type %q", metadata, own)
				}
			}
		})
	}
}
