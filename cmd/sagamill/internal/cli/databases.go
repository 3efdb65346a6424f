package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/migrations"
)

// A urlList is the flag -database or -operator-database. The flag may be given several times, and replaces the default
// then.
type urlList struct {
	urls  []string
	names []string // of the URLs that were given, "" without one
	given bool
}

// namedURL is a URL with a name before it.
var namedURL = regexp.MustCompile(`^([A-Za-z0-9_.-]{1,63})=(postgres(?:ql)?://.*)$`)

func newURLList(byDefault string) *urlList {
	l := &urlList{}
	if byDefault != "" {
		l.urls = []string{byDefault}
	}
	return l
}

// String is for package flag: an error must not quote a URL, which may have a password.
func (l *urlList) String() string { return "" }

// Set adds a database: a URL, or NAME=URL.
func (l *urlList) Set(url string) error {
	if !l.given {
		l.urls, l.names, l.given = nil, nil, true
	}
	name := ""
	if found := namedURL.FindStringSubmatch(url); found != nil {
		name, url = found[1], found[2]
	}
	if url != "" {
		l.urls, l.names = append(l.urls, url), append(l.names, name)
	}
	return nil
}

// nameOf returns the name that the command line gives a database, "" for none.
func (l *urlList) nameOf(i int) string {
	if i < len(l.names) {
		return l.names[i]
	}
	return ""
}

// OneDatabase returns the URL of the database. It returns an error if the command line names several.
func (c *Call) OneDatabase() (string, error) {
	if n := len(c.databases.urls); n != 1 {
		return "", fmt.Errorf("-database: this command is about one database, not about %d", n)
	}
	return c.databases.urls[0], nil
}

// A Database is one of the databases of the command line.
type Database struct {
	Pool  *pgxpool.Pool
	Name  string // as -database NAME=URL says, or that of the database on its server
	Label string // its name if there are several, else ""
	flag  string // its -database on a command line for a shell; "" if it is the only one
}

// AddOperatorFlag adds the flag -operator-database, for a command that reads with one role and changes with another
// one.
func (c *Call) AddOperatorFlag() {
	c.operators = &urlList{}
	c.Flags.Var(c.operators, "operator-database", "URL of the database with a role that may make changes; the console uses this URL only for changes; for several databases, repeat the flag with NAME=URL; default: the URL of -database")
}

// OpenDatabases returns the databases of the command line. The pools connect when they are first used. The caller
// closes them.
func (c *Call) OpenDatabases(ctx context.Context) (all []*Database, err error) {
	fail := func(err error) ([]*Database, error) {
		for _, d := range all {
			d.Pool.Close()
		}
		return nil, err
	}
	for i, text := range c.databases.urls {
		pool, config, err := c.openPool(ctx, text)
		if err != nil {
			return fail(err)
		}
		name := cmp.Or(c.databases.nameOf(i), config.ConnConfig.Database)
		all = append(all, &Database{Pool: pool, Name: name, Label: name, flag: " -database " + QuoteWord(redactURL(text, config))})
	}
	if len(all) == 1 {
		all[0].Label, all[0].flag = "", ""
		return all, nil
	}
	if !makeLabelsUnique(all) {
		return fail(errors.New("-database names the same database twice"))
	}
	return all, nil
}

// openPool returns a pool for a URL of the command line. It connects when it is first used.
func (c *Call) openPool(ctx context.Context, text string) (*pgxpool.Pool, *pgxpool.Config, error) {
	config, err := parseDatabase(text)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = c.MaxConns
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return pool, config, err
}

// OpenOperators returns the pool for changes of each of all, by name, without those that -operator-database does not
// name. The caller closes them.
func (c *Call) OpenOperators(ctx context.Context, all []*Database) (pools map[string]*pgxpool.Pool, err error) {
	pools = map[string]*pgxpool.Pool{}
	defer func() {
		for _, pool := range pools {
			if err != nil {
				pool.Close()
			}
		}
	}()
	for i, text := range c.operators.urls {
		name := c.operators.nameOf(i)
		if name == "" && len(all) == 1 {
			name = all[0].Name
		}
		switch {
		case name == "":
			return pools, errors.New("-operator-database: with several databases it must be NAME=URL")
		case !slices.ContainsFunc(all, func(d *Database) bool { return d.Name == name }):
			return pools, fmt.Errorf("-operator-database: no -database has the name %s", name)
		case pools[name] != nil:
			return pools, fmt.Errorf("-operator-database names %s twice", name)
		}
		if pools[name], _, err = c.openPool(ctx, text); err != nil {
			delete(pools, name)
			return pools, fmt.Errorf("-operator-database: %w", err)
		}
	}
	return pools, nil
}

// Target returns a schema of d.
func (d *Database) Target(schema string) *Target {
	t := &Target{DB: d.Pool, Schema: schema, Name: schema, Flags: " -schema " + schema + d.flag}
	if d.Label != "" {
		t.Name = d.Label + "/" + schema
	}
	return t
}

// AddName adds the name of d to an error if there are several databases.
func (d *Database) AddName(err error) error {
	if d.Label == "" {
		return err
	}
	return fmt.Errorf("database %s: %w", d.Label, err)
}

// ListSchemas returns the schemas of d that have tables of sagamill: all, or those of names.
func (d *Database) ListSchemas(ctx context.Context, names []string) (found []string, err error) {
	all, err := migrations.ListApplied(ctx, d.Pool)
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if names == nil || slices.Contains(names, a.Schema) {
			found = append(found, a.Schema)
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return slices.Index(names, a) - slices.Index(names, b) })
	return found, nil
}

// parseDatabase reads a URL or a connection string. The error does not quote it, because it may have a password.
func parseDatabase(text string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, errors.New("-database, or DATABASE_URL without it, is not a PostgreSQL URL or connection string")
	}
	config.ConnConfig.ConnectTimeout = connectTimeout
	config.ConnConfig.RuntimeParams["application_name"] = "sagamill"
	return config, nil
}

// makeLabelsUnique adds the server to all labels if two databases have the same name. It reports whether the labels
// differ then.
func makeLabelsUnique(all []*Database) bool {
	differ := func() bool {
		seen := map[string]bool{}
		for _, d := range all {
			seen[d.Label] = true
		}
		return len(seen) == len(all)
	}
	if differ() {
		return true
	}
	for _, d := range all {
		d.Label = hostOf(d.Pool.Config()) + "/" + d.Label
	}
	return differ()
}

// hostOf returns the server of a database.
func hostOf(config *pgxpool.Config) string {
	return net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port)))
}

// redactURL returns a URL of the same database without a password, for a command line that people paste.
func redactURL(text string, config *pgxpool.Config) string {
	at, err := url.Parse(text)
	if err != nil || at.Scheme == "" || at.Query().Has("password") {
		at = &url.URL{Scheme: "postgres", User: url.User(config.ConnConfig.User), Host: hostOf(config), Path: "/" + config.ConnConfig.Database}
	}
	if at.User != nil {
		at.User = url.User(at.User.Username())
	}
	return at.String()
}
