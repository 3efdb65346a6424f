package site

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/testing/commitloss"
)

// ErrAbsent reports that the machine lacks a server's programs.
var ErrAbsent = errors.New("site: a server is not installed on this machine")

// poolSize is that of the harness's own pool.
const poolSize = 16

// Options configure a site.
type Options struct {
	Dir      string // of the run; logs go there
	Work     string // scratch; the servers' accounts must be able to enter it
	Programs Programs

	// Log receives the site's events, from any goroutine. Default: they are dropped.
	Log func(record.Event)
	// Now returns the time of the run. Default: since OpenSite.
	Now func() record.At
	// Fuses returns the SAGAMILL_FAILPOINTS of a process's start; starts count from 1. Default: none.
	Fuses func(process string, start int) string

	Patience time.Duration // of a trip's booking. Default: 12s
	Keep     time.Duration // how long outboxes keep published messages. Default: as long as the run
}

// A Site is an open site.
type Site struct {
	opts    Options
	spawner *spawner

	postgres  *database
	broker    *Broker
	links     map[string]*Link             // by name
	losses    map[string]*commitloss.Proxy // by process
	gateway   *Gateway
	processes map[string]*process
	looks     *http.Client

	started    bool
	running    sync.WaitGroup
	stopping   atomic.Bool
	disarmed   atomic.Bool // no more fuses
	trouble    trouble
	everything []func() error // ends what OpenSite and StartProcesses have begun, the last first
}

