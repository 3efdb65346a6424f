package devservices

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const stepsVariable = "SAGAMILL_SERVICES"

// wayNames is every name that SAGAMILL_SERVICES may hold, in order.
var wayNames = []string{"env", "found", "docker", "private", "npm", "apt", "inproc", "none"}

// errAbsent marks a way that this machine does not offer. It is no news: the
// next way is tried without a word.
var errAbsent = errors.New("absent")

// An absentError is an [errAbsent] that says what is missing.
type absentError struct{ missing string }

func (e *absentError) Error() string { return e.missing }
func (e *absentError) Unwrap() error { return errAbsent }

func serviceAbsent(format string, args ...any) error {
	return &absentError{fmt.Sprintf(format, args...)}
}

// errRefused marks a way that the user asked for and that does not work. There
// is no next way: the tests would run against another server than was meant.
var errRefused = errors.New("set, but unusable")

// A way is one means to get one service.
type way struct {
	name string
	try  func(context.Context) (instance, error)
}

// An instance is a server that is ready for use.
type instance struct {
	url    string
	what   string // where it is and what it is, for people
	shared bool   // others use it as well
	bin    string // the directory that a private PostgreSQL was started from
}

// A run is the state of one Start: what it may try, and what it has to undo.
type run struct {
	log        io.Writer
	own        bool     // private servers come before those that are found
	ways       []string // those allowed
	postgres   pgChoice
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

// allowedWays returns those of a service's ways that the run may try, in their order. A
// list that names none of them is about other services: SAGAMILL_SERVICES=inproc says
// nothing about the database.
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

// ownOrder brings private servers forward, but not before one that the user names.
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
		in, err := w.try(ctx)
		if err == nil {
			r.printLine("%s: %s (%s)", service, in.what, w.name)
			return in, nil
		}
		// Going on after either would hide the reason.
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

// oneLine returns the error's text without the line breaks that drivers and
// programs put in.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// variables names what the user sets to choose a server.
var variables = map[string]string{"PostgreSQL": "DATABASE_URL", "RabbitMQ": "AMQP_URL", "Redis": "REDIS_URL", "NATS": "NATS_URL"}

// printLine prints one line. It goes to standard error, since standard output belongs
// to the program that is run.
func (r *run) printLine(format string, args ...any) {
	fmt.Fprintf(r.log, "services: "+format+"\n", args...)
}

// undoOnClose adds undo to what [run.closeRun] does, before all that was added earlier.
func (r *run) undoOnClose(undo func() error) { r.undo = append(r.undo, undo) }

// closeRun undoes everything, and goes on after an error: a database that cannot
// be dropped must not keep a server running.
func (r *run) closeRun() error {
	var errs []error
	for _, undo := range slices.Backward(r.undo) {
		errs = append(errs, undo())
	}
	r.undo = nil
	return errors.Join(errs...)
}
