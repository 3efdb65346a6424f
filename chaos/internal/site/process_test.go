package site

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// end runs a shell to its end.
func end(t *testing.T, script string) *os.ProcessState {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	_ = cmd.Run() // how it ends is what is asked for
	if cmd.ProcessState == nil {
		t.Fatal("there is no shell")
	}
	return cmd.ProcessState
}

// An end that nobody has caused must be told from every other one: it is what a run
// fails by.
func TestHowAProcessHasEnded(t *testing.T) {
	t.Parallel()
	dead, failed, well, panicked := end(t, "kill -9 $$"), end(t, "exit 1"), end(t, "exit 0"), end(t, "exit 2")
	const fuse = "outbox/after-read=error:2;outbox/after-publish=kill:3"
	tests := map[string]struct {
		ending ending
		want   string
	}{
		"killed":                    {ending{state: dead, cause: killed}, "killed: signal: killed"},
		"killed, and armed":         {ending{state: dead, cause: killed, armed: fuse}, "killed: signal: killed"},
		"failed before it was":      {ending{state: failed, cause: killed, last: "bad"}, "by itself: exit status 1 although killed: bad"},
		"told":                      {ending{state: well, cause: terminated}, "told to stop: exit status 0"},
		"told, and failed":          {ending{state: failed, cause: terminated, served: true, last: "bad"}, "by itself: exit status 1 although told to stop: bad"},
		"told, and hung":            {ending{state: dead, cause: terminated}, "told to stop: it had to be killed"},
		"told, and struck":          {ending{state: dead, cause: terminated, armed: fuse}, "by its fuse"},
		"its fuse":                  {ending{state: dead, armed: fuse}, "by its fuse"},
		"out of memory":             {ending{state: dead, armed: "outbox/after-read=error"}, "by itself: signal: killed: "},
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
			args, words := tt.ending.tell()
			if args != tt.want {
				t.Errorf("tell = %q, want %q", args, tt.want)
			}
			if strings.HasPrefix(args, "while") != (words == tt.ending.last && words != "") {
				t.Errorf("tell = %q, %q", args, words)
			}
		})
	}
}
