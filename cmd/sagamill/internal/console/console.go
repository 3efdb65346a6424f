// Package console has the command that serves the console.
package console

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/console"
	"github.com/sagamill/sagamill/internal/consoleserver"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "console", About: "serve web pages on which people see sagas and act on them; the command runs until it is interrupted", Run: serveConsole}}
}

// maxConns is how many connections the console has to each database.
const maxConns = 8

var roles = map[string]console.Role{"viewer": console.RoleViewer, "operator": console.RoleOperator, "admin": console.RoleAdmin}

func serveConsole(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.EverySchema)
	listen := c.Flags.String("listen", "127.0.0.1:0", "address that the console listens on; default: a free port of 127.0.0.1")
	roleName := c.Flags.String("role", "viewer", "role of everybody who opens the URL that the command prints: viewer, operator or admin; default: viewer")
	by := c.Flags.String("by", cli.FindUserName(), "name of the person who makes the changes; the journal shows this name; default: the user who runs the command")
	c.AddOperatorFlag()
	known := addServiceFlags(c)
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	management, err := known.parseManagement()
	if err != nil {
		return err
	}
	role, found := roles[*roleName]
	if !found {
		return fmt.Errorf("-role is viewer, operator or admin, not %q", *roleName)
	}
	if err := checkListen(*listen, c.AllowsPlaintext()); err != nil {
		return err
	}
	names, err := c.NamedSchemas(cli.EverySchema)
	if err != nil {
		return err
	}
	c.MaxConns = maxConns
	databases, err := c.OpenDatabases(ctx)
	if err != nil {
		return err
	}
	for _, d := range databases {
		defer d.Pool.Close()
	}
	operators, err := c.OpenOperators(ctx, databases)
	if err != nil {
		return err
	}
	for _, pool := range operators {
		defer pool.Close()
	}
	shown, err := chooseDatabases(ctx, databases, operators, names)
	if err != nil {
		return err
	}
	server, err := consoleserver.Listen(ctx, shown, &consoleserver.Options{Address: *listen, Actor: console.Actor(*by), Role: role,
		Console: console.Options{MaxConns: maxConns, Topology: known.topology(), Management: management, Logger: slog.New(slog.NewTextHandler(c.Stderr, nil))}})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Stdout, "console: %s\n", server.URL())
	return server.Serve(ctx)
}

// chooseDatabases returns what the console shows: of each database all schemas, or those of names that it has.
func chooseDatabases(ctx context.Context, databases []*cli.Database, operators map[string]*pgxpool.Pool, names []string) (shown []console.Database, err error) {
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	missing := slices.Clone(names)
	for _, d := range databases {
		one := console.Database{Name: d.Name, Pool: d.Pool, Operator: operators[d.Name]}
		if names != nil {
			if one.Schemas, err = d.ListSchemas(ctx, names); err != nil {
				return nil, d.AddName(err)
			}
			if len(one.Schemas) == 0 {
				continue // to the console, none means all
			}
			missing = slices.DeleteFunc(missing, func(name string) bool { return slices.Contains(one.Schemas, name) })
		}
		shown = append(shown, one)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("no tables of sagamill in schema %s: has it been migrated?", strings.Join(missing, ", "))
	}
	return shown, nil
}

// checkListen returns an error for an address that other machines reach: the console speaks HTTP without TLS.
func checkListen(address string, allowed bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("-listen %q is not an address with a port, such as 127.0.0.1:7470", address)
	}
	ip := net.ParseIP(host)
	if allowed || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("-listen %s: other machines could reach the console without TLS; listen on 127.0.0.1 and forward the port, or give -allow-plaintext", address)
}
