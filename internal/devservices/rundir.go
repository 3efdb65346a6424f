package devservices

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	runPrefix  = "sagamill-services-"
	newPrefix  = "sagamill-starting-" // not locked yet, so no sweep looks at it
	lockFile   = "lock"
	pidSuffix  = ".pid"
	randomSize = 12 // characters of base32
)

// randomName returns a random name, different for each run.
func randomName() string { return strings.ToLower(rand.Text()[:randomSize]) }

// temporaryParent returns the parent of run directories: the directory for temporary files. As root it is
// /tmp if the servers' account has no access to that directory.
func temporaryParent() string {
	dir := os.TempDir()
	if os.Geteuid() != 0 || passable(dir) {
		return dir
	}
	return "/tmp"
}

// memory is a directory whose files are in memory. roomInMemory is the free space, in bytes, that private
// servers need there.
const (
	memory       = "/dev/shm"
	roomInMemory = 4 << 30
)

// inMemory reports whether memory can hold servers' files.
func inMemory() bool { return passable(memory) && freeBytes(memory) >= roomInMemory }

// passable reports whether every account may pass through dir and all directories above it.
func passable(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
		dir = filepath.Dir(dir)
	}
}

// A rundir holds the files of one run's servers. It is locked as long as the run lives; the kernel frees the
// lock in any case.
type rundir struct {
	path string
	lock *os.File
}

// newRundir creates a run directory below parent. The directory gets its final name after it is locked, so
// that no sweep sees it unlocked.
func newRundir(parent string) (*rundir, error) {
	start, err := os.MkdirTemp(parent, newPrefix)
	if err != nil {
		return nil, err
	}
	// The server's account must be able to pass through.
	if err := os.Chmod(start, 0o755); err != nil {
		return nil, errors.Join(err, os.RemoveAll(start))
	}
	lock, err := lockDirectory(start)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(start))
	}
	path := filepath.Join(parent, runPrefix+randomName())
	if err := os.Rename(start, path); err != nil {
		return nil, errors.Join(err, lock.Close(), os.RemoveAll(start))
	}
	return &rundir{path: path, lock: lock}, nil
}

// lockDirectory takes the directory's lock, or returns an error if a run holds it.
func lockDirectory(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFileOf(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// subdirectory creates a directory for one server, given to the account it runs as.
func (d *rundir) subdirectory(name string, as *account) (string, error) {
	path := filepath.Join(d.path, name+"-"+randomName())
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	return path, as.ownFile(path)
}

// recordProcess writes a server's pid to a file, for the sweep after this process's death. mark is part of
// the server's command line: it distinguishes the server from a later process with that pid.
func (d *rundir) recordProcess(p *process, mark string) error {
	return os.WriteFile(filepath.Join(d.path, strconv.Itoa(p.pid)+pidSuffix), []byte(mark), 0o600)
}

func (d *rundir) removeAll() error {
	return errors.Join(os.RemoveAll(d.path), d.lock.Close())
}

// sweepAbandoned stops the servers of dead runs of this user in parent and removes their files. It ignores
// errors, because they must not keep this run from starting. A later run tries again.
func sweepAbandoned(parent string) {
	dirs, err := filepath.Glob(filepath.Join(parent, runPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if !isOurDirectory(dir) {
			continue
		}
		lock, err := lockDirectory(dir)
		if err != nil {
			continue // the run is alive, or another sweep has the lock
		}
		killRecorded(dir)
		_ = (&rundir{path: dir, lock: lock}).removeAll()
	}
}

// isOurDirectory reports whether dir is a directory of this user: root must not act on files that another
// user has put into a shared directory.
func isOurDirectory(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	return isOwnedByUs(info)
}

func killRecorded(dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+pidSuffix))
	if err != nil {
		return
	}
	for _, file := range files {
		pid, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(file), pidSuffix))
		if err != nil || pid <= 1 {
			continue
		}
		mark, err := os.ReadFile(file)
		if err != nil || len(mark) == 0 || !strings.Contains(commandLine(pid), string(mark)) {
			continue
		}
		_ = SignalGroup(pid, syscall.SIGKILL) // servers lead their process group
	}
}

// runDirectory returns the run's directory, created when the first server needs it.
func (r *run) runDirectory() (*rundir, error) {
	if r.dir != nil {
		return r.dir, nil
	}
	parent := temporaryParent()
	if r.memory && inMemory() {
		parent = memory
	}
	dir, err := newRundir(parent)
	if err != nil {
		return nil, fmt.Errorf("create a directory for the servers' files: %w", err)
	}
	r.dir = dir
	r.undoOnClose(dir.removeAll)
	return dir, nil
}

// prepareServer returns the account that a server runs as, preferably the one of that name, after it has made the run's
// directory.
func (r *run) prepareServer(ctx context.Context, name string) (*account, error) {
	as, err := unprivileged(ctx, name)
	if err == nil {
		_, err = r.runDirectory()
	}
	return as, err
}