// OpenSite starts the servers, the links and the gateway's proxy, but no process yet. On a machine without the
// servers the error is an [ErrAbsent]. After an error nothing runs.
func OpenSite(ctx context.Context, opts Options) (*Site, error) {
	s := &Site{opts: opts, links: map[string]*Link{}, losses: map[string]*commitloss.Proxy{}, processes: map[string]*process{}}
	began := time.Now()
	if s.opts.Now == nil {
		s.opts.Now = func() record.At { return time.Since(began) }
	}
	if s.opts.Patience == 0 {
		s.opts.Patience = defaultPatience
	}
	if s.opts.Keep == 0 {
		s.opts.Keep = defaultKeep
	}
	if err := s.openParts(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// The defaults of Options.
const (
	defaultPatience = 12 * time.Second
	defaultKeep     = 24 * time.Hour
)

func (s *Site) openParts(ctx context.Context) error {
	for _, dir := range []string{s.pathInSite(record.OutputDir), s.opts.Work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("site: %w", err)
		}
	}
	s.spawner = newSpawner()
	s.closeLater(func() error { s.spawner.stopSpawner(); return nil })
	s.looks = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var postgres, broker error
	var servers sync.WaitGroup
	var closePostgres, closeBroker func() error
	servers.Go(func() { closePostgres, postgres = s.openPostgres(ctx) })
	servers.Go(func() { closeBroker, broker = s.openBroker() })
	servers.Wait()
	s.closeLater(closePostgres)
	s.closeLater(closeBroker)
	if err := errors.Join(postgres, broker); err != nil {
		return err
	}
	return s.connectBackends()
}

// closeLater makes Close call end, unless end is nil.
func (s *Site) closeLater(end func() error) {
	if end != nil {
		s.everything = append(s.everything, end)
	}
}

// pathInSite returns the path of a file of the run.
func (s *Site) pathInSite(elements ...string) string {
	return filepath.Join(append([]string{s.opts.Dir}, elements...)...)
}

func (s *Site) logEvent(e record.Event) {
	if s.opts.Log != nil {
		s.opts.Log(e)
	}
}

// LogEvent logs an event of the caller, such as a fault that was carried out.
func (s *Site) LogEvent(e record.Event) { s.logEvent(e) }

// SinceBegin returns the time of the run.
func (s *Site) SinceBegin() record.At { return s.opts.Now() }

func (s *Site) fusesFor(process string, start int) string {
	if s.opts.Fuses == nil || s.disarmed.Load() {
		return ""
	}
	return s.opts.Fuses(process, start)
}

// StartProcesses starts all processes and returns when all are ready.
func (s *Site) StartProcesses(ctx context.Context) error {
	if s.started {
		return errors.New("site: it was started before")
	}
	s.started = true
	for _, name := range Processes() {
		p := s.processes[name]
		s.running.Go(p.keepRunning)
	}
	return s.AwaitReady(ctx, Processes()...)
}

// AwaitReady waits until the processes are ready, at most two minutes.
func (s *Site) AwaitReady(ctx context.Context, processes ...string) error {
	errs := make([]error, len(processes))
	var all sync.WaitGroup
	for i, name := range processes {
		p, err := s.findProcess(name)
		if err != nil {
			return err
		}
		all.Go(func() { errs[i] = p.awaitState(ctx, p.checkReady) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Goroutines returns the number of goroutines of each process, from its own metrics.
func (s *Site) Goroutines(ctx context.Context) (map[string]int, error) {
	all := map[string]int{}
	var errs []error
	for _, name := range Processes() {
		n, err := s.processes[name].goroutines(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("site: goroutines of %s: %w", name, err))
		}
		all[name] = n
	}
	return all, errors.Join(errs...)
}

// WorkState returns the failpoints that a process was started with and how long it has been ready. The duration
// is 0 if the process is not ready yet or has ended.
func (s *Site) WorkState(process string) (armed string, ready time.Duration) {
	p, err := s.findProcess(process)
	if err != nil {
		return "", 0
	}
	return p.workState()
}

func (s *Site) findProcess(name string) (*process, error) {
	p, ok := s.processes[name]
	if !ok {
		return nil, fmt.Errorf("site: there is no process %q", name)
	}
	return p, nil
}

// DatabasePool returns a pool with direct connections to the server. It survives crashes: statements under way
// fail, later ones succeed.
func (s *Site) DatabasePool() *pgxpool.Pool { return s.postgres.pool }

// DatabaseURL returns the server's address, past all proxies.
func (s *Site) DatabaseURL() string { return s.postgres.server.databaseURL(databaseName) }

// AMQPURL returns the broker's address, past all proxies.
func (s *Site) AMQPURL() string { return s.broker.brokerURL() }

// OrderURLs returns the URLs of the order service's processes, where clients place orders.
func (s *Site) OrderURLs() []string { return s.processURLs("order") }

// TripURLs returns the URLs of the trip service's processes, where clients book trips.
func (s *Site) TripURLs() []string { return s.processURLs("trip") }

func (s *Site) processURLs(service string) []string {
	return []string{"http://" + loopbackAddress(s.processes[service+"-1"].port), "http://" + loopbackAddress(s.processes[service+"-2"].port)}
}

// Namespace returns the prefix of the names of a saga's exchanges and queues.
func (s *Site) Namespace(saga string) string { return "chaos-" + saga }

// Exchange returns the name of a topic's exchange.
func (s *Site) Exchange(t Topic) string { return s.Namespace(t.Saga) + "." + t.Name }

// QueueName returns the name of a service's queue on a topic.
func (s *Site) QueueName(t Topic, service string) string { return s.Exchange(t) + "." + service }

// Counters count the strikes that only the site's proxies see.
type Counters struct{ CommitsLost, RepliesLost, GatewayErrors, GatewayLost int }

// Counters returns the counters of the run up to now.
func (s *Site) Counters() (c Counters) {
	for _, p := range s.losses {
		c.CommitsLost += p.Commits()
		c.RepliesLost += p.Replies()
	}
	c.GatewayErrors, c.GatewayLost = s.gateway.RefusedCalls(), s.gateway.LostAnswers()
	return c
}

// StopProcesses stops every process with SIGTERM, and kills those that have not ended after 30 s. The site
// restarts no process afterwards.
func (s *Site) StopProcesses(ctx context.Context) (all []record.Stopped) {
	s.stopping.Store(true)
	names := Processes()
	all = make([]record.Stopped, len(names))
	var stops sync.WaitGroup
	for i, name := range names {
		stops.Go(func() {
			var err error
			if all[i], err = s.processes[name].terminate(ctx); err != nil {
				all[i] = record.Stopped{Name: name, Code: -1}
			}
		})
	}
	stops.Wait()
	s.killProcesses()
	return all
}

// killProcesses kills every process and prevents restarts.
func (s *Site) killProcesses() {
	s.stopping.Store(true)
	for _, p := range s.processes {
		p.signalProcess(syscall.SIGKILL, killed)
	}
	s.running.Wait()
}

// Close ends everything that still runs, and removes the servers' data.
func (s *Site) Close() error {
	s.killProcesses()
	var errs []error
	for _, end := range slices.Backward(s.everything) {
		errs = append(errs, end())
	}
	s.everything = nil
	return errors.Join(errs...)
}

// createDatabase creates the database for all schemas and a pool on it.
func createDatabase(ctx context.Context, server *server) (*pgxpool.Pool, error) {
	conn, err := pgx.Connect(ctx, server.databaseURL("postgres"))
	if err != nil {
		return nil, fmt.Errorf("site: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+databaseName); err != nil {
		return nil, fmt.Errorf("site: create the database: %w", err)
	}
	config, err := pgxpool.ParseConfig(server.databaseURL(databaseName))
	if err != nil {
		return nil, fmt.Errorf("site: %w", err)
	}
	config.MaxConns = poolSize
	config.ConnConfig.RuntimeParams["application_name"] = ownName
	return pgxpool.NewWithConfig(ctx, config)
}
