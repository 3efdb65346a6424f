package idemhybrid_test

import (
	"context"
	"log"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemhybrid"
	"github.com/sagamill/sagamill/idemkey/idempg"
)

// Handlers are those of idempg: their transaction is in Postgres.
func Example() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	records, err := idempg.New(pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	store, err := idemhybrid.New(records, client, nil)
	if err != nil {
		log.Fatal(err)
	}
	idem, err := idemkey.New(store, &idemkey.Options{Scope: tenant})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /orders", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := idempg.Tx(r.Context()).Exec(r.Context(), "INSERT INTO orders (item) VALUES ('book')"); err != nil {
			idemkey.Fail(r.Context(), err)
		}
	})))
}

func tenant(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil }
