package devservices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// postgresVariable chooses the binaries of private PostgreSQL servers: a major version, installed or
	// fetched with npm, or a directory with initdb and postgres.
	postgresVariable = "SAGAMILL_POSTGRES"

	preferredMajor = "18" // fetched if the run asks for no version
	versionTimeout = 5 * time.Second
)

// npmVersions are the packages with PostgreSQL's binaries, by major version.
var npmVersions = map[string]string{
	"14": "14.23.0-beta.17",
	"15": "15.18.0-beta.17",
	"16": "16.14.0-beta.17",
	"17": "17.10.0-beta.17",
	"18": "18.4.0-beta.17",
}

// A pgChoice is the choice of binaries for private servers. The zero value allows any.
type pgChoice struct {
	major string // "": any
	bin   string // "": where the major version is found
}

// preferredPostgres is the choice of [FetchPostgres] if the run asks for none.
var preferredPostgres = pgChoice{major: preferredMajor}

// chosenPostgres returns the choice in the environment.
func chosenPostgres() (pgChoice, error) {
	value := os.Getenv(postgresVariable)
	switch {
	case value == "":
		return pgChoice{}, nil
	case filepath.IsAbs(value):
		return pgChoice{bin: value}, nil
	case npmVersions[value] != "":
		return pgChoice{major: value}, nil
	}
	return pgChoice{}, fmt.Errorf("devservices: %s: %q is neither a directory nor a major version (there are %s)",
		postgresVariable, value, strings.Join(slices.Sorted(maps.Keys(npmVersions)), ", "))
}

// binDirectories returns the installed directories of binaries that match the choice.
func (c pgChoice) binDirectories(ctx context.Context) []string {
	if c.bin != "" {
		return slices.DeleteFunc([]string{c.bin}, incomplete)
	}
	return slices.DeleteFunc(postgresBins(), func(bin string) bool { return c.major != "" && majorVersion(ctx, bin) != c.major })
}

// insteadOf takes the place of the server that dsn names. A chosen version and a named server exclude each
// other.
func (c pgChoice) insteadOf(dsn string) (instance, error) {
	if dsn == "" {
		return instance{}, serviceAbsent("DATABASE_URL is not set")
	}
	return instance{}, fmt.Errorf("DATABASE_URL is %w together with %s=%s: unset one", errRefused, postgresVariable, c.major)
}

// String returns the choice as the end of an error about missing binaries.
func (c pgChoice) String() string {
	if c == (pgChoice{}) {
		return ""
	}
	return fmt.Sprintf(" as %s=%s asks for", postgresVariable, cmp.Or(c.major, c.bin))
}

// majorVersion returns the major version of the server in bin, and "" if the server does not print it.
func majorVersion(ctx context.Context, bin string) string {
	out, err := program{path: filepath.Join(bin, "postgres"), args: []string{"--version"}}.runProgram(ctx, versionTimeout)
	if err != nil {
		return ""
	}
	_, version, _ := strings.Cut(out, "(PostgreSQL) ")
	return version[:len(version)-len(strings.TrimLeft(version, "0123456789"))]
}

// PostgresBin returns the directory with initdb and postgres for a program that starts servers itself: the
// choice of SAGAMILL_POSTGRES, or else the newest installed version. It fetches nothing. Under
// [Services.Environ] and after [FetchPostgres] it returns the binaries that these have fetched.
func PostgresBin(ctx context.Context) (string, error) {
	choice, err := chosenPostgres()
	if err != nil {
		return "", err
	}
	bins := choice.binDirectories(ctx)
	if len(bins) == 0 {
		return "", fmt.Errorf("devservices: no initdb and postgres on this machine%s", choice)
	}
	// A directory on PATH may hold links to the two programs, and nothing else of PostgreSQL.
	if path, err := filepath.EvalSymlinks(filepath.Join(bins[0], "postgres")); err == nil {
		return filepath.Dir(path), nil
	}
	return bins[0], nil
}

// FetchPostgres fetches the version that SAGAMILL_POSTGRES asks for, 18 if it asks for none, unless it is installed. Until
// remove is called, this process and its children have it as [PostgresBin]. If no version is asked for and 18 cannot be
// had, a line says so, and [PostgresBin] returns what is installed. Call remove when the servers have ended.
func FetchPostgres(ctx context.Context) (remove func() error, err error) {
	r, err := prepareRun(&Options{})
	if err != nil {
		return nil, err
	}
	wanted := r.postgres
	if wanted == (pgChoice{}) {
		wanted = preferredPostgres
	}
	if wanted.bin != "" || len(wanted.binDirectories(ctx)) > 0 {
		return r.closeRun, nil
	}
	bin, err := r.unpackPostgres(ctx)
	if err == nil {
		asked := os.Getenv(postgresVariable)
		r.undoOnClose(func() error { return os.Setenv(postgresVariable, asked) })
		err = os.Setenv(postgresVariable, bin)
	}
	if err != nil && r.postgres == (pgChoice{}) && ctx.Err() == nil {
		r.printLine("PostgreSQL %s cannot be had, so the newest that is installed: %s", preferredMajor, oneLine(err))
		err = nil
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devservices: PostgreSQL: %w", err), r.closeRun())
	}
	return r.closeRun, nil
}
