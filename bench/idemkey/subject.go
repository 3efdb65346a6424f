package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/migrations"
)

// poolSize is the same for all.
const poolSize = 16

// A slot is a way to serve the same request.
type slot struct {
	name  string
	open  func(s *subject) (http.Handler, error)
	redis bool // whether it needs Redis
}

// slots are the ways compared; the first is the reference.
var slots = []slot{
	{"bare", buildBare, false},
	{"leased", inPostgres(idempg.ClaimLeased), false},
	{"inline", inPostgres(idempg.ClaimInline), false},
	{"redis", buildOnRedis, true},
	{"hybrid", buildHybrid, true},
}

// A subject is a slot that is ready to serve.
type subject struct {
	name    string
	schema  string
	pool    *pgxpool.Pool
	redis   *cache // nil: none
	handler http.Handler
	wire    wire
	runs    sync.Map // key to *atomic.Int64: how often its handler ran
	slow    atomic.Pointer[func(key string)]
	failure atomic.Pointer[error]
}

func newSubject(ctx context.Context, services *devservices.Services, sl slot) (*subject, error) {
	s := &subject{name: sl.name, schema: "bench_" + sl.name}
	if err := migrations.Up(ctx, services.DatabaseURL, s.schema); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(services.DatabaseURL)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = poolSize, poolSize
	config.ConnConfig.DialFunc = s.wire.dialCounted
	config.ConnConfig.Tracer = &s.wire
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	_, err = s.pool.Exec(ctx, "CREATE TABLE "+s.schema+".business (id bigserial PRIMARY KEY, key text NOT NULL, amount bigint NOT NULL)")
	if err == nil && sl.redis {
		s.redis, err = connectCache(services.RedisURL)
	}
	if err == nil {
		s.handler, err = sl.open(s)
	}
	if err != nil {
		s.closeSubject()
	}
	return s, err
}

func (s *subject) closeSubject() {
	s.pool.Close()
	if s.redis != nil {
		_ = s.redis.client.Close()
	}
}

// insertOrder is what every slot's handler does, in tx.
func (s *subject) insertOrder(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	key := r.Header.Get("Idempotency-Key")
	runs, _ := s.runs.LoadOrStore(key, new(atomic.Int64))
	runs.(*atomic.Int64).Add(1)
	if slow := s.slow.Load(); slow != nil {
		(*slow)(key)
	}
	var id int64
	err := tx.QueryRow(r.Context(), "INSERT INTO "+s.schema+".business (key, amount) VALUES ($1, $2) RETURNING id", key, 4200).Scan(&id)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprint("/orders/", id))
	w.WriteHeader(http.StatusCreated)
	_, err = fmt.Fprintf(w, `{"id": %d, "status": "accepted", "amount": {"value": "42.00", "currency": "EUR"}}`, id)
	return err
}

// buildBare is the handler without the middleware: BEGIN, INSERT, COMMIT.
func buildBare(s *subject) (http.Handler, error) {
	return s.bareHandler(), nil
}

// bareHandler runs the business statements in the handler's own transaction.
func (s *subject) bareHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		if err == nil {
			err = pgx.BeginFunc(r.Context(), s.pool, func(tx pgx.Tx) error { return s.insertOrder(w, r, tx) })
		}
		if err != nil {
			http.Error(w, "failed", http.StatusInternalServerError)
		}
	})
}

func inPostgres(mode idempg.ClaimMode) func(s *subject) (http.Handler, error) {
	return func(s *subject) (http.Handler, error) {
		store, err := idempg.New(s.pool, &idempg.Options{Schema: s.schema, ClaimMode: mode})
		if err != nil {
			return nil, err
		}
		return s.handlerBehind(store, idempg.HandleTx(s.insertOrder))
	}
}

// handlerBehind puts h behind the middleware on store.
func (s *subject) handlerBehind(store idemkey.Store, h http.Handler) (http.Handler, error) {
	m, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Observer: s})
	if err != nil {
		return nil, err
	}
	return m.Handler(h), nil
}

// Observe keeps the last failure, for the error message of a failed run.
func (s *subject) Observe(_ context.Context, e idemkey.Event) {
	if e.Err != nil {
		s.failure.Store(&e.Err)
	}
}

// A wire counts the traffic to the server.
type wire struct{ statements, trips atomic.Int64 }

// TraceQueryStart counts statements sent one by one.
func (w *wire) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	w.statements.Add(1)
	return ctx
}

// TraceQueryEnd does nothing.
func (w *wire) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart does nothing.
func (w *wire) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery counts the statements of a batch.
func (w *wire) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {
	w.statements.Add(1)
}

// TraceBatchEnd does nothing.
func (w *wire) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (w *wire) dialCounted(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &counted{Conn: conn, wire: w}, nil
}

// A counted connection counts round trips: a write after a read.
type counted struct {
	net.Conn
	wire  *wire
	asked atomic.Bool
}

func (c *counted) Write(p []byte) (int, error) {
	if !c.asked.Swap(true) {
		c.wire.trips.Add(1)
	}
	return c.Conn.Write(p)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.asked.Store(false)
	}
	return n, err
}
