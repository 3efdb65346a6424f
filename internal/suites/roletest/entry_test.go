package roletest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// The HTTP side takes requests, replays them, starts sagas, writes messages and sweeps
// keys, and needs for it what its role is granted.
func TestTheEntryGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	newWorld(t).checkLeast("entry", takeRequests)
}

func takeRequests(ctx context.Context, w *world, key string) error {
	for name, mode := range map[string]idempg.ClaimMode{"leased": idempg.ClaimLeased, "inline": idempg.ClaimInline} {
		store, err := idempg.New(w.pools["entry"], &idempg.Options{Schema: w.Schema, ClaimMode: mode, MaxPerScope: 1000})
		if err != nil {
			return err
		}
		if err := store.Check(ctx); err != nil {
			return err
		}
		if err := w.request(ctx, store, key+"-"+name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := w.admin(ctx, "UPDATE {schema}.idempotency_key SET expires_at = 'epoch', lease_until = 'epoch'"); err != nil {
			return err
		}
		if n, err := store.Sweep(ctx, 100); err != nil || n == 0 {
			return fmt.Errorf("%s: swept %d: %w", name, n, err)
		}
	}
	return nil
}

// request sends a request that fails, and then again until it is answered from the record.
func (w *world) request(ctx context.Context, store *idempg.Store, key string) error {
	idem, err := idemkey.New(store, &idemkey.Options{
		Scope:  func(*http.Request) (string, error) { return "tenant", nil },
		Logger: quiet,
	})
	if err != nil {
		return err
	}
	begins, err := w.beginner()
	if err != nil {
		return err
	}
	runs := 0
	h := idem.Handler(idempg.HandleTx(func(rw http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if runs++; runs == 1 {
			return errors.New("not yet")
		}
		if err := begins(r.Context(), tx, key); err != nil {
			return err
		}
		rw.WriteHeader(http.StatusAccepted)
		return nil
	}))
	for i, want := range []int{http.StatusInternalServerError, http.StatusAccepted, http.StatusAccepted} {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", nil)
		r.Header.Set("Idempotency-Key", key)
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		if answer.Code != want {
			return fmt.Errorf("request %d is answered %d %s, want %d", i, answer.Code, answer.Body, want)
		}
	}
	if runs != 2 {
		return fmt.Errorf("the handler ran %d times, want 2", runs)
	}
	return nil
}

// beginner returns a handler that writes a business row and messages, one of them delayed, and starts a saga.
// Its key is used twice.
func (w *world) beginner() (func(ctx context.Context, tx pgx.Tx, key string) error, error) {
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: w.Schema})
	if err != nil {
		return nil, err
	}
	starter, err := saga.NewStarter(tours, &saga.StarterOptions{Schema: w.Schema})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx pgx.Tx, key string) error {
		if err := effect(ctx, tx, key, "order"); err != nil {
			return err
		}
		var id saga.ID
		if _, ok := idemkey.Info(ctx); !ok { // no request to take it from
			id = saga.ID{Scope: "tenant", Key: key}
		}
		now := outbox.Message{Topic: "news", Scope: id.Scope, Key: id.Key, Step: "tell", Payload: []byte("{}")}
		late := now
		late.N, late.Delay = "late", time.Hour
		if err := writer.Write(ctx, tx, now, late); err != nil {
			return err
		}
		for _, existed := range []bool{false, true} {
			started, err := starter.Start(ctx, tx, id, tour{Item: "x"})
			if err != nil || started.Existed != existed {
				return fmt.Errorf("started %+v, existed before: %t: %w", started, existed, err)
			}
		}
		return nil
	}, nil
}
