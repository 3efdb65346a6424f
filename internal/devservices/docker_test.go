package devservices

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fakeDocker writes a script that logs its arguments and runs body with them,
// and returns a composition that uses it.
func fakeDocker(t *testing.T, body string) (c composition, calls func() string) {
	t.Helper()
	dir := t.TempDir()
	log, docker := filepath.Join(dir, "calls"), filepath.Join(dir, "docker")
	script := "#!/bin/sh\necho \"$*\" >> " + log + "\n" + body
	writeScript(t, docker, script)
	r := &run{log: &bytes.Buffer{}}
	return composition{docker: docker, file: "f.yml", say: r.printLine}, func() string {
		content, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
}

// writeScript writes a script that can be run at once: what is forked while it is open for
// writing would keep it so, and nothing that is open for writing can be run.
func writeScript(t *testing.T, name, script string) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(name, []byte(script), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCompose(t *testing.T) {
	t.Parallel()
	c, calls := fakeDocker(t, `case "$*" in *port*) echo 127.0.0.1:5433;; esac`)
	address, err := c.startContainer(t.Context(), "postgres", "5432")
	if address != "127.0.0.1:5433" || err != nil {
		t.Errorf("up = %q, %v; want the published address", address, err)
	}
	want := "info --format {{.ServerVersion}}\n" +
		"compose --file f.yml version\n" +
		"compose --file f.yml up --detach --wait postgres\n" +
		"compose --file f.yml port postgres 5432\n"
	if got := calls(); got != want {
		t.Errorf("docker was called with\n%swant\n%s", got, want)
	}
}

// An image is fetched only if the user allows it.
func TestComposeFetchesNothing(t *testing.T) {
	t.Parallel()
	c, calls := fakeDocker(t, `case "$*" in *port*) echo 127.0.0.1:5433;; esac`)
	c.noPull = true
	if _, err := c.startContainer(t.Context(), "postgres", "5432"); err != nil {
		t.Fatal(err)
	}
	if got := calls(); !strings.Contains(got, "up --detach --wait --pull never postgres\n") {
		t.Errorf("docker was called with\n%s", got)
	}
}

// A client binary without an engine does not count as docker: the way is skipped without a message.
func TestComposeWithoutEngine(t *testing.T) {
	t.Parallel()
	c, calls := fakeDocker(t, "exit 1")
	if _, err := c.startContainer(t.Context(), "postgres", "5432"); !errors.Is(err, errAbsent) {
		t.Errorf("up = %v, want %v", err, errAbsent)
	}
	if got := calls(); strings.Contains(got, "compose") {
		t.Errorf("docker was called with\n%s", got)
	}
}

// A port that is taken, an image that cannot be fetched: worth a line, since
// the user has an engine.
func TestComposeFails(t *testing.T) {
	t.Parallel()
	c, _ := fakeDocker(t, `case "$*" in *up*) echo port is already allocated; exit 1;; esac`)
	_, err := c.startContainer(t.Context(), "postgres", "5432")
	if err == nil || errors.Is(err, errAbsent) || !strings.Contains(err.Error(), "port is already allocated") {
		t.Errorf("up = %v, want the reason", err)
	}
}

func TestFindCompose(t *testing.T) {
	t.Parallel()
	file := findCompose()
	if filepath.Base(file) != composeFile || !fileExists(file) {
		t.Errorf("findCompose = %q, want the project's file", file)
	}
}
