package consumer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// numbered is the n-th action of a key.
func numbered(key, n string) *message.Message {
	msg := act(key)
	msg.Metadata.Set(outbox.HeaderKey, key+":process-payment#"+n)
	return msg
}

// Messages of one key come to a lane together, and the first of them fails, at
// once or by what it has queued. The step is Ordered: the others wait behind it.
func TestABatchKeepsTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(in Message[payment]) error{
		"error": func(Message[payment]) error { return errors.New("no") },
		"queued": func(in Message[payment]) error {
			in.Queue("SELECT 1/($1::integer - 1)", 1)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			step := f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
				in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", in.Key+in.N)
				if in.Key == "k" && in.N == "1" {
					return fail(in)
				}
				return nil
			}, nil)
			step.Ordered = true
			c := f.consumer(t, Options{BatchTime: time.Minute}, step)
			settle(t, c, numbered("other", "1"), numbered("k", "1"), numbered("k", "2"), numbered("third", "1"))
			if got, want := f.effects(t), "other1, third1"; got != want {
				t.Errorf("effects %q, want %q", got, want)
			}
			if got, want := f.parked(t), "retrying action failed 1; retrying action waits-for-order 0"; got != want {
				t.Errorf("parked %q, want %q", got, want)
			}
		})
	}
}
