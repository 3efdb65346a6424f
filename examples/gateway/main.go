// Command gateway is a reverse proxy that gives an upstream in any language idempotency keys. See README.md.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemhybrid"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/idemkey/idemredis"
	"github.com/sagamill/sagamill/migrations"
)

// shutdownTimeout is for the requests that run when the program is told to end.
const shutdownTimeout = 30 * time.Second

// A config is what the flags and the environment say.
type config struct {
	settings
	Listen, Store, Schema, Prefix string
	DatabaseURL, RedisURL         string
	Connections                   int
	ReconcileEvery                time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := readConfig(os.Args[1:], os.Getenv)
	if err == nil {
		err = c.run(ctx, func(address net.Addr) { log.Printf("listening on %s", address) })
	}
	if err != nil {
		log.Fatal(err)
	}
}

// readConfig reads secrets from the environment, which ps does not show, and all else from args.
func readConfig(args []string, getenv func(string) string) (*config, error) {
	c := &config{DatabaseURL: getenv("DATABASE_URL"), RedisURL: getenv("REDIS_URL")}
	c.Secret, c.Tenants = []byte(getenv("GATEWAY_SECRET")), make(map[[32]byte]string)
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	upstream := flags.String("upstream", "http://127.0.0.1:8090", "URL of the upstream")
	flags.StringVar(&c.Listen, "listen", "127.0.0.1:8080", "address to listen on")
	flags.StringVar(&c.Store, "store", "postgres", "postgres, redis or hybrid")
	flags.StringVar(&c.Schema, "schema", "gateway", "schema of the table in PostgreSQL")
	flags.IntVar(&c.Connections, "connections", 50, "connections to PostgreSQL: one for each charge that runs, and two")
	flags.StringVar(&c.Prefix, "prefix", "gateway:", "prefix of the keys in Redis")
	flags.DurationVar(&c.ConnectTimeout, "connect-timeout", 2*time.Second, "for TCP, and again for TLS")
	flags.DurationVar(&c.HeaderTimeout, "header-timeout", 15*time.Second, "until the upstream's answer begins")
	flags.DurationVar(&c.ExecTimeout, "exec-timeout", 25*time.Second, "until the upstream's answer has ended")
	flags.DurationVar(&c.Dedupes, "dedupes", 0, "how long the upstream recognizes a key")
	flags.BoolVar(&c.Asks, "ask", true, "ask the upstream for unknown outcomes")
	flags.DurationVar(&c.ReconcileEvery, "reconcile", time.Minute, "how often to ask for unknown outcomes")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	for pair := range strings.SplitSeq(getenv("API_KEYS"), ",") {
		if key, tenant, ok := strings.Cut(pair, "="); ok && key != "" && tenant != "" {
			c.Tenants[sha256.Sum256([]byte(key))] = tenant
		}
	}
	if len(c.Secret) < 32 || len(c.Tenants) == 0 {
		return nil, errors.New("set GATEWAY_SECRET to at least 32 characters, and API_KEYS to key=tenant,key=tenant")
	}
	var err error
	switch c.Upstream, err = url.Parse(*upstream); {
	case err != nil || c.Upstream.Host == "" || c.Upstream.Scheme != "http" && c.Upstream.Scheme != "https":
		return nil, fmt.Errorf("-upstream %q is not http://host:port or https://host:port", *upstream)
	case c.Store != "postgres" && c.Store != "redis" && c.Store != "hybrid":
		return nil, fmt.Errorf("-store %q is not postgres, redis or hybrid", c.Store)
	case c.Store != "redis" && c.DatabaseURL == "":
		return nil, fmt.Errorf("-store %s needs DATABASE_URL", c.Store)
	case c.Store != "postgres" && c.RedisURL == "":
		return nil, fmt.Errorf("-store %s needs REDIS_URL, such as redis://127.0.0.1:6379", c.Store)
	case c.Connections < 3:
		return nil, errors.New("-connections must be at least 3: two are reserved")
	case c.HeaderTimeout <= 0 || c.ConnectTimeout <= 0:
		return nil, errors.New("-header-timeout and -connect-timeout must be positive")
	}
	return c, nil
}

// run serves until ctx ends, and calls ready once it listens.
func (c *config) run(ctx context.Context, ready func(net.Addr)) error {
	store, closeStore, err := c.openStore(ctx)
	defer closeStore()
	if err != nil {
		return err
	}
	g, err := newGateway(store, c.settings)
	if err != nil {
		return err
	}
	var background sync.WaitGroup
	defer background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sweeper, err := idemkey.NewSweeper(store, nil)
	if err != nil {
		return err
	}
	background.Go(func() { _ = sweeper.Run(ctx) }) // it logs what fails
	if c.Asks {
		reconciler, err := idemkey.NewReconciler(g.keys, &idemkey.ReconcilerOptions{Every: c.ReconcileEvery})
		if err != nil {
			return err
		}
		background.Go(func() { reconciler.Run(ctx) })
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: g.handler(), ReadHeaderTimeout: 5 * time.Second}
	background.Go(func() {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if server.Shutdown(end) != nil { // an event stream never ends by itself
			_ = server.Close()
		}
	})
	ready(listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// openStore returns the store that the flag names. done closes what it needs, after an error too.
func (c *config) openStore(ctx context.Context) (store idemkey.Store, done func(), err error) {
	var closing []func()
	done = func() {
		for _, f := range closing {
			f()
		}
	}
	var client *redis.Client
	if c.Store == "redis" || c.Store == "hybrid" {
		opts, err := redis.ParseURL(c.RedisURL)
		if err != nil {
			return nil, done, err
		}
		opts.ContextTimeoutEnabled = true
		client = redis.NewClient(opts)
		closing = append(closing, func() { _ = client.Close() })
	}
	if c.Store == "redis" {
		store, err := idemredis.New(client, &idemredis.Options{Prefix: c.Prefix})
		if err != nil {
			return nil, done, err
		}
		return store, done, store.Check(ctx)
	}
	if err := migrations.Up(ctx, c.DatabaseURL, c.Schema, migrations.Idempotency); err != nil {
		return nil, done, err
	}
	pooled, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		return nil, done, err
	}
	pooled.MaxConns = int32(c.Connections)
	pool, err := pgxpool.NewWithConfig(ctx, pooled)
	if err != nil {
		return nil, done, err
	}
	closing = append(closing, pool.Close)
	records, err := idempg.New(pool, &idempg.Options{Schema: c.Schema})
	switch {
	case err != nil:
		return nil, done, err
	case c.Store == "postgres":
		return records, done, nil
	case c.Store == "hybrid":
		store, err := idemhybrid.New(records, client, &idemhybrid.Options{Prefix: c.Prefix})
		return store, done, err
	}
	return nil, done, fmt.Errorf("-store is %q, and must be postgres, redis or hybrid", c.Store)
}
