package idempg

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
)

// tenants are those of handler's requests.
func tenants(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil }

// asked returns what the tenant's request with a key is answered.
func asked(t *testing.T, h http.Handler, tenant, key string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(`{"item":"book"}`))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Tenant", tenant)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A replay is the bytes that were answered, and not what they mean: a client may have
// signed them, or compare digests. Tenants may use one key, and none is answered
// what is another's.
func TestEachTenantHasItsOwnBytesAgain(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{ClaimMode: mode})
			m, err := idemkey.New(f, &idemkey.Options{Scope: tenants, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			h := m.Handler(HandleTx(f.buy))
			for i, tenant := range []string{"a", "b"} {
				first := asked(t, h, tenant, "k")
				if first.Code != http.StatusCreated || first.Header().Get("Idempotent-Replayed") != "" {
					t.Errorf("the first request of tenant %s: %d, a replay: %q; want 201 and none", tenant, first.Code, first.Header().Get("Idempotent-Replayed"))
				}
				f.expectRows(t, "k", i+1)
				again := asked(t, h, tenant, "k")
				if again.Code != first.Code || !bytes.Equal(again.Body.Bytes(), first.Body.Bytes()) {
					t.Errorf("the replay to tenant %s: %d %q, want %d %q", tenant, again.Code, again.Body, first.Code, first.Body)
				}
				f.expectRows(t, "k", i+1)
			}
		})
	}
}
