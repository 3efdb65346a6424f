package idempg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// Where the subprocess of TestCrash dies.
const (
	dieEnv      = "IDEMPG_TEST_DIE"
	dieSchema   = "IDEMPG_TEST_SCHEMA"
	dieInside   = "inside"   // in the handler, after its writes
	dieInQuery  = "in query" // while the server runs a statement
	dieUpdated  = "updated"  // between the record's update and COMMIT
	dieAfter    = "after"    // after COMMIT, before the response
	dieRejected = "rejected" // between ROLLBACK and keeping a 4xx
)

func TestMain(m *testing.M) {
	if schema := os.Getenv(linearSchema); schema != "" {
		check(serveLinear(schema, os.Getenv(linearPlant)))
		os.Exit(0)
	}
	if at := os.Getenv(dieEnv); at != "" {
		dieAt(at, os.Getenv(dieSchema))
	}
	os.Exit(m.Run())
}

// dieAt runs a request and kills its own process at a point of it.
func dieAt(at, schema string) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, pgtest.URL())
	check(err)
	s, err := New(pool, &Options{Schema: schema, Grace: time.Hour}) // the test ends it
	check(err)
	c := idemkeytest.Claim("k", "a")
	d, err := s.Begin(ctx, c)
	check(err)
	e := d.Exec.(*execution)
	_, err = e.tx.Holder().Exec(ctx, "INSERT INTO "+schema+".business (key) VALUES ('k')")
	check(err)
	switch at {
	case dieInside:
	case dieInQuery:
		time.AfterFunc(50*time.Millisecond, kill)
		_, err = e.tx.Holder().Exec(ctx, "SELECT pg_sleep(15)")
	case dieUpdated:
		_, err = e.keepResponse(ctx, e.tx.Holder(), &idemkey.Response{Status: 201})
	case dieAfter:
		err = e.Commit(ctx, idemkey.Response{Status: 201, Header: http.Header{}, Body: []byte("first")})
	case dieRejected:
		err = e.rollBackTx(ctx)
	}
	check(err)
	kill()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

func kill() {
	self, err := os.FindProcess(os.Getpid())
	check(err)
	check(self.Kill())
	select {}
}

// Whenever the process is killed, a retry ends with one business row.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, at := range []string{dieInside, dieInQuery, dieUpdated, dieAfter, dieRejected} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{})
			var stderr bytes.Buffer
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), dieEnv+"="+at, dieSchema+"="+f.schema)
			cmd.Stderr = &stderr
			if err := cmd.Run(); err == nil || err.Error() != "signal: killed" {
				t.Fatalf("subprocess: %v, want it killed (%s)", err, &stderr)
			}
			c := idemkeytest.Claim("k", "a")
			if at == dieAfter {
				d, err := f.Begin(t.Context(), c)
				if err != nil || d.Kind != idemkey.KindReplay || string(d.Record.Response.Body) != "first" {
					t.Errorf("Begin = %+v, %v; want a replay", d, err)
				}
				f.expectRows(t, "k", 1)
				return
			}
			f.kind(t, c, idemkey.KindInFlight) // within the grace
			f.lapse(t, c.ID)                   // waits for the dead owner's lock
			f.expectRows(t, "k", 0)
			e := f.begin(t, c)
			if _, err := e.tx.Holder().Exec(t.Context(), "INSERT INTO "+f.schema+".business (key) VALUES ('k')"); err != nil {
				t.Fatal(err)
			}
			if err := e.Commit(t.Context(), idemkey.Response{Status: 201}); err != nil {
				t.Errorf("Commit: %v", err)
			}
			f.expectRows(t, "k", 1)
			f.kind(t, c, idemkey.KindReplay)
		})
	}
}

