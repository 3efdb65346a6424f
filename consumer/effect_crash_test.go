//go:build failpoints

package consumer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/outbox"
)

// The lease of a child's attempt at its effect, without and with a question.
const (
	childTimeout = 2 * time.Second
	childMargin  = 100 * time.Millisecond
)

// childEffect makes the child's step one of effects, if the environment says
// where the provider is.
func childEffect(f *fixture, step *Step) {
	url := os.Getenv("SAGAMILL_TEST_PROVIDER")
	if url == "" {
		return
	}
	*step = f.effectStep(url, os.Getenv("SAGAMILL_TEST_VERIFY") != "")
	step.Timeout = childTimeout
}

// A faultyEffect is a child that meets a fault at a point of an effect's way.
type faultyEffect struct {
	point string
	loses bool // the provider also loses its first reply
	n     int  // the hit of the point that matters
}

// The commits of an effect's two transactions are points as well: the first
// hit is that of the lease, the second that of the result.
var effectPoints = []faultyEffect{
	{"consumer/before-commit", false, 1},
	{"consumer/after-commit", false, 1},
	{"effect/after-claim", true, 1},
	{"effect/before-call", true, 1},
	{"effect/after-call", true, 1},
	{"effect/after-call", false, 1},
	{"effect/before-record", false, 1},
	{"consumer/before-commit", false, 2},
	{"consumer/after-commit", true, 2},
	{"consumer/after-commit", false, 2},
	{"effect/after-record", false, 1},
	{"consumer/before-ack", false, 1},
}

// env is the environment of a child. One provider honours keys, the other one
// can only be asked.
func (e faultyEffect) env(p *provider, fault string) []string {
	env := []string{"SAGAMILL_TEST_PROVIDER=" + p.url, fmt.Sprintf("SAGAMILL_FAILPOINTS=%s=%s:%d", e.point, fault, e.n)}
	if !p.honours {
		env = append(env, "SAGAMILL_TEST_VERIFY=1")
	}
	return env
}

// Whatever happens to the process, and to one reply besides, the provider's
// ledger has one line for the payment and one for its refund.
func TestAnEffectHappensOnceWhateverHappensToTheProcess(t *testing.T) {
	t.Parallel()
	for _, honours := range []bool{true, false} {
		for _, fault := range []string{"kill", "error"} {
			for _, e := range effectPoints {
				t.Run(fmt.Sprint("honours ", honours, " ", fault, " ", e.point, " ", e.n, " loses ", e.loses), func(t *testing.T) {
					t.Parallel()
					e.test(t, honours, fault)
				})
			}
		}
	}
}

func (e faultyEffect) test(t *testing.T, honours bool, fault string) {
	f := newFixture(t)
	p := newProvider(t, honours)
	c := f.consumer(t, Options{}, f.effectStep(p.url, !honours))
	for _, undoing := range []bool{false, true} {
		env, msg := e.env(p, fault), act("k")
		if undoing {
			env, msg = append(env, "SAGAMILL_TEST_UNDO=1"), undo("k")
		}
		if e.loses {
			p.loseReply()
		}
		if killed := faultyChild(t, f, env...); killed != (fault == "kill") {
			t.Fatalf("killed: %v", killed)
		}
		// What the broker does next, if there was no ack.
		msg.Metadata.Set(outbox.PropertyRedelivered, "true")
		handle(t, c, msg)
		f.finishParked(t, c)
	}
	if got, want := f.effects(t)+" | "+p.made(), "receipt of pay k 1, receipt of refund k 2 | pay, refund / 2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := f.row(t) + " | " + f.doubts(t); !strings.HasPrefix(got, "compensated ") || !strings.HasSuffix(got, " | ") {
		t.Errorf("in the end %q", got)
	}
}

// faultyChild is child for one that may also have to give its delivery back.
func faultyChild(t *testing.T, f *fixture, env ...string) (killed bool) {
	t.Helper()
	cmd := childCommand(f, env...)
	out, err := cmd.CombinedOutput()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() && err != nil && status.ExitStatus() != exitNacked {
		t.Fatalf("child: %v\n%s", err, out)
	}
	return status.Signaled() && status.Signal() == syscall.SIGKILL
}

// A process that hangs for longer than its lease does no harm when it wakes: it
// makes no call any more, and what it has to record is dropped.
func TestAProcessThatHungWakesToNothing(t *testing.T) {
	t.Parallel()
	for _, honours := range []bool{true, false} {
		for _, point := range []string{"effect/after-claim", "effect/before-call", "effect/after-call"} {
			t.Run(fmt.Sprint("honours ", honours, " ", point), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				p := newProvider(t, honours)
				step := f.effectStep(p.url, !honours)
				c := f.consumer(t, Options{}, step)
				cmd := childCommand(f, faultyEffect{point: point, n: 1}.env(p, "stop")...)
				cmd.SysProcAttr = &syscall.SysProcAttr{}
				devservices.DieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				awaitStopped(t, cmd)
				takeAsDue(t, c) // the lease runs out
				f.finishParked(t, c)
				before := f.row(t) + " | " + f.effects(t) + " | " + p.made()
				if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					t.Errorf("the process that hung: %v", err)
				}
				if got, want := before, "done 2 0 | receipt of pay k 1 | pay / 1"; got != want {
					t.Errorf("without it %q, want %q", got, want)
				}
				if got := f.row(t) + " | " + f.effects(t) + " | " + p.made(); got != before || f.doubts(t) != "" {
					t.Errorf("after it woke %q %q, before %q", got, f.doubts(t), before)
				}
			})
		}
	}
}

// awaitStopped waits until the process hangs.
func awaitStopped(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the process did not stop: %v, %v", status, err)
	}
}

// takeAsDue takes the one parked message, waiting for its lease to run out.
func takeAsDue(t *testing.T, c *Consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for runParkedOnce(t, c) == 0 {
		if ctx.Err() != nil {
			t.Fatal("nothing became due")
		}
	}
}

// A process dies in every call: there are as many as MaxAttempts allows, and
// then a question.
func TestADeadlyEffectEndsWithItsBudget(t *testing.T) {
	t.Parallel()
	for _, honours := range []bool{true, false} {
		t.Run(fmt.Sprint("honours ", honours), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, honours)
			env := faultyEffect{point: "effect/before-call", n: 1}.env(p, "kill")
			deaths := 0
			for i := range f.effectStep("", false).MaxAttempts + 3 {
				if i > 0 {
					env = append(env, "SAGAMILL_TEST_PARKED=1")
				}
				if child(t, f, env...) {
					deaths++
				}
				f.pass(t)
			}
			want := "dead 5 0 | dead attempts-exhausted 5?"
			if !honours {
				want = "dead 5 0 | dead attempts-exhausted 5" // it was asked
			}
			if got := f.row(t) + " | " + f.doubts(t); got != want || deaths != 5 || p.made() != " / 0" {
				t.Errorf("%q after %d deaths, made %q; want %q, 5 and nothing", got, deaths, p.made(), want)
			}
		})
	}
}
