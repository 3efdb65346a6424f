// Package pgservertest starts private PostgreSQL servers: a test may crash or restore one, and no other test
// sees its roles and transaction ids.
package pgservertest

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

// serverTimeout bounds the start of a private server.
const serverTimeout = 60 * time.Second

// A Server is a private PostgreSQL. A test may crash it, and restore it if [NewArchiving] made it. It listens
// on a socket in its directory, because a port could be taken in the meantime.
type Server struct {
	bin     string // where its programs are
	dir     string
	config  []string
	attr    syscall.SysProcAttr
	process *os.Process
	ended   chan struct{}
	frozen  *frozen // nil: it runs
}

// New starts a server with config on its command line. It ends with the test.
// On a machine without PostgreSQL's programs the test is skipped.
func New(t testing.TB, config ...string) *Server {
	t.Helper()
	bin, err := devservices.PostgresBin(t.Context())
	if err != nil {
		needtest.Missing(t, "postgres", "no PostgreSQL server of the test's own: %v", err)
	}
	dir, err := os.MkdirTemp("", "pg") // t.TempDir may be too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{bin: bin, dir: dir, config: config}
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		s.attr.Credential = lookUpAccount(t, "postgres")
		s.ownFile(t, dir)
	}
	s.runProgram(t, "initdb", "-D", s.pathOf("data"), "-U", "postgres", "--auth", "trust", "--locale", "C", "--encoding", "UTF8", "--no-sync")
	t.Cleanup(s.Crash)
	s.Start(t)
	return s
}

func lookUpAccount(t testing.TB, name string) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		needtest.Missing(t, "postgres", "a PostgreSQL server needs an account that is not root: %v", err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (s *Server) pathOf(name string) string { return filepath.Join(s.dir, name) }

// ownFile gives a file to the account that the server runs as.
func (s *Server) ownFile(t testing.TB, path string) {
	t.Helper()
	if s.attr.Credential == nil {
		return
	}
	if err := os.Chown(path, int(s.attr.Credential.Uid), int(s.attr.Credential.Gid)); err != nil {
		t.Fatal(err)
	}
}

// Program returns the path of one of PostgreSQL's programs: that of the server's version, or else the one on
// PATH, which must not be older.
func (s *Server) Program(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(filepath.Join(s.bin, name)); err == nil {
		return path
	}
	path, err := exec.LookPath(name)
	if err != nil {
		needtest.Missing(t, "postgres-client", "no %s: %v", name, err)
	}
	if have, server := majorVersion(t, path), majorVersion(t, filepath.Join(s.bin, "postgres")); have < server {
		needtest.Missing(t, "postgres-client", "%s is of version %d, the server of %d", name, have, server)
	}
	return path
}

// majorVersion returns the major version of one of PostgreSQL's programs.
func majorVersion(t testing.TB, path string) (version int) {
	t.Helper()
	out, err := exec.Command(path, "--version").Output()
	if err == nil {
		_, number, _ := strings.Cut(string(out), "(PostgreSQL) ")
		_, err = fmt.Sscanf(number, "%d", &version)
	}
	if err != nil {
		t.Fatalf("version of %s: %q, %v", path, out, err)
	}
	return version
}

// runProgram runs one of PostgreSQL's programs to its end.
func (s *Server) runProgram(t testing.TB, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(s.Program(t, name), args...)
	attr := s.attr
	cmd.SysProcAttr, cmd.Dir = &attr, s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// URL returns the connection of the superuser: a connection string, not a URL, because of the socket.
func (s *Server) URL() string { return s.URLOf("postgres") }

// URLOf returns the connection of a role, without a password.
func (s *Server) URLOf(role string) string {
	return "host=" + s.dir + " user=" + role + " dbname=postgres"
}

// Start starts the server and waits until it has recovered.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	args := []string{"-D", s.pathOf("data"), "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=off"}
	for _, c := range s.config {
		args = append(args, "-c", c)
	}
	server := exec.Command(filepath.Join(s.bin, "postgres"), args...)
	attr := s.attr
	server.SysProcAttr, server.Dir = &attr, s.dir
	devservices.DieWithParent(server.SysProcAttr, syscall.SIGQUIT) // a test that times out runs no cleanup
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the parent is the thread that forked
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := server.Start()
		if started <- err; err == nil {
			_ = server.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start postgres: %v", err)
	}
	s.process, s.ended = server.Process, ended
	deadline := time.After(serverTimeout)
	for {
		conn, err := pgx.Connect(t.Context(), s.URL())
		if err == nil {
			_ = conn.Close(t.Context())
			return
		}
		select {
		case <-ended:
			t.Fatal("postgres has ended while starting")
		case <-deadline:
			t.Fatalf("postgres is not ready within %v: %v", serverTimeout, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Crash ends the server like a power failure: nothing is flushed, and the next start recovers. It returns
// when the process has ended.
func (s *Server) Crash() {
	if s.process == nil {
		return
	}
	_ = s.process.Signal(syscall.SIGQUIT)
	s.Thaw()
	<-s.ended
	s.process = nil
}
