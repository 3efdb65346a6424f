package main

import (
	"errors"
	"os"
	"strings"
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

// What tests have written to the file is printed once, and the file is gone.
func TestWhatIsNotTestedIsTold(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ script, want string }{
		{"exit 0", ""},
		{`echo "NOT TESTED: TestX: no node" >>"$` + notTestedVariable + `"`, "\nwith: of the tests these did not run:\nNOT TESTED: TestX: no node\n"},
	} {
		var told strings.Builder
		env, tell, err := collectNotTested(nil, &told)
		if err != nil {
			t.Fatal(err)
		}
		if code, err := runCommand([]string{"/bin/sh", "-c", tt.script}, env, nil); code != 0 || err != nil {
			t.Errorf("%s: exit code %d, %v", tt.script, code, err)
		}
		tell()
		if told.String() != tt.want {
			t.Errorf("%s: told %q, want %q", tt.script, told.String(), tt.want)
		}
		_, path, _ := strings.Cut(env[0], "=")
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("the file is still there: %v", err)
		}
	}
}

// A version of RabbitMQ that cannot be had is told, and fails the run if it is required.
func TestNoRabbitMQIsTold(t *testing.T) {
	t.Setenv("SAGAMILL_RABBITMQ", "4.3")
	for require, want := range map[string]int{"": 0, "redis,rabbitmq-4.0": 0, "redis, rabbitmq-4.3": 1} {
		t.Setenv(requireVariable, require)
		var told strings.Builder
		code, err := tellNoRabbitMQ(errors.New("no root"), &told)
		if code != want || (err != nil) != (want != 0) {
			t.Errorf("%s=%s: exit code %d, %v; want %d", requireVariable, require, code, err, want)
		}
		if want == 0 && told.String() != "\nwith: NOT TESTED: RabbitMQ 4.3: no root\n" {
			t.Errorf("told %q", told.String())
		}
	}
}
