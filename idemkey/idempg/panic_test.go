package idempg

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/testing/guardtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A hook is a tracer of the pool, of which one method goes wrong when the countdown is over.
type hook struct {
	method string
	way    string
	count  atomic.Int32
}

func (h *hook) at(method string) {
	if h.method == method && h.count.Add(-1) == 0 {
		guardtest.Ways[h.way]()
	}
}

func (h *hook) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	h.at("acquire")
	return ctx
}

func (*hook) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

func (h *hook) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	h.at("query")
	return ctx
}

func (*hook) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (h *hook) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	h.at("batch")
	return ctx
}

func (*hook) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*hook) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// Whichever call of the database panics in a hook of the pool, the request gives place and
// connection back. The key is free at the latest when its claim lapses.
func TestAPanicInAHookOfThePoolHoldsNothing(t *testing.T) {
	t.Parallel()
	guardtest.Covered(t, map[string]bool{}, Options{})
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		for _, method := range []string{"acquire", "query", "batch"} {
			for way := range guardtest.Ways {
				t.Run(name+"/"+method+"/"+way, func(t *testing.T) {
					t.Parallel()
					h := &hook{method: method, way: way}
					config := pgtest.DirectConfig(t)
					config.ConnConfig.Tracer = h
					f := newFixture(t, Options{})
					f = newFixtureOn(t, poolOf(t, config, 6), f.schema, Options{ClaimMode: mode})
					idem, err := idemkey.New(f.Store, &idemkey.Options{SingleTenant: true})
					if err != nil {
						t.Fatal(err)
					}
					handler := idem.Handler(HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
						_, err := tx.Exec(r.Context(), "SELECT 1")
						return err
					}))
					post := func(key string) (status int) {
						r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
						r.Header.Set("Idempotency-Key", key)
						w := httptest.NewRecorder()
						handler.ServeHTTP(w, r)
						return w.Code
					}
					for call, key := int32(1), ""; key == ""; call++ { // each call of the request in turn
						h.count.Store(call)
						end := guardtest.End(func() { post(pgtest.Name()) })
						if end == nil {
							key = pgtest.Name() // there is none any more
						} else if want := guardtest.Want(way); end != want {
							t.Errorf("call %d: the request ended with %v, want %v", call, end, want)
						}
						h.count.Store(0)
						guardtest.Idle(t, f.pool)
						if n := len(f.slot); n != 0 {
							t.Errorf("call %d: %d places are in use", call, n)
						}
						if status := post(pgtest.Name()); status != http.StatusOK {
							t.Errorf("call %d: the next request is answered %d", call, status)
						}
					}
				})
			}
		}
	}
}

// Ending an execution twice does nothing to its connection, which another user may have by then.
func TestReleaseAfterCommitTouchesNoConnection(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{ClaimMode: mode})
			d, err := f.Store.Begin(t.Context(), idemkeytest.Claim("k", "a"))
			if err != nil {
				t.Fatal(err)
			}
			tx, _ := TxFrom(d.Exec.Context(t.Context()))
			if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
				t.Fatal(err)
			}
			if err := d.Exec.Commit(t.Context(), idemkey.Response{Status: http.StatusOK}); err != nil {
				t.Fatal(err)
			}
			other, err := f.pool.Begin(t.Context()) // on the same connection: it was given back last
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.Exec(t.Context(), "INSERT INTO "+f.schema+".business (key) VALUES ('other')"); err != nil {
				t.Fatal(err)
			}
			if err := d.Exec.Release(t.Context(), idemkey.Bound, http.StatusInternalServerError); !errors.Is(err, idemkey.ErrTxMisuse) {
				t.Errorf("Release = %v, want that there is nothing left to roll back", err)
			}
			if err := other.Commit(t.Context()); err != nil || f.rows(t, "other") != 1 {
				t.Errorf("the other transaction is not committed: %v", err)
			}
			if d, err := f.Begin(t.Context(), idemkeytest.Claim("k", "a")); err != nil || d.Kind != idemkey.KindReplay {
				t.Errorf("afterwards Begin = %d, %v; want a replay", d.Kind, err)
			}
		})
	}
}
