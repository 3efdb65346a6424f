package devservices

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
)

// InProcess is the AMQPURL that stands for the broker inside the program.
const InProcess = "inproc:"

// Options configure [Start].
type Options struct {
	// Log gets one line per service. Passwords are never among it.
	// Default: os.Stderr.
	Log io.Writer

	// Installs also gets the lines about what is installed or fetched, for a program that shows Log only after an
	// error. Default: they go to Log alone.
	Installs io.Writer

	// Steps restricts the ways to those named, separated by commas.
	// Default: the environment's SAGAMILL_SERVICES, and without it all.
	Steps string

	// KeepDatabase uses the database that was found as it is, for a program whose data must outlive it.
	// Default: a shared server gets a database for this run only.
	KeepDatabase bool

	// Database is the name of the database to keep, created if it is missing. It has no effect if DATABASE_URL
	// is set. Default: the database that was found.
	Database string

	// Own prefers servers that are started for this run to servers that are found, if their programs are
	// installed. It includes InMemory. Default: a server that is found comes first.
	Own bool

	// InMemory keeps the files of private servers in memory, if there is room: such servers are faster, and slow
	// down no other work. Default: on disk, so that a measurement includes what a commit costs.
	InMemory bool

	// NoDatabase and NoBroker leave PostgreSQL or RabbitMQ alone: their URLs are then "".
	NoDatabase, NoBroker bool

	// Redis asks for Redis as well, which only tests need. Default: it is left alone.
	Redis bool

	// NATS asks for NATS with JetStream, likewise. Default: it is left alone.
	NATS bool

	// Pooler puts a pgbouncer in transaction mode before the database. It is installed if it is missing; Start
	// fails if that is impossible. Default: none.
	Pooler bool

	// PostgresEnv is added to the environment of a private PostgreSQL server,
	// as NAME=value. Default: nothing.
	PostgresEnv []string

	// PostgresSettings are settings of a private PostgreSQL server, as name=value. Settings that only take
	// effect at the start are allowed. Default: none.
	PostgresSettings []string
}

// Services are the addresses of the servers of a run.
type Services struct {
	DatabaseURL string // through the pooler, if one was asked for
	DirectURL   string // past the pooler, "" if there is none
	AMQPURL     string // [InProcess] if there is no broker but the program's own
	RedisURL    string // "" if it was not asked for, [NoRedis] if there is none
	NATSURL     string // the same with [NoNATS]

	postgresBin string // of a private server
	close       func() error
	directory   func() (*rundir, error)
}

// Start finds or starts every service. After an error nothing of this run is
// left running. A nil opts means the defaults. Cancelling ctx ends a Start that
// is under way, but not the servers it has started: call [Services.Close],
// also when a signal ends the program (see [os/signal.NotifyContext]).
func Start(ctx context.Context, opts *Options) (*Services, error) {
	if opts == nil {
		opts = &Options{}
	}
	r, err := prepareRun(opts)
	if err != nil {
		return nil, err
	}
	database, broker := r.postgresWays(), r.rabbitWays()
	if opts.NoDatabase {
		database = nil
	}
	if opts.NoBroker {
		broker = nil
	}
	s, err := r.startServices(ctx, database, broker, opts.KeepDatabase)
	if err == nil && opts.Redis {
		err = r.addOptional(ctx, &s.RedisURL, "Redis", r.redisWays())
	}
	if err == nil && opts.NATS {
		err = r.addOptional(ctx, &s.NATSURL, "NATS", r.natsWays())
	}
	if err == nil && opts.KeepDatabase && opts.Database != "" && !opts.NoDatabase && os.Getenv("DATABASE_URL") == "" {
		s.DatabaseURL = r.keptDatabase(ctx, s, opts.Database)
	}
	if err == nil && opts.Pooler {
		err = r.addPooler(ctx, s)
	}
	if err != nil {
		return nil, errors.Join(err, r.closeRun())
	}
	return s, nil
}

// Close drops the run's database and stops the servers that Start started; it
// returns once their processes have ended. Only the first call does anything.
func (s *Services) Close() error { return s.close() }

