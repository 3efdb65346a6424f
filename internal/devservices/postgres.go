package devservices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	envTimeout  = 10 * time.Second // for a server that the user named
	findTimeout = 3 * time.Second  // for one login at a place where one may be

	// The oldest supported version, as server_version_num.
	minPostgres = 140000
)

// namedPostgres is the server that DATABASE_URL names, if it names one.
var namedPostgres = optionalServer{variable: "DATABASE_URL", probe: probePostgres}

func (r *run) postgresWays() []way {
	env, private := os.Getenv("DATABASE_URL"), way{"private", r.privatePostgres}
	if r.postgres.major != "" {
		// The version of a running server is not ours to choose.
		return []way{
			{"env", func(context.Context) (instance, error) { return r.postgres.insteadOf(env) }},
			private,
			{"npm", r.npmPostgres},
		}
	}
	return []way{
		{"env", namedPostgres.useVariable},
		{"found", findPostgres},
		private,
		{"npm", r.npmPostgres},
		r.aptWay("PostgreSQL", "postgresql", private),
	}
}

// findPostgres tries the logins that are usual on a developer's machine.
func findPostgres(ctx context.Context) (instance, error) {
	var errs []error
	for _, dsn := range usualPostgres() {
		what, err := probePostgres(ctx, findTimeout, dsn)
		if err == nil {
			return instance{url: dsn, what: what, shared: true}, nil
		}
		errs = append(errs, err)
	}
	return instance{}, serviceAbsent("none at the default port lets us in: %v", errs[0])
}

// usualPostgres returns the usual URLs: for the superuser, with and without the password that images set, and
// for an account with our name. The latter are over TCP and over Debian's socket, where the account needs no
// password.
func usualPostgres() []string {
	at := func(login *url.Userinfo, database string) string {
		return postgresURL(login, "127.0.0.1:5432", database)
	}
	super := url.User("postgres")
	urls := []string{at(super, "postgres"), at(super, "test"), at(url.UserPassword("postgres", "postgres"), "postgres")}
	me, err := user.Current()
	if err != nil {
		return urls
	}
	urls = append(urls, at(url.User(me.Username), "postgres"), at(url.User(me.Username), me.Username))
	for _, database := range []string{"postgres", me.Username} {
		q := url.Values{"host": {"/var/run/postgresql"}, "user": {me.Username}}
		urls = append(urls, "postgres:///"+url.PathEscape(database)+"?"+q.Encode())
	}
	return urls
}

// postgresURL returns a URL without TLS, which servers on the loopback address do not need.
func postgresURL(login *url.Userinfo, address, database string) string {
	u := url.URL{Scheme: "postgres", User: login, Host: address, Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// probePostgres logs in and returns the server's version and place. The result and the error do not hold the
// password.
func probePostgres(ctx context.Context, timeout time.Duration, dsn string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := connectTo(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	version, err := strconv.Atoi(firstValue(ctx, conn, "SELECT current_setting('server_version_num')"))
	if err != nil {
		return "", fmt.Errorf("it does not tell its version: %w", err)
	}
	if version < minPostgres {
		return "", fmt.Errorf("it is version %d; needed is %d or later", version/10000, minPostgres/10000)
	}
	c := conn.Config()
	place := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	return fmt.Sprintf("version %s at %s, user %s, database %s", conn.PgConn().ParameterStatus("server_version"), place, c.User, c.Database), nil
}

// connectTo connects like pgx.Connect. Its parse error does not quote the URL, because a URL that cannot be
// parsed cannot be redacted. The URL may have settings of pools.
func connectTo(ctx context.Context, dsn string) (*pgx.Conn, error) {
	config, err := pgxpool.ParseConfig(dsn)
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return nil, errors.New("not a PostgreSQL URL")
	}
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig)
}

// firstValue returns the first column of the first row, "" if there is none.
func firstValue(ctx context.Context, conn *pgx.Conn, query string) string {
	var value string
	if err := conn.QueryRow(ctx, query).Scan(&value); err != nil {
		return ""
	}
	return value
}
