package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/sagatest/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }

// An order that is posted twice is charged and sent once. One that cannot be sent is refunded.
func TestOrders(t *testing.T) {
	database := servers.Postgres(t)
	service, mux, err := newService(database, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- service.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	await(t, "a service that is ready", func() bool { return service.CheckReady(ctx) == nil })

	post := func(key, body string) {
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, web.URL+"/orders", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("X-Tenant", "acme")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusAccepted {
			t.Errorf("order %s: %s", key, response.Status)
		}
	}
	post("order-1", `{"item":"book","amount":4200}`)
	post("order-1", `{"item":"book","amount":4200}`)
	post("order-2", `{"item":"house","amount":9900}`)

	db, err := pgx.Connect(ctx, database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close(context.Background()) })
	const read = `SELECT coalesce(string_agg(key || ' ' || status, ', ' ORDER BY key), ''), (SELECT sum(amount) FROM newservice.payment), (SELECT count(*) FROM newservice.parcel) FROM newservice.saga`
	var sagas string
	var paid *int64
	var parcels int
	await(t, "the end of both sagas", func() bool {
		if err := db.QueryRow(ctx, read).Scan(&sagas, &paid, &parcels); err != nil {
			t.Fatal(err)
		}
		return sagas == "order-1 completed, order-2 compensated"
	})
	if got := fmt.Sprint(*paid, " paid, ", parcels, " parcels"); got != "4200 paid, 1 parcels" {
		t.Error(got)
	}
}

// await asks until done returns true.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(30 * time.Second); !done(); {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("after 30 s there is not yet %s", what)
		}
	}
}
