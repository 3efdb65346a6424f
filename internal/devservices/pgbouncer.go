package devservices

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	poolerReadyTimeout = 30 * time.Second
	poolerReadyPause   = 20 * time.Millisecond

	// poolerConns are the connections to each database, fewer than a private server takes:
	// a test that holds some of them open in transactions must not keep another one waiting.
	poolerConns     = 300
	poolerClients   = 2000
	poolerExecution = "exec" // how pgx talks where no statement may stay prepared: docs/operations.md, Poolers
)

// poolerConfig is that of a pgbouncer before every database of a server. The connection that was
// idle for longest is handed out first, so that two transactions of one client are seldom on
// the same. What a client asks for at its start is refused where it would have no effect.
const poolerConfig = `[databases]
* = host=%s port=%d user=%s password='%s'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = transaction
default_pool_size = %d
max_client_conn = %d
server_round_robin = 1
server_tls_sslmode = prefer
`

// addPooler puts a pgbouncer of the run's own, in transaction mode, before the database of s.
func (r *run) addPooler(ctx context.Context, s *Services) error {
	path, err := Program(ctx, r.log, "pgbouncer", "pgbouncer")
	if err != nil {
		return fmt.Errorf("devservices: pooler: %w", err)
	}
	as, err := unprivileged(ctx, "postgres") // pgbouncer refuses to run as root
	if err != nil {
		return err
	}
	if _, err := r.files(); err != nil {
		return err
	}
	in, err := attempts(func() (instance, error) { return r.tryPooler(ctx, path, as, s.DatabaseURL) })
	if err != nil {
		return fmt.Errorf("devservices: pooler: %w", err)
	}
	r.say("pooler: %s", in.what)
	s.DirectURL, s.DatabaseURL = s.DatabaseURL, in.url
	return nil
}

// tryPooler starts pgbouncer once, on a port that is free now.
func (r *run) tryPooler(ctx context.Context, path string, as *account, server string) (instance, error) {
	dir, err := r.dir.sub("pgbouncer", as)
	if err != nil {
		return instance{}, err
	}
	port, err := freePort()
	if err != nil {
		return instance{}, err
	}
	config, pooled, err := writePoolerConfig(dir, port, as, server)
	if err != nil {
		return instance{}, err
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C"}
	p, err := program{path: path, args: []string{"-q", config}, env: env, dir: dir, as: as}.start(filepath.Join(r.dir.path, "pgbouncer.log"), syscall.SIGKILL)
	if err != nil {
		return instance{}, err
	}
	stop := func() error { return p.stop(syscall.SIGKILL) }
	r.onClose(stop)
	if err := r.dir.record(p, config); err != nil {
		return instance{}, errors.Join(err, stop())
	}
	in := instance{url: pooled}
	err = p.await(ctx, poolerReadyTimeout, poolerReadyPause, func(ctx context.Context) error {
		_, err := probePostgres(ctx, findTimeout, in.url)
		return err
	})
	if err != nil {
		return instance{}, errors.Join(fmt.Errorf("pgbouncer: %w", err), stop())
	}
	in.what = fmt.Sprintf("started pgbouncer in transaction mode at %s, pid %d", loopback(port), p.pid)
	return in, nil
}

// writePoolerConfig writes what pgbouncer reads, which only its account may: there are passwords
// in it. pooled is the server's URL through it.
func writePoolerConfig(dir string, port int, as *account, server string) (path, pooled string, err error) {
	config, err := pgxpool.ParseConfig(server) // of a URL that has been used
	if err != nil {
		return "", "", errors.New("not a PostgreSQL URL")
	}
	c, password := config.ConnConfig, rand.Text() // or any local user could log in as the server's
	path, users := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "users")
	quoted := strings.ReplaceAll(c.Password, "'", "''")
	for name, text := range map[string]string{
		path:  fmt.Sprintf(poolerConfig, c.Host, c.Port, c.User, quoted, port, users, poolerConns, poolerClients),
		users: fmt.Sprintf("\"%s\" \"%s\"\n", c.User, password),
	} {
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), as.own(name)); err != nil {
			return "", "", err
		}
	}
	u, err := url.Parse(postgresURL(url.UserPassword(c.User, password), loopback(port), c.Database))
	if err != nil {
		return "", "", err
	}
	q := u.Query()
	q.Set("default_query_exec_mode", poolerExecution)
	u.RawQuery = q.Encode()
	return path, u.String(), nil
}