// A COMMIT whose reply is lost is looked up: the client hears what is so.
func TestAmbiguousCommit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		lose   pgtest.Loss
		lookUp time.Duration // long where there is an answer to wait for
		status int
		code   string
		rows   int
	}{
		{"committed", pgtest.LoseReply, time.Minute, 201, "", 1},
		{"not committed", pgtest.LoseCommit, time.Minute, 500, "commit-failed", 0},
		{"unknown", pgtest.LoseAll, 500 * time.Millisecond, 503, "outcome-unverified", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			direct := newFixture(t, Options{})
			p, pool := pgtest.NewProxy(t)
			f := newFixtureOn(t, pool, direct.schema, Options{LookupTimeout: tt.lookUp})
			server := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				p.Lose(tt.lose)
				return f.buy(w, r, tx)
			})
			post(t, server, "k").expect(t, tt.status, tt.code)
			p.Lose(pgtest.LoseNothing)
			direct.expectRows(t, "k", tt.rows)
			again := post(t, handle(t, direct, direct.buy), "k") // as another process
			again.expect(t, 201, "")
			if again.replay != (tt.rows == 1) {
				t.Errorf("second request = %+v, want a replay: %t", again, tt.rows == 1)
			}
			direct.expectRows(t, "k", 1)
		})
	}
}

// Without a key there is no record to look up.
func TestAmbiguousCommitKeyless(t *testing.T) {
	t.Parallel()
	p, pool := pgtest.NewProxy(t)
	f := newFixtureOn(t, pool, newFixture(t, Options{}).schema, Options{})
	server := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		p.Lose(pgtest.LoseReply)
		return f.buy(w, r, tx)
	})
	r := post(t, server, "")
	r.expect(t, 503, "outcome-unverified")
	if !strings.Contains(r.body, `"retryable":false`) {
		t.Errorf("body = %s, want it not retryable", r.body)
	}
}

// A lastLock is a tracer that holds the lock of the only record while sql runs for
// the first time, as a lost session does that the server has not ended yet.
type lastLock struct {
	sql  string
	lock func() (pgx.Tx, error)
	runs int
	held pgx.Tx
	err  error
}

func (l *lastLock) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if q.SQL != l.sql {
		return ctx
	}
	if l.runs++; l.runs == 1 {
		l.held, l.err = l.lock()
	}
	return ctx
}

func (l *lastLock) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if l.held != nil {
		l.err = errors.Join(l.err, l.held.Rollback(context.WithoutCancel(ctx)))
		l.held = nil
	}
}

func (l *lastLock) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		ctx = l.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: q.SQL})
	}
	return ctx
}

func (*lastLock) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (l *lastLock) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchEndData) {
	l.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{})
}

func (l *lastLock) check(t *testing.T) {
	t.Helper()
	if l.err != nil || l.runs != 2 {
		t.Errorf("%d looks at the record, %v; want 2", l.runs, l.err)
	}
}

// newLastLock returns one for sql, and a fixture on pool that it watches.
func newLastLock(t *testing.T, pool *pgxpool.Pool, sql func(*queries) string) (*lastLock, *fixture) {
	t.Helper()
	direct := newFixture(t, Options{})
	l := &lastLock{sql: sql(&direct.q), lock: func() (pgx.Tx, error) {
		tx, err := direct.pool.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), "SELECT FROM "+direct.schema+".idempotency_key FOR UPDATE")
		}
		return tx, err
	}}
	config := pool.Config()
	config.ConnConfig.Tracer = l
	return l, newFixtureOn(t, poolOf(t, config, 6), direct.schema, Options{Grace: time.Hour, LookupTimeout: 6 * time.Second})
}

// Where the connection was lost, the server may free the row's lock after Release
// has asked for it. The key is freed all the same.
func TestFreedAfterLoss(t *testing.T) {
	t.Parallel()
	last, f := newLastLock(t, pgtest.Pool(t, pgtest.URL()), func(q *queries) string { return q.failRecord })
	c := idemkeytest.Claim("k", "a")
	owner := f.begin(t, c)
	if err := f.terminate(t.Context(), owner.tx.Holder()); err != nil {
		t.Fatal(err)
	}
	if err := owner.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Errorf("Release: %v", err)
	}
	last.check(t)
	f.kind(t, c, idemkey.KindProceed)
}

