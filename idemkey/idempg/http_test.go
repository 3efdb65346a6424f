package idempg

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
)

// errBusiness is a handler's own error.
var errBusiness = errors.New("business error")

// handle mounts fn as a service would.
func handle(t *testing.T, s idemkey.Store, fn func(http.ResponseWriter, *http.Request, pgx.Tx) error) *httptest.Server {
	t.Helper()
	m, err := idemkey.New(s, &idemkey.Options{SingleTenant: true, Key: idemkey.KeyOptions{Optional: true}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("idemkey.New: %v", err)
	}
	server := httptest.NewServer(m.Handler(HandleTx(fn)))
	t.Cleanup(server.Close)
	return server
}

type reply struct {
	status int
	body   string
	replay bool
}

func post(t *testing.T, server *httptest.Server, key string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader(`{"item":"book"}`))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatalf("POST: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read body: %v", err)
	}
	return reply{resp.StatusCode, string(body), resp.Header.Get("Idempotent-Replayed") == "true"}
}

func (r reply) expect(t *testing.T, status int, code string) {
	t.Helper()
	if r.status != status || code != "" && !strings.Contains(r.body, `"code":"`+code+`"`) {
		t.Errorf("got %d %q, want %d %q", r.status, r.body, status, code)
	}
}

// buy writes a business row and answers with its number.
func (f *fixture) buy(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	_, err := tx.Exec(r.Context(), "INSERT INTO "+f.schema+".business (key) VALUES ($1)", r.Header.Get("Idempotency-Key"))
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/orders/1")
	w.WriteHeader(http.StatusCreated)
	_, err = io.WriteString(w, `{"id": "1", "amount": 1.0}`+"\n")
	return err
}

func (f *fixture) expectRows(t *testing.T, key string, want int) {
	t.Helper()
	if got := f.rows(t, key); got != want {
		t.Errorf("%d business rows of %q, want %d", got, key, want)
	}
}

// status answers with status under verdict v.
func status(status int, v idemkey.Verdict) func(http.ResponseWriter, *http.Request, pgx.Tx) error {
	return func(w http.ResponseWriter, r *http.Request, _ pgx.Tx) error {
		idemkey.SetVerdict(r.Context(), v)
		w.WriteHeader(status)
		return nil
	}
}

// What becomes of the business writes and of the key, for each way a handler
// can end. A second request with the same key runs buy.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	statement := func(sql string) func(http.ResponseWriter, *http.Request, pgx.Tx) error {
		return func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_, _ = tx.Exec(r.Context(), strings.ReplaceAll(sql, "business", f.schema+".business"))
			return nil
		}
	}
	tests := []struct {
		name   string
		then   func(http.ResponseWriter, *http.Request, pgx.Tx) error // after a business row was written
		status int
		code   string
		rows   int // after the first request
		again  int // status of the second request; 299: it ran
	}{
		{"success", status(201, 0), 201, "", 1, 201},
		{"redirect", status(303, 0), 303, "", 1, 303},
		{"rejected", status(400, 0), 400, "", 0, 400},
		{"not-kept", status(409, 0), 409, "", 0, 299},
		{"failed", status(500, 0), 500, "", 0, 299},
		{"commit-anyway", status(402, idemkey.CommitAnyway), 402, "", 1, 402},
		{"commit-anyway-error", func(_ http.ResponseWriter, r *http.Request, _ pgx.Tx) error {
			idemkey.SetVerdict(r.Context(), idemkey.CommitAnyway)
			return errBusiness
		}, 500, "internal", 0, 299},
		{"amendable", status(400, idemkey.Amendable), 400, "", 0, 299},
		{"error", func(http.ResponseWriter, *http.Request, pgx.Tx) error { return errBusiness }, 500, "internal", 0, 299},
		{"problem", func(http.ResponseWriter, *http.Request, pgx.Tx) error {
			return &idemkey.Problem{Status: 422, Code: "sold-out", Title: "Sold out"}
		}, 422, "sold-out", 0, 422},
		{"aborted", statement("SELECT 1/0"), 500, "commit-failed", 0, 299},
		{"deferred", statement("INSERT INTO business VALUES ('deferred', 1), ('deferred', 1)"), 500, "commit-failed", 0, 299},
		{"committed", statement("COMMIT"), 500, "tx-misuse", 1, 500},
		{"rolled-back", statement("ROLLBACK"), 500, "tx-misuse", 0, 500},
		{"conflict", func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_, err := tx.Exec(r.Context(), "DO $$ BEGIN RAISE serialization_failure; END $$")
			return err
		}, 503, "tx-conflict", 0, 299},
		{"conflict-at-commit", statement("DO $$ BEGIN RAISE serialization_failure; END $$"), 500, "commit-failed", 0, 299},
		{"terminated", func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error { return f.terminate(r.Context(), tx) }, 500, "commit-failed", 0, 299},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			again := false
			server := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				if again {
					w.WriteHeader(299)
					return nil
				}
				if err := f.buy(discard{}, r, tx); err != nil {
					return err
				}
				return tt.then(w, r, tx)
			})
			server.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			post(t, server, tt.name).expect(t, tt.status, tt.code)
			f.expectRows(t, tt.name, tt.rows)
			again = true
			post(t, server, tt.name).expect(t, tt.again, "")
		})
	}
}

// terminate ends tx's session. It comes back once the server has freed its locks,
// which it does after it has told its client.
func (f *fixture) terminate(ctx context.Context, tx pgx.Tx) error {
	var pid int
	if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return err
	}
	_, _ = tx.Exec(ctx, "SELECT pg_terminate_backend($1)", pid)
	for lives := true; lives; {
		if err := f.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid).Scan(&lives); err != nil {
			return err
		}
	}
	return nil
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}

