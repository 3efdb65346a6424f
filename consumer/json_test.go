package consumer

import (
	"context"
	"encoding/json"
	"math"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A value that JSON cannot express is a bug that no further attempt mends: the message is a dead letter at once, and
// nothing of its handler stays.
func TestEmitJSON(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		value any
		want  stored
		sent  int
	}{
		"a struct": {payment{Amount: 7}, stored{Row: "done 1 0", Effects: "pay k 1"}, 1},
		"a NaN":    {math.NaN(), stored{Row: "dead 1 0", Parked: "dead action emit-invalid 1"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			pay := f.effect("pay")
			c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
				if err := pay(ctx, tx, in, emit); err != nil {
					return err
				}
				emit.JSON("paid", "ship", tt.value)
				return nil
			}, nil))
			handle(t, c, act("k"))
			compareStored(t, tt.want, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
			payloads := f.texts(t, "SELECT convert_from(payload, 'UTF8') FROM {schema}.outbox WHERE topic = 'paid' AND step = 'ship'")
			if len(payloads) != tt.sent {
				t.Fatalf("%d messages stored, want %d", len(payloads), tt.sent)
			}
			if want, _ := json.Marshal(tt.value); tt.sent > 0 && payloads[0] != string(want) {
				t.Errorf("payload %s, want %s", payloads[0], want)
			}
		})
	}
}
