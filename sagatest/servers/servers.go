// Package servers gives tests real servers: a database of their own, and a broker. A fresh machine needs nothing but
// Go.
//
// A server is searched for in this order: the URL in DATABASE_URL or AMQP_URL, a server at the default port,
// installed binaries, a package. A package is fetched with npm or, by root, installed with apt-get. A line on standard
// error says so before; SAGAMILL_INSTALL=no forbids both.
//
// PostgreSQL starts within a second, RabbitMQ within three to five seconds. Each further database takes 0.1 s. Servers
// that are started have their files in memory if 4 GiB of it are free.
//
// A server that is started serves all tests of a test binary. It ends with the binary's process, also if that is killed.
// [Main] stops it and removes its files; without Main the next run removes them.
package servers

import (
	"bytes"
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/devservices"
)

// startTimeout bounds the start of a server. The first start on a machine may have to install it.
const startTimeout = 5 * time.Minute

// databaseTimeout bounds CREATE DATABASE and DROP DATABASE, which wait for the disk.
const databaseTimeout = time.Minute

// A server is started by the first test that needs it.
type server struct {
	once     sync.Once
	services *devservices.Services
	log      bytes.Buffer
	err      error
}

var (
	postgres server
	rabbit   server
)

// start returns the services. It fails t if there are none.
func (s *server) start(t testing.TB, opts devservices.Options) *devservices.Services {
	t.Helper()
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		opts.Log, opts.Installs, opts.InMemory = &s.log, os.Stderr, true
		s.services, s.err = devservices.Start(ctx, &opts)
	})
	if s.err != nil {
		t.Fatalf("servers: %v\n%s", s.err, s.log.String())
	}
	return s.services
}

// Postgres returns the URL of an empty database, which is dropped when t ends. It fails t if there is no PostgreSQL and
// none can be started, or if the server lets nobody create databases.
func Postgres(t testing.TB) string {
	t.Helper()
	base := postgres.start(t, devservices.Options{NoBroker: true}).DatabaseURL
	name := "sagatest_" + strings.ToLower(rand.Text()[:16])
	execute(t, base, "CREATE DATABASE "+name)
	t.Cleanup(func() { execute(t, base, "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(base)
	if err != nil || u.Scheme == "" {
		return base + " dbname=" + name // a connection string, in which the last dbname counts
	}
	u.Path = "/" + name
	return u.String()
}

// execute runs a statement on a connection of its own.
func execute(t testing.TB, databaseURL, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err == nil {
		_, err = conn.Exec(ctx, statement)
		_ = conn.Close(ctx)
	}
	if err != nil {
		t.Errorf("servers: %s: %v", statement, err)
		t.FailNow()
	}
}

// RabbitMQ returns the URL of a broker that all tests share, also those of other test binaries if it was found running.
// Give each service of a test the [Prefix] of the test, so that it has its own exchanges and queues. RabbitMQ fails t
// if there is none and none can be started.
func RabbitMQ(t testing.TB) string {
	t.Helper()
	address := rabbit.start(t, devservices.Options{NoDatabase: true}).AMQPURL
	if address == devservices.InProcess {
		t.Fatalf("servers: no RabbitMQ: install rabbitmq-server, or set AMQP_URL\n%s", rabbit.log.String())
	}
	return address
}

// Prefix returns a new prefix for the names of exchanges and queues, such as "t-k3q5zr2a.".
func Prefix() string { return "t-" + strings.ToLower(rand.Text()[:8]) + "." }

// Main runs the tests, stops the servers that were started, and exits. Call it in TestMain, as its last statement.
func Main(m *testing.M) {
	code := m.Run()
	for _, s := range []*server{&postgres, &rabbit} {
		if s.services != nil {
			_ = s.services.Close() // the next run removes files that remain
		}
	}
	os.Exit(code)
}
