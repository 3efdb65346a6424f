package idempg

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A call of a handler that still runs when the handler has returned, as behind http.TimeoutHandler, meets neither COMMIT
// nor ROLLBACK on its connection (go test -race finds that). Its connection ends, nothing of the request commits, and the
// key can be used again.
func TestACallThatOutlastsItsHandler(t *testing.T) {
	t.Parallel()
	for _, mode := range []ClaimMode{ClaimLeased, ClaimInline} {
		for _, status := range []int{http.StatusCreated, http.StatusBadRequest, http.StatusServiceUnavailable} { // commit, reject, release
			t.Run(fmt.Sprint(mode, " ", status), func(t *testing.T) {
				t.Parallel()
				pool, schema := pgtest.Schema(t, "CREATE TABLE {schema}.business (n int)")
				store, err := New(pool, &Options{Schema: schema, ClaimMode: mode, Grace: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				middleware, err := idemkey.New(store, &idemkey.Options{SingleTenant: true})
				if err != nil {
					t.Fatal(err)
				}
				calls, ended := 0, make(chan error, 1)
				handler := middleware.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					tx := Tx(r.Context())
					if calls++; calls > 1 {
						_, _ = tx.Exec(r.Context(), "INSERT INTO "+schema+".business VALUES (2)")
						w.WriteHeader(http.StatusCreated)
						return
					}
					if _, err := tx.Exec(r.Context(), "INSERT INTO "+schema+".business VALUES (1)"); err != nil {
						t.Error(err)
					}
					sent := make(chan struct{})
					go func() {
						close(sent)
						_, err := tx.Exec(r.Context(), "SELECT pg_sleep(600)")
						ended <- err
					}()
					<-sent
					untilSleeping(t, schema, pool)
					w.WriteHeader(status)
				}))
				post := func() int {
					r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("{}"))
					r.Header.Set("Idempotency-Key", "k")
					w := httptest.NewRecorder()
					handler.ServeHTTP(w, r)
					return w.Code
				}
				first := post()
				if err := <-ended; err == nil {
					t.Error("the call that outlasted its handler has succeeded")
				}
				if want := map[int]int{201: 500}[status]; want != 0 && first != want {
					t.Errorf("the first answer is %d, want %d", first, want)
				}
				again := post()
				var rows []int
				if err := pool.QueryRow(t.Context(), "SELECT array_agg(n) FROM "+schema+".business").Scan(&rows); err != nil {
					t.Fatal(err)
				}
				if status == http.StatusBadRequest { // which was kept
					if again != status || rows != nil {
						t.Errorf("the retry = %d with rows %v", again, rows)
					}
				} else if again != http.StatusCreated || len(rows) != 1 || rows[0] != 2 {
					t.Errorf("the retry = %d, rows %v; want only its own", again, rows)
				}
			})
		}
	}
}

// untilSleeping waits until a session that has locked something of schema sleeps.
func untilSleeping(t *testing.T, schema string, pool *pgxpool.Pool) {
	t.Helper()
	for {
		var found bool
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity a JOIN pg_locks l USING (pid) JOIN pg_class c ON c.oid = l.relation
			WHERE c.relnamespace = $1::regnamespace AND a.query LIKE 'SELECT pg_sleep%' AND a.state = 'active')`, schema).Scan(&found)
		if err != nil {
			t.Fatal(err)
		}
		if found {
			return
		}
	}
}
