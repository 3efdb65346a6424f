package idempg

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
)

// endings are strings that end the transaction. A handler writes a row before its string and one
// behind it; rows is how many of them stand.
var endings = []struct {
	sql  string
	rows int
}{
	{"commit", 2}, // the second row commits by itself
	{"rollback", 1},
	{"commit; begin", 1},
	{"/* x */ COMMIT; BEGIN; SELECT 1", 1},
	{"commit and chain; select 1", 1},
	{"commit and chain", 1},
	{"end; start transaction", 1},
	{"commit; begin; savepoint a", 1},
	{"commit; begin; select 1/0", 1},
	{"rollback; begin", 0},
	{"abort; begin", 0},
	{"rollback and chain", 0},
	{"rollback; begin; commit; begin", 0},
}

// execute are the ways in which a handler can have a string executed.
var execute = map[string]func(context.Context, pgx.Tx, string) error{
	"Exec": func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Exec(ctx, sql)
		return err
	},
	"Query": func(ctx context.Context, tx pgx.Tx, sql string) error {
		rows, err := tx.Query(ctx, sql, pgx.QueryExecModeSimpleProtocol)
		rows.Close()
		return err
	},
	"savepoint": func(ctx context.Context, tx pgx.Tx, sql string) error {
		inner, err := tx.Begin(ctx)
		if err == nil {
			_, err = inner.Exec(ctx, sql)
		}
		return err
	},
	"Conn": func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Conn().Exec(ctx, sql)
		return err
	},
	"PgConn": func(ctx context.Context, tx pgx.Tx, sql string) error {
		_, err := tx.Conn().PgConn().Exec(ctx, sql).ReadAll()
		return err
	},
}

// misuses is a server whose handler misuses its transaction.
type misuses struct {
	*fixture
	*httptest.Server
	ran atomic.Int32
}

func newMisuses(t *testing.T, mode ClaimMode, fn func(m *misuses, w http.ResponseWriter, r *http.Request, tx pgx.Tx) error) *misuses {
	t.Helper()
	m := &misuses{fixture: newFixture(t, Options{ClaimMode: mode})}
	m.Server = handle(t, m.fixture, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		m.ran.Add(1)
		return fn(m, w, r, tx)
	})
	return m
}

func (m *misuses) insert(ctx context.Context, tx pgx.Tx, key string) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+m.schema+".business (key) VALUES ($1)", key)
	return err
}

// expectMisuse posts under key, and again if there is one: the first answer is repeated, and the
// handler does not run. It reports whether all was as expected.
func (m *misuses) expectMisuse(t *testing.T, key string, rows int) bool {
	t.Helper()
	before := m.ran.Load()
	first := post(t, m.Server, key)
	again := first
	if key != "" {
		again = post(t, m.Server, key)
		again.replay = !again.replay
	}
	ran, stand := m.ran.Load()-before, m.rows(t, key)
	if first.status == 500 && strings.Contains(first.body, `"code":"tx-misuse"`) && again == first && ran == 1 && stand == rows {
		return true
	}
	t.Errorf("key %q: the handler ran %d times, %d rows stand, want once and %d; first answer %+v, second %+v", key, ran, stand, rows, first, again)
	return false
}

// A string that ends the transaction within a longer one shows neither in the connection's status nor
// in a command tag. Whatever the handler answers, the client is told, the key never runs again, and
// nothing behind the string commits.
func TestStringsThatEndTheTransaction(t *testing.T) {
	t.Parallel()
	for mode, name := range map[ClaimMode]string{ClaimLeased: "leased", ClaimInline: "inline"} {
		for way, run := range execute {
			t.Run(name+" "+way, func(t *testing.T) {
				t.Parallel()
				var sql string
				var status int
				m := newMisuses(t, mode, func(m *misuses, w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
					key := r.Header.Get("Idempotency-Key")
					if err := m.insert(r.Context(), tx, key); err != nil {
						return err
					}
					_ = run(r.Context(), tx, sql)
					_ = m.insert(r.Context(), tx, key)
					w.WriteHeader(status)
					return nil
				})
				for i, ending := range endings {
					for _, status = range []int{202, 409, 422, 500} {
						sql = ending.sql
						for _, key := range []string{fmt.Sprintf("%d-%d", i, status), ""} {
							if !m.expectMisuse(t, key, ending.rows) {
								t.Errorf("that was %q, answered with %d", sql, status)
							}
						}
						m.exec(t, "DELETE FROM "+m.schema+".business")
					}
				}
			})
		}
	}
}

