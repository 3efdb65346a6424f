package site

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/backoff"
)

// The limits of a process.
const (
	stopPatience  = 30 * time.Second // from SIGTERM to SIGKILL
	readyPatience = 2 * time.Minute
	readyPause    = 50 * time.Millisecond
	readyLook     = 5 * time.Second
	restPause     = 200 * time.Millisecond  // after a start that failed
	stateLook     = 250 * time.Millisecond  // how often a stop by a fuse is looked for
	shortStop     = 1200 * time.Millisecond // how long the process stays stopped, about
	longStop      = 6 * time.Second
	servedLook    = 500 * time.Millisecond // how often its first readiness is looked for
	maxTail       = 64 << 10               // bytes at the end of its output that are searched for the last line
	maxLastWords  = 300                    // bytes of that line that go into the log
	maxMetrics    = 1 << 20                // bytes of its metrics that are read
)

// A process supervises one process of a service and restarts it at once whenever it ends.
type process struct {
	site          *Site
	name, service string
	program       string
	args, env     []string
	port          int

	mu     sync.Mutex
	starts int
	armed  string        // failpoints of the running process
	logged int64         // size of the log of failpoints at its start
	cmd    *exec.Cmd     // nil: not running
	ended  chan struct{} // closed when cmd has ended
	cause  string        // who has ended it; empty: nobody
	paused bool          // by SuspendProcess
	served time.Time     // when it became ready; zero: not yet
}

func (p *process) outputFile() string { return p.site.pathInSite(record.OutputDir, p.name+".log") }

// keepRunning supervises until the site stops.
func (p *process) keepRunning() {
	for {
		began := p.site.opts.Now()
		cmd, ended, size, err := p.launchProgram()
		if cmd == nil {
			return
		}
		if err == nil {
			life, end := context.WithCancel(context.Background())
			var watch sync.WaitGroup
			watch.Go(func() { p.watchProcess(life, cmd.Process.Pid) })
			watch.Go(func() { p.awaitFirstReady(life) })
			err = cmd.Wait()
			end()
			watch.Wait()
		}
		good := p.recordEnd(cmd, err, began, size)
		close(ended)
		if !good {
			time.Sleep(restPause)
		}
	}
}

// launchProgram starts the process. If the site stops, it starts nothing and cmd is nil. size is the size of
// the output file before the start.
func (p *process) launchProgram() (cmd *exec.Cmd, ended chan struct{}, size int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.site.stopping.Load() {
		return nil, nil, 0, nil
	}
	p.starts++
	p.armed, p.cause, p.paused, p.served = p.site.fusesFor(p.name, p.starts), "", false, time.Time{}
	p.logged = fileSize(p.site.pathInSite(record.FailpointsFile))
	cmd, ended = exec.Command(p.program, p.args...), make(chan struct{})
	cmd.Env = append(p.env[:len(p.env):len(p.env)], "SAGAMILL_FAILPOINTS="+p.armed)
	out, err := os.OpenFile(p.outputFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return cmd, ended, 0, err
	}
	defer out.Close()
	size, _ = out.Seek(0, io.SeekEnd)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C in the terminal must reach the harness only
	p.site.logEvent(record.Event{At: p.site.opts.Now(), Fault: record.Start, Target: p.name, Args: p.armed})
	if err := p.site.spawner.startChild(cmd, syscall.SIGKILL); err != nil {
		return cmd, ended, size, err
	}
	p.cmd, p.ended = cmd, ended
	return cmd, ended, size, nil
}

// recordEnd logs how the process ended. It reports true if the process had been ready or the harness ended it.
func (p *process) recordEnd(cmd *exec.Cmd, err error, began record.At, size int64) bool {
	p.mu.Lock()
	e := ending{state: cmd.ProcessState, err: err, cause: p.cause, served: !p.served.IsZero()}
	armed, logged := p.armed, p.logged
	p.cmd = nil
	p.mu.Unlock()
	e.struck = struckSince(p.site.pathInSite(record.FailpointsFile), logged, armed)
	e.troubled, e.last = p.site.troubledSince(began), p.lastWords(size)
	args, words := e.describeEnd()
	p.site.logEvent(record.Event{At: p.site.opts.Now(), Fault: record.Exit, Target: p.name, Args: args, Err: words})
	return e.served || e.cause != ""
}

