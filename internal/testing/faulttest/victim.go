package faulttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/proctest"
)

// maxSaid is how much of a process's output a failure shows, in bytes.
const maxSaid = 4000

// A Victim is a process that a fault strikes.
type Victim struct {
	*proctest.Process
	t     testing.TB
	fault Fault
	dir   string
}

// Start runs this test binary with env, armed with f. With the zero Fault it is not armed.
func Start(t testing.TB, f Fault, env ...string) *Victim {
	t.Helper()
	v := &Victim{t: t, fault: f, dir: t.TempDir()}
	out, err := os.Create(filepath.Join(v.dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "SAGAMILL_FAILPOINT_LOG="+filepath.Join(v.dir, "struck"))
	if f.Action != "" {
		cmd.Env = append(cmd.Env, "SAGAMILL_FAILPOINTS="+f.spec())
	}
	cmd.Env = append(cmd.Env, env...)
	if v.Process, err = proctest.Launch(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Kill)
	return v
}

// Struck waits until the fault has struck. Then the process is dead or stopped, or continues after its error
// or its delay.
func (v *Victim) Struck() {
	v.t.Helper()
	Await(v.t, fmt.Sprintf("%s strikes", v.fault), func() bool {
		ended := v.Dead() // before the log is read: it may end between the two
		if v.struck() {
			return true
		}
		if ended {
			v.t.Fatalf("the process has ended and was not struck by %s; it said:\n%s", v.fault, v.Said())
		}
		return false
	}, v.Said)
	switch v.fault.Action {
	case "kill":
		v.Killed()
	case "stop":
		Await(v.t, "the process is stopped", v.Stopped, v.Said)
	}
}

// struck reports whether the process has noted that the fault strikes.
func (v *Victim) struck() bool {
	text, err := os.ReadFile(filepath.Join(v.dir, "struck"))
	return err == nil && slices.Contains(strings.Split(string(text), "\n"), v.fault.line())
}

// Killed waits until the process has been killed.
func (v *Victim) Killed() {
	v.t.Helper()
	if code := v.Wait(patience); code != -1 || !v.Dead() {
		v.t.Fatalf("the process was not killed (dead %t, exit code %d); it said:\n%s", v.Dead(), code, v.Said())
	}
}

// Ended waits until the process exits, and returns its exit code.
func (v *Victim) Ended() int {
	v.t.Helper()
	code := v.Wait(patience)
	if said := v.Said(); code == -1 || strings.Contains(said, "DATA RACE") {
		v.t.Fatalf("the process has not ended in good order (exit code %d); it said:\n%s", code, said)
	}
	return code
}

// Retire makes the process finish its work and end, as a deployment does. It fails the test if the process
// does not.
func (v *Victim) Retire() {
	v.t.Helper()
	v.Terminate()
	if code := v.Ended(); code != 0 {
		v.t.Errorf("the process ended with exit code %d; it said:\n%s", code, v.Said())
	}
}

// Said returns the end of the process's output.
func (v *Victim) Said() string {
	text, err := os.ReadFile(filepath.Join(v.dir, "out"))
	if err != nil {
		return err.Error()
	}
	return strings.ToValidUTF8(string(text[max(0, len(text)-maxSaid):]), "")
}
