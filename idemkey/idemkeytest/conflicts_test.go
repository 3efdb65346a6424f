package idemkeytest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A rivals is a handler that loses against another transaction in its first attempt, and returns what the
// database says.
type rivals struct {
	pool   *pgxpool.Pool
	schema string
	inline bool
}

func (v rivals) handle(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	tx := idempg.Tx(ctx)
	if _, err := tx.Exec(ctx, "INSERT INTO "+v.schema+".business VALUES ('order')"); err != nil {
		return err
	}
	if info, _ := idemkey.Info(ctx); info.Attempt > 1 || v.inline && r.Header.Get("Again") != "" {
		w.WriteHeader(http.StatusCreated)
		return nil
	}
	if r.Header.Get("Idempotency-Key") == "deadlock" {
		return v.deadlock(ctx, tx)
	}
	if v.inline { // whose transaction is READ COMMITTED
		return pgx.BeginTxFunc(ctx, v.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error { return v.overwrite(ctx, tx) })
	}
	return v.overwrite(ctx, tx)
}

// overwrite changes a row that another transaction has changed since tx began to look.
func (v rivals) overwrite(ctx context.Context, tx pgx.Tx) error {
	change := "UPDATE " + v.schema + ".business SET name = name WHERE name = 'rival'"
	if _, err := tx.Exec(ctx, "SELECT FROM "+v.schema+".business"); err != nil {
		return err
	}
	if _, err := v.pool.Exec(ctx, change); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, change)
	return err
}

// deadlock waits for a transaction that waits for tx. It is tx that notices.
func (v rivals) deadlock(ctx context.Context, tx pgx.Tx) error {
	lock := func(tx pgx.Tx, n int) error {
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, $2))", v.schema, n)
		return err
	}
	rival, err := v.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = rival.Rollback(ctx) }()
	var pid int
	if err := rival.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return err
	}
	_, patient := rival.Exec(ctx, "SET LOCAL deadlock_timeout = '1h'")
	_, hasty := tx.Exec(ctx, "SET LOCAL deadlock_timeout = '1ms'")
	if err := errors.Join(patient, hasty, lock(tx, 1), lock(rival, 2)); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- lock(rival, 1) }() // until tx gives up
	for waits := false; !waits; {
		const query = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')"
		if err := v.pool.QueryRow(ctx, query, pid).Scan(&waits); err != nil {
			return err
		}
	}
	err = lock(tx, 2)
	<-done // tx is aborted, and has let its locks go
	return err
}

// A conflict that the database tells of is answered alike in each framework: roll back and try again.
func TestTxConflicts(t *testing.T) {
	t.Parallel()
	for framework, mount := range frameworks {
		for mode, opts := range map[string]idempg.Options{
			"leased": {Isolation: pgx.RepeatableRead},
			"inline": {ClaimMode: idempg.ClaimInline},
		} {
			t.Run(framework+"/"+mode, func(t *testing.T) {
				t.Parallel()
				pool, schema := pgtest.Schema(t, "CREATE TABLE {schema}.business (name text)")
				opts.Schema = schema
				store, err := idempg.New(pool, &opts)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := pool.Exec(t.Context(), "INSERT INTO "+schema+".business VALUES ('rival')"); err != nil {
					t.Fatal(err)
				}
				idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				h := mount(idem, rivals{pool, schema, mode == "inline"}.handle)
				post := func(key, again string) *httptest.ResponseRecorder {
					req := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("x"))
					req.Header.Set("Idempotency-Key", key)
					req.Header.Set("Again", again)
					rec := httptest.NewRecorder()
					h.ServeHTTP(rec, req)
					return rec
				}
				for i, key := range []string{"serialization", "deadlock"} {
					if rec := post(key, ""); rec.Code != 503 || !strings.Contains(rec.Body.String(), `"code":"tx-conflict"`) || rec.Header().Get("Retry-After") != "1" {
						t.Errorf("%s: %d %q with Retry-After %q, want 503 tx-conflict", key, rec.Code, rec.Body, rec.Header().Get("Retry-After"))
					}
					rec := post(key, "yes")
					var rows int
					if err := pool.QueryRow(t.Context(), fmt.Sprintf("SELECT count(*) FROM %s.business WHERE name = 'order'", schema)).Scan(&rows); err != nil {
						t.Fatal(err)
					}
					if rec.Code != 201 || rows != i+1 {
						t.Errorf("%s: retry = %d with %d rows, want 201 with %d", key, rec.Code, rows, i+1)
					}
				}
			})
		}
	}
}
