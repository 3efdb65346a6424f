package devservices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	createTimeout = 30 * time.Second // CREATE DATABASE copies files
	dropTimeout   = 30 * time.Second
	litterTimeout = 10 * time.Second

	databasePrefix = "sagamill_"
	dayFormat      = "20060102"
	litterAge      = 48 * time.Hour // of a dead run's database, before it is dropped
)

// ownDatabase creates a database for this run on the server at dsn and returns its URL. If that fails, for
// want of the right or because of a pooler, it logs that and returns dsn.
func (r *run) ownDatabase(ctx context.Context, dsn string) string {
	dropLitter(ctx, dsn, time.Now())
	name := databasePrefix + time.Now().UTC().Format(dayFormat) + "_" + randomName()
	own, keeper, err := createDatabase(ctx, dsn, name)
	if err != nil {
		r.printLine("PostgreSQL: no database of our own, using the one given: %s", oneLine(err))
		return dsn
	}
	r.undoOnClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		_ = keeper.Close(ctx) // a test may have ended this session
		return dropDatabase(dsn, name)
	})
	r.printLine("PostgreSQL: database %s, dropped when done", name)
	return own
}

// keptDatabase returns the URL of the database name on the server of s, and creates the database if it is missing. If
// that fails, it logs that and returns the URL of s.
func (r *run) keptDatabase(ctx context.Context, s *Services, name string) string {
	dsn := s.DatabaseURL
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	kept, err := withDatabase(dsn, name)
	if err == nil {
		err = executeStatement(ctx, dsn, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE template0")
	}
	var exists *pgconn.PgError
	if err != nil && !(errors.As(err, &exists) && (exists.Code == duplicateDatabase || exists.Code == uniqueViolation)) {
		r.printLine("PostgreSQL: no database %s, using the one given: %s", name, oneLine(err))
		return dsn
	}
	fate := "kept"
	if s.postgresBin != "" {
		fate = "gone with its server when this program ends"
	}
	r.printLine("PostgreSQL: database %s, %s", name, fate)
	return kept
}

// The error codes of a second CREATE DATABASE: after the first one, and at the same time.
const (
	duplicateDatabase = "42P04"
	uniqueViolation   = "23505"
)

// createDatabase returns the URL of a new database and a connection to it. While that connection is open, the
// database is in use, and another run's [dropLitter] leaves it alone.
func createDatabase(ctx context.Context, dsn, name string) (own string, keeper *pgx.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	if own, err = withDatabase(dsn, name); err != nil {
		return "", nil, err
	}
	// CREATE DATABASE fails while its template has connections. template0 has none.
	if err := executeStatement(ctx, dsn, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE template0"); err != nil {
		return "", nil, err
	}
	keeper, err = connectTo(ctx, own)
	if err == nil {
		_, err = keeper.Exec(ctx, "SET idle_session_timeout = 0")
	}
	if err != nil {
		return "", nil, errors.Join(err, dropDatabase(dsn, name))
	}
	return own, keeper, nil
}

// dropDatabase drops a database and ends its sessions: a test that leaked a connection must not leave the
// database behind.
func dropDatabase(dsn, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	return executeStatement(ctx, dsn, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}

// dropLitter drops the databases of runs that were killed long ago. Without FORCE the server refuses to drop
// a database with a connection; a later run tries again.
func dropLitter(ctx context.Context, dsn string, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, litterTimeout)
	defer cancel()
	conn, err := connectTo(ctx, dsn)
	if err != nil {
		return
	}
	defer conn.Close(ctx)
	rows, _ := conn.Query(ctx, "SELECT datname FROM pg_database WHERE datname ~ '^sagamill_[0-9]{8}_[a-z2-7]{12}$' ORDER BY datname")
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}
	for _, name := range names {
		if isLitter(name, now) {
			_, _ = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize())
		}
	}
}

// isLitter reports whether name is the name of an old run's database.
func isLitter(name string, now time.Time) bool {
	rest, ours := strings.CutPrefix(name, databasePrefix)
	day, _, dated := strings.Cut(rest, "_")
	made, err := time.Parse(dayFormat, day)
	return ours && dated && err == nil && now.Sub(made) > litterAge
}

// sqlCountConnections counts what is neither used nor kept for superusers. Only PostgreSQL 16 and later have
// reserved_connections.
const sqlCountConnections = `
SELECT n - coalesce(current_setting('superuser_reserved_connections')::int, 0) - coalesce(current_setting('reserved_connections', true)::int, 0)
	- (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend'), n
FROM (SELECT current_setting('max_connections')::int AS n) s`

// CountConnections returns how many connections the PostgreSQL server accepts now, besides those that it keeps for
// superusers, and how many in all.
func (s *Services) CountConnections(ctx context.Context) (free, limit int, err error) {
	return countConnections(ctx, cmp.Or(s.DirectURL, s.DatabaseURL))
}

func countConnections(ctx context.Context, dsn string) (free, limit int, err error) {
	ctx, cancel := context.WithTimeout(ctx, envTimeout)
	defer cancel()
	conn, err := connectTo(ctx, dsn)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, sqlCountConnections).Scan(&free, &limit)
	return free, limit, err
}

func executeStatement(ctx context.Context, dsn, statement string) error {
	conn, err := connectTo(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

// withDatabase returns dsn with another database, in either of the two forms
// that PostgreSQL knows.
func withDatabase(dsn, name string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn + " dbname=" + name, nil // the last dbname applies
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", fmt.Errorf("not a PostgreSQL URL")
	}
	u.Path, u.RawPath = "/"+name, ""
	q := u.Query()
	q.Del("dbname")
	q.Del("database")
	u.RawQuery = q.Encode()
	return u.String(), nil
}
