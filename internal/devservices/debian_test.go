package devservices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/needtest"
)

// fakeDebian puts an apt-get and a dpkg-deb in front of PATH. The archive has a version of RabbitMQ; fetching fails
// if it is "". It returns the tree to make, and a file with a line for each call of dpkg-deb.
func fakeDebian(t *testing.T, version string) (tree debianTree, unpacked string) {
	t.Helper()
	bin, cache := t.TempDir(), t.TempDir()
	unpacked = filepath.Join(bin, "unpacked")
	writeScript(t, filepath.Join(bin, "apt-get"), `#!/bin/sh
case "$*" in
*--print-uris*) echo "'mirror://here/debian/dists/bookworm/InRelease' name 0" ;;
*--download-only*)
	test -n "`+version+`" || { echo 'E: no package' >&2; exit 100; }
	for o; do case $o in Dir::Cache=*) touch "${o#*=}/archives/a.deb" "${o#*=}/archives/b.deb" ;; esac; done ;;
esac
`)
	writeScript(t, filepath.Join(bin, "dpkg-deb"), `#!/bin/sh
echo "$2" >>`+unpacked+`
mkdir -p "$3/usr/lib/rabbitmq/lib/rabbitmq_server-`+version+`"
`)
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("XDG_CACHE_HOME", cache)
	tree, err := treeOf("4.3")
	if err != nil {
		t.Fatal(err)
	}
	return tree, unpacked
}

// A tree is made once, after a line that says so, and from the mirror of this machine.
func TestTreeIsMadeOnce(t *testing.T) {
	tree, unpacked := fakeDebian(t, "4.3.6")
	r, log := newTestRun(t)
	r.rabbit = "4.3"
	// What a killed run has left is not taken for a tree.
	half := filepath.Join(tree.dir, unpackingDir, "root", "usr", "half")
	if err := os.MkdirAll(half, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.makeTree(t.Context(), tree); err != nil {
			t.Fatal(err)
		}
	}
	if calls, _ := os.ReadFile(unpacked); strings.Count(string(calls), "\n") != 2 {
		t.Errorf("unpacked %q, want two packages once", calls)
	}
	if fileExists(filepath.Join(tree.usr(), "half")) || fileExists(filepath.Join(tree.dir, unpackingDir)) {
		t.Error("what a killed run has left is still there")
	}
	want := "services: RabbitMQ 4.3 is not installed: fetching it from Debian sid with apt-get into " + tree.dir + " (SAGAMILL_INSTALL=no forbids it)\n" +
		"services: Debian sid: fetched 2 packages, unpacking them\n"
	if log.String() != want {
		t.Errorf("printed %q, want %q", log, want)
	}
}

// An attempt that fails leaves no tree, and says why.
func TestTreeIsNotMade(t *testing.T) {
	for _, tt := range []struct {
		version string
		forbid  bool
		absent  bool
		want    string
	}{
		{version: "4.4.0", absent: true, want: `Debian sid has RabbitMQ "4.4.0" now, and not 4.3`},
		{version: "", want: "E: no package"},
		{version: "4.3.6", forbid: true, absent: true, want: "SAGAMILL_INSTALL=no forbids fetching it from Debian sid"},
	} {
		tree, _ := fakeDebian(t, tt.version)
		r, _ := newTestRun(t)
		r.rabbit, r.noInstall = "4.3", tt.forbid
		err := r.makeTree(t.Context(), tree)
		if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, errAbsent) != tt.absent {
			t.Errorf("version %q: %v, want %q", tt.version, err, tt.want)
		}
		if fileExists(tree.usr()) || fileExists(filepath.Join(tree.dir, unpackingDir)) {
			t.Errorf("version %q: files are left", tt.version)
		}
	}
}

// A run waits for another one that makes the tree, until its context ends.
func TestTreeOfAnotherRun(t *testing.T) {
	tree, _ := fakeDebian(t, "4.3.6")
	if err := os.MkdirAll(tree.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := lockDirectory(tree.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	r, _ := newTestRun(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.makeTree(ctx, tree); !errors.Is(err, context.Canceled) {
		t.Errorf("makeTree = %v, want %v", err, context.Canceled)
	}
}

func TestRabbitVersion(t *testing.T) {
	for value, good := range map[string]bool{"": true, "4.3": true, "3.10": true, "4": false, "4.3.6": false, "sid": false} {
		t.Setenv(rabbitVariable, value)
		if got, err := RabbitVersion(); (err == nil) != good || good && got != value {
			t.Errorf("%s=%s: %q, %v", rabbitVariable, value, got, err)
		}
	}
	if isVersion("3.1.0", "3.10") || !isVersion("3.10.8", "3.10") || !isVersion("4.3.6", "") {
		t.Error("a version is taken for another one")
	}
}

// Only a server of the version that is asked for is started, and none that runs already is used.
func TestRabbitOfAVersion(t *testing.T) {
	packaged := "env private apt"
	if rabbitServerPath() != "" {
		packaged = "env private" // apt-get would install what is there already
	}
	for version, want := range map[string]string{"4.3": "env private debian", "4.0": "env private debian", "3.10": packaged} {
		var got []string
		for _, w := range (&run{rabbit: version}).rabbitWays() {
			got = append(got, w.name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("ways to %s = %q, want %q", version, got, want)
		}
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv(rabbitVariable, "2.8")
	if _, err := FindRabbitMQ(); !errors.Is(err, ErrNoRabbitMQ) {
		t.Errorf("FindRabbitMQ = %v, want %v", err, ErrNoRabbitMQ)
	}
}

// A real server of another release of Debian, whose /usr no other process sees.
func TestPrivateRabbitOfDebian(t *testing.T) {
	const version = "4.3"
	tree, err := treeOf(version)
	if err == nil {
		err = checkTreeHost()
	}
	if err == nil && !fileExists(tree.usr()) {
		err = fmt.Errorf("no %s: make test-rabbitmq RABBITMQ=%s makes it", tree.dir, version)
	}
	if err != nil {
		needtest.Missing(t, "rabbitmq-"+version, "%v", err)
	}
	t.Setenv(rabbitVariable, version)
	r, _ := newTestRun(t)
	in, err := r.privateRabbit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if mounts, err := os.ReadFile("/proc/1/mounts"); err != nil || strings.Contains(string(mounts), tree.suite) {
		t.Errorf("other processes see the mount: %s (%v)", mounts, err)
	}
	if fileExists("/usr/lib/rabbitmq/lib/rabbitmq_server-" + rabbitVersion(tree.usr())) {
		t.Error("this process sees the tree in the place of /usr")
	}
	if !strings.HasPrefix(in.what, "started version "+version+".") {
		t.Errorf("started %q", in.what)
	}
	checkRabbitRuns(t, in)
	checkClosed(t, r, 2)
}
