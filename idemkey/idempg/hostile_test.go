package idempg

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A handler ends the transaction by SQL, which stands, and then fails. The key
// never runs again.
func TestEndedThenFailed(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		for end, finish := range map[string]func(http.ResponseWriter) error{
			"error": func(http.ResponseWriter) error { return errBusiness },
			"503":   func(w http.ResponseWriter) error { w.WriteHeader(503); return nil },
			"panic": func(http.ResponseWriter) error { panic(http.ErrAbortHandler) },
		} {
			t.Run(name+" "+end, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, Options{ClaimMode: mode})
				server := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
					if err := f.buy(discard{}, r, tx); err != nil {
						return err
					}
					if _, err := tx.Exec(r.Context(), "COMMIT"); err != nil {
						return err
					}
					return finish(w)
				})
				for range 2 {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, http.NoBody)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Idempotency-Key", "k")
					req.Header.Set("Connection", "close")
					if resp, err := server.Client().Do(req); err == nil {
						_ = resp.Body.Close()
					}
				}
				f.expectRows(t, "k", 1)
			})
		}
	}
}

// Recover's answer is about one run. While it is being looked for, another
// retry takes over, runs and dies: by default its grace (10 s) is shorter than the
// time that Recover has (15 s). The answer is then taken for that other run's.
func TestStaleRecover(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Grace: time.Hour}) // nothing lapses by itself, and no transaction is opened early
	asked, answer := make(chan struct{}), make(chan struct{})
	m, err := idemkey.New(f, &idemkey.Options{
		SingleTenant: true,
		Logger:       slog.New(slog.DiscardHandler),
		Fingerprint: idemkey.FingerprintOptions{Custom: func(*http.Request, []byte) (idemkey.Fingerprint, error) {
			return idemkeytest.Claim("k", "a").FP, nil
		}},
		Recover: func(context.Context, idemkey.Identity) (*idemkey.Response, error) {
			close(asked)
			<-answer
			return nil, nil // the first run had no effect
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := idemkeytest.Claim("k", "a")
	c.ID = idemkey.Identity{Namespace: "http", Scope: "default", Key: "k"}
	first := f.begin(t, c)
	f.crash(t, c.ID, first)

	ran := false
	done, w := make(chan struct{}), httptest.NewRecorder()
	go func() {
		defer close(done)
		r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
		r.Header.Set("Idempotency-Key", "k")
		m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true })).ServeHTTP(w, r)
	}()
	<-asked
	second := f.begin(t, c) // another retry, whose Recover has said the same
	// ... has its external effect here, and dies; its lease runs out
	f.crash(t, c.ID, second)
	close(answer)
	<-done
	if ran || w.Code != 409 {
		t.Errorf("the handler ran (%t, %d) after a run that nobody inquired about", ran, w.Code)
	}
}

// A slow value is one that takes its time to be encoded, as large JSON does.
type slow struct{ begun, done chan struct{} }

func (s slow) Value() (driver.Value, error) {
	close(s.begun)
	<-s.done
	return "late", nil
}

// A goroutine that a handler left behind may have passed the check of the transaction and be about to send: then its
// connection is closed, not given back, and nothing commits.
func TestStatementAfterEnd(t *testing.T) {
	t.Parallel()
	for _, nested := range []bool{false, true} {
		t.Run(fmt.Sprint("nested ", nested), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{})
			arg, result := slow{make(chan struct{}), make(chan struct{})}, make(chan error, 1)
			server := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				if err := f.buy(w, r, tx); err != nil {
					return err
				}
				// so that the statement is known, and encoding is all that is left to do
				if _, err := tx.Exec(r.Context(), "INSERT INTO "+f.schema+".business (key) VALUES ($1)", "k2"); err != nil {
					return err
				}
				if nested {
					var err error
					if tx, err = tx.Begin(r.Context()); err != nil {
						return err
					}
				}
				go func() {
					_, err := tx.Exec(context.WithoutCancel(r.Context()), "INSERT INTO "+f.schema+".business (key) VALUES ($1)", arg)
					result <- err
				}()
				<-arg.begun
				return nil
			})
			if r := post(t, server, "k"); r.status != 500 || !strings.Contains(r.body, "commit-failed") {
				t.Errorf("the answer = %d %s", r.status, r.body)
			}
			close(arg.done)
			if err := <-result; err == nil {
				t.Error("a statement was executed after the transaction had ended")
			}
			f.expectRows(t, "late", 0)
			f.expectRows(t, "k", 0)
		})
	}
}

