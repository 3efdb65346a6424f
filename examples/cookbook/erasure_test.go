package cookbook

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/outbox"
)

// After the erasure no table of the schema, sagamill's included, has the name: not even those that keep messages and
// responses for some time.
func TestErasureLeavesNoName(t *testing.T) {
	t.Parallel()
	s := start(t, sagamill.Config{Steps: Erasable})
	place := s.Idempotent(func(*http.Request) (string, error) { return "acme", nil }, idempg.HandleTx(PlaceOrder(s.Writer())))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader(`{"name":"Lovelace","address":"London","item":"book"}`))
	r.Header.Set("Idempotency-Key", "order-1")
	w := httptest.NewRecorder()
	place.ServeHTTP(w, r)
	if w.Code != http.StatusAccepted {
		t.Fatalf("POST /orders: %d %s", w.Code, w.Body)
	}
	awaitSteps(t, s, "send-parcel 1")
	if got := tablesWith(t, s, "Lovelace"); got != "customer" {
		t.Errorf("the name is in %q, want the table customer alone", got)
	}
	customer := readText(t, s, "SELECT id::text FROM shop.customer")
	if got := tablesWith(t, s, customer); !strings.Contains(got, "outbox") || !strings.Contains(got, "idempotency_key") {
		t.Errorf("the id is in %q, want it in the outbox and in the kept response too: else tablesWith finds nothing there", got)
	}

	send(t, s, outbox.Message{Topic: "customer.erased", Scope: "acme", Key: "erasure-1", Step: "erase-customer", Payload: outbox.JSON(Erasure{customer})})
	awaitSteps(t, s, "erase-customer 1, send-parcel 1")
	if got := tablesWith(t, s, "Lovelace"); got != "" {
		t.Errorf("the name is still in %s", got)
	}
	if got := readText(t, s, "SELECT state || ' ' || coalesce(customer_id::text, 'nobody') FROM shop.parcel"); got != "labelled nobody" {
		t.Errorf("the parcel is %s, want labelled nobody", got)
	}
}

// A customer who is erased before the parcel is sent gets none.
func TestErasedCustomerGetsNoParcel(t *testing.T) {
	t.Parallel()
	s := start(t, sagamill.Config{Steps: append(ends("parcel.refused"), Erasable...)})
	msg := order("order.placed", "1")
	msg.Payload = outbox.JSON(PlacedOrder{CustomerID: "7b0e4a26-3f3b-4c8b-9d0c-0d8b9c1f2a3e", Item: "book"})
	send(t, s, msg)
	awaitText(t, s, "parcel.refused saga-1", sqlEnds)
}

// tablesWith returns the tables of the schema that have text in a row, in any column, also as bytes.
func tablesWith(t *testing.T, s *sagamill.Service, text string) string {
	t.Helper()
	rows, _ := s.Database().Query(t.Context(), "SELECT relname::text FROM pg_class WHERE relnamespace = 'shop'::regnamespace AND relkind = 'r' ORDER BY 1")
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, table := range tables {
		query := fmt.Sprintf("SELECT count(*)::text FROM shop.%s r WHERE r::text ILIKE $1 OR r::text ILIKE $2", pgx.Identifier{table}.Sanitize())
		if readText(t, s, query, "%"+text+"%", "%"+hex.EncodeToString([]byte(text))+"%") != "0" {
			found = append(found, table)
		}
	}
	return strings.Join(found, ", ")
}
