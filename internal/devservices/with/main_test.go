package main

import (
	"os"
	"syscall"
	"testing"
)

func TestRunCommandExitCode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		script string
		want   int
	}{
		{"exit 0", 0},
		{"exit 7", 7},
		{"kill -KILL $$", 128 + int(syscall.SIGKILL)},
		{`test "$A" = b || exit 9`, 0},
	} {
		got, err := runCommand([]string{"/bin/sh", "-c", tt.script}, []string{"A=b"}, nil)
		if got != tt.want || err != nil {
			t.Errorf("%s: exit code %d, %v; want %d", tt.script, got, err, tt.want)
		}
	}
}

func TestRunCommandMissing(t *testing.T) {
	t.Parallel()
	if code, err := runCommand([]string{"/no/such/program"}, nil, nil); code != 127 || err == nil {
		t.Errorf("exit code %d, %v; want 127 and an error", code, err)
	}
}

func TestRunCommandPassesSignals(t *testing.T) {
	t.Parallel()
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	got, err := runCommand([]string{"/bin/sleep", "600"}, nil, signals)
	if want := 128 + int(syscall.SIGTERM); got != want || err != nil {
		t.Errorf("exit code %d, %v; want %d", got, err, want)
	}
}
