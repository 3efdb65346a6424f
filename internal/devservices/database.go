package devservices

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	createTimeout = 30 * time.Second // CREATE DATABASE copies files
	dropTimeout   = 30 * time.Second
)

// ownDatabase creates a database for this run on the server at dsn and returns
// its URL. Where that cannot be done, for want of the right or because a
// pooler is in between, it says so and returns dsn.
func (r *run) ownDatabase(ctx context.Context, dsn string) string {
	name := "sagamill_" + randomName()
	own, err := createDatabase(ctx, dsn, name)
	if err != nil {
		r.say("PostgreSQL: no database of our own, using the one given: %s", oneLine(err))
		return dsn
	}
	r.onClose(func() error { return dropDatabase(dsn, name) })
	r.say("PostgreSQL: database %s, dropped when done", name)
	return own
}

func createDatabase(ctx context.Context, dsn, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	own, err := withDatabase(dsn, name)
	if err != nil {
		return "", err
	}
	// template0 has no connections, of which CREATE DATABASE would complain.
	if err := execute(ctx, dsn, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE template0"); err != nil {
		return "", err
	}
	if _, err := probePostgres(ctx, envTimeout, own); err != nil {
		return "", fmt.Errorf("%w (dropped again: %v)", err, dropDatabase(dsn, name))
	}
	return own, nil
}

// dropDatabase also throws out who is connected: a test that leaked a
// connection must not leave the database behind.
func dropDatabase(dsn, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	return execute(ctx, dsn, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}

func execute(ctx context.Context, dsn, statement string) error {
	conn, err := connect(ctx, dsn)
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
		return dsn + " dbname=" + name, nil // the last one counts
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
