package operator

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/guardtest"
)

// panicRows call functions of the user on the caller's goroutine.
var panicRows = map[string]func(t *testing.T, d *DeadLetters, blow func()){
	"Preview": func(t *testing.T, d *DeadLetters, blow func()) {
		_, _ = d.Preview(t.Context(), Filter{}, nil, func(Preview) error { blow(); return nil })
	},
	"Keep": func(t *testing.T, d *DeadLetters, blow func()) {
		_, _ = d.Discard(t.Context(), Filter{}, func(DeadLetter) error { blow(); return nil })
	},
	"RedriveOptions.Progress": func(t *testing.T, d *DeadLetters, blow func()) {
		_, _ = d.Redrive(t.Context(), Filter{}, &RedriveOptions{Progress: func(Outcomes) { blow() }})
	},
}

// A panic of such a function reaches the caller unchanged, and leaves no lock behind.
func TestAPanicReachesTheCaller(t *testing.T) {
	rows := map[string]bool{}
	for name := range panicRows {
		rows[name] = true
	}
	guardtest.Covered(t, rows, RedriveOptions{}, PreviewOptions{}, Options{})
	for name, call := range panicRows {
		for way := range guardtest.Ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				t.Parallel()
				f := newLetterFixture(t)
				failing := func(context.Context, pgx.Tx, consumer.Message[payment], consumer.Emit) error {
					return consumer.Terminal(errors.New("a dead letter"))
				}
				handle(t, f.consumer(t, consumer.Options{}, f.step(failing, nil)), act("k"))
				blow := guardtest.Ways[way]
				if got, want := guardtest.End(func() { call(t, f.letters, blow) }), guardtest.Want(way); got != want {
					t.Errorf("the call ended with %v, want %v", got, want)
				}
				guardtest.Idle(t, f.pool)
				if _, err := f.letters.Redrive(t.Context(), Filter{}, nil); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		}
	}
}
