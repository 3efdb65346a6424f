package consumer

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A handler may change its body. When its transaction is lost and it is entered again, it gets the body as it came.
func TestEachEntryGetsTheBodyAsItCame(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	step := Step{Name: "process-payment", Action: On("pay", func(ctx context.Context, tx pgx.Tx, in Message[*payment], emit Emit) error {
		in.Body.Amount *= 10
		if in.Key == "k1" {
			in.Queue("SELECT nothing FROM nowhere")
		}
		return f.effect("paid")(ctx, tx, Message[payment]{Delivery: in.Delivery, Body: *in.Body}, emit)
	})}
	settle(t, f.consumer(t, Options{}, step), keyed(2)...)
	compareStored(t, stored{Effects: "paid k0 10"}, stored{Effects: f.effects(t)})
}
