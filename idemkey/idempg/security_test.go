package idempg

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
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