// The statements that end one transaction and begin another may travel in one batch, also with the
// opening of the transaction itself.
func TestBatchThatEndsTheTransaction(t *testing.T) {
	t.Parallel()
	for mode, name := range map[ClaimMode]string{ClaimLeased: "leased", ClaimInline: "inline"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var status int
			m := newMisuses(t, mode, func(m *misuses, w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				b, key, insert := &pgx.Batch{}, r.Header.Get("Idempotency-Key"), "INSERT INTO "+m.schema+".business (key) VALUES ($1)"
				b.Queue(insert, key)
				b.Queue("COMMIT")
				b.Queue("BEGIN")
				b.Queue(insert, key)
				if err := tx.SendBatch(r.Context(), b).Close(); err != nil {
					return err
				}
				w.WriteHeader(status)
				return nil
			})
			for _, status = range []int{202, 409, 422, 500} {
				m.expectMisuse(t, fmt.Sprint(status), 1)
			}
			m.expectMisuse(t, "", 1)
		})
	}
}

// A connection that is of no use any more cannot be asked what was committed on it. Another one is.
func TestMisuseOfAConnectionThatIsLost(t *testing.T) {
	t.Parallel()
	for mode, name := range map[ClaimMode]string{ClaimLeased: "leased", ClaimInline: "inline"} {
		for how, lose := range map[string]func(context.Context, pgx.Tx) error{
			"closed":      func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) },
			"rows unread": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Query(ctx, "SELECT 1"); return err },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				var status int
				m := newMisuses(t, mode, func(m *misuses, w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
					if err := m.insert(r.Context(), tx, r.Header.Get("Idempotency-Key")); err != nil {
						return err
					}
					if _, err := tx.Exec(r.Context(), "COMMIT; BEGIN"); err != nil {
						return err
					}
					if err := lose(r.Context(), tx); err != nil {
						return err
					}
					w.WriteHeader(status)
					return nil
				})
				for _, status = range []int{202, 409, 422, 500} {
					m.expectMisuse(t, fmt.Sprint(status), 1)
				}
			})
		}
	}
}

// What is kept of a misuse is sealed like any other response.
func TestMisuseIsSealed(t *testing.T) {
	t.Parallel()
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	m := &misuses{fixture: newFixture(t, Options{})}
	middleware, err := idemkey.New(m.fixture, &idemkey.Options{
		SingleTenant: true, Logger: slog.New(slog.DiscardHandler),
		Response: idemkey.ResponseOptions{Sealer: &idemkey.AEADSealer{Current: "a", Keys: map[string]cipher.AEAD{"a": aead}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Server = httptest.NewServer(middleware.Handler(HandleTx(func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		m.ran.Add(1)
		_, err := tx.Exec(r.Context(), "COMMIT; BEGIN")
		return err
	})))
	t.Cleanup(m.Server.Close)
	m.expectMisuse(t, "k", 0)
	var keyID string
	if err := m.pool.QueryRow(t.Context(), "SELECT enc_key_id FROM "+m.schema+".idempotency_key").Scan(&keyID); err != nil || keyID != "a" {
		t.Errorf("stored under the key %q, %v; want a", keyID, err)
	}
}

// A Problems.Writer that panics does not keep a misuse from being kept.
func TestMisuseWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	middleware, err := idemkey.New(f, &idemkey.Options{SingleTenant: true, Logger: slog.New(slog.DiscardHandler), Problems: idemkey.ProblemOptions{
		Writer: func(http.ResponseWriter, *http.Request, *idemkey.Problem) { panic(http.ErrAbortHandler) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(middleware.Handler(HandleTx(func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		_, err := tx.Exec(r.Context(), "INSERT INTO "+f.schema+".business (key) VALUES ('k'); COMMIT")
		return err
	})))
	t.Cleanup(server.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	if resp, err := server.Client().Do(req); err == nil {
		resp.Body.Close()
		t.Errorf("answered %s, want no answer", resp.Status)
	}
	var state int
	if err := f.pool.QueryRow(t.Context(), "SELECT state FROM "+f.schema+".idempotency_key").Scan(&state); err != nil || state != int(idemkey.StateTombstone) {
		t.Errorf("the record is in state %d, %v; want a tombstone", state, err)
	}
}