// Environ returns env with the services in it, for a child program. If that program calls [Start] itself, it
// gets the same services, and starts further PostgreSQL servers from the same binaries.
func (s *Services) Environ(env []string) []string {
	ours := []string{
		"DATABASE_URL=" + s.DatabaseURL,
		"AMQP_URL=" + s.AMQPURL,
		stepsVariable + "=env",
	}
	if s.DirectURL != "" {
		ours = append(ours, "DATABASE_DIRECT_URL="+s.DirectURL)
	}
	if s.RedisURL != "" {
		ours = append(ours, "REDIS_URL="+s.RedisURL)
	}
	if s.NATSURL != "" {
		ours = append(ours, "NATS_URL="+s.NATSURL)
	}
	if s.postgresBin != "" {
		ours = append(ours, postgresVariable+"="+s.postgresBin)
	}
	return slices.Concat(slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.ContainsFunc(ours, func(o string) bool { return strings.HasPrefix(o, name+"=") })
	}), ours)
}

// Exports returns lines for a POSIX shell that put the services into the environment of what is started from it. They
// have the passwords. Without a broker AMQP_URL is empty.
func (s *Services) Exports() string {
	var lines strings.Builder
	broker := s.AMQPURL
	if broker == InProcess {
		broker = ""
	}
	for _, variable := range [][2]string{
		{"DATABASE_URL", s.DatabaseURL}, {"AMQP_URL", broker}, {"REDIS_URL", s.RedisURL}, {"NATS_URL", s.NATSURL}, {"DATABASE_DIRECT_URL", s.DirectURL},
	} {
		if variable[1] != "" || variable[0] == "AMQP_URL" {
			fmt.Fprintf(&lines, "export %s='%s'\n", variable[0], strings.ReplaceAll(variable[1], "'", `'\''`))
		}
	}
	return lines.String()
}

// prepareRun returns a run that has started nothing yet. It removes the leftovers of dead runs, so that they
// do not pile up where runs are killed.
func prepareRun(opts *Options) (*run, error) {
	r := &run{noPrivate: !runsPrivateServers, log: opts.Log, installs: opts.Installs, own: opts.Own, memory: opts.Own || opts.InMemory, pgEnv: opts.PostgresEnv, pgSettings: opts.PostgresSettings}
	if r.log == nil {
		r.log = os.Stderr
	}
	steps := opts.Steps
	if steps == "" {
		steps = os.Getenv(stepsVariable)
	}
	if err := r.allowWays(steps); err != nil {
		return nil, err
	}
	var err error
	if r.noInstall, err = InstallForbidden(); err != nil {
		return nil, err
	}
	if r.postgres, err = chosenPostgres(); err != nil {
		return nil, err
	}
	if r.rabbit, err = RabbitVersion(); err != nil {
		return nil, err
	}
	sweepAbandoned(temporaryParent())
	sweepAbandoned(memory)
	return r, nil
}

// startServices gets the services one after the other. Concurrent starts would save a second or two, but they
// would compete for apt-get and the processors.
func (r *run) startServices(ctx context.Context, database, broker []way, keepDatabase bool) (*Services, error) {
	var db, mq instance
	var err error
	if database != nil {
		if db, err = r.obtainService(ctx, "PostgreSQL", database); err != nil {
			return nil, err
		}
	}
	if broker != nil {
		if mq, err = r.obtainService(ctx, "RabbitMQ", broker); err != nil {
			if r.rabbit != "" && ctx.Err() == nil && !errors.Is(err, errRefused) {
				err = fmt.Errorf("%w: %w", ErrNoRabbitMQ, err)
			}
			return nil, err
		}
	}
	if db.shared && !keepDatabase {
		db.url = r.ownDatabase(ctx, db.url)
	}
	return &Services{DatabaseURL: db.url, AMQPURL: mq.url, postgresBin: db.bin, close: sync.OnceValue(r.closeRun), directory: r.runDirectory}, nil
}

// addOptional gets Redis or NATS. The run makes nothing private on it, because the tests' keys have unique names.
func (r *run) addOptional(ctx context.Context, at *string, service string, ways []way) error {
	in, err := r.obtainService(ctx, service, ways)
	*at = in.url
	return err
}
