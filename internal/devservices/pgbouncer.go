package devservices

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// PoolerProgram is the pooler's program, and the package of Debian that has it.
const PoolerProgram = "pgbouncer"

const (
	poolerReadyTimeout = 30 * time.Second

	// poolerConns are the connections to each database. They are fewer than a private server accepts, and
	// enough that a test with open transactions does not keep another test waiting.
	poolerConns   = 300
	poolerClients = 2000
	directConns   = 30 // of a server's connections, for work that goes past the pooler

	// A client that does not say its name goes by that of whoever had the connection before.
	poolerName      = "sagamill-pooled"
	poolerExecution = "exec" // how pgx talks where no statement may stay prepared: docs/deploy.md, Poolers
)

// poolerConfig is the configuration of a pgbouncer before every database of a server. It hands out the
// connection that was idle for longest, so that two transactions of one client seldom share a connection. It
// refuses startup parameters that would have no effect.
const poolerConfig = `[databases]
* = host=%s port=%d user=%s%s
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

// addPooler puts a private pgbouncer before the database of s.
func (r *run) addPooler(ctx context.Context, s *Services) error {
	if _, err := r.runDirectory(); err != nil {
		return err
	}
	if _, err := Program(ctx, r.log, PoolerProgram, PoolerProgram); err != nil {
		return fmt.Errorf("devservices: pooler: %w", err)
	}
	free, _, err := countConnections(ctx, s.DatabaseURL)
	if err != nil {
		return fmt.Errorf("devservices: pooler: %w", err)
	}
	p, err := startPooler(ctx, r.dir, s.DatabaseURL, max(1, min(poolerConns, free-directConns)))
	if err != nil {
		return err
	}
	r.undoOnClose(p.Kill)
	r.printLine("pooler: started pgbouncer in transaction mode at %s, pid %d", p.address, p.process.pid)
	s.DirectURL, s.DatabaseURL = s.DatabaseURL, p.URL
	return nil
}

// A Pooler is a pgbouncer in transaction mode before all databases of a server. It ends with the process that
// has started it.
type Pooler struct {
	URL string // of the server's database, through it

	address string
	server  server
	dir     *rundir
	owned   bool // dir is the pooler's alone
	process *process
}

// StartPooler starts a pooler before the server of a database's URL, with at most conns connections to each
// database. It installs nothing.
func StartPooler(ctx context.Context, server string, conns int) (*Pooler, error) {
	dir, err := newRundir(temporaryParent())
	if err != nil {
		return nil, fmt.Errorf("devservices: pooler: %w", err)
	}
	p, err := startPooler(ctx, dir, server, conns)
	if err != nil {
		return nil, errors.Join(err, dir.removeAll())
	}
	p.owned = true
	return p, nil
}

func startPooler(ctx context.Context, dir *rundir, server string, conns int) (*Pooler, error) {
	path, err := FindProgram(PoolerProgram, PoolerProgram)
	if err != nil {
		return nil, fmt.Errorf("devservices: pooler: %w", err)
	}
	as, err := unprivileged(ctx, "postgres") // pgbouncer refuses to run as root
	if err != nil {
		return nil, fmt.Errorf("devservices: pooler: %w", err)
	}
	var p *Pooler
	_, err = attempts(func() (instance, error) {
		if p, err = newPooler(path, as, dir, server, conns); err != nil {
			return instance{}, err
		}
		return instance{url: p.URL}, p.startPooler(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("devservices: pooler: %w", err)
	}
	return p, nil
}

// newPooler returns a pooler that is not started yet, on a free port.
func newPooler(path string, as *account, dir *rundir, database string, conns int) (*Pooler, error) {
	files, err := dir.subdirectory("pgbouncer", as)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	config, pooled, err := writePoolerConfig(files, port, as, database, conns)
	if err != nil {
		return nil, err
	}
	return &Pooler{
		URL: pooled, address: loopback(port), dir: dir,
		server: server{
			program: program{path: path, args: []string{"-q", config}, env: serverEnvironment(files), dir: files, as: as},
			name:    PoolerProgram, mark: files, stop: syscall.SIGKILL, patience: poolerReadyTimeout, url: pooled, probe: probePostgres,
		},
	}, nil
}

// startPooler returns once pgbouncer answers.
func (p *Pooler) startPooler(ctx context.Context) error {
	process, _, err := p.server.launchServer(ctx, p.dir)
	if err == nil {
		p.process = process
	}
	return err
}

// Kill ends the pooler at once. It cuts off every transaction under way, even if the server has got its
// COMMIT already.
func (p *Pooler) Kill() error { return p.process.stopProcess(syscall.SIGKILL) }

// Restart kills it, and starts it anew at the same address.
func (p *Pooler) Restart(ctx context.Context) error { return errors.Join(p.Kill(), p.startPooler(ctx)) }

// Close kills it and removes its files.
func (p *Pooler) Close() error {
	err := p.Kill()
	if p.owned {
		err = errors.Join(err, p.dir.removeAll())
	}
	return err
}

// writePoolerConfig writes the files of pgbouncer. Only its account may read them, because they hold
// passwords. pooled is the server's URL through the pooler.
func writePoolerConfig(dir string, port int, as *account, server string, conns int) (path, pooled string, err error) {
	config, err := pgxpool.ParseConfig(server) // of a URL that has been used
	if err != nil {
		return "", "", errors.New("not a PostgreSQL URL")
	}
	c, password := config.ConnConfig, rand.Text() // or any local user could log in as the server's
	path, users := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "users")
	var secret string
	if c.Password != "" { // pgbouncer drops a line with an empty password, and then knows no database
		secret = " password='" + strings.ReplaceAll(c.Password, "'", "''") + "'"
	}
	for name, text := range map[string]string{
		path:  fmt.Sprintf(poolerConfig, c.Host, c.Port, c.User, secret, port, users, conns, poolerClients),
		users: fmt.Sprintf("\"%s\" \"%s\"\n", c.User, password),
	} {
		if err := as.writeFile(name, text); err != nil {
			return "", "", err
		}
	}
	u, err := url.Parse(postgresURL(url.UserPassword(c.User, password), loopback(port), c.Database))
	if err != nil {
		return "", "", err
	}
	q := u.Query()
	q.Set("default_query_exec_mode", poolerExecution)
	q.Set("application_name", poolerName)
	u.RawQuery = q.Encode()
	return path, u.String(), nil
}
