package endtoend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemhybrid"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/idemkey/idemredis"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/proctest"
)

// configEnv holds a config, in JSON.
const configEnv = "IDEMKEY_TEST_ENDTOEND"

// The stores.
const (
	onPostgres = "postgres"
	onRedis    = "redis"
	onHybrid   = "hybrid"
)

// What Options.Recover finds out in an instance.
const (
	recoverDone    = "done"
	recoverNothing = "nothing"
	recoverUnknown = "unknown"
)

// A config is what an instance is told.
type config struct {
	Name   string
	Store  string
	Schema string // of records and effects in Postgres
	Prefix string // of what is in Redis
	Redis  string // URL
	Gate   string // the test's URL

	Lease           time.Duration
	Grace           time.Duration
	Wait            time.Duration
	ExternalEffects bool
	Recover         string
	FailOpen        bool
}

func TestMain(m *testing.M) {
	if text := os.Getenv(configEnv); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// An instance is a service with one handler.
type instance struct {
	config
	pool   *pgxpool.Pool
	client *redis.Client
}

// serve is an instance's main.
func serve(text string) error {
	in := &instance{}
	if err := json.Unmarshal([]byte(text), &in.config); err != nil {
		return err
	}
	poolConfig, err := pgxpool.ParseConfig(pgtest.URL())
	if err != nil {
		return err
	}
	poolConfig.MaxConns = 4
	if in.pool, err = pgxpool.NewWithConfig(context.Background(), poolConfig); err != nil {
		return err
	}
	defer in.pool.Close()
	redisOpts, err := redis.ParseURL(in.Redis)
	if err != nil {
		return err
	}
	redisOpts.ContextTimeoutEnabled = true
	in.client = redis.NewClient(redisOpts)
	defer in.client.Close()
	m, err := in.middleware()
	if err != nil {
		return err
	}
	return proctest.Serve(m.Handler(http.HandlerFunc(in.handle)))
}

func (in *instance) middleware() (*idemkey.Middleware, error) {
	store, err := in.open()
	if err != nil {
		return nil, err
	}
	opts := &idemkey.Options{
		SingleTenant:    true,
		Limits:          idemkey.Limits{Lease: in.Lease, ExecTimeout: time.Minute, Wait: in.Wait},
		ExternalEffects: in.ExternalEffects,
		FailOpen:        in.FailOpen,
		Observer:        in,
		Logger:          slog.New(slog.DiscardHandler),
	}
	if in.Recover != "" {
		opts.Recover = in.recover
	}
	return idemkey.New(&told{store, in}, opts)
}

// callTimeout is so long that no call of Redis ends by the clock: without its lock a request goes on.
const callTimeout = time.Minute

// open opens the store under test.
func (in *instance) open() (idemkey.Store, error) {
	if in.Store == onRedis {
		return idemredis.New(in.client, &idemredis.Options{Prefix: in.Prefix})
	}
	pg, err := idempg.New(in.pool, &idempg.Options{Schema: in.Schema, Grace: in.Grace})
	if err != nil || in.Store == onPostgres {
		return pg, err
	}
	return idemhybrid.New(pg, in.client, &idemhybrid.Options{Prefix: in.Prefix, CallTimeout: callTimeout, Logger: slog.New(slog.DiscardHandler)})
}

// handle has its effect, asks the test and answers with who it is.
func (in *instance) handle(w http.ResponseWriter, r *http.Request) {
	info, _ := idemkey.Info(r.Context())
	if err := in.effect(r); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer context.AfterFunc(r.Context(), func() {
		if errors.Is(context.Cause(r.Context()), idemkey.ErrLeaseLost) {
			_ = in.tell("cancelled", nil, nil)
		}
	})()
	err := in.tell("handler", url.Values{"attempt": {strconv.Itoa(info.Attempt)}}, nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "%s %d", in.Name, info.Attempt)
}

// effect is in the transaction if there is one, and else beyond recall. Without
// the link to Redis that the instance was given it is to be had all the same.
func (in *instance) effect(r *http.Request) error {
	key := r.Header.Get("Idempotency-Key")
	const insert = ".effect (key) VALUES ($1)"
	if tx, ok := idempg.TxFrom(r.Context()); ok {
		_, err := tx.Exec(r.Context(), "INSERT INTO "+in.Schema+insert, key)
		return err
	}
	_, err := in.pool.Exec(r.Context(), "INSERT INTO "+in.Schema+insert, key)
	return err
}

// tell tells the test something and waits for its answer.
func (in *instance) tell(what string, values url.Values, body any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, in.Gate+"/"+in.Name+"/"+what+"?"+values.Encode(), bytes.NewReader(content))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// Observe tells the test of each request.
func (in *instance) Observe(_ context.Context, e idemkey.Event) {
	_ = in.tell("event", nil, event{Result: e.Result, Outcome: e.Outcome})
}

func (in *instance) recover(context.Context, idemkey.Identity) (*idemkey.Response, error) {
	switch in.Recover {
	case recoverDone:
		return &idemkey.Response{Status: http.StatusAccepted, Body: []byte("found")}, nil
	case recoverNothing:
		return nil, nil
	}
	return nil, errors.New("nobody knows")
}

// told tells the test of each claim that found the key in flight.
type told struct {
	idemkey.Store
	in *instance
}

func (s *told) Traits() idemkey.Traits { return s.Store.(idemkey.Describer).Traits() }

func (s *told) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	d, err := s.Store.Begin(ctx, c)
	if d.Kind == idemkey.KindInFlight {
		_ = s.in.tell("inflight", nil, nil)
	}
	return d, err
}
