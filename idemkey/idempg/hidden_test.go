package idempg

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A tenantService is a service whose handlers set the role of a tenant, which sees no idempotency keys.
type tenantService struct {
	service *pgtest.Outsider
	tenant  string
	schema  string
	store   *Store
	handler http.Handler
	runs    int
}

// newTenantService serves POST requests that insert a row as the tenant, and then do more.
func newTenantService(t *testing.T, mode ClaimMode, more func(s *tenantService, r *http.Request, tx pgx.Tx) error) *tenantService {
	t.Helper()
	pool, schema := pgtest.Schema(t, "CREATE TABLE {schema}.orders (id bigserial PRIMARY KEY, by text NOT NULL DEFAULT current_user)")
	s := &tenantService{tenant: pgtest.NewRole(t, pool), schema: schema}
	s.service = pgtest.NewOutsider(t, pool, schema, s.tenant)
	s.service.Exec(t, fmt.Sprintf("GRANT USAGE ON SCHEMA {schema} TO %s; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO %[1]s; GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO %[1]s", s.tenant))
	var err error
	if s.store, err = New(s.service.Pool, &Options{Schema: schema, ClaimMode: mode}); err != nil {
		t.Fatal(err)
	}
	middleware, err := idemkey.New(s.store, &idemkey.Options{SingleTenant: true})
	if err != nil {
		t.Fatal(err)
	}
	s.handler = middleware.Handler(HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		s.runs++
		if _, err := tx.Exec(r.Context(), "SET LOCAL ROLE "+s.tenant); err != nil {
			return err
		}
		if _, err := tx.Exec(r.Context(), "INSERT INTO "+schema+".orders DEFAULT VALUES"); err != nil {
			return err
		}
		if err := more(s, r, tx); err != nil {
			return err
		}
		w.WriteHeader(http.StatusCreated)
		return nil
	}))
	return s
}

// post returns "status code" of a request, with "replayed" for a replay.
func (s *tenantService) post(t *testing.T) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	text := fmt.Sprint(w.Code)
	if _, code, found := strings.Cut(w.Body.String(), `"code":"`); found {
		text += " " + code[:strings.Index(code, `"`)]
	}
	if w.Header().Get("Idempotent-Replayed") != "" {
		text += " replayed"
	}
	return text
}

// orders returns who has inserted orders.
func (s *tenantService) orders(t *testing.T) (by []string) {
	t.Helper()
	rows, _ := s.service.Pool.Query(t.Context(), "SELECT by FROM "+s.schema+".orders")
	by, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return by
}

func eachMode(t *testing.T, test func(t *testing.T, mode ClaimMode)) {
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, mode)
		})
	}
}

// A handler may set a role that sees no idempotency keys, and need not undo it.
func TestARoleOfAHandler(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode ClaimMode) {
		s := newTenantService(t, mode, func(*tenantService, *http.Request, pgx.Tx) error { return nil })
		s.service.Exec(t, "ALTER ROLE {role} BYPASSRLS")
		s.service.Hide(t, "idempotency_key")
		if got := s.post(t); got != "201" {
			t.Errorf("the first request = %s", got)
		}
		if got := s.post(t); got != "201 replayed" {
			t.Errorf("its retry = %s", got)
		}
		if got := s.orders(t); len(got) != 1 || got[0] != s.tenant {
			t.Errorf("orders by %q, want one by %s", got, s.tenant)
		}
	})
}

// Nothing commits if the record of the key is not there to be written: the handler has removed it, or a policy that was
// enabled meanwhile hides it from the session. The client learns that this is the service's fault, and no retry commits
// twice.
func TestNothingCommitsWithoutARecord(t *testing.T) {
	t.Parallel()
	deletes := func(s *tenantService, r *http.Request, tx pgx.Tx) error {
		_, err := tx.Exec(r.Context(), "DELETE FROM "+s.schema+".idempotency_key")
		return err
	}
	t.Run("removed", func(t *testing.T) {
		t.Parallel()
		s := newTenantService(t, ClaimLeased, deletes)
		for range 3 {
			if got := s.post(t); got != "500 record-hidden" {
				t.Errorf("the answer = %s", got)
			}
		}
		if got := s.orders(t); len(got) != 0 || s.runs != 3 {
			t.Errorf("%d orders after %d runs, want none after 3", len(got), s.runs)
		}
	})
	t.Run("hidden by a setting", func(t *testing.T) {
		t.Parallel()
		eachMode(t, func(t *testing.T, mode ClaimMode) {
			s := newTenantService(t, mode, func(_ *tenantService, r *http.Request, tx pgx.Tx) error {
				_, err := tx.Exec(r.Context(), "SET LOCAL app.tenant = 'acme'")
				return err
			})
			s.service.Exec(t, `CREATE POLICY tenants ON {schema}.idempotency_key USING (coalesce(current_setting('app.tenant', true), '') IN ('', scope));
				ALTER TABLE {schema}.idempotency_key ENABLE ROW LEVEL SECURITY`)
			want := map[ClaimMode]string{ClaimLeased: "500 record-hidden", ClaimInline: "500 commit-failed"}[mode]
			for range 3 {
				if got := s.post(t); got != want {
					t.Errorf("the answer = %s, want %s", got, want)
				}
			}
			if got := s.orders(t); len(got) != 0 || s.runs != 3 {
				t.Errorf("%d orders after %d runs, want none after 3", len(got), s.runs)
			}
		})
	})
}

// A record that exists and is hidden is no absent one, and no running request: the answer is 500, whether the policy hides
// it from the claim, from a take-over or from the transaction's lock.
func TestAHiddenRecordIsNotInProgress(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]string{
		"from all":         "CREATE POLICY p ON {schema}.idempotency_key USING (state = 1 AND attempt = 1 AND created_at > clock_timestamp() - interval '1 s')",
		"from a take-over": "CREATE POLICY r ON {schema}.idempotency_key FOR SELECT USING (true); CREATE POLICY i ON {schema}.idempotency_key FOR INSERT WITH CHECK (true)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fails := true
			s := newTenantService(t, ClaimLeased, func(*tenantService, *http.Request, pgx.Tx) error {
				if fails {
					return errors.New("no")
				}
				return nil
			})
			if got := s.post(t); got != "500 internal" {
				t.Errorf("a failed request = %s", got)
			}
			fails = false
			s.service.Exec(t, "UPDATE {schema}.idempotency_key SET created_at = created_at - interval '1 h'; "+policy)
			s.service.Hide(t, "idempotency_key")
			if got := s.post(t); got != "500 record-hidden" {
				t.Errorf("its retry = %s", got)
			}
			if err := s.store.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "row-level security") {
				t.Errorf("Check = %v", err)
			}
			if _, err := s.store.Sweep(t.Context(), 1); err == nil {
				t.Error("Sweep is silent")
			}
			s.service.Show(t, "idempotency_key")
			if got := s.post(t); got != "201" || s.runs != 2 {
				t.Errorf("the retry of a record that is visible again = %s, %d runs", got, s.runs)
			}
		})
	}
}
