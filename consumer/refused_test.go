package consumer

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// An action that says that it has done nothing is done with; its compensation enters
// no handler, and is answered like one that came first. Copies of either are nothing new.
func TestAnActionThatDidNothingIsNotUndone(t *testing.T) {
	t.Parallel()
	again := func(msg *message.Message) *message.Message {
		msg.Metadata.Set(outbox.PropertyRedelivered, "true")
		return msg
	}
	for name, tt := range map[string]struct {
		fails  int // entries of the action that fail before
		settle func(t *testing.T, c *Consumer, msgs ...*message.Message)
	}{
		"alone":     {0, func(t *testing.T, c *Consumer, msgs ...*message.Message) { handle(t, c, msgs...) }},
		"batch":     {0, func(t *testing.T, c *Consumer, msgs ...*message.Message) { settle(t, c, append(msgs, act("z"))...) }},
		"from park": {1, func(t *testing.T, c *Consumer, msgs ...*message.Message) { handle(t, c, msgs...); runParkedOnce(t, c) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			fails := tt.fails
			step := answering(f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
				if in.Key == "k" && fails > 0 {
					fails--
					return errors.New("not yet")
				}
				in.DidNothing()
				return nil
			}, f.effect("undone")))
			c := f.consumer(t, Options{}, step)
			tt.settle(t, c, act("k"))
			if got, want := f.row(t), "refused"; got[:min(len(got), len(want))] != want {
				t.Errorf("row %q, want it %s", got, want)
			}
			tt.settle(t, c, act("k"), again(act("k")))
			tt.settle(t, c, undo("k"))
			tt.settle(t, c, undo("k"), again(act("k")), act("k"))
			if got := f.effects(t); got != "" {
				t.Errorf("effects %q: the compensation's handler was entered", got)
			}
			if got, want := f.emitted(t, "answer"), []string{"undo k process-payment 0 false"}; !slices.Equal(got, want) {
				t.Errorf("answers %q, want %q", got, want)
			}
			if got := f.parked(t); got != "" {
				t.Errorf("parked %q", got)
			}
		})
	}
}
