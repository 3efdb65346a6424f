package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sagamill/sagamill/internal/devservices"
)

// paceVariable holds the flags of `go test` that say how much runs at once. The Makefile has the default, for a server
// with enough connections.
const paceVariable = "SAGAMILL_PACE"

// The connections to PostgreSQL that tests need at once, with four parallel tests in each package. The package that
// needed most had 52, and two at a time 99.
const (
	onePackage  = 64
	twoPackages = 120
)

// choosePace returns the value of paceVariable for a server on which so many of limit connections are free, and a line
// that explains it. Both are "" if the default fits. It returns an error if the tests would run out of connections.
func choosePace(free, limit int) (pace, line string, err error) {
	has := fmt.Sprintf("the PostgreSQL server has %d of its %d connections free", free, limit)
	switch {
	case free >= twoPackages:
		return "", "", nil
	case free >= onePackage:
		return "-p=1 -parallel=4", fmt.Sprintf("%s: the tests run one package at a time (two at a time need %d)", has, twoPackages), nil
	default:
		return "", "", fmt.Errorf("with: %s, and the tests need %d: restart it with max_connections=200, end the programs that use it, or unset DATABASE_URL", has, onePackage)
	}
}

// addPace adds to env the pace for which the server of s has enough connections. It does not change a pace that the
// user has chosen.
func addPace(ctx context.Context, s *devservices.Services, env []string, log io.Writer) ([]string, error) {
	if os.Getenv(paceVariable) != "" {
		return env, nil
	}
	free, limit, err := s.CountConnections(ctx)
	if err != nil {
		return nil, fmt.Errorf("with: count the connections of PostgreSQL: %w", err)
	}
	pace, line, err := choosePace(free, limit)
	if err != nil || pace == "" {
		return env, err
	}
	fmt.Fprintln(log, "with: "+line)
	return append(env, paceVariable+"="+pace), nil
}

// programs are the programs that the command needs, with packages of Debian of the same names.
type programs []string

func (p *programs) String() string { return strings.Join(*p, ",") }

func (p *programs) Set(name string) error {
	*p = append(*p, name)
	return nil
}

// install installs programs that are missing, as [devservices.Program] does. The tests that need the others report
// themselves as not run.
func (p programs) install(ctx context.Context, log io.Writer) error {
	if _, err := devservices.InstallForbidden(); err != nil {
		return err
	}
	for _, name := range p {
		if _, err := devservices.Program(ctx, log, name, name); err != nil {
			if ctx.Err() != nil {
				return errors.Join(ctx.Err(), err)
			}
			fmt.Fprintf(log, "with: %v: what needs it is not tested\n", err)
		}
	}
	return nil
}
