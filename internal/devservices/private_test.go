package devservices

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// holdVariable turns the test binary into a program that starts a private
// PostgreSQL, prints its URL and waits to be killed.
const holdVariable = "SAGAMILL_TEST_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(holdVariable) == "" {
		os.Exit(m.Run())
	}
	s, err := Start(context.Background(), &Options{Steps: "private,inproc,env"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.DatabaseURL)
	select {}
}

func needPostgres(t *testing.T) {
	t.Helper()
	if len(postgresBins()) > 0 {
		return
	}
	if os.Getenv("GITHUB_ACTIONS") == "true" && runtime.GOOS == "linux" {
		t.Fatal("no PostgreSQL binaries: these machines have them, so they are no longer found")
	}
	needtest.Missing(t, "postgres", "no PostgreSQL binaries on this machine")
}

func newTestRun(t *testing.T) (*run, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	r, err := prepareRun(&Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.closeRun(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r, log
}

// pids returns those that r has recorded.
func (r *run) pids(t *testing.T) []int {
	t.Helper()
	entries, err := os.ReadDir(r.dir.path)
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		var pid int
		if n, _ := fmt.Sscanf(e.Name(), "%d"+pidSuffix, &pid); n == 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// checkClosed closes r and checks that nothing is left of it.
func checkClosed(t *testing.T, r *run, wantProcesses int) {
	t.Helper()
	pids := r.pids(t)
	if len(pids) != wantProcesses {
		t.Errorf("%d processes recorded, want %d", len(pids), wantProcesses)
	}
	if err := r.closeRun(); err != nil {
		t.Errorf("close: %v", err)
	}
	for _, pid := range pids {
		if !gone(pid) {
			t.Errorf("process %d is still there: %s", pid, commandLine(pid))
		}
	}
	if fileExists(r.dir.path) {
		t.Errorf("%s is still there", r.dir.path)
	}
}

func TestPrivatePostgres(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	r, log := newTestRun(t)
	in, err := r.privatePostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if in.shared {
		t.Error("a private server is said to be shared")
	}
	if u, _ := url.Parse(in.url); strings.Contains(in.what, password(u)) {
		t.Errorf("%q shows the password", in.what)
	}
	pool := pgtest.Pool(t, in.url)
	if _, err := pool.Exec(t.Context(), "CREATE ROLE guest LOGIN PASSWORD 'g'"); err != nil {
		t.Fatal(err)
	}
	checkConnections(t, in.url)
	checkOwnDatabase(t, r, in.url)
	checkNoOwnDatabase(t, r, log, in.url)
	pool.Close()
	checkClosed(t, r, 1)
}

// The files of private servers are in memory for tests, if there is room, and on disk for measurements.
func TestFilesInMemory(t *testing.T) {
	t.Parallel()
	for _, opts := range []Options{{}, {Own: true}, {InMemory: true}} {
		opts.Log = io.Discard
		r, err := prepareRun(&opts)
		if err != nil {
			t.Fatal(err)
		}
		dir, err := r.runDirectory()
		if err != nil {
			t.Fatal(err)
		}
		want := temporaryParent()
		if (opts.Own || opts.InMemory) && inMemory() {
			want = memory
		}
		if got := filepath.Dir(dir.path); got != want {
			t.Errorf("%+v: files are in %s, want %s", opts, got, want)
		}
		if err := r.closeRun(); err != nil {
			t.Error(err)
		}
	}
}

func TestPostgresEnv(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	r, err := prepareRun(&Options{Log: io.Discard, PostgresEnv: []string{"PGCLIENTENCODING=LATIN1"}, PostgresSettings: []string{"shared_buffers=4MB"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.closeRun() })
	in, err := r.privatePostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := connectTo(t.Context(), in.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if got := firstValue(t.Context(), conn, "SHOW client_encoding"); got != "LATIN1" {
		t.Errorf("client_encoding = %q, want LATIN1, as the server's environment has it", got)
	}
	if got := firstValue(t.Context(), conn, "SHOW shared_buffers"); got != "4MB" {
		t.Errorf("shared_buffers = %q, want 4MB, as set", got)
	}
}

// checkConnections checks the count while four connections of the test are open.
func checkConnections(t *testing.T, dsn string) {
	t.Helper()
	for range 4 {
		conn, err := connectTo(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
	}
	const reserved = 3 // for superusers
	free, limit, err := countConnections(t.Context(), dsn)
	if most := pgPrivateMaxConns - reserved - 4; err != nil || limit != pgPrivateMaxConns || free > most || free < most-10 {
		t.Errorf("%d of %d connections are free, %v; want at most %d of %d", free, limit, err, most, pgPrivateMaxConns)
	}
}

func password(u *url.URL) string {
	p, _ := u.User.Password()
	return p
}

// checkOwnDatabase checks that the run gets a database and gives it back, even if a client is still
// connected.
func checkOwnDatabase(t *testing.T, r *run, dsn string) {
	t.Helper()
	before := len(r.undo)
	own := r.ownDatabase(t.Context(), dsn)
	if own == dsn {
		t.Fatal("no own database")
	}
	conn, err := connectTo(t.Context(), own)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	checkLitter(t, dsn, conn.Config().Database)
	drop := r.undo[before]
	r.undo = r.undo[:before]
	if err := drop(); err != nil {
		t.Errorf("drop: %v", err)
	}
	if _, err := connectTo(t.Context(), own); err == nil {
		t.Error("the own database is still there")
	}
}

// checkLitter checks that a killed run's old database is dropped, and neither a
// new one nor one in use.
func checkLitter(t *testing.T, dsn, inUse string) {
	t.Helper()
	const old, foreign = "sagamill_20200101_aaaaaaaaaaaa", "sagamill_20200101"
	for _, name := range []string{old, foreign} {
		if err := executeStatement(t.Context(), dsn, "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		now  time.Time
		want []string
	}{
		{time.Now(), []string{foreign, inUse}},
		{time.Now().AddDate(1, 0, 0), []string{foreign, inUse}}, // old by then, but in use
	} {
		dropLitter(t.Context(), dsn, tt.now)
		conn, err := connectTo(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		rows, _ := conn.Query(t.Context(), "SELECT datname FROM pg_database WHERE datname LIKE 'sagamill%' ORDER BY datname")
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("after dropLitter there are %q, %v; want %q", got, err, tt.want)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// checkNoOwnDatabase checks that a role without CREATEDB uses what it was
// given, and that the log says so.
func checkNoOwnDatabase(t *testing.T, r *run, log *bytes.Buffer, dsn string) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("guest", "g")
	if got := r.ownDatabase(t.Context(), u.String()); got != u.String() {
		t.Errorf("without the right, ownDatabase = %q, want %q", got, u)
	}
	if !strings.Contains(log.String(), "using the one given") {
		t.Errorf("log %q does not say that the given database is used", log)
	}
}

func TestPrivateRabbit(t *testing.T) {
	t.Parallel()
	rabbit, err := FindRabbitMQ()
	if err != nil {
		needtest.Missing(t, "rabbitmq", "%v", err)
	}
	r, _ := newTestRun(t)
	in, err := r.privateRabbit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	processes := 1
	if rabbit.Program("epmd") != "" {
		processes = 2
	}
	checkRabbitRuns(t, in)
	checkClosed(t, r, processes)
}

// checkRabbitRuns checks that a private broker has quorum queues, and that its description has no password.
func checkRabbitRuns(t *testing.T, in instance) {
	t.Helper()
	u, err := url.Parse(in.url)
	if err != nil || strings.Contains(in.what, password(u)) {
		t.Errorf("%q shows the password (%v)", in.what, err)
	}
	conn, err := amqp.Dial(in.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}); err != nil {
		t.Errorf("declare a quorum queue: %v", err)
	}
}

// A run that is killed takes its server with it, and the next run removes its
// files.
func TestKilledRun(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	if runtime.GOOS != "linux" {
		t.Skip("NOT TESTED: only Linux has a signal for a parent's death")
	}
	tmp, err := os.MkdirTemp(temporaryParent(), "sagamill-test-") // not t.TempDir, where the server's account cannot get
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	hold := exec.Command(os.Args[0])
	hold.Env = append(os.Environ(), holdVariable+"=1", "DATABASE_URL=", "AMQP_URL="+InProcess, "TMPDIR="+tmp)
	hold.Stderr = os.Stderr
	out, err := hold.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	dsn, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	conn, err := connectTo(ctx, strings.TrimSpace(dsn))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)

	if err := hold.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = hold.Wait() // it was killed
	if _, err := conn.WaitForNotification(ctx); ctx.Err() != nil {
		t.Errorf("the server still runs: %v", err)
	}
	sweepAbandoned(tmp)
	if entries, err := os.ReadDir(tmp); err != nil || len(entries) > 0 {
		t.Errorf("%d files are left (%v)", len(entries), err)
	}
}
