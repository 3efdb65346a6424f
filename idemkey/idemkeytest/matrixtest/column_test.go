package matrixtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemhybrid"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/idemkey/idemredis"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/rediskey"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

// The columns' names.
const (
	pg      = "postgres"
	inline  = "inline"
	onRedis = "redis"
	hybrid  = "hybrid"
	memory  = "memory"
)

// A column is a store, with what a test must be able to see and to move on.
type column struct {
	name      string
	redis     bool // it needs one
	separate  bool // business rows commit on their own, whatever becomes of the record
	traceless bool // a run that was not kept leaves no record
	store     func(*site) (idemkey.Store, error)
	state     func(ctx context.Context, s *site, key string) (string, error) // empty: it cannot be seen
	lapse     func(ctx context.Context, s *site, key string) error           // the store's clock passes the lease
	expire    func(ctx context.Context, s *site, key string) error           // and the record's life
}

// columns are the stores. One that keeps its records in the same table shares
// the functions that look at it.
var columns = []column{
	{name: pg, store: openPostgres, state: rowState, lapse: rowLapse, expire: rowExpire},
	{name: inline, traceless: true, store: openInline, state: rowState, lapse: noLease, expire: rowExpire},
	{name: onRedis, redis: true, separate: true, store: openRedis, state: hashState, lapse: hashLapse, expire: hashExpire},
	{name: hybrid, redis: true, store: openHybrid, state: rowState, lapse: lockLapse, expire: rowExpire},
	{name: memory, separate: true, store: openMemory, state: unseen, lapse: waitLease, expire: waitTTL},
}

// settings are those of one server. They go to a process by its environment.
type settings struct {
	Column, Schema, Prefix string
	Name                   string // of its sessions on Postgres
	RedisURL               string
	Postgres, Redis        string // addresses to go by instead of the servers' own

	Lease, Grace, TTL, ExecTimeout time.Duration
	Acquire                        time.Duration // default: storeTimeout
	MaxInFlight, MaxAttempts       int
	RejectExpired, ExternalEffects bool
	FailOpen, Streaming            bool
	Deaf                           bool // no lease is ever renewed

	watch *arguments // sees what is sent; only within the test
}

// execTimeout is longer than a test's patience: no statement of a dead process
// may last until the server's own timeout ends it.
const execTimeout = 45 * time.Second

// newSettings returns those that every server of a test shares, with a schema
// that has a table of business rows.
func newSettings(t *testing.T) settings {
	t.Helper()
	_, schema := pgtest.Schema(t, "CREATE TABLE {schema}"+sqlBusiness)
	return settings{Schema: schema, Lease: lease, Grace: lease, TTL: time.Hour, ExecTimeout: execTimeout}
}

// of returns the settings of a server on col.
func (c settings) of(t *testing.T, col *column) settings {
	t.Helper()
	c.Column, c.Name = col.name, pgtest.Name()
	if col.redis {
		c.RedisURL, c.Prefix = redistest.URL(t), redistest.Prefix(t)
	}
	return c
}

// lease is longer than any test: where one has to end, the test ends it.
const lease = time.Minute

// connectionCheck is short, so that a server soon notices a process that died during a statement.
const connectionCheck = 50 * time.Millisecond

// What a store may take on a machine that is busy. A store that is down says so at once.
const (
	storeTimeout  = 20 * time.Second
	callTimeout   = 5 * time.Second
	lookupTimeout = 5 * time.Second
)

// A site is a store and the table of business rows.
type site struct {
	settings
	column *column
	pool   *pgxpool.Pool
	redis  *redis.Client // nil if the column needs none
	store  idemkey.Store
}

func openSite(ctx context.Context, c settings) (*site, error) {
	s := &site{settings: c, column: columnOf(c.Column)}
	if s.column == nil {
		return nil, fmt.Errorf("no column %q", c.Column)
	}
	config, err := pgxpool.ParseConfig(pgtest.URL())
	if err != nil {
		return nil, err
	}
	config.MaxConns = 6
	config.ConnConfig.RuntimeParams["application_name"] = c.Name
	if c.Postgres != "" {
		config.ConnConfig.DialFunc = dialer(c.Postgres)
	}
	if c.watch != nil {
		config.ConnConfig.Tracer = c.watch
	}
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if s.column.redis {
		if err := s.connect(); err != nil {
			return nil, err
		}
	}
	if s.store, err = s.column.store(s); err != nil {
		return nil, err
	}
	if c.Deaf {
		s.store = deaf{s.store}
	}
	return s, nil
}

// newSite returns a site that ends with the test.
func newSite(t *testing.T, c settings) *site {
	t.Helper()
	s, err := openSite(t.Context(), c)
	if err != nil {
		t.Fatalf("open %s: %v", c.Column, err)
	}
	t.Cleanup(s.close)
	return s
}

func columnOf(name string) *column {
	for i := range columns {
		if columns[i].name == name {
			return &columns[i]
		}
	}
	return nil
}

func (s *site) connect() error {
	opts, err := redis.ParseURL(s.RedisURL)
	if err != nil {
		return errors.New("not a Redis URL") // the library's error may quote it
	}
	opts.ContextTimeoutEnabled = true
	if s.settings.Redis != "" {
		opts.Dialer = dialer(s.settings.Redis)
	}
	s.redis = redis.NewClient(opts)
	if s.watch != nil {
		s.redis.AddHook(s.watch)
	}
	return nil
}

func dialer(addr string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}
}

func (s *site) close() {
	s.pool.Close()
	if s.redis != nil {
		_ = s.redis.Close()
	}
}

