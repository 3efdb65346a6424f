package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/internal/tools/devservices"
)

const (
	readyLimit = time.Minute      // for a service to become ready
	stopLimit  = 45 * time.Second // for a process to end after SIGTERM
)

// A fleet is the running services: a process each, or all within this one.
type fleet struct {
	urls     map[string]string // by service
	restarts atomic.Int64

	logs     string // folder with a log for each process
	members  []*member
	stopping atomic.Bool
	running  sync.WaitGroup

	stopTogether func() error
	over         chan struct{} // closed when services in this process have ended
}

// A member is one service process, started again whenever it dies.
type member struct {
	name    string
	port    string
	log     *os.File
	mu      sync.Mutex
	process *os.Process
	died    error // it did not stop as it was told to
}

// launch starts the services and returns when all are ready. environ adds the
// services' addresses to an environment.
func launch(ctx context.Context, s *settings, together bool, environ func([]string) []string, stdout io.Writer) (*fleet, error) {
	logs, err := os.MkdirTemp("", "trip-saga-")
	if err != nil {
		return nil, err
	}
	f := &fleet{urls: map[string]string{}, logs: logs, over: make(chan struct{})}
	start := f.startProcesses
	if together {
		start = f.startTogether
	}
	if err := start(ctx, s, environ); err != nil {
		return nil, errors.Join(err, f.stop(), f.explain(stdout))
	}
	for _, name := range s.services {
		if err := f.awaitReady(ctx, name); err != nil {
			return nil, errors.Join(err, f.stop(), f.explain(stdout))
		}
	}
	f.print(stdout)
	return f, nil
}

func (f *fleet) startTogether(ctx context.Context, s *settings, _ func([]string) []string) error {
	log, err := os.Create(filepath.Join(f.logs, "all.log"))
	if err != nil {
		return err
	}
	local := *s
	local.listen = "127.0.0.1:0"
	a := &app{settings: &local, logger: slog.New(slog.NewTextHandler(log, nil))}
	ctx, cancel := context.WithCancel(ctx)
	listening, done := make(chan string, 1), make(chan error, 1)
	go func() {
		defer close(f.over)
		done <- a.run(ctx, listening)
	}()
	f.stopTogether = func() error { cancel(); return errors.Join(<-done, log.Close()) }
	select {
	case address := <-listening:
		for _, name := range s.services {
			f.urls[name] = "http://" + address
		}
		return nil
	case err := <-done:
		done <- err
		return err
	}
}

// startProcesses runs this program once for each service.
func (f *fleet) startProcesses(ctx context.Context, s *settings, environ func([]string) []string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range s.services {
		port, err := freePort()
		if err != nil {
			return err
		}
		log, err := os.Create(filepath.Join(f.logs, name+".log"))
		if err != nil {
			return err
		}
		f.members = append(f.members, &member{name: name, port: port, log: log})
		f.urls[name] = "http://127.0.0.1:" + port
	}
	for _, m := range f.members {
		args := []string{"serve", "-services", m.name, "-listen", "127.0.0.1:" + m.port, "-namespace", s.namespace, "-patience", s.patience.String()}
		f.running.Go(func() { f.supervise(ctx, m, program, args, environ(os.Environ())) })
	}
	return nil
}

// supervise keeps one process running until the fleet stops.
func (f *fleet) supervise(ctx context.Context, m *member, program string, args, env []string) {
	runtime.LockOSThread() // the child dies with the thread that started it
	defer runtime.UnlockOSThread()
	defer m.log.Close()
	for !f.stopping.Load() && ctx.Err() == nil {
		cmd := exec.Command(program, args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = env, m.log, m.log
		cmd.SysProcAttr = &syscall.SysProcAttr{}
		devservices.DieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(m.log, "cannot start:", err)
			pause(ctx, time.Second)
			continue
		}
		m.set(cmd.Process)
		err := cmd.Wait()
		m.set(nil)
		if f.stopping.Load() {
			m.died = err
			return
		}
		fmt.Fprintln(m.log, "the process ended:", err)
		f.restarts.Add(1)
		pause(ctx, 100*time.Millisecond)
	}
}

func (m *member) set(p *os.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.process = p
}

