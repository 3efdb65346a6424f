package relaystorm

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

// serverPatience bounds the end and the start of PostgreSQL.
const serverPatience = 30 * time.Second

// A postgres is a server of the test's own, which it crashes.
type postgres struct {
	url  string
	data string // its data directory
}

// startPostgres starts a server, which takes a while, and returns a function that
// waits for it. That skips the test on a machine without PostgreSQL's binaries. Both
// the server and what [postgres.crash] makes of it end with the test.
func startPostgres(t *testing.T) (started func() *postgres) {
	t.Helper()
	t.Setenv("AMQP_URL", devservices.InProcess)
	t.Setenv("DATABASE_URL", "")
	var services *devservices.Services
	var err error
	var group sync.WaitGroup
	group.Go(func() { services, err = devservices.Start(t.Context(), &devservices.Options{Steps: "env,private"}) })
	t.Cleanup(func() {
		if group.Wait(); err == nil {
			_ = services.Close()
		}
	})
	return func() *postgres {
		if group.Wait(); err != nil {
			needtest.Missing(t, "postgres", "no PostgreSQL of the test's own: %v", err)
		}
		t.Setenv("DATABASE_URL", services.DatabaseURL) // that of pgtest's proxies
		t.Setenv("DATABASE_DIRECT_URL", "")
		p := &postgres{url: services.DatabaseURL}
		conn := p.connect(t)
		defer conn.Close(t.Context())
		if err := conn.QueryRow(t.Context(), "SHOW data_directory").Scan(&p.data); err != nil {
			t.Fatal(err)
		}
		return p
	}
}

// connect waits for a server that is starting.
func (p *postgres) connect(t *testing.T) (conn *pgx.Conn) {
	t.Helper()
	var err error
	await(t, "PostgreSQL accepts connections", serverPatience, func() bool {
		conn, err = pgx.Connect(t.Context(), p.url)
		return err == nil
	})
	return conn
}

// through returns the URL by which a proxy at address leads to the server.
func (p *postgres) through(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(p.url)
	if err != nil {
		t.Fatal("the server's URL cannot be parsed")
	}
	u.Host = address
	return u.String()
}

// crash ends the server as an immediate shutdown does, without a checkpoint, and
// starts it again on its data.
func (p *postgres) crash(t *testing.T) {
	t.Helper()
	command := p.command(t)
	pid := p.pid(t)
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		t.Fatalf("crash PostgreSQL: %v", err)
	}
	await(t, "PostgreSQL has ended", serverPatience, func() bool { return syscall.Kill(pid, 0) != nil })
	ended := make(chan struct{})
	started := make(chan error, 1)
	go func() { // ends with the server: the kernel takes this thread for its parent
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := command.Start()
		if started <- err; err == nil {
			_ = command.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGQUIT) // an error if it has ended
		<-ended
	})
	_ = p.connect(t).Close(t.Context())
}

// command returns what the running server was started with, as it has written it
// down, to be run as the owner of its data.
func (p *postgres) command(t *testing.T) *exec.Cmd {
	t.Helper()
	line, err := os.ReadFile(filepath.Join(p.data, "postmaster.opts"))
	if err != nil {
		t.Fatal(err)
	}
	path, _, _ := strings.Cut(string(line), ` "`)
	command := exec.Command(path)
	for _, quoted := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(string(line), -1) {
		command.Args = append(command.Args, quoted[1])
	}
	command.Dir = p.data
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	devservices.DieWithParent(command.SysProcAttr, syscall.SIGQUIT)
	info, err := os.Stat(p.data)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t); int(owner.Uid) != os.Geteuid() {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
	return command
}

// pid returns the server's own process, the first line of its lock file.
func (p *postgres) pid(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.data, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 1 {
		t.Fatalf("postmaster.pid says %q", first)
	}
	return pid
}

// terminateAll ends every session but its own.
func (p *postgres) terminateAll(t *testing.T) {
	t.Helper()
	conn := p.connect(t)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err := conn.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
	if err != nil {
		t.Fatalf("terminate all sessions: %v", err)
	}
}