// write writes a business row: in the request's transaction if there is one,
// and else for good, as a call of another system would be.
func (s *site) write(ctx context.Context, key, run string) error {
	statement := "INSERT INTO " + s.Schema + ".business (key, run) VALUES ($1, $2)"
	var err error
	if tx, ok := idempg.TxFrom(ctx); ok {
		_, err = tx.Exec(ctx, statement, key, run)
	} else {
		_, err = s.pool.Exec(ctx, statement, key, run)
	}
	return err
}

// rows returns the runs that have left a business row.
func (s *site) rows(ctx context.Context, key string) ([]string, error) {
	found, err := s.pool.Query(ctx, "SELECT run FROM "+s.Schema+".business WHERE key = $1", key)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowTo[string])
}

const sqlBusiness = ".business (key text NOT NULL, run text NOT NULL, n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"

func openPostgres(s *site) (idemkey.Store, error) { return s.postgres(idempg.ClaimLeased) }

func openInline(s *site) (idemkey.Store, error) { return s.postgres(idempg.ClaimInline) }

func (s *site) postgres(mode idempg.ClaimMode) (*idempg.Store, error) {
	return idempg.New(s.pool, &idempg.Options{
		Schema: s.Schema, ClaimMode: mode, Grace: s.Grace, MaxInFlight: s.MaxInFlight, ConnectionCheck: connectionCheck,
		AcquireTimeout: cmp.Or(s.Acquire, storeTimeout), LookupTimeout: lookupTimeout,
	})
}

func openRedis(s *site) (idemkey.Store, error) {
	return idemredis.New(s.redis, &idemredis.Options{Prefix: s.Prefix, CallTimeout: callTimeout})
}

func openHybrid(s *site) (idemkey.Store, error) {
	store, err := s.postgres(idempg.ClaimLeased)
	if err != nil {
		return nil, err
	}
	return idemhybrid.New(store, s.redis, &idemhybrid.Options{Prefix: s.Prefix, CallTimeout: callTimeout, Logger: quiet})
}

func openMemory(*site) (idemkey.Store, error) { return idemkey.NewMemory(nil) }

// identity is what a middleware with SingleTenant makes of key.
func identity(key string) idemkey.Identity {
	return idemkey.Identity{Namespace: idemkey.DefaultNamespace, Scope: "default", Key: key}
}

// absent is the state of a key without a record.
const absent = "absent"

var stateNames = map[idemkey.State]string{
	idemkey.StateInProgress: inProgress, idemkey.StateFailed: "failed", idemkey.StateCompleted: completed, idemkey.StateTombstone: "tombstone", idemkey.StateUnknown: "unknown",
}

const (
	inProgress = "in progress"
	completed  = "completed"
)

func rowState(ctx context.Context, s *site, key string) (string, error) {
	var state idemkey.State
	err := s.pool.QueryRow(ctx, "SELECT state FROM "+s.Schema+".idempotency_key WHERE key = $1", key).Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) {
		return absent, nil
	}
	return stateNames[state], err
}

func rowLapse(ctx context.Context, s *site, key string) error {
	return s.update(ctx, "lease_until", key)
}

func rowExpire(ctx context.Context, s *site, key string) error {
	return s.update(ctx, "expires_at", key)
}

func (s *site) update(ctx context.Context, column, key string) error {
	_, err := s.pool.Exec(ctx, "UPDATE "+s.Schema+".idempotency_key SET "+column+" = clock_timestamp() WHERE key = $1", key)
	return err
}

func (s *site) hash(key string) string { return rediskey.Of(s.Prefix, identity(key)) }

func hashState(ctx context.Context, s *site, key string) (string, error) {
	state, err := s.redis.HGet(ctx, s.hash(key), "state").Int()
	if errors.Is(err, redis.Nil) {
		return absent, nil
	}
	return stateNames[idemkey.State(state)], err
}

func hashLapse(ctx context.Context, s *site, key string) error {
	return s.redis.HSet(ctx, s.hash(key), "lease_until", 0).Err()
}

func hashExpire(ctx context.Context, s *site, key string) error {
	return s.redis.HSet(ctx, s.hash(key), "expires_at", 0).Err()
}

// lockLapse ends the lock in Redis as well as the claim in Postgres.
func lockLapse(ctx context.Context, s *site, key string) error {
	if err := s.redis.Del(ctx, s.hash(key)).Err(); err != nil {
		return err
	}
	return rowLapse(ctx, s, key)
}

// noLease has nothing to end: the lock goes with the transaction.
func noLease(context.Context, *site, string) error { return nil }

func unseen(context.Context, *site, string) (string, error) { return "", nil }

// A memory's clock is the host's: where a row needs it to pass, its times are short.
func waitLease(ctx context.Context, s *site, _ string) error { return backoff.Sleep(ctx, s.Lease) }

func waitTTL(ctx context.Context, s *site, _ string) error { return backoff.Sleep(ctx, s.TTL) }

// A deaf store's owners do not renew their leases, as if their process hung.
type deaf struct{ idemkey.Store }

func (d deaf) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	decision, err := d.Store.Begin(ctx, c)
	if decision.Exec != nil {
		decision.Exec = struct{ idemkey.Execution }{decision.Exec}
	}
	return decision, err
}

func (d deaf) Traits() idemkey.Traits { return idemkey.Traits{LiveOwners: true} }

// patience is how long a test waits for an event that must come.
const patience = time.Minute

// until asks again and again, up to a limit.
func until(t *testing.T, what string, done func() (bool, error)) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		ok, err := done()
		if err != nil {
			t.Fatalf("wait for %s: %v", what, err)
		}
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// settle waits until no session of that name has a transaction open.
func (s *site) settle(t *testing.T, name string) {
	t.Helper()
	until(t, "the transactions to end", func() (bool, error) {
		var open bool
		err := s.pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND xact_start IS NOT NULL AND pid <> pg_backend_pid())",
			name).Scan(&open)
		return !open, err
	})
}