// An ending holds the facts from which the end of a process is described.
type ending struct {
	state    *os.ProcessState // nil: the start failed
	err      error
	cause    string // who has ended it; empty: nobody
	struck   bool   // one of its fuses has killed since its start
	served   bool   // the process had been ready
	troubled bool   // a fault struck a backend while the process ran
	last     string // last line of its output
}

// The causes of an end.
const (
	killed     = "killed"
	terminated = "told to stop"
)

// describeEnd returns the Args and the output line of the exit. The judge reads these words: an end "by itself"
// is a failure of the run. Before its first readiness a process may give up because a backend is down. Its last
// line is returned apart in that case, since it may contain any word.
func (e *ending) describeEnd() (args, words string) {
	switch bySignal := e.state != nil && signalled(e.state, syscall.SIGKILL); {
	case e.state == nil:
		return "by itself: it cannot be started: " + e.err.Error(), ""
	case e.cause == killed && bySignal, e.cause != "" && e.state.Success():
		return fmt.Sprintf("%s: %s", e.cause, e.state), ""
	case bySignal && e.struck:
		return "by its fuse", ""
	case bySignal && e.cause != "":
		return fmt.Sprintf("%s: it had to be killed", e.cause), ""
	case e.state.ExitCode() == 1 && !e.served && e.troubled:
		return "while it started, among faults", e.last
	default:
		return fmt.Sprintf("by itself: %s%s: %s", e.state, describeCause(e.cause), e.last), ""
	}
}

func describeCause(cause string) string {
	if cause == "" {
		return ""
	}
	return " although " + cause
}

func signalled(state *os.ProcessState, sig syscall.Signal) bool {
	status, ok := state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == sig
}

// fileSize returns the size of a file, or 0 if it does not exist yet.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// struckSince reports whether a killing fuse of armed has struck. It searches the log of failpoints behind its
// first size bytes. A process writes its line before it dies. Without a line another cause has killed it, such
// as the kernel when memory is short. The lines name no process, so a line of another process armed at the same
// point counts too.
func struckSince(log string, size int64, armed string) bool {
	if !strings.Contains(armed, "=kill") {
		return false
	}
	file, err := os.Open(log)
	if err != nil {
		return false
	}
	defer file.Close()
	text, _ := io.ReadAll(io.NewSectionReader(file, size, math.MaxInt64-size)) // an unreadable log proves nothing
	lines := strings.Split(string(text), "\n")
	for fuse := range strings.SplitSeq(armed, ";") {
		point, _, _ := strings.Cut(fuse, ":")
		if strings.HasSuffix(point, "=kill") && slices.Contains(lines, point) {
			return true
		}
	}
	return false
}

