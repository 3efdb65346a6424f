package private

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/internal/devservices"
)

const (
	probeCommits = 50                     // commits that measure a sync
	slowEffect   = 800 * time.Microsecond // least difference of a quick commit between the slow server and the native one
)

// A Server is a private PostgreSQL.
type Server struct {
	Name   string
	URL    string
	Commit time.Duration // time of a commit of one row, without concurrent ones
	quick  time.Duration // the same at a moment without other load
}

// Servers are a benchmark's servers. They end with it.
type Servers struct {
	Broker    *Broker
	Databases []*Server // the first is native; none if there is no RabbitMQ
	settings  []string
	undo      []func() error
}

// Close ends the servers and removes their files.
func (s *Servers) Close() error {
	var errs []error
	for _, f := range slices.Backward(s.undo) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// StartServers starts a broker and the databases and prints their versions; the caller must close them. After
// an error no server runs. Without RabbitMQ it starts no database, because the figures would mean nothing.
// settings configure the databases, as name=value.
func StartServers(ctx context.Context, settings ...string) (*Servers, error) {
	return startServers(ctx, settings, (*Servers).startNative, (*Servers).startSlow)
}

// StartNative is [StartServers] without the slow database.
func StartNative(ctx context.Context, settings ...string) (*Servers, error) {
	return startServers(ctx, settings, (*Servers).startNative)
}

func startServers(ctx context.Context, settings []string, starts ...func(*Servers, context.Context) error) (*Servers, error) {
	s := &Servers{settings: settings}
	for _, start := range starts {
		if err := start(s, ctx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// startNative starts the broker and the native database, or nothing if there is no broker.
func (s *Servers) startNative(ctx context.Context) error {
	native, err := s.startServices(ctx, "", nil)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, native.Close)
	if native.AMQPURL == devservices.InProcess {
		fmt.Println("NOT MEASURED: no rabbitmq-server on this machine")
		return nil
	}
	if s.Broker, err = dialBroker(native.AMQPURL); err != nil {
		return err
	}
	s.undo = append(s.undo, s.Broker.closeBroker)
	describeBroker(s.Broker)
	return s.addServer(ctx, "native", native.DatabaseURL)
}

// startSlow starts the database whose syncs take longer.
func (s *Servers) startSlow(ctx context.Context) error {
	if s.Broker == nil {
		return nil
	}
	shim, err := buildShim(ctx)
	if err != nil {
		fmt.Println("server slow NOT MEASURED:", err)
		return nil
	}
	s.undo = append(s.undo, shim.removeShim)
	slow, err := s.startServices(ctx, devservices.InProcess, []string{"LD_PRELOAD=" + shim.library})
	if err != nil {
		return err
	}
	s.undo = append(s.undo, slow.Close)
	return s.addServer(ctx, "slow", slow.DatabaseURL)
}

// startServices starts private servers. amqpURL is that of an existing broker.
func (s *Servers) startServices(ctx context.Context, amqpURL string, postgresEnv []string) (*devservices.Services, error) {
	err := errors.Join(os.Unsetenv("DATABASE_URL"), os.Setenv("AMQP_URL", amqpURL))
	if err != nil {
		return nil, err
	}
	return devservices.Start(ctx, &devservices.Options{Steps: "env,private,npm,inproc", PostgresEnv: postgresEnv, PostgresSettings: s.settings})
}

// addServer adds the server at url to the databases. It refuses a slow server whose syncs are not slow, for
// example because its account may not read the shim: it would pass for a fast disk.
func (s *Servers) addServer(ctx context.Context, name, url string) error {
	db := &Server{Name: name, URL: url}
	version, err := db.probeVersion(ctx)
	if err != nil {
		return fmt.Errorf("server %s: %w", name, err)
	}
	fmt.Printf("server %-6s PostgreSQL %s, fsync on, a commit takes %.2f ms\n", name, version, target.Milliseconds(db.Commit))
	if len(s.Databases) > 0 && db.quick < s.Databases[0].quick+slowEffect {
		fmt.Println("server slow NOT MEASURED: slowing its syncs down had no effect")
		return nil
	}
	s.Databases = append(s.Databases, db)
	return nil
}

// probeVersion measures a commit and returns the server's version.
func (s *Server) probeVersion(ctx context.Context) (version string, err error) {
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE TABLE probe (n int)"); err != nil {
		return "", err
	}
	took := make([]time.Duration, probeCommits)
	for i := range took {
		start := time.Now()
		if _, err := conn.Exec(ctx, "INSERT INTO probe VALUES ($1)", i); err != nil {
			return "", err
		}
		took[i] = time.Since(start)
	}
	s.Commit, s.quick = target.Percentile(took, 0.5), target.Percentile(took, 0.1)
	return version, conn.QueryRow(ctx, "SHOW server_version").Scan(&version)
}

// describeBroker prints the machine and the broker, on which the figures depend too.
func describeBroker(b *Broker) {
	fmt.Printf("machine %d processors, %s/%s, %s\n", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	fmt.Printf("broker RabbitMQ %v, one node with one scheduler, quorum queues\n", b.conn.Properties["version"])
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
	for _, m := range info.Deps {
		switch m.Path {
		case "github.com/jackc/pgx/v5", "github.com/rabbitmq/amqp091-go", "github.com/ThreeDotsLabs/watermill",
			"github.com/ThreeDotsLabs/watermill-amqp/v3", "github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/dbos-inc/dbos-transact-golang",
			"github.com/riverqueue/river":
			fmt.Println("library", m.Path, m.Version)
		}
	}
}
