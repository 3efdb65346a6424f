package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/evidence"
	"github.com/sagamill/sagamill/chaos/internal/fault"
	"github.com/sagamill/sagamill/chaos/internal/load"
	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/devservices"
)

const (
	warmth        = 5 * time.Second // with a load and without faults
	drainPatience = 3 * time.Minute // after it, unfinished work counts as left
	replayRate    = 1000            // the replay's time limit assumes at least so many messages a second
	stopPatience  = time.Minute     // for all processes to end
)

func runStorm(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	if rest, asked := ofCluster(args); asked {
		return runCluster(ctx, rest, stdout, stderr)
	}
	p, err := parsePlan(args, stderr)
	if err != nil {
		return exitFailed, err
	}
	if err := p.directory(); err != nil {
		return exitFailed, err
	}
	fmt.Fprintf(stdout, "chaos: seed %d, in %s\n", p.Seed, p.dir)
	r := &runner{plan: p, progress: stdout}
	if err := r.runPhases(ctx); err != nil {
		return exitFailed, fmt.Errorf("seed %d, %s: %w", p.Seed, p.dir, err)
	}
	return writeVerdict(p.dir, stdout)
}

// A runner carries one run out.
type runner struct {
	*plan
	progress io.Writer

	site     *site.Site
	load     *load.Load
	armory   *fault.Armory
	broker   evidence.Broker
	injector *evidence.Injector
	final    record.Final

	events   *record.Writer[record.Event]
	ops      *record.Writer[record.Op]
	injected *record.Writer[record.Injection]
	samples  *record.Writer[record.Sample]

	loading    sync.WaitGroup // clients
	loadErr    error
	stopLoad   context.CancelFunc
	sampling   sync.WaitGroup
	stopSample context.CancelFunc
	injecting  sync.WaitGroup
	stopInject context.CancelFunc

	phase        atomic.Pointer[string]
	kills, deeds atomic.Int64 // processes that were killed, and all other faults
}

// sinceBegin is the time of the run.
func (r *runner) sinceBegin() record.At { return time.Since(r.Began) }

