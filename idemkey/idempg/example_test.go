package idempg_test

import (
	"context"
	"encoding/json"
	"log"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
)

// An order and the response to its request are committed together.
func Example() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	store, err := idempg.New(pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	idem, err := idemkey.New(store, &idemkey.Options{Scope: tenant})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /orders", idem.Handler(idempg.HandleTx(placeOrder)))
}

// placeOrder answers 202, or fails in one of three ways: with a 4xx that is
// kept for replays, with an error that a retry may mend, or not at all.
func placeOrder(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	var order struct{ Item string }
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
		return &idemkey.Problem{Status: http.StatusBadRequest, Code: "bad-order", Title: "The order is no JSON"}
	}
	var id string
	if err := tx.QueryRow(r.Context(), "INSERT INTO orders (item) VALUES ($1) RETURNING id", order.Item).Scan(&id); err != nil {
		return err // rolled back, 500; the same key may be used again
	}
	w.Header().Set("Location", "/orders/"+id)
	w.WriteHeader(http.StatusAccepted)
	return json.NewEncoder(w).Encode(map[string]string{"id": id})
}

func tenant(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil }

// A plain handler takes the transaction from the context.
func ExampleTx() {
	_ = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx := idempg.Tx(r.Context())
		if _, err := tx.Exec(r.Context(), "INSERT INTO orders (item) VALUES ('book')"); err != nil {
			idemkey.Fail(r.Context(), err)
		}
	})
}

// Sweep is for a cron job; it may run on every instance at once.
func ExampleStore_Sweep() {
	sweep := func(ctx context.Context, store *idempg.Store) error {
		_, err := store.Sweep(ctx, 100_000)
		return err
	}
	_ = sweep
}

// What is called by handlers and by jobs joins the request's transaction if there is one.
func ExampleTxFrom() {
	type execer interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}
	audit := func(ctx context.Context, pool *pgxpool.Pool, what string) error {
		var db execer = pool
		if tx, ok := idempg.TxFrom(ctx); ok {
			db = tx // it commits with the request, or not at all
		}
		_, err := db.Exec(ctx, "INSERT INTO audit (what) VALUES ($1)", what)
		return err
	}
	_ = audit
}
