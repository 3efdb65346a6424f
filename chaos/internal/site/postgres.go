package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/devservices"
)

// The limits of the private PostgreSQL.
const (
	serverPatience = 2 * time.Minute // for it to start, also after a crash, or to end
	serverPause    = 20 * time.Millisecond
	initdbPatience = 2 * time.Minute
)

// databaseName is the database with the schemas of all services.
const databaseName = "chaos"

// settings of the server. fsync and full_page_writes stay on, so that a crash loses no committed data.
var settings = []string{
	"listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=400", "shared_buffers=192MB",
	"max_wal_size=2GB", "log_min_messages=warning", "log_line_prefix=%m [%p] %a ", "fsync=on", "full_page_writes=on",
}

// A server is the private PostgreSQL.
type server struct {
	spawner  *spawner
	bin, dir string
	log      string
	port     int
	owner    *syscall.Credential // nil: this process's user
	run      *exec.Cmd
	exited   chan struct{} // closed when run has ended
}

// newServer makes the server's data in a directory below work.
func newServer(ctx context.Context, s *spawner, work, log string, port int) (*server, error) {
	bin, err := devservices.PostgresBin(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	p := &server{spawner: s, bin: bin, dir: filepath.Join(work, "postgres"), log: log, port: port}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, fmt.Errorf("site: %w", err)
	}
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		if err := p.giveAway(); err != nil {
			return nil, fmt.Errorf("site: an account for PostgreSQL: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, initdbPatience)
	defer cancel()
	initdb := exec.CommandContext(ctx, filepath.Join(p.bin, "initdb"), "-D", p.dataDirectory(), "-U", "postgres", "--auth", "trust", "--locale", "C", "--encoding", "UTF8", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = p.dir, &syscall.SysProcAttr{Credential: p.owner}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("site: initdb: %w: %s", err, out)
	}
	return p, nil
}

func (p *server) dataDirectory() string { return filepath.Join(p.dir, "data") }

func (p *server) giveAway() error {
	u, err := user.Lookup("postgres")
	if err != nil {
		return err
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	p.owner = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return errors.Join(uidErr, gidErr, os.Chown(p.dir, int(uid), int(gid)))
}

// databaseURL is the URL of a database; it stays the same after a crash.
func (p *server) databaseURL(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", loopbackAddress(p.port), database)
}

// startServer starts the server on the data that it has, and returns once it has
// recovered and accepts connections.
func (p *server) startServer(ctx context.Context) error {
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("site: %w", err)
	}
	defer out.Close()
	args := []string{"-D", p.dataDirectory(), "-p", strconv.Itoa(p.port)}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	p.run = exec.Command(filepath.Join(p.bin, "postgres"), args...)
	p.run.Dir, p.run.Stdout, p.run.Stderr = p.dir, out, out
	p.run.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	p.run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: p.owner}
	if err := p.spawner.startChild(p.run, syscall.SIGQUIT); err != nil {
		return fmt.Errorf("site: start PostgreSQL: %w", err)
	}
	p.exited = make(chan struct{})
	go func(run *exec.Cmd, exited chan struct{}) { // ends with the server; crashServer waits for it
		_ = run.Wait()
		close(exited)
	}(p.run, p.exited)
	return p.awaitServer(ctx)
}

func (p *server) awaitServer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, p.databaseURL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.exited:
			return fmt.Errorf("site: PostgreSQL has ended while it started; %s says why", p.log)
		case <-ctx.Done():
			return fmt.Errorf("site: PostgreSQL does not start: %w", err)
		case <-time.After(serverPause):
		}
	}
}

// crashServer ends the server as `pg_ctl stop -m immediate` does: sessions are cut, nothing is flushed, and the
// next start recovers from the log.
func (p *server) crashServer() {
	if p.run == nil {
		return
	}
	_ = p.run.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.exited:
	case <-time.After(serverPatience):
		_ = syscall.Kill(-p.run.Process.Pid, syscall.SIGKILL)
		<-p.exited
	}
	p.run = nil
}