// signal reports whether there was a process to send sig to.
func (m *member) signal(sig os.Signal) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process != nil && m.process.Signal(sig) == nil
}

// killSome sends SIGKILL to n processes, one after the other, the orchestrator first, while the
// load is being placed.
func (f *fleet) killSome(ctx context.Context, n int, progress func() float64) {
	for killed := 0; killed < n && ctx.Err() == nil; {
		due := float64(killed+1) / float64(n+1)
		if progress() >= due && f.members[killed%len(f.members)].signal(os.Kill) {
			killed++
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// stop tells every process to end, and returns an error if one had to be
// killed or did not end well.
func (f *fleet) stop() error {
	f.stopping.Store(true)
	if f.stopTogether != nil {
		return f.stopTogether()
	}
	kill := time.AfterFunc(stopLimit, func() {
		for _, m := range f.members {
			m.signal(os.Kill)
		}
	})
	defer kill.Stop()
	for _, m := range f.members {
		m.signal(syscall.SIGTERM)
	}
	f.running.Wait()
	var errs []error
	for _, m := range f.members {
		if m.died != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.name, m.died))
		}
	}
	return errors.Join(errs...)
}

// explain prints the end of each log, and keeps the files.
func (f *fleet) explain(w io.Writer) error {
	logs, err := filepath.Glob(filepath.Join(f.logs, "*.log"))
	if err != nil {
		return err
	}
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "--- end of %s\n%s\n", name, lastLines(text, 4<<10))
	}
	return nil
}

// lastLines returns the whole lines within the last limit bytes of text. Of a line that is longer, its end.
func lastLines(text []byte, limit int) []byte {
	if len(text) <= limit {
		return text
	}
	// The byte before shows whether the first line within the limit is whole.
	if _, lines, found := bytes.Cut(text[len(text)-limit-1:], []byte("\n")); found && len(lines) > 0 {
		return lines
	}
	return text[len(text)-limit:]
}

func (f *fleet) print(w io.Writer) {
	if f.stopTogether != nil {
		fmt.Fprintf(w, "all services in this process at %s\n", f.urls["trip"])
		return
	}
	fmt.Fprintln(w, "services, a process each (kill -9 any of them: it is started again):")
	for _, m := range f.members {
		m.mu.Lock()
		pid := "-"
		if m.process != nil {
			pid = strconv.Itoa(m.process.Pid)
		}
		m.mu.Unlock()
		fmt.Fprintf(w, "  %-9s pid %-7s %s\n", m.name, pid, f.urls[m.name])
	}
}

func (f *fleet) awaitReady(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for ctx.Err() == nil {
		if status, _, err := get(ctx, f.urls[name]+"/readyz"); err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-f.over:
			return errors.New("the services have ended before they were ready")
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("service %s is not ready after %s", name, readyLimit)
}

// awaitEmpty waits until no outbox holds a message and none is parked, and
// returns the metrics that are not zero when ctx ends.
func (f *fleet) awaitEmpty(ctx context.Context) (left []string) {
	for {
		left = left[:0]
		for _, name := range serviceNames {
			_, body, err := get(ctx, f.urls[name]+"/metrics")
			if err != nil {
				left = append(left, name+": "+err.Error())
				continue
			}
			left = append(left, unfinished(name, string(body))...)
		}
		if len(left) == 0 || ctx.Err() != nil {
			return left
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// unfinished returns the metrics of service in body that count messages and are not
// zero. If there are none at all, as while its database is away, nobody knows.
func unfinished(service, body string) (left []string) {
	known := false
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		name, labels, _ := strings.Cut(line, "{")
		if name != "sagamill_outbox_messages" && name != "sagamill_parked_messages" || !strings.HasPrefix(labels, fmt.Sprintf("service=%q", service)) {
			continue
		}
		known = true
		if !strings.HasSuffix(line, "} 0") {
			left = append(left, line)
		}
	}
	if !known {
		left = append(left, service+": it does not tell how many messages it has")
	}
	return left
}

func get(ctx context.Context, url string) (status int, body []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	return answer.StatusCode, body, err
}

// freePort returns a port that nobody listened on a moment ago. A process that
// is started again keeps it.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}
