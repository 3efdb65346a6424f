package site

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// end runs a shell to its end.
func end(t *testing.T, script string) *os.ProcessState {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	_ = cmd.Run() // the end itself is under test
	if cmd.ProcessState == nil {
		t.Fatal("there is no shell")
	}
	return cmd.ProcessState
}

// An end that the harness did not cause fails a run, so it must be distinguished from all others.
func TestHowAProcessHasEnded(t *testing.T) {
	t.Parallel()
	dead, failed, well, panicked := end(t, "kill -9 $$"), end(t, "exit 1"), end(t, "exit 0"), end(t, "exit 2")
	tests := map[string]struct {
		ending ending
		want   string
	}{
		"killed":                    {ending{state: dead, cause: killed}, "killed: signal: killed"},
		"killed, and armed":         {ending{state: dead, cause: killed, struck: true}, "killed: signal: killed"},
		"failed before it was":      {ending{state: failed, cause: killed, last: "bad"}, "by itself: exit status 1 although killed: bad"},
		"told":                      {ending{state: well, cause: terminated}, "told to stop: exit status 0"},
		"told, and failed":          {ending{state: failed, cause: terminated, served: true, last: "bad"}, "by itself: exit status 1 although told to stop: bad"},
		"told, and hung":            {ending{state: dead, cause: terminated}, "told to stop: it had to be killed"},
		"told, and struck":          {ending{state: dead, cause: terminated, struck: true}, "by its fuse"},
		"its fuse":                  {ending{state: dead, struck: true}, "by its fuse"},
		"out of memory":             {ending{state: dead}, "by itself: signal: killed: "},
		"ended well":                {ending{state: well, served: true}, "by itself: exit status 0: "},
		"panicked":                  {ending{state: panicked, troubled: true, last: "goroutine 1"}, "by itself: exit status 2: goroutine 1"},
		"gave up":                   {ending{state: failed, troubled: true, last: "refused"}, "while it started, among faults"},
		"gave up for no reason":     {ending{state: failed, last: "refused"}, "by itself: exit status 1: refused"},
		"gave up when it was ready": {ending{state: failed, served: true, troubled: true, last: "refused"}, "by itself: exit status 1: refused"},
		"not there":                 {ending{err: os.ErrNotExist}, "by itself: it cannot be started: file does not exist"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args, words := tt.ending.describeEnd()
			if args != tt.want {
				t.Errorf("tell = %q, want %q", args, tt.want)
			}
			if strings.HasPrefix(args, "while") != (words == tt.ending.last && words != "") {
				t.Errorf("tell = %q, %q", args, words)
			}
		})
	}
}

// A process killed from outside has not struck its fuse, even if it is armed.
func TestAFuseHasStruckIfItsLogSaysSo(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	const before = "outbox/after-publish=kill\n"
	if err := os.WriteFile(log, []byte(before+"outbox/after-read=error\nconsumer/before-ack=kill\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for armed, want := range map[string]bool{
		"outbox/after-publish=kill:3":                         false, // before it was started
		"outbox/after-read=error:2":                           false,
		"outbox/after-read=error;consumer/before-ack=kill:12": true,
		"consumer/before-ack=kill":                            true,
		"consumer/after-ack=kill":                             false,
		"":                                                    false,
	} {
		if got := struckSince(log, int64(len(before)), armed); got != want {
			t.Errorf("struckSince(%q) = %v, want %v", armed, got, want)
		}
	}
	if struckSince(log+"none", 0, "consumer/before-ack=kill") {
		t.Error("a log that is not there says so")
	}
}
