package outbox

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/guardtest"
)

// blowing are functions of the user's that go wrong.
type blowing struct{ blow func() }

func (b blowing) Published(context.Context, Call)           { b.blow() }
func (b blowing) Trace(context.Context) (string, string)    { b.blow(); return "", "" }
func (b blowing) Publish(string, ...*message.Message) error { b.blow(); return nil }
func (b blowing) Close() error                              { return nil }
func (b blowing) PublishBatch(context.Context, []Publication) []error {
	b.blow()
	return nil
}

// blownRows call each function of the user's, and say what becomes of the message "first" that
// is in the outbox: published, or refused.
var blownRows = map[string]func(t *testing.T, f *fixture, way string) (state string){
	"RelayOptions.Observer.Published": func(t *testing.T, f *fixture, way string) string {
		_ = settle(t, f.relay(t, RelayOptions{Observer: blowing{guardtest.Ways[way]}}))
		return "published"
	},
	"RelayOptions.Logger": func(t *testing.T, f *fixture, way string) string {
		opts := RelayOptions{Schema: f.schema, Logger: guardtest.Log(guardtest.Ways["panic"])} // of Goexit nobody is safe who logs
		r, err := NewRelay(f.pool, blowing{guardtest.Ways[way]}, &opts)
		if err != nil {
			t.Fatal(err)
		}
		_ = settle(t, r)
		return "refused"
	},
	"Publisher.PublishBatch": func(t *testing.T, f *fixture, way string) string {
		r := f.relay(t, RelayOptions{})
		r.pub = blowing{guardtest.Ways[way]}
		_ = settle(t, r)
		return "refused"
	},
	"message.Publisher.Publish": func(t *testing.T, f *fixture, way string) string {
		r := f.relay(t, RelayOptions{})
		r.pub = FromWatermill(blowing{guardtest.Ways["panic"]}, nil) // a Goexit says no more than an error
		_ = settle(t, r)
		return "refused"
	},
	"WriterOptions.Tracer.Trace": func(t *testing.T, f *fixture, way string) string {
		w, err := NewWriter(&WriterOptions{Schema: f.schema, Tracer: blowing{guardtest.Ways[way]}})
		if err != nil {
			t.Fatal(err)
		}
		got := guardtest.End(func() {
			_ = pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
				return w.Write(t.Context(), tx, Message{Topic: "t", Scope: "s", Key: "lost", Step: "p"})
			})
		})
		if got != guardtest.Want(way) {
			t.Errorf("Write ended with %v, want %v", got, guardtest.Want(way))
		}
		return ""
	},
	"RangeOptions.Progress": func(t *testing.T, f *fixture, way string) string {
		mustSettle(t, f.relay(t, RelayOptions{Retention: time.Hour}))
		got := guardtest.End(func() {
			_, _ = f.letters(t).ReplayRange(t.Context(), ReplayFilter{Since: time.Now().Add(-time.Hour)},
				&RangeOptions{Progress: func(RangeProgress) error { guardtest.Ways[way](); return nil }})
		})
		if got != guardtest.Want(way) {
			t.Errorf("ReplayRange ended with %v, want %v", got, guardtest.Want(way))
		}
		return "published"
	},
}

// Whichever function of the user's panics, or ends its goroutine: the relay's process lives on,
// no lock and no connection stays taken, and the next message is published.
func TestAPanicOfTheUsersFunctionsCostsOneMessage(t *testing.T) {
	guardtest.Covered(t, blownRows, RelayOptions{}, WriterOptions{}, WatermillOptions{}, RangeOptions{})
	for name, run := range blownRows { // not parallel: goroutines are counted
		for way := range guardtest.Ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				f := newFixture(t)
				f.write(t, Message{Topic: "t", Scope: "s", Key: "first", Step: "p", Payload: []byte("first"), Headers: map[string]string{HeaderTraceParent: "p"}})
				guardtest.Idle(t, f.pool)
				verify := guardtest.Goroutines(t)
				state := run(t, f, way)
				guardtest.Idle(t, f.pool)
				verify()
				if state != "" {
					if got := f.stateOfFirst(t); got != state {
						t.Errorf("the first message is %s, want %s", got, state)
					}
				}
				f.broker = &scriptedBroker{}
				f.write(t, Message{Topic: "t", Scope: "s", Key: "next", Step: "p", Payload: []byte("next")})
				mustSettle(t, f.relay(t, RelayOptions{}))
				if got := f.broker.payloads(); !slices.Contains(got, "next") {
					t.Errorf("afterwards there were published %v, want the next message", got)
				}
			})
		}
	}
}

// stateOfFirst returns what became of the message that goes through the function.
func (f *fixture) stateOfFirst(t *testing.T) string {
	t.Helper()
	rows, _ := f.pool.Query(t.Context(), "SELECT state::text FROM "+f.schema+".outbox_held WHERE ordering_key LIKE '%first%'")
	held, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case cmp.Equal(held, []string{"refused"}):
		return "refused"
	case len(held) == 0:
		return "published"
	}
	return held[0]
}
