package saga_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

func TestTheLongestScopeAndKeyReachTheTenthStep(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var steps []saga.Step[trip]
	for _, name := range strings.Split("abcdefghij", "") {
		steps = append(steps, book(name))
		p.participate(p.booking(name))
	}
	d := saga.Must(saga.Define("trip", 1, steps...))
	p.orchestrate(nil, d)
	s, err := saga.NewStarter(d, &saga.StarterOptions{Schema: p.schema})
	if err != nil {
		t.Fatal(err)
	}
	for name, scope := range map[string]string{"longest": strings.Repeat("s", outbox.MaxScope), "long": strings.Repeat("s", outbox.MaxScope-7)} {
		key := strings.Repeat("k", 255-len(name)) + name
		err := pgx.BeginFunc(t.Context(), p.db, func(tx pgx.Tx) error {
			_, err := s.Start(t.Context(), tx, saga.ID{Scope: scope, Key: key}, trip{})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		p.relay.Wake()
		p.until(key, saga.StatusCompleted)
	}
}

// What a local step says is kept as far as MaxReason.
func TestALongReasonIsClipped(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"rejected": saga.Reject(strings.Repeat("x", 1<<20)), "failed": errors.New(strings.Repeat("x", 1<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			d := saga.Must(saga.Define("trip", 1, saga.Step[trip]{
				Name: "note", Do: saga.Local(func(context.Context, pgx.Tx, saga.Turn, *trip) error { return err }), Retry: saga.Retry{Attempts: 1},
			}))
			start(p, d, "k", trip{})
			p.untilSQL("k", "length(progress) < 3000")
		})
	}
}

// What a participant has answered need not be UTF-8.
func TestAStateOfBytes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	type raw struct{ Answer json.RawMessage }
	d := saga.Must(saga.Define("raw", 1, saga.Step[raw]{
		Name: "flight", Do: saga.Remote("flight.book", func(*raw) request { return request{} }, func(s *raw, r json.RawMessage) { s.Answer = r }),
	}))
	p.orchestrate(nil, d)
	p.silence("flight.book")
	start(p, d, "k", raw{Answer: json.RawMessage("\"\xff\"")})
	p.publish(outbox.Message{Topic: saga.Topic("raw"), Type: saga.TypeReply, Key: "k", Step: "flight", N: "1.1.d", Payload: []byte("{\"outcome\":\"done\",\"result\":\"\xff\\u0000\"}")})
	p.until("k", saga.StatusCompleted)
}

// A reply whose result makes the state too large, or breaks its function, is a dead letter
// after a few attempts.
func TestAResultThatCannotBeTaken(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]func(s *trip, _ any){
		"large": func(s *trip, _ any) { s.Item = strings.Repeat("x", flow.MaxState) },
		"panic": func(*trip, any) { panic("no") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			d := saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "flight", Do: saga.Remote("flight.book", (*trip).request, result)}))
			p.orchestrate(&saga.Options{Consumer: consumer.Options{ParkedPoll: soon}}, d)
			p.silence("flight.book")
			start(p, d, "k", trip{})
			p.publish(outbox.Message{Topic: saga.Topic("trip"), Type: saga.TypeReply, Key: "k", Step: "flight", N: "1.1.d", Payload: []byte(`{"outcome":"done","result":null}`)})
			p.untilSQL("k", "EXISTS (SELECT FROM "+p.schema+".parked WHERE state = 'dead')")
		})
	}
}
