package demo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/console"
	"github.com/sagamill/sagamill/internal/consoleserver"
)

const consoleFlag, consoleUsage = "console", "serve pages on which a person sees every saga and acts on it, and print their URL"

// consoleConns is how many connections the console has to each database.
const consoleConns = 4

// A consoleRun is a console that runs.
type consoleRun struct {
	stop  context.CancelFunc
	ended chan error
	pools []*pgxpool.Pool
}

// startConsole serves the console of the services, and prints its URL. Its user may do everything: the program is an
// example, and whoever has the URL started it.
func (s *Settings) startConsole(ctx context.Context, w io.Writer, logger *slog.Logger) (*consoleRun, error) {
	r := &consoleRun{ended: make(chan error, 1)}
	databases, err := s.openConsoleDatabases(ctx, r)
	if err != nil {
		r.closePools()
		return nil, err
	}
	server, err := consoleserver.Listen(ctx, databases, &consoleserver.Options{
		Address: "127.0.0.1:0", Actor: findActor(), Role: console.RoleAdmin, Console: console.Options{MaxConns: consoleConns, Logger: logger}})
	if err != nil {
		r.closePools()
		return nil, err
	}
	fmt.Fprintf(w, "console: %s\n", server.URL())
	ctx, r.stop = context.WithCancel(ctx)
	go func() { r.ended <- server.Serve(ctx) }()
	return r, nil
}

// openConsoleDatabases returns the database of each service, those with one URL as one.
func (s *Settings) openConsoleDatabases(ctx context.Context, r *consoleRun) (databases []console.Database, err error) {
	byURL := map[string]int{}
	for _, service := range s.Services {
		variable, url := s.findDatabase(service)
		i, known := byURL[url]
		if !known {
			config, err := pgxpool.ParseConfig(url)
			if err != nil {
				return nil, BadSetting(variable, "it is not a PostgreSQL URL or connection string")
			}
			config.MaxConns = consoleConns
			config.ConnConfig.RuntimeParams["application_name"] = s.Program.Name + " console"
			pool, err := pgxpool.NewWithConfig(ctx, config)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", variable, err)
			}
			r.pools = append(r.pools, pool)
			i = len(databases)
			byURL[url] = i
			databases = append(databases, console.Database{Name: service, Pool: pool})
		}
		databases[i].Schemas = append(databases[i].Schemas, s.Program.Schemas[service])
	}
	if len(databases) == 1 {
		databases[0].Name = s.Program.Name
	}
	return databases, nil
}

// findActor returns the name of the user of this machine, for the journal.
func findActor() console.Actor {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return console.Actor(cmp.Or(name, "demo"))
}

// close stops the console. A nil console is none.
func (r *consoleRun) close() error {
	if r == nil {
		return nil
	}
	r.stop()
	defer r.closePools()
	return <-r.ended
}

func (r *consoleRun) closePools() {
	for _, pool := range r.pools {
		pool.Close()
	}
}