// lastWords returns the last line that the process has printed since its file had size bytes.
func (p *process) lastWords(size int64) string {
	file, err := os.Open(p.outputFile())
	if err != nil {
		return ""
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	size = max(size, info.Size()-maxTail)
	text, err := io.ReadAll(io.NewSectionReader(file, size, maxTail))
	if err != nil {
		return ""
	}
	last := string(bytes.TrimSpace(text))
	last = last[strings.LastIndexByte(last, '\n')+1:]
	return strings.ToValidUTF8(last[:min(len(last), maxLastWords)], "")
}

// awaitFirstReady records when the process becomes ready for the first time in its life.
func (p *process) awaitFirstReady(life context.Context) {
	for p.checkReady(life) != nil {
		if backoff.Sleep(life, servedLook) != nil {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.served = time.Now()
}

// workState returns the failpoints of the running process and how long it has been ready.
func (p *process) workState() (armed string, ready time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.served.IsZero() {
		return p.armed, 0
	}
	return p.armed, time.Since(p.served)
}

// watchProcess continues the process if its fuse has stopped it. It waits a moment, or, in one of four cases,
// until every lease has expired. The process's name, start and fuses decide which.
func (p *process) watchProcess(life context.Context, pid int) {
	p.mu.Lock()
	armed, start := p.armed, p.starts
	p.mu.Unlock()
	if !strings.Contains(armed, "=stop") {
		return
	}
	digest := fnv.New32a()
	fmt.Fprint(digest, p.name, start, armed)
	pause := shortStop/4 + time.Duration(digest.Sum32())%shortStop
	if digest.Sum32()%4 == 0 {
		pause = longStop/2 + time.Duration(digest.Sum32())%longStop
	}
	for {
		wait := stateLook
		p.mu.Lock()
		struck := !p.paused && isStopped(pid)
		p.mu.Unlock()
		if struck {
			wait = pause
		}
		if backoff.Sleep(life, wait) != nil {
			return
		}
		if struck {
			p.signalProcess(syscall.SIGCONT, "")
		}
	}
}

// isStopped reports whether the kernel has stopped pid.
func isStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "T")
}

// signalProcess sends sig to the process, if it runs, and returns a channel that is closed when it has ended.
// cause is recorded as the cause of its end.
func (p *process) signalProcess(sig syscall.Signal, cause string) (ended <-chan struct{}, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.cmd.Process.Signal(sig) != nil {
		return nil, false
	}
	if cause != "" && p.cause != killed {
		p.cause = cause
	}
	switch sig {
	case syscall.SIGSTOP:
		p.paused = true
	case syscall.SIGCONT:
		p.paused = false
	}
	return p.ended, true
}

// terminate stops the process with SIGTERM, kills it if it does not end, and returns how it ended. It waits
// until the process listens, because a program that has just started has no signal handler yet.
func (p *process) terminate(ctx context.Context) (record.Stopped, error) {
	if err := p.awaitState(ctx, p.checkListening); err != nil {
		return record.Stopped{}, err
	}
	p.mu.Lock()
	cmd := p.cmd
	p.mu.Unlock()
	began := time.Now()
	ended, ok := p.signalProcess(syscall.SIGTERM, terminated)
	if !ok || cmd == nil {
		return record.Stopped{}, errors.New("the process has ended before SIGTERM")
	}
	p.signalProcess(syscall.SIGCONT, "") // a stopped process does not handle SIGTERM
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	hung := false
	select {
	case <-ended:
	case <-timer.C:
		hung = true
		p.signalProcess(syscall.SIGKILL, terminated)
		<-ended
	}
	s := record.Stopped{Name: p.name, Code: cmd.ProcessState.ExitCode(), Took: time.Since(began)}
	if hung {
		s.Code = -1
	}
	return s, nil
}

// awaitState polls until done returns nil, because the process may be starting or gone.
func (p *process) awaitState(ctx context.Context, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("site: process %s: %w", p.name, err)
		case <-time.After(readyPause):
		}
	}
}

// checkListening returns nil once the program listens.
func (p *process) checkListening(context.Context) error {
	conn, err := net.DialTimeout("tcp", loopbackAddress(p.port), readyLook)
	if err == nil {
		err = conn.Close()
	}
	return err
}

// checkReady returns nil once /readyz reports the process as ready.
func (p *process) checkReady(ctx context.Context) error {
	_, err := p.getPath(ctx, "/readyz", maxLastWords)
	return err
}

// goroutines returns the number of goroutines in the process's own metrics.
func (p *process) goroutines(ctx context.Context) (int, error) {
	text, err := p.getPath(ctx, "/metrics", maxMetrics)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(p.site.pathInSite(record.OutputDir, p.name+".metrics"), text, 0o644); err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			return strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return 0, errors.New("/metrics has no number of goroutines")
}

// getPath returns the process's answer to a GET, cut at most bytes.
func (p *process) getPath(ctx context.Context, path string, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readyLook)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+loopbackAddress(p.port)+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := p.site.looks.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("not ready: %s", body)
	}
	return body, err
}
