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

// Options say what a site is made of.
type Options struct {
	Dir      string // of the run: logs go there
	Work     string // scratch; the servers' accounts must be able to pass through
	Programs Programs

	// Log takes what happens to the site, from any goroutine. Default: nobody.
	Log func(record.Event)
	// Now is the time of the run. Default: since Open.
	Now func() record.At
	// Fuses returns SAGAMILL_FAILPOINTS of the start-th start of a process, from 1 on.
	// Default: none.
	Fuses func(process string, start int) string

	Patience time.Duration // of a trip's booking. Default: 12s
	Keep     time.Duration // for which outboxes keep what is published. Default: as long as the run
}

// A Site is one that is open.
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
	everything []func() error // ends what Open and Start have begun, the last first
}

// OpenSite starts the servers, the links and the gateway's proxy, but no process yet.
// Its error is an [ErrAbsent] on a machine without the servers. After an error
// nothing runs.
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

// closeLater has Close do what ends something, if there is anything.
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

// LogEvent logs an event of the site, as a fault that was carried out.
func (s *Site) LogEvent(e record.Event) { s.logEvent(e) }

// SinceBegin is the time of the run.
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

// AwaitReady waits until processes are ready, for two minutes at most.
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

// Goroutines returns how many each process has, by its own account.
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

// WorkState returns the failpoints that a process was started with, and for how long it has
// been ready since: 0 if it is not yet, or has ended.
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

// DatabasePool is a pool that leads straight to the server. It survives crashes: what was
// under way fails, what comes later does not.
func (s *Site) DatabasePool() *pgxpool.Pool { return s.postgres.pool }

// DatabaseURL leads straight to the server.
func (s *Site) DatabaseURL() string { return s.postgres.server.databaseURL(databaseName) }

// AMQPURL leads straight to the broker.
func (s *Site) AMQPURL() string { return s.broker.brokerURL() }

// OrderURLs returns where orders are placed, and TripURLs where trips are.
func (s *Site) OrderURLs() []string { return s.processURLs("order") }

// TripURLs is described at OrderURLs.
func (s *Site) TripURLs() []string { return s.processURLs("trip") }

func (s *Site) processURLs(service string) []string {
	return []string{"http://" + loopbackAddress(s.processes[service+"-1"].port), "http://" + loopbackAddress(s.processes[service+"-2"].port)}
}

// Namespace is what the names of the exchanges and queues of a saga begin with.
func (s *Site) Namespace(saga string) string { return "chaos-" + saga }

// Exchange returns the name of a topic's exchange, and Queue that of a service's
// queue of it.
func (s *Site) Exchange(t Topic) string { return s.Namespace(t.Saga) + "." + t.Name }

// QueueName is described at Exchange.
func (s *Site) QueueName(t Topic, service string) string { return s.Exchange(t) + "." + service }

// Counters are how often the site has struck where nobody else can count.
type Counters struct{ CommitsLost, RepliesLost, GatewayErrors, GatewayLost int }

// Counters returns those of the run up to now.
func (s *Site) Counters() (c Counters) {
	for _, p := range s.losses {
		c.CommitsLost += p.Commits()
		c.RepliesLost += p.Replies()
	}
	c.GatewayErrors, c.GatewayLost = s.gateway.RefusedCalls(), s.gateway.LostAnswers()
	return c
}

// StopProcesses tells every process to stop, and kills what does not within half a minute.
// No process is started again.
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

// killProcesses ends every process for good.
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

// createDatabase makes the one for all schemas, and the pool on it.
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