// The transaction refuses to be ended and nests by savepoints.
func TestManagedTx(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	server := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if err := tx.Commit(r.Context()); !errors.Is(err, ErrTxManaged) {
			t.Errorf("Commit: %v, want ErrTxManaged", err)
		}
		if err := tx.Rollback(r.Context()); !errors.Is(err, ErrTxManaged) {
			t.Errorf("Rollback: %v, want ErrTxManaged", err)
		}
		err := pgx.BeginFunc(r.Context(), tx, func(inner pgx.Tx) error {
			if err := f.buy(discard{}, r, inner); err != nil {
				return err
			}
			return errBusiness
		})
		if !errors.Is(err, errBusiness) {
			t.Errorf("BeginFunc: %v, want the business error", err)
		}
		return f.buy(w, r, tx)
	})
	post(t, server, "k").expect(t, 201, "")
	f.expectRows(t, "k", 1)
	if again := post(t, server, "k"); !again.replay {
		t.Errorf("second request = %+v, want a replay", again)
	}
}

// A request without a key has a transaction too, and no record.
func TestKeyless(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	var end error
	server := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if _, ok := idemkey.Info(r.Context()); ok {
			t.Error("Info of a request without a key")
		}
		if err := f.buy(w, r, tx); err != nil {
			return err
		}
		return end
	})
	for range 2 {
		post(t, server, "").expect(t, 201, "")
	}
	end = errBusiness
	post(t, server, "").expect(t, 500, "internal")
	f.expectRows(t, "", 2)
}

// Many clients with one key at once: one business commit, and everybody gets
// its bytes or is told to wait.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{ClaimMode: mode})
			server := handle(t, f, f.buy)
			for _, key := range []string{"k1", "k2", "k3"} {
				replies := make([]reply, 12)
				var wg sync.WaitGroup
				for i := range replies {
					wg.Go(func() { replies[i] = post(t, server, key) })
				}
				wg.Wait()
				expectOneFirst(t, replies)
				f.expectRows(t, key, 1)
			}
		})
	}
}

// expectOneFirst checks that one request has run buy, and the others have its answer or
// were told to wait.
func expectOneFirst(t *testing.T, replies []reply) {
	t.Helper()
	first := 0
	for _, r := range replies {
		switch {
		case r.status == 201 && r.body == `{"id": "1", "amount": 1.0}`+"\n":
			if !r.replay {
				first++
			}
		case r.status != 409:
			t.Errorf("reply = %+v, want 201 or 409", r)
		}
	}
	if first != 1 {
		t.Errorf("%d first responses, want 1", first)
	}
}

// A handler whose first statement fails may say so in its own words: that is
// kept, or the key is free, and nothing is left behind.
func TestFirstStatementFails(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{ClaimMode: mode})
			var answer func(http.ResponseWriter, error) error
			server := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				err := tx.QueryRow(r.Context(), "INSERT INTO "+f.schema+".business (key) VALUES (nullif($1, $1)) RETURNING key", "x").Scan(nil)
				return answer(w, err)
			})
			for what, tt := range map[string]struct {
				answer        func(http.ResponseWriter, error) error
				status, again int
			}{
				"error": {func(_ http.ResponseWriter, err error) error { return err }, 500, 500},
				"422":   {func(w http.ResponseWriter, _ error) error { w.WriteHeader(422); return nil }, 422, 422},
				"200":   {func(http.ResponseWriter, error) error { return nil }, 500, 500},
			} {
				answer = tt.answer
				post(t, server, what).expect(t, tt.status, "")
				post(t, server, what).expect(t, tt.again, "")
			}
		})
	}
}

// A record that cannot be read is an error, never a second run. Each request says so in the log, and
// names the record as far as logs may.
func TestRecordCorrupt(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		for _, damage := range []string{"resp_header = 'x'", "resp_header = NULL", "state = 0", "state = 6", "state = 259", "state = -1", "attempt = 0", "resp_status = 20"} {
			t.Run(name+" "+damage, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, Options{ClaimMode: mode})
				log := &bytes.Buffer{}
				m, err := idemkey.New(f, &idemkey.Options{SingleTenant: true, Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelError}))})
				if err != nil {
					t.Fatal(err)
				}
				server := httptest.NewServer(m.Handler(HandleTx(f.buy)))
				t.Cleanup(server.Close)
				post(t, server, "k").expect(t, 201, "")
				f.exec(t, "UPDATE "+f.schema+".idempotency_key SET "+damage)
				for range 2 {
					post(t, server, "k").expect(t, 500, "record-corrupt")
				}
				f.expectRows(t, "k", 1)
				server.Close() // its log is complete
				if lines := strings.Count(log.String(), "\n"); lines != 2 || strings.Count(log.String(), "key="+logged) != 2 {
					t.Errorf("log: %s\nwant 2 lines that name the key %s", log, logged)
				}
				if n := f.pool.Stat().AcquiredConns(); n != 0 {
					t.Errorf("%d connections are still held", n)
				}
			})
		}
	}
}

// logged is what a log calls the key k.
const logged = "03a49fb4187d"

// Without its table, the store is unavailable and nothing runs.
func TestStoreUnavailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	server := handle(t, f, f.buy)
	f.exec(t, "ALTER TABLE "+f.schema+".idempotency_key RENAME TO gone")
	post(t, server, "k").expect(t, 503, "store-unavailable")
	f.expectRows(t, "k", 0)
}

// HandleTx outside of a middleware is a mistake that shows at once.
func TestTxMissing(t *testing.T) {
	t.Parallel()
	if _, ok := TxFrom(t.Context()); ok {
		t.Error("TxFrom found a transaction")
	}
	defer func() {
		if recover() == nil {
			t.Error("Tx did not panic")
		}
	}()
	Tx(t.Context())
}
