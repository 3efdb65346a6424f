package main

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
	probeCommits = 50                     // that say how long a sync takes
	slowEffect   = 800 * time.Microsecond // the least that a commit on the slow server must take longer
)

// A server is a PostgreSQL of our own.
type server struct {
	name   string
	url    string
	commit time.Duration // of one row, with nobody beside it
}

// start starts a broker and the servers and says what they are. stop ends what
// was started, also after an error. Without RabbitMQ there are no servers: no
// figure would be about anything.
func (b *bench) start(ctx context.Context) (stop func() error, err error) {
	var undo []func() error
	stop = func() error {
		var errs []error
		for _, f := range slices.Backward(undo) {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	native, err := startServices(ctx, "", nil)
	if err != nil {
		return stop, err
	}
	undo = append(undo, native.Close)
	if native.AMQPURL == devservices.InProcess {
		fmt.Println("NOT MEASURED: no rabbitmq-server on this machine")
		return stop, nil
	}
	if b.broker, err = dialBroker(native.AMQPURL); err != nil {
		return stop, err
	}
	undo = append(undo, b.broker.close)
	describe(b.broker)
	if err := b.add(ctx, "native", native.DatabaseURL); err != nil {
		return stop, err
	}
	shim, err := buildShim(ctx)
	if err != nil {
		fmt.Println("server slow NOT MEASURED:", err)
		return stop, nil
	}
	undo = append(undo, shim.remove)
	slow, err := startServices(ctx, devservices.InProcess, []string{"LD_PRELOAD=" + shim.library})
	if err != nil {
		return stop, err
	}
	undo = append(undo, slow.Close)
	return stop, b.add(ctx, "slow", slow.DatabaseURL)
}

// startServices starts private servers; amqpURL is for the broker that there is already.
func startServices(ctx context.Context, amqpURL string, postgresEnv []string) (*devservices.Services, error) {
	err := errors.Join(os.Unsetenv("DATABASE_URL"), os.Setenv("AMQP_URL", amqpURL))
	if err != nil {
		return nil, err
	}
	return devservices.Start(ctx, &devservices.Options{Steps: "env,private,npm,inproc", PostgresEnv: postgresEnv})
}

// add makes the server at url one of those measured on. A slow one that is not
// slow, as where the account may not read the shim, would pass for a fast disk.
func (b *bench) add(ctx context.Context, name, url string) error {
	s := &server{name: name, url: url}
	version, err := s.probe(ctx)
	if err != nil {
		return fmt.Errorf("server %s: %w", name, err)
	}
	fmt.Printf("server %-6s PostgreSQL %s, fsync on, a commit takes %.2f ms\n", name, version, milliseconds(s.commit))
	if len(b.servers) > 0 && s.commit < b.servers[0].commit+slowEffect {
		fmt.Println("server slow NOT MEASURED: slowing its syncs down had no effect")
		return nil
	}
	b.servers = append(b.servers, s)
	return nil
}

// probe measures a commit and returns the server's version.
func (s *server) probe(ctx context.Context) (version string, err error) {
	conn, err := pgx.Connect(ctx, s.url)
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
	s.commit = target.Percentile(took, 0.5)
	return version, conn.QueryRow(ctx, "SHOW server_version").Scan(&version)
}

// describe prints what else the figures depend on.
func describe(b *broker) {
	fmt.Printf("machine %d processors, %s/%s, %s\n", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	fmt.Printf("broker RabbitMQ %v, one node with one scheduler, quorum queues\n", b.conn.Properties["version"])
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
	for _, m := range info.Deps {
		switch m.Path {
		case "github.com/jackc/pgx/v5", "github.com/rabbitmq/amqp091-go", "github.com/ThreeDotsLabs/watermill",
			"github.com/ThreeDotsLabs/watermill-amqp/v3", "github.com/ThreeDotsLabs/watermill-sql/v4":
			fmt.Println("library", m.Path, m.Version)
		}
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
