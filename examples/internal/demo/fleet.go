package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/devservices"
)

const (
	readyLimit = time.Minute      // for a service to become ready
	stopLimit  = 45 * time.Second // for a process to end after SIGTERM
)

// A Launch starts the services of a program for a demo.
type Launch struct {
	Settings *Settings
	Together bool // all services in this process instead of one each

	// NewApp returns the app that runs all services in this process.
	NewApp func(*slog.Logger) *App

	// ServeArgs returns flags of serve for the process of a service, besides the common ones.
	ServeArgs func(service string, urls map[string]string) []string

	// Environ adds the addresses of the servers to an environment.
	Environ func([]string) []string
}

// A Fleet is the running services, in a process each or all within this process.
type Fleet struct {
	Program *Program
	URLs    map[string]string // by service

	restarts atomic.Int64

	logs     string // folder with a log for each process
	members  []*member
	stopping atomic.Bool
	running  sync.WaitGroup

	stopTogether func() error
	ended        chan struct{} // closed when services in this process have ended
}

// A member is one service process. The fleet starts it again whenever it dies.
type member struct {
	name    string
	port    string
	log     *os.File
	mu      sync.Mutex
	process *os.Process
	died    error // how it ended after SIGTERM; nil: with exit code 0
}

// Start starts the services and returns when all are ready.
func (l *Launch) Start(ctx context.Context, stdout io.Writer) (*Fleet, error) {
	p := l.Settings.Program
	logs, err := os.MkdirTemp("", p.Name+"-")
	if err != nil {
		return nil, err
	}
	f := &Fleet{Program: p, URLs: map[string]string{}, logs: logs, ended: make(chan struct{})}
	start := f.startProcesses
	if l.Together {
		start = f.startTogether
	}
	if err := start(ctx, l); err != nil {
		return nil, errors.Join(err, f.Stop(), f.printLogs(stdout))
	}
	for _, name := range l.Settings.Services {
		if err := f.AwaitReady(ctx, name); err != nil {
			return nil, errors.Join(err, f.Stop(), f.printLogs(stdout))
		}
	}
	f.printServices(stdout)
	return f, nil
}

func (f *Fleet) startTogether(ctx context.Context, l *Launch) error {
	log, err := os.Create(filepath.Join(f.logs, "all.log"))
	if err != nil {
		return err
	}
	a := l.NewApp(slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(ctx)
	listening, done := make(chan string, 1), make(chan error, 1)
	go func() {
		defer close(f.ended)
		done <- a.Run(ctx, listening)
	}()
	f.stopTogether = func() error { cancel(); return errors.Join(<-done, log.Close()) }
	select {
	case address := <-listening:
		for _, name := range l.Settings.Services {
			f.URLs[name] = "http://" + address
		}
		return nil
	case err := <-done:
		done <- err
		return err
	}
}

// startProcesses runs this program once for each service.
func (f *Fleet) startProcesses(ctx context.Context, l *Launch) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ports, err := devservices.FreePorts(len(l.Settings.Services)) // a restarted process uses its port again
	if err != nil {
		return err
	}
	for i, name := range l.Settings.Services {
		port := strconv.Itoa(ports[i])
		log, err := os.Create(filepath.Join(f.logs, name+".log"))
		if err != nil {
			return err
		}
		f.members = append(f.members, &member{name: name, port: port, log: log})
		f.URLs[name] = "http://127.0.0.1:" + port
	}
	for _, m := range f.members {
		args := []string{"serve", "-services", m.name, "-listen", "127.0.0.1:" + m.port, "-namespace", l.Settings.Namespace}
		args = append(args, l.ServeArgs(m.name, f.URLs)...)
		f.running.Go(func() { f.superviseProcess(ctx, m, program, args, l.Environ(os.Environ())) })
	}
	return nil
}

// superviseProcess keeps the process of m running until the fleet stops.
func (f *Fleet) superviseProcess(ctx context.Context, m *member, program string, args, env []string) {
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
			_ = backoff.Sleep(ctx, time.Second)
			continue
		}
		m.setProcess(cmd.Process)
		err := cmd.Wait()
		m.setProcess(nil)
		if f.stopping.Load() {
			m.died = err
			return
		}
		fmt.Fprintln(m.log, "the process ended:", err)
		f.restarts.Add(1)
		_ = backoff.Sleep(ctx, 100*time.Millisecond)
	}
}

func (m *member) setProcess(p *os.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.process = p
}

// sendSignal reports whether there was a process to send sig to.
func (m *member) sendSignal(sig os.Signal) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process != nil && m.process.Signal(sig) == nil
}

// Stop sends SIGTERM to every process and waits for its end. It returns an error if a process had to
// be killed or ended with an error.
func (f *Fleet) Stop() error {
	f.stopping.Store(true)
	if f.stopTogether != nil {
		return f.stopTogether()
	}
	kill := time.AfterFunc(stopLimit, func() {
		for _, m := range f.members {
			m.sendSignal(os.Kill)
		}
	})
	defer kill.Stop()
	for _, m := range f.members {
		m.sendSignal(syscall.SIGTERM)
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

// printLogs prints the end of each log, and keeps the files.
func (f *Fleet) printLogs(w io.Writer) error {
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

// lastLines returns the whole lines within the last limit bytes of text. It returns the end of a
// line that is longer.
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

func (f *Fleet) printServices(w io.Writer) {
	if f.stopTogether != nil {
		fmt.Fprintf(w, "all services in this process at %s\n", f.URLs[f.Program.Services[0]])
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
		fmt.Fprintf(w, "  %-9s pid %-7s %s\n", m.name, pid, f.URLs[m.name])
	}
}

// AwaitReady waits until the service name is ready.
func (f *Fleet) AwaitReady(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for ctx.Err() == nil {
		if status, _, err := FetchURL(ctx, f.URLs[name]+"/readyz"); err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-f.ended:
			return errors.New("the services have ended before they were ready")
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("service %s is not ready after %s", name, readyLimit)
}

// AwaitEmpty waits until no outbox holds a message and none is parked. It returns the metrics
// that are not zero when ctx ends.
func (f *Fleet) AwaitEmpty(ctx context.Context) (left []string) {
	for {
		left = left[:0]
		for _, name := range f.Program.Services {
			_, body, err := FetchURL(ctx, f.URLs[name]+"/metrics")
			if err != nil {
				left = append(left, name+": "+err.Error())
				continue
			}
			left = append(left, f.Program.FindUnfinished(name, string(body))...)
		}
		if len(left) == 0 || ctx.Err() != nil {
			return left
		}
		_ = backoff.Sleep(ctx, 200*time.Millisecond)
	}
}

// FindUnfinished returns the metrics of service in body that count messages and are not zero. If a
// service with messages has no such metric, because its database is away, it counts as unfinished.
func (p *Program) FindUnfinished(service, body string) (left []string) {
	known := len(p.Listens[service]) == 0 // a service without messages has no such metric
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

// FetchURL sends a GET to url and returns the answer.
func FetchURL(ctx context.Context, url string) (status int, body []byte, err error) {
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
