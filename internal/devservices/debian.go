package devservices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// debianSuites are the releases of Debian that have a version of RabbitMQ.
var debianSuites = map[string]string{"4.0": "trixie", "4.3": "sid"}

// treePackages are the packages of a tree. A shell script starts the server, so the essential ones belong to it.
var treePackages = []string{"rabbitmq-server", "?essential"}

const (
	debianKeys   = "/usr/share/keyrings/debian-archive-keyring.gpg"
	treeTimeout  = 10 * time.Minute // of one command, at a slow mirror
	treePause    = 200 * time.Millisecond
	unpackingDir = "new" // below the tree's directory, until it is complete
)

// A debianTree holds unpacked packages of another release of Debian than this machine's, whose servers need a newer C
// library. A server runs in a mount namespace of its own in which the tree's usr takes the place of /usr. All other
// directories are this machine's, and the kernel unmounts usr when the last process of the namespace has ended.
type debianTree struct {
	suite string
	dir   string // in the user's cache: lock, root when it is complete, and new before
}

// treeOf returns the tree with a version of RabbitMQ, which need not exist yet.
func treeOf(version string) (debianTree, error) {
	suite := debianSuites[version]
	if suite == "" {
		return debianTree{}, serviceAbsent("no release of Debian is known to have RabbitMQ %s", version)
	}
	cache, err := cacheDirectory()
	if err != nil {
		return debianTree{}, serviceAbsent("no directory to keep programs in: %v", err)
	}
	return debianTree{suite, filepath.Join(cache, "debian-"+suite)}, nil
}

// usr returns the directory that takes the place of /usr. It exists if the tree is complete.
func (d debianTree) usr() string { return filepath.Join(d.dir, "root", "usr") }

// debianRabbit unpacks RabbitMQ from another release of Debian and then starts a private server from it.
func (r *run) debianRabbit(ctx context.Context) (instance, error) {
	tree, err := treeOf(r.rabbit)
	if err != nil {
		return instance{}, err
	}
	if err := checkTreeHost(); err != nil {
		return instance{}, err
	}
	if err := r.makeTree(ctx, tree); err != nil {
		return instance{}, err
	}
	return r.privateRabbit(ctx)
}

// checkTreeHost returns an error if this machine cannot make a tree, or start a server from one.
func checkTreeHost() error {
	if os.Geteuid() != 0 {
		return serviceAbsent("only root may put another directory in the place of /usr")
	}
	if lib, err := os.Readlink("/lib"); err != nil || lib != "usr/lib" {
		return serviceAbsent("this is no Debian whose /lib is in /usr")
	}
	if !fileExists(debianKeys) {
		return serviceAbsent("no %s, which Debian's package debian-archive-keyring has", debianKeys)
	}
	return nil
}

// makeTree makes the tree, unless it is complete already. Runs that need it at the same time wait for the first, and
// what a killed run has left is removed. No script of a package is run.
func (r *run) makeTree(ctx context.Context, d debianTree) (err error) {
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	lock, err := d.awaitLock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if fileExists(d.usr()) {
		return nil
	}
	if err := r.announceInstall("RabbitMQ "+r.rabbit+" is not installed", "fetching it from Debian "+d.suite+" with apt-get into "+d.dir); err != nil {
		return err
	}
	work := filepath.Join(d.dir, unpackingDir)
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	packages, err := d.fetchPackages(ctx, work)
	if err != nil {
		return err
	}
	r.printInstall("Debian %s: fetched %d packages, unpacking them", d.suite, len(packages))
	root := filepath.Join(work, "root")
	for _, file := range packages {
		if _, err := (program{path: "dpkg-deb", args: []string{"--extract", file, root}}).runProgram(ctx, treeTimeout); err != nil {
			return err
		}
	}
	if has := rabbitVersion(filepath.Join(root, "usr")); !isVersion(has, r.rabbit) {
		return serviceAbsent("Debian %s has RabbitMQ %q now, and not %s", d.suite, has, r.rabbit)
	}
	return os.Rename(root, filepath.Dir(d.usr()))
}

// awaitLock takes the tree's lock.
func (d debianTree) awaitLock(ctx context.Context) (*os.File, error) {
	for {
		lock, err := lockDirectory(d.dir)
		if err == nil {
			return lock, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another run that makes %s: %w", d.dir, ctx.Err())
		case <-time.After(treePause):
		}
	}
}

// fetchPackages fetches the tree's packages and all that they need from the mirror that this machine uses, and returns
// their files. apt-get compares them with Debian's signature. Its state is below work: this machine's stays as it is.
func (d debianTree) fetchPackages(ctx context.Context, work string) ([]string, error) {
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return nil, serviceAbsent("no apt-get")
	}
	get := func(args ...string) (string, error) {
		return program{path: apt, args: append([]string{"-q", "-o", "Debug::NoLocking=1"}, args...)}.runProgram(ctx, treeTimeout)
	}
	uris, err := get("update", "--print-uris")
	if err != nil {
		return nil, err
	}
	mirror, _, isMirror := strings.Cut(strings.TrimPrefix(uris, "'"), "/dists/")
	if !isMirror {
		return nil, serviceAbsent("apt-get knows no mirror")
	}
	status, sources := filepath.Join(work, "status"), filepath.Join(work, "sources.list")
	for _, dir := range []string{"lists/partial", "archives/partial", "root"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(work, dir), 0o755))
	}
	source := fmt.Appendf(nil, "deb [signed-by=%s] %s %s main\n", debianKeys, mirror, d.suite)
	if err = errors.Join(err, os.WriteFile(status, nil, 0o600), os.WriteFile(sources, source, 0o600)); err != nil {
		return nil, err
	}
	options := []string{
		"-o", "Acquire::Check-Valid-Until=false", // a copy of the archive may be older than its validity
		"-o", "APT::Sandbox::User=root", "-o", "Dir::State=" + work, "-o", "Dir::State::status=" + status, "-o", "Dir::Cache=" + work,
		"-o", "Dir::Etc::sourcelist=" + sources, "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::Etc::preferences=/dev/null", "-o", "Dir::Etc::preferencesparts=/dev/null",
	}
	if _, err := get(append(options, "update")...); err != nil {
		return nil, err
	}
	options = append(options, "install", "--yes", "--download-only", "--no-install-recommends")
	if _, err := get(append(options, treePackages...)...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(work, "archives", "*.deb"))
}
