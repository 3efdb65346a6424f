package poolertest

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/needtest"
	"github.com/sagamill/sagamill/internal/pgtest"
)

const (
	poolSize     = 4 // connections to the server
	readyTimeout = 20 * time.Second
	readyPause   = 10 * time.Millisecond
)

// configuration of a pgbouncer that hands a connection to another client after each
// transaction, and the one that was idle for longest, so that two transactions of one
// client are seldom on the same.
const configuration = `[databases]
pooled = host=%s port=%d dbname=%s user=%s password='%s'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = transaction
default_pool_size = %d
max_client_conn = 200
server_round_robin = 1
`

// A bouncer is a pgbouncer of the test's own, which it restarts.
type bouncer struct {
	t        testing.TB
	path     string
	dir      string
	password string
	port     int
	attr     syscall.SysProcAttr
	process  *os.Process
	ended    chan struct{}
}

// newBouncer starts pgbouncer in front of the tests' database, until the test ends.
func newBouncer(t testing.TB) *bouncer {
	t.Helper()
	path, err := devservices.Program(t.Context(), os.Stderr, "pgbouncer", "pgbouncer")
	if err != nil {
		needtest.Missing(t, "pgbouncer", "%v", err)
	}
	dir, err := os.MkdirTemp("", "pgbouncer") // t.TempDir may be where the account cannot get
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &bouncer{t: t, path: path, dir: dir, password: rand.Text(), port: freePort(t)}
	b.configure()
	b.start()
	t.Cleanup(b.kill)
	return b
}

func (b *bouncer) configure() {
	b.t.Helper()
	config, err := pgx.ParseConfig(pgtest.URL())
	if err != nil {
		b.t.Fatal("DATABASE_URL cannot be parsed")
	}
	users := filepath.Join(b.dir, "users")
	files := map[string]string{
		users: fmt.Sprintf("%q %q\n", "tests", b.password),
		b.config(): fmt.Sprintf(configuration, config.Host, config.Port, config.Database, config.User, config.Password,
			b.port, users, poolSize),
	}
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 { // pgbouncer refuses to run as root
		b.giveAway(b.dir, users, b.config())
	}
}

// giveAway has pgbouncer run as nobody, to whom the files go.
func (b *bouncer) giveAway(paths ...string) {
	b.t.Helper()
	nobody, err := user.Lookup("nobody")
	if err != nil {
		needtest.Missing(b.t, "pgbouncer", "pgbouncer needs an account that is not root: %v", err)
	}
	uid, _ := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, _ := strconv.ParseUint(nobody.Gid, 10, 32)
	b.attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	for _, path := range paths {
		if err := os.Chown(path, int(uid), int(gid)); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bouncer) config() string { return filepath.Join(b.dir, "pgbouncer.ini") }

// url leads through pgbouncer. mode is how pgx talks: see [pgx.QueryExecMode].
func (b *bouncer) url(mode string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("tests", b.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)), Path: "/pooled",
	}
	u.RawQuery = url.Values{"sslmode": {"disable"}, "default_query_exec_mode": {mode}}.Encode()
	return u.String()
}

// pool opens more connections than pgbouncer has to the server.
func (b *bouncer) pool(mode string) *pgxpool.Pool {
	b.t.Helper()
	return pgtest.Pool(b.t, b.url(mode))
}

// start returns once pgbouncer answers.
func (b *bouncer) start() {
	b.t.Helper()
	command := exec.Command(b.path, "-q", b.config())
	attr := b.attr
	command.SysProcAttr, command.Dir = &attr, b.dir
	devservices.DieWithParent(command.SysProcAttr, syscall.SIGKILL) // a test that times out cleans nothing up
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the parent is the thread that forked
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := command.Start()
		if started <- err; err == nil {
			_ = command.Wait()
		}
	}()
	if err := <-started; err != nil {
		b.t.Fatalf("start pgbouncer: %v", err)
	}
	b.process, b.ended = command.Process, ended
	for deadline := time.After(readyTimeout); ; {
		conn, err := pgx.Connect(b.t.Context(), b.url("exec"))
		if err == nil {
			_ = conn.Close(b.t.Context())
			return
		}
		select {
		case <-ended:
			b.t.Fatal("pgbouncer has ended while starting")
		case <-deadline:
			b.t.Fatalf("pgbouncer is not ready within %v: %v", readyTimeout, err)
		case <-time.After(readyPause):
		}
	}
}

// kill ends pgbouncer at once: every transaction under way is cut off, those whose COMMIT
// it has passed on included.
func (b *bouncer) kill() {
	_ = b.process.Kill()
	<-b.ended
}

func (b *bouncer) restart() {
	b.t.Helper()
	b.kill()
	b.start()
}

// freePort returns a port that nobody listens on at this moment.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
