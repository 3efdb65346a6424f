package site

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// events are what a site has logged.
type events struct {
	mu  sync.Mutex
	all []record.Event
}

func (e *events) add(event record.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

// find returns the first event from the i-th on that is wanted, nil if there is none.
func (e *events) find(i int, wanted func(record.Event) bool) *record.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ; i < len(e.all); i++ {
		if wanted(e.all[i]) {
			return &e.all[i]
		}
	}
	return nil
}

// scratch returns a directory that the servers' accounts can get to.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// open builds the programs and opens a site.
func open(t *testing.T, fuses func(string, int) string) (*Site, *events) {
	t.Helper()
	t1 := time.Now()
	programs, err := Build(t.Context(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	log := &events{}
	t.Log("built in", time.Since(t1))
	t1 = time.Now()
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), Work: scratch(t), Programs: programs, Log: log.add, Fuses: fuses})
	if errors.Is(err, ErrAbsent) {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Log("opened in", time.Since(t1))
	t.Cleanup(func() {
		t1 := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		t.Log("closed in", time.Since(t1))
		out, _ := os.ReadFile(s.file("output", "postgres.log"))
		t.Logf("%s", out)
	})
	return s, log
}

func TestWhatDiesIsStartedAgain(t *testing.T) {
	t.Parallel()
	s, log := open(t, nil)
	t0 := time.Now()
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Log("started in", time.Since(t0))
	for _, name := range Processes() {
		if ok, err := s.Kill(name); !ok || err != nil {
			t.Errorf("kill %s: %v, %v", name, ok, err)
		}
	}
	t0 = time.Now()
	if err := s.AwaitReady(t.Context(), Processes()...); err != nil {
		t.Fatal(err)
	}
	t.Log("again in", time.Since(t0))
	t0 = time.Now()
	if err := s.CrashPostgres(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Log("crashed in", time.Since(t0))
	t0 = time.Now()
	n, err := s.CloseConnections()
	t.Log("closed", n, err, time.Since(t0))
	t0 = time.Now()
	t.Log(s.Alarm(true), time.Since(t0))
	t.Log(s.Alarm(false), time.Since(t0))
	if err := s.KillBroker(); err != nil {
		t.Fatal(err)
	}
	t.Log("broker killed in", time.Since(t0))
	t0 = time.Now()
	if err := s.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Log("healed in", time.Since(t0))
	t0 = time.Now()
	defer func() { t.Log("all", time.Since(t0)) }()
	for _, stopped := range s.Stop(t.Context()) {
		t.Log(stopped)
		if stopped.Code != 0 {
			t.Errorf("%+v", stopped)
		}
	}
	if e := log.find(0, func(e record.Event) bool { return strings.HasPrefix(e.Args, "by itself") }); e != nil {
		t.Errorf("%+v", e)
	}
}
