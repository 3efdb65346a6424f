package needtest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// A probe is a test that tells how it ended.
type probe struct {
	testing.TB
	failed, skipped string
}

func (p *probe) Helper()      {}
func (p *probe) Name() string { return "TestProbe" }

func (p *probe) Fatal(args ...any) { p.failed = fmt.Sprint(args...); runtime.Goexit() }
func (p *probe) Fatalf(format string, args ...any) {
	p.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
func (p *probe) Skip(args ...any) { p.skipped = fmt.Sprint(args...); runtime.Goexit() }
func (p *probe) Skipf(format string, args ...any) {
	p.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// ended returns how a test ends that does as test says.
func ended(test func(testing.TB)) *probe {
	p, done := &probe{}, make(chan struct{})
	go func() { defer close(done); test(p) }()
	<-done
	return p
}

// A missing requirement fails the test, and so does a misspelt name. Every skipped test is reported.
func TestWhatIsMissingIsNoSecret(t *testing.T) {
	for name, tt := range map[string]struct{ require, failed, skipped, report string }{
		"nothing is required":    {"", "", "NOT TESTED: no node here", "NOT TESTED: TestProbe: no node here\n"},
		"another is required":    {"redis,nats", "", "NOT TESTED: no node here", "NOT TESTED: TestProbe: no node here\n"},
		"it is required":         {"redis, node", "SAGAMILL_REQUIRE asks for node: no node here", "", ""},
		"what is no name at all": {"nodejs", `SAGAMILL_REQUIRE: there is no "nodejs" (there are postgres, postgres-client, rabbitmq, rabbitmq-3.10, rabbitmq-4.0, rabbitmq-4.3, redis, nats, pgbouncer, node, chromium)`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "report")
			t.Setenv(requireVariable, tt.require)
			t.Setenv(reportVariable, path)
			p := ended(func(t testing.TB) { Missing(t, "node", "no %s\nhere", "node") })
			if p.failed != tt.failed || p.skipped != tt.skipped {
				t.Errorf("failed %q, skipped %q; want %q, %q", p.failed, p.skipped, tt.failed, tt.skipped)
			}
			if text, _ := os.ReadFile(path); string(text) != tt.report {
				t.Errorf("reported %q, want %q", text, tt.report)
			}
		})
	}
}

func TestWhatIsLeftOutIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	t.Setenv(reportVariable, path)
	p := ended(func(t testing.TB) { LeaveOut(t, "it counts sessions") })
	if text, _ := os.ReadFile(path); p.skipped != "LEFT OUT: it counts sessions" || string(text) != "LEFT OUT: TestProbe: it counts sessions\n" {
		t.Errorf("skipped %q, reported %q", p.skipped, text)
	}
}

func TestWhatIsSlowIsSkippedWithShort(t *testing.T) {
	before := flag.Lookup("test.short").Value.String()
	t.Cleanup(func() { _ = flag.Set("test.short", before) })
	skip := Slow
	for short, want := range map[string]string{"true": "slow: make verify runs it", "false": ""} {
		_ = flag.Set("test.short", short)
		if p := ended(skip); p.skipped != want {
			t.Errorf("with -short=%s skipped %q, want %q", short, p.skipped, want)
		}
	}
}

// Without a commit every case runs. With commits each case runs for about a third of them.
func TestACommitDrawsAShare(t *testing.T) {
	t.Setenv(shareVariable, "")
	if p := ended(Share); p.skipped != "" || !Drawn(t, "kill") {
		t.Errorf("without a commit a case is skipped: %q", p.skipped)
	}
	drawn := map[string]int{}
	for i := range 300 {
		t.Setenv(shareVariable, fmt.Sprintf("%040x", i))
		for _, name := range []string{"kill", "stop", "delay"} {
			if Drawn(t, name) {
				drawn[name]++
			}
		}
		if p := ended(Share); (p.skipped == "") != Drawn(&probe{}, "") {
			t.Errorf("commit %d: skipped %q", i, p.skipped)
		}
	}
	for name, n := range drawn {
		if n < 70 || n > 130 {
			t.Errorf("%s is drawn by %d of 300 commits, want about 100", name, n)
		}
	}
}
