package saga_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// A decided counts the messages that are done, now or before.
type decided struct{ n atomic.Int32 }

func (*decided) Enter(context.Context, *consumer.Delivery) consumer.Entry { return nil }

func (d *decided) Observe(_ context.Context, e consumer.Event) {
	if e.Outcome == consumer.OutcomeDone || e.Outcome == consumer.OutcomeDuplicate {
		d.n.Add(1)
	}
}

func (*decided) Ended(context.Context, consumer.Transaction) {}

// The database of the entry is set back, and has lost a request that was answered, with its record. The receiver's
// database and the provider have lost nothing. The client sends the request again: the receiver knows the message, so that
// nothing is charged twice.
func TestARequestThatTheEntryHasLostChargesOnce(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]idempg.ClaimMode{"leased": idempg.ClaimLeased, "inline": idempg.ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			entry := newPlace(t)
			db, receiver := pgtest.Schema(t)
			var charges []string // keys of the provider
			var seen decided
			pay := consumer.Effect("pay", func(_ context.Context, _ consumer.Message[struct{}], key string) (struct{}, error) {
				charges = append(charges, key)
				return struct{}{}, nil
			}, nil, func(context.Context, pgx.Tx, consumer.Message[struct{}], struct{}, consumer.Emit) error { return nil })
			sub := entry.broker.Subscriber("receiver")
			c, err := consumer.New(db, sub, []consumer.Step{{Name: "payment", Action: pay}}, &consumer.Options{Schema: receiver, Logger: quiet, Observer: &seen})
			if err != nil {
				t.Fatal(err)
			}
			entry.serve(sub, c.Topics(), c.Run)
			server := entry.takeOrders(t, mode)
			for round := range int32(2) {
				req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader("{}"))
				req.Header.Set("Idempotency-Key", "k")
				answer := httptest.NewRecorder()
				if server.ServeHTTP(answer, req); answer.Code != http.StatusAccepted || answer.Header().Get("Idempotent-Replayed") != "" {
					t.Fatalf("round %d: %d %v", round, answer.Code, answer.Header())
				}
				entry.relay.Wake()
				entry.await("the order is handled", func() bool { return seen.n.Load() > round })
				entry.exec("DELETE FROM {schema}.idempotency_key")
				entry.exec("DELETE FROM {schema}.effect")
			}
			if len(slices.Compact(charges)) != 1 {
				t.Errorf("the provider was called with the keys %q, want one", charges)
			}
			var letters int
			if err := db.QueryRow(t.Context(), "SELECT count(*) FROM "+receiver+".parked").Scan(&letters); err != nil || letters > 0 {
				t.Errorf("%d messages are parked, %v", letters, err)
			}
		})
	}
}

// takeOrders returns an endpoint that writes an order and asks for its payment. Its records live as long as they may: a
// span that ended between the rounds of a test would begin another saga.
func (p *place) takeOrders(t *testing.T, mode idempg.ClaimMode) http.Handler {
	t.Helper()
	store, err := idempg.New(p.db, &idempg.Options{Schema: p.schema, ClaimMode: mode})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Logger: quiet, Limits: idemkey.Limits{TTL: idemkey.MaxTTL}})
	if err != nil {
		t.Fatal(err)
	}
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: p.schema})
	if err != nil {
		t.Fatal(err)
	}
	return keys.Handler(idempg.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if _, err := tx.Exec(r.Context(), "INSERT INTO "+p.schema+".effect (key, what) VALUES ('k', 'order')"); err != nil {
			return err
		}
		if err := writer.Write(r.Context(), tx, outbox.Message{Topic: "pay", Step: "payment", Payload: []byte(`{}`)}); err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}))
}
