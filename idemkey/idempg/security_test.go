package idempg

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A trickle is a body that comes bit by bit.
type trickle struct {
	left int
	each func()
}

func (r *trickle) Read(p []byte) (int, error) {
	r.each()
	if r.left == 0 {
		return 0, io.EOF
	}
	r.left--
	p[0] = 'x'
	return 1, nil
}

// A body that trickles in holds no connection, and no record waits for it.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	m, err := idemkey.New(f, &idemkey.Options{SingleTenant: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	reads := 0
	req := httptest.NewRequestWithContext(t.Context(), "POST", "/", &trickle{left: 3, each: func() {
		reads++
		if n := f.pool.Stat().AcquiredConns(); n != 0 {
			t.Errorf("%d connections are taken while the body is read", n)
		}
		if n := f.records(t); n != 0 {
			t.Errorf("%d records are claimed while the body is read", n)
		}
	}})
	req.Header.Set("Idempotency-Key", "k")
	rec := httptest.NewRecorder()
	m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) })).ServeHTTP(rec, req)
	if rec.Code != 201 || reads != 4 || f.records(t) != 1 {
		t.Errorf("got %d after %d reads and %d records, want 201 after 4 and one", rec.Code, reads, f.records(t))
	}
}

// records counts all there are.
func (f *fixture) records(t testing.TB) int {
	t.Helper()
	var n int
	if err := f.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+f.schema+".idempotency_key").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What a client sends is digested and not stored, while it runs and after.
func TestRequestBodyNotStored(t *testing.T) {
	t.Parallel()
	const canary = "card-4000000000000002"
	f := newFixture(t, Options{})
	m, err := idemkey.New(f, &idemkey.Options{SingleTenant: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	rows := func() string {
		var text string
		err := f.pool.QueryRow(t.Context(), "SELECT string_agg(k::text || encode(fp, 'escape') || coalesce(encode(resp_body, 'escape'), ''), ' ') FROM "+
			f.schema+".idempotency_key AS k").Scan(&text)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for _, status := range []int{201, 422, 500} {
		req := httptest.NewRequestWithContext(t.Context(), "POST", "/", strings.NewReader(canary))
		req.Header.Set("Idempotency-Key", http.StatusText(status))
		m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if all := rows(); strings.Contains(all, canary) {
				t.Errorf("stored while it runs: %s", all)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "answer")
		})).ServeHTTP(httptest.NewRecorder(), req)
	}
	if all := rows(); strings.Contains(all, canary) || !strings.Contains(all, "answer") {
		t.Errorf("stored: %s", all)
	}
}

// statements are what a pool's connections were asked, in order.
type statements struct {
	mu    sync.Mutex
	asked []string
}

func (s *statements) add(sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sql != "-- ping" { // of the pool, to a connection that was idle for a second
		s.asked = append(s.asked, sql)
	}
}

// TraceQueryStart and the other methods are those of pgx's tracers.
func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.add(q.SQL)
	return ctx
}

func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		s.add(q.SQL)
	}
	return ctx
}

func (*statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// instance is what tells two problems apart that are alike.
var instance = regexp.MustCompile(`urn:uuid:[0-9a-f-]+`)

// 3: a key of another tenant looks like an unused key: the same answers, by the same statements. How long they
// take is not compared.
func TestNoOracleInPostgreSQL(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, schema := pgtest.Schema(t, sqlCreateBusiness)
			asked := &statements{}
			config, err := pgxpool.ParseConfig(pgtest.URL())
			if err != nil {
				t.Fatal(err)
			}
			config.ConnConfig.Tracer = asked
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			f := newFixtureOn(t, pool, schema, Options{ClaimMode: mode, Grace: time.Minute}) // no transaction is opened for a handler that waits
			m, err := idemkey.New(f, &idemkey.Options{Logger: slog.New(slog.DiscardHandler), Scope: func(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil }})
			if err != nil {
				t.Fatal(err)
			}
			ask := func(tenant, key, body string, during func()) string {
				req := httptest.NewRequestWithContext(t.Context(), "POST", "/", strings.NewReader(body))
				req.Header.Set("Tenant", tenant)
				req.Header.Set("Idempotency-Key", key)
				rec := httptest.NewRecorder()
				m.Handler(HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
					if during != nil {
						during()
					}
					return f.buy(w, r, tx)
				})).ServeHTTP(rec, req)
				return fmt.Sprint(rec.Code, " ", instance.ReplaceAllString(rec.Body.String(), ""))
			}
			probe := func(key string) []string {
				asked.asked = nil
				answers := []string{ask("b", key, "x", nil), ask("b", key, "x", nil), ask("b", key, "y", nil)}
				return append(answers, asked.asked...)
			}
			want := probe("unused")
			if len(want) < 9 || !strings.HasPrefix(want[0], "201 ") || !strings.HasPrefix(want[2], "422 ") {
				t.Fatalf("an unused key: %q", want)
			}
			ask("a", "completed", "x", nil)
			got := map[string][]string{"completed": probe("completed")}
			ask("a", "other", "z", nil)
			got["other"] = probe("other")
			ask("a", "running", "x", func() { got["running"] = probe("running") })
			for kind, got := range got {
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("answers and statements (-unused key +%s by another tenant):\n%s", kind, diff)
				}
			}
		})
	}
}
