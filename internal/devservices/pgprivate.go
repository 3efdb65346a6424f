package devservices

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const (
	initdbTimeout     = 60 * time.Second
	pgReadyTimeout    = 60 * time.Second
	pgPrivateMaxConns = 400
)

// privatePostgres starts PostgreSQL from installed binaries. There may be
// several versions, and some that our account may not run.
func (r *run) privatePostgres(ctx context.Context) (instance, error) {
	bins := r.postgres.binDirectories(ctx)
	if len(bins) == 0 {
		return instance{}, serviceAbsent("no initdb and postgres on this machine%s", r.postgres)
	}
	var errs []error
	for _, bin := range bins {
		in, err := r.startPostgres(ctx, bin)
		if err == nil || ctx.Err() != nil {
			return in, err
		}
		errs = append(errs, err)
	}
	return instance{}, errors.Join(errs...)
}

// postgresBins returns the directories with initdb and postgres. Debian and
// Homebrew keep them off PATH, one directory for each version.
func postgresBins() []string {
	var bins []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/local/opt/postgresql*/bin",
		"/opt/homebrew/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
		"/usr/pgsql-*/bin",
		"/usr/local/pgsql/bin",
	} {
		found, _ := filepath.Glob(pattern) // the only error is a bad pattern
		slices.Sort(found)
		slices.Reverse(found) // the newest first
		bins = append(bins, found...)
	}
	if postgres, err := exec.LookPath("postgres"); err == nil {
		bins = append([]string{filepath.Dir(postgres)}, bins...)
	}
	return slices.DeleteFunc(bins, incomplete)
}

// incomplete reports whether a program that a server needs is missing in dir.
func incomplete(dir string) bool {
	return !executable(filepath.Join(dir, "initdb")) || !executable(filepath.Join(dir, "postgres"))
}

// executable reports whether path is a program. Whether our account may run it shows only in a trial.
func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// startPostgres starts a server from the binaries in bin, with a data
// directory that ends with the run.
func (r *run) startPostgres(ctx context.Context, bin string) (instance, error) {
	as, err := r.prepareServer(ctx, "postgres")
	if err != nil {
		return instance{}, err
	}
	dir, err := r.dir.subdirectory("postgres", as)
	if err != nil {
		return instance{}, err
	}
	server := pgServer{bin: bin, dir: dir, as: as, password: rand.Text(), env: r.pgEnv, settings: r.pgSettings}
	if err := server.init(ctx); err != nil {
		return instance{}, err
	}
	return attempts(func() (instance, error) { return r.tryPostgres(ctx, server) })
}

// tryPostgres starts the server once, on a port that is free now. SIGQUIT is an immediate shutdown.
func (r *run) tryPostgres(ctx context.Context, s pgServer) (instance, error) {
	port, err := freePort()
	if err != nil {
		return instance{}, err
	}
	in, err := r.startServer(ctx, server{
		program: s.serverProgram(port), name: "postgres", mark: s.dir, stop: syscall.SIGQUIT, patience: pgReadyTimeout,
		url: postgresURL(url.UserPassword("postgres", s.password), loopback(port), "postgres"), probe: probePostgres,
	})
	in.bin = s.bin
	return in, err
}

// A pgServer is a data directory and its server.
type pgServer struct {
	bin, dir string
	as       *account
	password string   // or any local user could log in as the superuser
	env      []string // the running server's, besides what all programs get
	settings []string // likewise
}

// programNamed returns one of the server's programs, run as its account.
func (s pgServer) programNamed(name string, args ...string) program {
	// Without our environment's PG* variables and locale.
	env := append(serverEnvironment(s.dir), "TZ=UTC")
	return program{path: filepath.Join(s.bin, name), args: args, env: env, dir: s.dir, as: s.as}
}

// dataDirectory is below dir, which belongs to the account: initdb wants to create it.
func (s pgServer) dataDirectory() string { return filepath.Join(s.dir, "data") }

// init creates the data directory, without a sync to disk: it need not survive a crash of the machine.
// Passwords are checked by MD5. On loopback, that is enough for a random password. SCRAM makes clients do
// 4,096 rounds of a hash for each connection, which was a tenth of the tests' processor time.
func (s pgServer) init(ctx context.Context) error {
	password := filepath.Join(s.dir, "password")
	if err := s.as.writeFile(password, s.password); err != nil {
		return err
	}
	_, err := s.programNamed("initdb", "-D", s.dataDirectory(), "-U", "postgres", "--pwfile", password,
		"--auth", "md5", "--encoding", "UTF8", "--locale", "C", "--no-sync").runProgram(ctx, initdbTimeout)
	return err
}

// serverProgram leaves fsync on: benchmarks on a private server must include the cost of commits.
func (s pgServer) serverProgram(port int) program {
	args := []string{
		"-D", s.dataDirectory(), "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", // their path may be too long
		"-c", "max_connections=" + strconv.Itoa(pgPrivateMaxConns),
	}
	for _, setting := range s.settings {
		args = append(args, "-c", setting)
	}
	server := s.programNamed("postgres", args...)
	server.env = append(server.env, s.env...)
	return server
}

// loopback returns the address of port on this machine, by number: the name may also resolve to an IPv6
// address, where no server listens.
func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
