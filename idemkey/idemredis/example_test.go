package idemredis_test

import (
	"context"
	"errors"
	"log"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemredis"
)

// A Redis that may evict records is no place for them.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	store, err := idemredis.New(client, &idemredis.Options{Prefix: "shop:"})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Check(context.Background()); err != nil {
		log.Fatal(err)
	}
	idem, err := idemkey.New(store, &idemkey.Options{Scope: tenant})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /mails", idem.Handler(http.HandlerFunc(sendMail)))
}

// sendMail is repeated if an earlier attempt may have sent it: the provider is
// given the same key each time.
func sendMail(http.ResponseWriter, *http.Request) {}

func tenant(r *http.Request) (string, error) {
	if t := r.Header.Get("X-Tenant"); t != "" {
		return t, nil
	}
	return "", errors.New("no tenant")
}

// Inspect is for an administrator's tools.
func ExampleStore_Inspect() {
	state := func(ctx context.Context, store *idemredis.Store, key string) (idemkey.State, error) {
		rec, _, err := store.Inspect(ctx, idemkey.Identity{Namespace: "http", Scope: "tenant-1", Key: key})
		return rec.State, err
	}
	_ = state
}
