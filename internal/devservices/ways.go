package devservices

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const stepsVariable = "SAGAMILL_SERVICES"

// wayNames is every name that SAGAMILL_SERVICES may hold, in order.
var wayNames = []string{"env", "found", "private", "npm", "debian", "apt", "inproc", "none"}

// privateWays are the ways that start servers for the run.
var privateWays = []string{"private", "npm", "debian", "apt"}

// errNotHere refuses privateWays on a system without them.
var errNotHere = serviceAbsent("this system runs no private servers: start some, for example with docker compose up, or name a server by its variable")

// errAbsent marks a way that this machine does not offer. The next way is tried without a message.
var errAbsent = errors.New("absent")

// An absentError is an [errAbsent] that says what is missing.
type absentError struct{ missing string }

func (e *absentError) Error() string { return e.missing }
func (e *absentError) Unwrap() error { return errAbsent }

func serviceAbsent(format string, args ...any) error {
	return &absentError{fmt.Sprintf(format, args...)}
}

// errRefused marks a way that the user asked for and that does not work. No other way is tried, because the
// tests would then run against another server.
var errRefused = errors.New("set, but unusable")

// A way is one means to get a service.
type way struct {
	name string
	try  func(context.Context) (instance, error)
}

// An instance is a server that is ready for use.
type instance struct {
	url    string
	what   string // its place and version, for people
	shared bool   // other runs may use it too
	bin    string // the directory that a private PostgreSQL was started from
}

// A run is the state of one Start: the ways that it may try, and the actions that undo it.
type run struct {
	log        io.Writer
	installs   io.Writer // nil: log alone
	own        bool      // private servers come before those that are found
	memory     bool      // files of private servers are in memory, if there is room
	noPrivate  bool      // this system runs no private servers
	noInstall  bool      // the user forbids to install packages and to fetch servers
	ways       []string  // those allowed
	postgres   pgChoice
	rabbit     string   // the version that is asked for, such as 4.3; "": any
	pgEnv      []string // of a private PostgreSQL
	pgSettings []string // likewise
	dir        *rundir  // nil until something needs files
	undo       []func() error
}

// allowWays restricts the run to the ways in list; an empty list allows all.
func (r *run) allowWays(list string) error {
	if list == "" {
		return nil
	}
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if !slices.Contains(wayNames, name) {
			return fmt.Errorf("devservices: %s: no way is called %q (there are %s)", stepsVariable, name, strings.Join(wayNames, ", "))
		}
		r.ways = append(r.ways, name)
	}
	return nil
}

// allowedWays returns the ways of a service that the run may try, in their order. A list that names none of
// them does not restrict the service: SAGAMILL_SERVICES=inproc leaves the database alone.
func (r *run) allowedWays(ways []way) []way {
	if r.own {
		ways = slices.Clone(ways)
		slices.SortStableFunc(ways, func(a, b way) int { return ownOrder(a) - ownOrder(b) })
	}
	some := slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return !slices.Contains(r.ways, w.name) })
	if len(some) == 0 {
		return ways
	}
	return some
}

// ownOrder puts private servers first, but after a server that the user names.
func ownOrder(w way) int {
	switch w.name {
	case "env":
		return 0
	case "private":
		return 1
	default:
		return 2
	}
}

// obtainService returns the service from the first of ways that works.
func (r *run) obtainService(ctx context.Context, service string, ways []way) (instance, error) {
	var tried []string
	for _, w := range r.allowedWays(ways) {
		in, err := instance{}, errNotHere
		if !r.noPrivate || !slices.Contains(privateWays, w.name) {
			in, err = w.try(ctx)
		}
		if err == nil {
			r.printLine("%s: %s (%s)", service, in.what, w.name)
			return in, nil
		}
		// Another way would hide the reason.
		if ctx.Err() != nil || errors.Is(err, errRefused) {
			return instance{}, fmt.Errorf("devservices: %s: %w", service, err)
		}
		if !errors.Is(err, errAbsent) {
			r.printLine("%s: %s did not work, trying on: %s", service, w.name, oneLine(err))
		}
		tried = append(tried, fmt.Sprintf("\n  %-8s %s", w.name, oneLine(err)))
	}
	return instance{}, fmt.Errorf("devservices: no %s: set %s to use one, or install it; tried:%s",
		service, variables[service], strings.Join(tried, ""))
}