// runPhases is one run, up to what it leaves in its directory.
func (r *runner) runPhases(ctx context.Context) (err error) {
	remove, err := devservices.FetchPostgres(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	r.Began = time.Now()
	work, err := os.MkdirTemp(scratchDirectory(r.Options.Sagas), "chaos-work-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := os.Chmod(work, 0o755); err != nil { // the servers have accounts of their own
		return err
	}
	if err := r.createRecords(); err != nil {
		return err
	}
	if err := r.openSite(ctx, work); err != nil {
		return errors.Join(err, r.closeRecords())
	}
	defer func() { err = errors.Join(err, r.closeRecords()) }()

	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { r.watchProgress(watching) })
	defer watch.Wait()
	defer stop()
	for _, phase := range []struct {
		name string
		do   func(context.Context) error
	}{
		{record.Warm, r.warmUp}, {record.Storm, r.runFaults}, {record.Heal, r.healSite}, {record.Drain, r.drainSite},
		{record.Replay, r.replayMessages}, {record.Stop, r.stopSite}, {record.Over, r.keepEvidence},
	} {
		r.enterPhase(phase.name)
		if err := phase.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	return nil
}

// Limits of the servers' data, in bytes, and the place where they are quickest. Memory is safe for them: a run
// kills processes, not the system, so data that a process has written outlive it on any file system.
const (
	memory        = "/dev/shm"
	baseBytes     = 2 << 30
	bytesEachSaga = 30 << 10
)

// scratchDirectory returns the parent of the servers' directory: in memory if that has room for so many sagas,
// otherwise the directory of temporary files.
func scratchDirectory(sagas int) string {
	var there syscall.Statfs_t
	if syscall.Statfs(memory, &there) == nil && there.Bavail*uint64(there.Bsize) > baseBytes+uint64(sagas)*bytesEachSaga {
		return memory
	}
	return os.TempDir()
}

// createRecords begins the files of the run.
func (r *runner) createRecords() (err error) {
	if r.schedule == nil {
		r.schedule = fault.PlanFaults(r.Seed, r.Options)
	}
	r.armory = fault.NewArmory(r.Seed, filepath.Join(r.dir, record.FailpointsFile))
	r.Required = fault.Required()
	r.Revision, r.Versions = revision(), versions()
	schedule, err := record.CreateFile[record.Planned](r.dir, record.ScheduleFile)
	if err != nil {
		return err
	}
	for _, p := range r.schedule {
		schedule.AddRecord(p)
	}
	err = errors.Join(schedule.Close(), record.WriteJSON(r.dir, record.RunFile, r.Run))
	createWriter(&err, &r.events, r.dir, record.EventsFile)
	createWriter(&err, &r.ops, r.dir, record.ClientFile)
	createWriter(&err, &r.injected, r.dir, record.InjectedFile)
	createWriter(&err, &r.samples, r.dir, record.SamplesFile)
	return err
}

func createWriter[T any](err *error, w **record.Writer[T], dir, name string) {
	if *err == nil {
		*w, *err = record.CreateFile[T](dir, name)
	}
}

// openSite starts the site and installs the triggers that record each change in its database.
func (r *runner) openSite(ctx context.Context, work string) error {
	r.printLine("building")
	programs, err := site.BuildPrograms(ctx, filepath.Join(work, "bin"), r.Overlay)
	if err != nil {
		return err
	}
	r.printLine("starting PostgreSQL, RabbitMQ and %d processes", len(site.Processes()))
	r.site, err = site.OpenSite(ctx, site.Options{
		Dir: r.dir, Work: filepath.Join(work, "servers"), Programs: programs, Log: r.logEvent, Now: r.sinceBegin, Fuses: r.armory.FusesFor,
	})
	if err != nil {
		return err
	}
	servers, err := r.site.Versions(ctx)
	if err != nil {
		return err
	}
	r.Versions = append(r.Versions, servers...)
	if err := record.WriteJSON(r.dir, record.RunFile, r.Run); err != nil {
		return err
	}
	if err := r.site.StartProcesses(ctx); err != nil {
		return err
	}
	if err := evidence.InstallTriggers(ctx, r.site.DatabasePool()); err != nil {
		return err
	}
	r.broker = evidence.Broker{URL: r.site.AMQPURL(), Namespace: r.site.Namespace, Connections: r.site.BrokerConnections}
	r.load, err = load.NewLoad(load.Options{
		Seed: r.Seed, Run: r.Options, Orders: r.site.OrderURLs(), Trips: r.site.TripURLs(), Ops: r.ops, Now: r.sinceBegin,
	})
	return err
}

func (r *runner) enterPhase(phase string) {
	r.phase.Store(&phase)
	r.logEvent(record.Event{At: r.sinceBegin(), Fault: record.Phase, Args: phase})
	r.printLine("%s", phase)
}

// logEvent records an event and counts it for the progress.
func (r *runner) logEvent(e record.Event) {
	switch {
	case e.Fault == record.Exit && strings.HasPrefix(e.Args, "killed") || e.Fault == record.Exit && strings.HasPrefix(e.Args, "by its fuse"):
		r.kills.Add(1)
	case e.N > 0 && e.Err == "":
		r.deeds.Add(1)
	}
	r.armory.NoteEvent(e)
	r.events.AddRecord(e)
}

// warmUp begins the load, the samples and the injections.
func (r *runner) warmUp(ctx context.Context) (err error) {
	sampler, err := evidence.NewSampler(evidence.SamplerOptions{DB: r.site.DatabasePool(), Broker: r.broker, Out: r.samples, Now: r.sinceBegin})
	if err != nil {
		return err
	}
	r.injector, err = evidence.NewInjector(evidence.InjectorOptions{
		DB: r.site.DatabasePool(), Broker: r.broker, Seed: r.Seed, Run: r.Options, Out: r.injected, Now: r.sinceBegin,
	})
	if err != nil {
		return err
	}
	var loading, sampling, injecting context.Context
	loading, r.stopLoad = context.WithCancel(ctx)
	sampling, r.stopSample = context.WithCancel(ctx)
	injecting, r.stopInject = context.WithCancel(ctx)
	r.loading.Go(func() { r.loadErr = r.load.Run(loading) })
	r.sampling.Go(func() { _ = sampler.Run(sampling) })
	r.injecting.Go(func() { _ = r.injector.Run(injecting) })
	return backoff.Sleep(ctx, warmth)
}

// encore limits how long the storm is extended for required faults and failpoints that have not struck yet. A
// quick machine needs no encore, or a few seconds.
const encore = 2 * time.Minute

// runFaults carries out the schedule, then the encore.
func (r *runner) runFaults(ctx context.Context) error {
	late := time.AfterFunc(r.Options.Storm/3, r.armory.BeginLatePhase)
	defer late.Stop()
	if err := fault.CarryOut(ctx, r.site, r.schedule, r.load.OpenSagas); err != nil {
		return err
	}
	r.armory.RunEncore(ctx, r.site, r.Options, r.load.OpenSagas, encore)
	return nil
}

// healSite ends every fault, and waits for the clients' last answers.
func (r *runner) healSite(ctx context.Context) error {
	r.stopInject()
	if err := r.site.HealAll(ctx); err != nil {
		return err
	}
	r.injecting.Wait()
	r.stopLoad()
	r.loading.Wait()
	r.final.Healed = r.sinceBegin()
	return r.loadErr
}

// drainSite waits until all work is done, at most drainPatience.
func (r *runner) drainSite(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	if r.final.Left = evidence.AwaitDrained(patient, r.site.DatabasePool(), r.broker); len(r.final.Left) == 0 {
		r.final.Drained = r.sinceBegin()
	} else {
		r.printLine("left: %s", strings.Join(r.final.Left, "; "))
	}
	r.buryPoison(ctx)
	r.stopSample()
	r.sampling.Wait()
	var err error
	r.final.Received, err = r.site.Received()
	return errors.Join(err, ctx.Err())
}

// burial limits the wait for poison that is still on its way to its dead letter. Poison that was in a deleted
// queue never arrives.
const burial = 5 * time.Second

func (r *runner) buryPoison(ctx context.Context) {
	patient, cancel := context.WithTimeout(ctx, burial)
	defer cancel()
	for {
		if left, err := r.injector.Unburied(patient); err == nil && len(left) == 0 || backoff.Sleep(patient, burial/20) != nil {
			return
		}
	}
}

// replayMessages publishes the whole history again and compares the effects before and afterwards.
func (r *runner) replayMessages(ctx context.Context) error {
	effects, err := evidence.DigestEffects(ctx, r.site.DatabasePool())
	if err != nil {
		return err
	}
	r.final.Effects = []string{effects}
	if len(r.final.Left) > 0 {
		return nil // the site has not come to rest: a comparison would prove nothing
	}
	if err := r.countGoroutines(ctx); err != nil {
		return err
	}
	for n := range r.Options.Replays {
		patience := time.Minute + time.Duration(r.load.BegunSagas()*20/replayRate)*time.Second
		patient, cancel := context.WithTimeout(ctx, patience)
		published, err := evidence.ReplayHistory(patient, r.site.DatabasePool(), r.broker, evidence.ReplayOptions{Seed: r.Seed + uint64(n) + 1, Out: r.injected, Now: r.sinceBegin})
		cancel()
		if err != nil {
			return fmt.Errorf("after %d messages: %w", published, err)
		}
		r.printLine("%d messages published again", published)
		if effects, err = evidence.DigestEffects(ctx, r.site.DatabasePool()); err != nil {
			return err
		}
		r.final.Effects = append(r.final.Effects, effects)
		if err := r.countGoroutines(ctx); err != nil {
			return err
		}
	}
	return nil
}

// settling limits the wait for goroutines that a replay has started.
const settling = 10 * time.Second

// countGoroutines counts the goroutines of all processes as soon as they are as few as before, or after settling.
func (r *runner) countGoroutines(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	for {
		all, err := r.site.Goroutines(ctx)
		if err != nil {
			return err
		}
		known := r.final.Goroutines
		if len(known) == 0 || len(record.MoreGoroutines(known[0], all)) == 0 || backoff.Sleep(patient, settling/50) != nil {
			r.final.Goroutines = append(known, all)
			return nil
		}
	}
}

// stopSite stops every process, then checks what they have left in the servers.
func (r *runner) stopSite(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	r.final.Stopped = r.site.StopProcesses(patient)
	c := r.site.Counters()
	r.final.CommitsLost, r.final.RepliesLost, r.final.GatewayErrors, r.final.GatewayLost = c.CommitsLost, c.RepliesLost, c.GatewayErrors, c.GatewayLost
	return evidence.RecordFinal(ctx, r.site.DatabasePool(), r.broker, &r.final)
}

// keepEvidence dumps the database's tables and the final state for the judge.
func (r *runner) keepEvidence(ctx context.Context) error {
	return errors.Join(evidence.DumpTables(ctx, r.site.DatabasePool(), r.dir), record.WriteJSON(r.dir, record.FinalFile, r.final))
}

// closeRecords ends what createRecords and the later phases have begun, also after a failure.
func (r *runner) closeRecords() error {
	for _, stop := range []context.CancelFunc{r.stopLoad, r.stopSample, r.stopInject} {
		if stop != nil {
			stop()
		}
	}
	if r.load != nil {
		r.load.AbortRequests()
	}
	r.loading.Wait()
	r.sampling.Wait()
	r.injecting.Wait()
	var err error
	if r.site != nil {
		err = r.site.Close()
	}
	return errors.Join(err, r.events.Close(), r.ops.Close(), r.injected.Close(), r.samples.Close())
}

// watchEvery is how often the progress is printed.
const watchEvery = 5 * time.Second

func (r *runner) watchProgress(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.printLine("%s: %d sagas begun, %d requests open, %d processes killed, %d other faults, %d duplicates and %d poisonous messages injected",
				*r.phase.Load(), r.load.BegunSagas(), r.load.OpenSagas(), r.kills.Load(), r.deeds.Load(), r.injector.Injected().Duplicates, r.injector.Injected().Poison)
		}
	}
}

// printLine prints a line of progress.
func (r *runner) printLine(format string, args ...any) {
	fmt.Fprintf(r.progress, "%7.1f s  %s\n", r.sinceBegin().Seconds(), fmt.Sprintf(format, args...))
}

// revision returns the sources' short commit, or an empty text if git does not know it.
func revision() string {
	out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err == nil {
		return strings.TrimSpace(string(out))
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return ""
}

// versions returns the version of Go and the machine; the site adds those of the servers.
func versions() []string {
	return []string{runtime.Version(), fmt.Sprintf("%s/%s, %d processors", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())}
}
