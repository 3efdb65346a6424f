package saga_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/protobuf"
	"github.com/sagamill/sagamill/saga"
)

// The commands of a saga can be protocol buffers, also when they are sent again, and when they have no bytes.
func TestCommandsInProtocolBuffers(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	body := func(s *trip) *wrapperspb.StringValue { return wrapperspb.String(s.Item) }
	step := saga.Step[trip]{Name: "flight", Do: saga.Remote("flight.book", body, (*trip).booked), Undo: saga.Tell("flight.cancel", body)}
	step.Do.Codec, step.Undo.Codec = protobuf.Codec, protobuf.Codec
	plain := saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "flight", Do: saga.Remote("flight.book", body, (*trip).booked), Undo: saga.Tell("flight.cancel", body)}))
	d := saga.Must(saga.Define("trip", 1, step, silent))
	if plain.Hash() == d.Hash() {
		t.Error("another codec is the same plan")
	}
	p.await("the plan is registered, which an operator needs", p.orchestrate(nil, d).Ready)
	note := func(ctx context.Context, tx pgx.Tx, key, what string) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, $2)", key, what)
		return err
	}
	flight := consumer.Step{
		Name: "flight",
		Action: saga.On("flight.book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[*wrapperspb.StringValue]) (answer, error) {
			return answer{Number: "F1"}, note(ctx, tx, in.Key, "book "+in.Body.GetValue())
		}),
		Compensation: saga.OnUndo("flight.cancel", func(ctx context.Context, tx pgx.Tx, in consumer.Message[*wrapperspb.StringValue]) error {
			return note(ctx, tx, in.Key, "cancel "+in.Body.GetValue())
		}),
	}
	flight.Action.Codecs, flight.Compensation.Codecs = []outbox.Codec{protobuf.Codec}, []outbox.Codec{protobuf.Codec}
	p.participate(flight)
	p.silence("silent")
	for key, item := range map[string]string{"text": "Rome", "empty": ""} {
		start(p, d, key, trip{Item: item})
		p.await("the flight is booked", func() bool { return p.effects(key) != "[]" })
		p.decideAs(key, operator.Decision{Verb: operator.VerbCancel})
		p.until(key, saga.StatusCompensated)
		if got, want := p.effects(key), "[book "+item+" cancel "+item+"]"; got != want {
			t.Errorf("effects %s, want %s", got, want)
		}
	}
	local := saga.Step[trip]{Name: "note", Do: saga.Local(func(context.Context, pgx.Tx, saga.Turn, *trip) error { return nil })}
	local.Do.Codec = protobuf.Codec
	if _, err := saga.Define("trip", 1, local); err == nil || !strings.Contains(err.Error(), `step "note" has a Codec`) {
		t.Errorf("a local step with a codec: %v", err)
	}
}