// oneLine returns the error's text in one line. Errors of drivers and programs have several.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// variables are the environment variables by which a user chooses servers.
var variables = map[string]string{"PostgreSQL": "DATABASE_URL", "RabbitMQ": "AMQP_URL", "Redis": "REDIS_URL", "NATS": "NATS_URL"}

// printLine prints one line to the log. That is standard error by default, because standard output belongs to
// the program that runs.
func (r *run) printLine(format string, args ...any) {
	fmt.Fprintf(r.log, "services: "+format+"\n", args...)
}

// printInstall prints one line about what is installed or fetched.
func (r *run) printInstall(format string, args ...any) {
	r.printLine(format, args...)
	if r.installs != nil {
		fmt.Fprintf(r.installs, "services: "+format+"\n", args...)
	}
}

// undoOnClose adds undo to the actions of [run.closeRun]. It runs before all that were added earlier.
func (r *run) undoOnClose(undo func() error) { r.undo = append(r.undo, undo) }

// closeRun runs all undo actions, also after an error: a database that cannot be dropped must not keep a
// server running.
func (r *run) closeRun() error {
	var errs []error
	for _, undo := range slices.Backward(r.undo) {
		errs = append(errs, undo())
	}
	r.undo = nil
	return errors.Join(errs...)
}

// An optionalServer is a server that most tests can do without; without it, those that need it are skipped. The servers
// that no run can do without use some of its ways, too.
type optionalServer struct {
	variable string // the environment variable that names the server
	none     string // its value, and the URL, for no server; "" if there is no such value
	usual    string // URL of a server at the default port, with the login that a new one accepts
	probe    func(ctx context.Context, timeout time.Duration, server string) (what string, err error)

	program string                                // of a private server, which has 30 s to answer
	url     string                                // a format of the password and the address
	config  string                                // a format of the port, the password and the directory
	args    func(address, config string) []string // the process has the address in its command line
}

// privateOptional starts the server from an installed binary.
func (r *run) privateOptional(o *optionalServer) way {
	return way{"private", func(ctx context.Context) (instance, error) {
		path, err := exec.LookPath(o.program)
		if err != nil {
			return instance{}, serviceAbsent("no %s on PATH", o.program)
		}
		as, err := r.prepareServer(ctx, strings.TrimSuffix(o.program, "-server"))
		if err != nil {
			return instance{}, err
		}
		return attempts(func() (instance, error) { return r.tryOptional(ctx, o, path, as) })
	}}
}

// tryOptional starts the server once, on a port that is free now.
func (r *run) tryOptional(ctx context.Context, o *optionalServer, path string, as *account) (instance, error) {
	dir, err := r.dir.subdirectory(o.program, as)
	if err != nil {
		return instance{}, err
	}
	port, err := freePort()
	if err != nil {
		return instance{}, err
	}
	config, address, password := filepath.Join(dir, "config"), loopback(port), rand.Text() // keeps other local users out
	if err := as.writeFile(config, fmt.Sprintf(o.config, port, password, dir)); err != nil {
		return instance{}, err
	}
	return r.startServer(ctx, server{
		program: program{path: path, args: o.args(address, config), env: serverEnvironment(dir), dir: dir, as: as},
		name:    o.program, mark: address, stop: syscall.SIGKILL, patience: 30 * time.Second, url: fmt.Sprintf(o.url, password, address), probe: o.probe,
	})
}

// useNamed uses the server that the user names, or none.
func (o *optionalServer) useNamed(ctx context.Context, server string) (instance, error) {
	switch server {
	case "":
		return instance{}, serviceAbsent("%s is not set", o.variable)
	case o.none:
		return o.useNone(ctx)
	}
	what, err := o.probe(ctx, envTimeout, server)
	if err != nil {
		return instance{}, fmt.Errorf("%s is %w: %w", o.variable, errRefused, err)
	}
	return instance{url: server, what: what, shared: true}, nil
}

// useVariable uses the server that the environment names, or none.
func (o *optionalServer) useVariable(ctx context.Context) (instance, error) {
	return o.useNamed(ctx, os.Getenv(o.variable))
}

// useFound uses the server at the default port.
func (o *optionalServer) useFound(ctx context.Context) (instance, error) {
	what, err := o.probe(ctx, findTimeout, o.usual)
	if err != nil {
		return instance{}, serviceAbsent("none at the default port lets us in: %v", err)
	}
	return instance{url: o.usual, what: what, shared: true}, nil
}

// useNone is the last way.
func (o *optionalServer) useNone(context.Context) (instance, error) {
	return instance{url: o.none, what: "none on this machine: what needs it is not tested"}, nil
}