// What LargeObjects returned works on the connection when it is another's.
func TestLargeObjectsAfterEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	var objects pgx.LargeObjects
	server := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		objects = tx.LargeObjects()
		return f.buy(w, r, tx)
	})
	post(t, server, "k").expect(t, 201, "")
	if oid, err := objects.Create(t.Context(), 0); err == nil {
		f.exec(t, "SELECT lo_unlink($1)", oid)
		t.Error("a large object was created after the transaction had ended")
	}
}

func poolOf(t *testing.T, config *pgxpool.Config, conns int32) *pgxpool.Pool {
	t.Helper()
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// A process that was cut off in the middle of its claim leaves the row
// uncommitted, and a claim of that key waits. One does: the others of its process
// are told at once that the key is in flight.
func TestHalfClaim(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := idemkeytest.Claim("k", "a")
	conn, err := pgx.ConnectConfig(t.Context(), f.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), "BEGIN")
	if err == nil {
		_, err = conn.Exec(t.Context(), f.q.insertClaim, c.ID.Namespace, c.ID.Scope, c.ID.Key, c.FP.Sum, c.FP.Alg, newToken(), 10000, 86400000, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan idemkey.Decision, 1)
	go func() {
		d, err := f.Begin(t.Context(), c)
		if err != nil {
			t.Errorf("Begin: %v", err)
		}
		first <- d
	}()
	f.waitFor(t, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '.idempotency_key%')", f.schema)
	for range 10 {
		f.kind(t, c, idemkey.KindInFlight)
	}
	if err := conn.Close(t.Context()); err != nil { // the server rolls back
		t.Fatal(err)
	}
	d := <-first
	if d.Kind != idemkey.KindProceed {
		t.Fatalf("Begin = %d, want to proceed once the other is gone", d.Kind)
	}
	if err := d.Exec.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
		t.Errorf("Commit: %v", err)
	}
}

// Retries of a completed key are replays, also while another one's claim hangs which
// the memo has taken for new, as it takes them: another key has come by their slot.
// Each reads the record, by which a request that is not the same is told as well.
func TestRetriesBehindAClaim(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{ClaimMode: mode})
			c, other := idemkeytest.Claim("k", "a"), idemkeytest.Claim("k", "b")
			if err := f.begin(t, c).Commit(t.Context(), idemkey.Response{Status: 201, Header: http.Header{}, Body: []byte("x")}); err != nil {
				t.Fatal(err)
			}
			another := f.collide(c.ID)
			f.memo.metBefore(another)
			end := f.hang(t, c, mode)
			for range 10 {
				f.memo.metBefore(another)
				if d, err := f.Begin(t.Context(), c); err != nil || d.Kind != idemkey.KindReplay || string(d.Record.Response.Body) != "x" {
					t.Errorf("Begin = %+v, %v; want a replay", d, err)
				}
				f.memo.metBefore(another)
				f.kind(t, other, idemkey.KindMismatch)
			}
			end()
		})
	}
}

// collide returns another key of id's slot in the memo.
func (f *fixture) collide(id idemkey.Identity) idemkey.Identity {
	slot := func(id idemkey.Identity) uint64 { return maphash.Comparable(f.memo.seed, id) % memoSize }
	other := id
	for i := 0; other == id || slot(other) != slot(id); i++ {
		other.Key = fmt.Sprint("collides", i)
	}
	return other
}

// hang keeps a retry of c, which is completed, in its claim until end. A leased retry waits for a transaction
// that changed the row and has not committed. An inline one never waits; then another transaction has its lock.
func (f *fixture) hang(t *testing.T, c idemkey.Claim, mode ClaimMode) (end func()) {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var retry sync.WaitGroup
	end = sync.OnceFunc(func() {
		_ = tx.Rollback(context.WithoutCancel(t.Context()))
		retry.Wait()
	})
	t.Cleanup(end)
	if mode == ClaimInline {
		_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", f.lockKey(c.ID))
	} else {
		_, err = tx.Exec(t.Context(), "UPDATE "+f.schema+".idempotency_key SET resp_status = resp_status")
	}
	if err != nil {
		t.Fatal(err)
	}
	if mode == ClaimLeased {
		retry.Go(func() { f.kind(t, c, idemkey.KindReplay) })
		f.waitFor(t, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '.idempotency_key%')", f.schema)
	}
	return end
}

// waitFor waits until query is true.
func (f *fixture) waitFor(t *testing.T, query string, args ...any) {
	t.Helper()
	for ok := false; !ok; {
		if err := f.pool.QueryRow(t.Context(), query, args...).Scan(&ok); err != nil {
			t.Fatal(err)
		}
	}
}