// The outcome of a COMMIT is not known while its transaction may be open. It is
// looked up again then.
func TestLookedUpAgain(t *testing.T) {
	t.Parallel()
	p, pool := pgtest.NewProxy(t)
	last, f := newLastLock(t, pool, func(q *queries) string { return q.lockState })
	c := idemkeytest.Claim("k", "a")
	owner := f.begin(t, c)
	if err := owner.tx.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Lose(pgtest.LoseCommit)
	var refused *idemkey.CommitError
	if err := owner.Commit(t.Context(), done); !errors.As(err, &refused) {
		t.Errorf("Commit: %v, want a CommitError", err)
	}
	last.check(t)
	f.kind(t, c, idemkey.KindProceed)
}

// A tracer that does something before sql runs for the first time.
type before struct {
	sql string
	do  func(ctx context.Context) error
	ran int
	err error
}

func (b *before) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if q.SQL == b.sql {
		if b.ran++; b.ran == 1 {
			b.err = b.do(ctx)
		}
	}
	return ctx
}

func (*before) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (b *before) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		ctx = b.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: q.SQL})
	}
	return ctx
}

func (*before) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*before) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// The claim's commit is asynchronous, so a crash of the server may undo it. A look for a COMMIT without an
// answer then finds no record. The request had no effect and no other request runs: the answer must not say
// that one does.
func TestAClaimThatTheServerHasLost(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		then string // after the crash, before the look
		want error
	}{
		"nobody has claimed the key since": {"DELETE FROM %s.idempotency_key", idemkey.ErrNotCommitted},
		"somebody has":                     {"UPDATE %s.idempotency_key SET token = gen_random_uuid()", idemkey.ErrLeaseLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := newFixture(t, Options{})
			p, pool := pgtest.NewProxy(t)
			look := &before{sql: direct.q.lockState, do: func(ctx context.Context) error {
				_, err := direct.pool.Exec(ctx, fmt.Sprintf(tt.then, direct.schema))
				return err
			}}
			config := pool.Config()
			config.ConnConfig.Tracer = look
			f := newFixtureOn(t, poolOf(t, config, 6), direct.schema, Options{Grace: time.Hour, LookupTimeout: time.Minute})
			owner := f.begin(t, idemkeytest.Claim("k", "a"))
			if err := owner.tx.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.Lose(pgtest.LoseCommit)
			err := owner.Commit(t.Context(), done)
			if !errors.Is(err, tt.want) || errors.Is(err, idemkey.ErrLeaseLost) != (tt.want == idemkey.ErrLeaseLost) {
				t.Errorf("Commit: %v, want %v", err, tt.want)
			}
			if look.err != nil || look.ran == 0 {
				t.Errorf("%d looks at the record, %v", look.ran, look.err)
			}
		})
	}
}

// A sweeper may have removed the record between the COMMIT and the look at it. What the
// record said is not known then.
func TestARecordThatWasSweptBeforeTheLook(t *testing.T) {
	t.Parallel()
	for _, mode := range []ClaimMode{ClaimLeased, ClaimInline} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			t.Parallel()
			direct := newFixture(t, Options{})
			p, pool := pgtest.NewProxy(t)
			look := &before{sql: direct.q.lockState, do: func(ctx context.Context) error {
				direct.waitFor(t, "SELECT clock_timestamp() > max(expires_at) FROM "+direct.schema+".idempotency_key")
				_, err := direct.Sweep(ctx, 100)
				return err
			}}
			config := pool.Config()
			config.ConnConfig.Tracer = look
			f := newFixtureOn(t, poolOf(t, config, 6), direct.schema, Options{ClaimMode: mode, LookupTimeout: 6 * time.Second, Grace: time.Second})
			c := idemkeytest.Claim("k", "a")
			c.TTL, c.Lease, c.ExecTimeout = time.Second, time.Second, time.Second // the least that may be asked for
			owner := f.begin(t, c)
			if _, err := owner.tx.Holder().Exec(t.Context(), "INSERT INTO "+f.schema+".business (key) VALUES ('k')"); err != nil {
				t.Fatal(err)
			}
			p.Lose(pgtest.LoseReply)
			if err := owner.Commit(t.Context(), done); !errors.Is(err, idemkey.ErrOutcomeUnknown) {
				t.Errorf("Commit: %v, want ErrOutcomeUnknown", err)
			}
			direct.expectRows(t, "k", 1)
		})
	}
}