// An overtaken owner whose transaction never began does not wait for the winner's
// row lock, which is the winner's handler.
func TestLateCommitDoesNotWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Grace: time.Hour})
	c := idemkeytest.Claim("k", "a")
	stalled := f.begin(t, c)
	f.lapse(t, c.ID)
	winner := f.begin(t, c)
	if err := winner.tx.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	err := stalled.Commit(ctx, idemkey.Response{Status: 200})
	if ctx.Err() != nil {
		t.Errorf("Commit waited for the other's handler: %v", err)
	}
	if err := winner.Commit(t.Context(), idemkey.Response{Status: 201}); err != nil {
		t.Errorf("winner: %v", err)
	}
}

// A rewriter is pgx's hook for arguments, as pgx.NamedArgs is one.
type rewriter struct{ slow }

func (s rewriter) RewriteQuery(_ context.Context, _ *pgx.Conn, sql string, _ []any) (string, []any, error) {
	close(s.begun)
	<-s.done
	return sql, []any{"late"}, nil
}

// TestStatementAfterEnd, where the connection has gone to another request:
// the statement commits with that one's record.
func TestStatementInAnothersTransaction(t *testing.T) {
	t.Parallel()
	base := newFixture(t, Options{})
	config := base.pool.Config()
	f := newFixtureOn(t, poolOf(t, config, 6), base.schema, Options{})
	insert := "INSERT INTO " + f.schema + ".business (key) VALUES ($1)"
	arg, result := slow{make(chan struct{}), make(chan struct{})}, make(chan error, 1)
	first := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if err := f.buy(w, r, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(r.Context(), insert, "k2"); err != nil {
			return err
		}
		go func() {
			_, err := tx.Exec(context.WithoutCancel(r.Context()), insert, rewriter{arg})
			result <- err
		}()
		<-arg.begun
		return nil
	})
	second := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if _, err := tx.Exec(r.Context(), insert, "mine"); err != nil {
			return err
		}
		close(arg.done)
		if err := <-result; err == nil {
			t.Error("a statement of the request before was executed in this one's transaction")
		}
		w.WriteHeader(201)
		return nil
	})
	if r := post(t, first, "a"); r.status != 500 {
		t.Errorf("the first request got %d %s", r.status, r.body)
	}
	if r := post(t, second, "b"); r.status != 201 {
		t.Errorf("the other request got %d %s", r.status, r.body)
	}
	var together bool
	err := f.pool.QueryRow(t.Context(), "SELECT count(DISTINCT xmin::text) = 1 AND count(*) = 2 FROM "+f.schema+".business WHERE key IN ('mine', 'late')").Scan(&together)
	if err != nil || together {
		t.Errorf("it committed with the other's record: %t %v", together, err)
	}
}

// COMMIT AND CHAIN leaves the connection in a transaction: its status tells nothing.
func TestCommitAndChain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	server := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if err := f.buy(discard{}, r, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(r.Context(), "COMMIT AND CHAIN"); err != nil {
			return err
		}
		w.WriteHeader(503)
		return nil
	})
	post(t, server, "k")
	post(t, server, "k")
	f.expectRows(t, "k", 1)
}

// With every connection of the pool held by a handler, as a small pool's default
// MaxInFlight allows, the look-up has that of the lost COMMIT.
func TestLookUpWithFewConnections(t *testing.T) {
	t.Parallel()
	direct := newFixture(t, Options{})
	p, proxied := pgtest.NewProxy(t)
	config := proxied.Config()
	pool := poolOf(t, config, 1)
	s, err := New(pool, &Options{Schema: direct.schema})
	if err != nil {
		t.Fatal(err)
	}
	server := handle(t, s, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		p.Lose(pgtest.LoseReply)
		return direct.buy(w, r, tx)
	})
	post(t, server, "k").expect(t, 201, "")
}

// A batch that cannot be prepared fails as in any transaction.
func TestBatchFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	e := f.begin(t, idemkeytest.Claim("k", "a"))
	b := &pgx.Batch{}
	b.Queue("INSERT INTO "+f.schema+".business (key) VALUES ($1)", "k")
	b.Queue("SELECT missing FROM "+f.schema+".business WHERE key = $1", "k")
	err := e.tx.Holder().SendBatch(t.Context(), b).Close()
	pgErr := (*pgconn.PgError)(nil)
	if !errors.As(err, &pgErr) || pgErr.Code != "42703" {
		t.Errorf("batch: %v, want undefined column", err)
	}
}
