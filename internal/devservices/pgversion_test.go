package devservices

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChosenPostgres(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  pgChoice
		bad   bool
	}{
		{value: ""},
		{value: "14", want: pgChoice{major: "14"}},
		{value: "/usr/pgsql-17/bin", want: pgChoice{bin: "/usr/pgsql-17/bin"}},
		{value: "13", bad: true},
		{value: "17.2", bad: true},
		{value: "pgsql-17/bin", bad: true},
	} {
		t.Setenv(postgresVariable, tt.value)
		got, err := chosenPostgres()
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%s=%s: %+v, %v; want %+v", postgresVariable, tt.value, got, err, tt.want)
		}
		if _, err := prepareRun(&Options{}); (err != nil) != tt.bad {
			t.Errorf("run with %s=%s: %v", postgresVariable, tt.value, err)
		}
	}
}

// fakePostgres makes a directory of binaries that tell a version.
func fakePostgres(t *testing.T, version string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	for _, name := range []string{"initdb", "postgres"} {
		script := "#!/bin/sh\necho '" + name + " (PostgreSQL) " + version + "'\n"
		writeScript(t, filepath.Join(bin, name), script)
	}
	return bin
}

// A server of another version than was asked for would test something else, and say
// that it was this.
func TestChosenBins(t *testing.T) {
	bin := fakePostgres(t, "14.23 (Debian 14.23-1)")
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	if got := (pgChoice{major: "14"}).binDirectories(t.Context()); len(got) == 0 || got[0] != bin {
		t.Errorf("bins of version 14 = %q, want %q first", got, bin)
	}
	for _, other := range (pgChoice{major: "18"}).binDirectories(t.Context()) {
		if other == bin {
			t.Errorf("binaries of version 14 are taken for 18")
		}
	}
	t.Setenv(postgresVariable, bin)
	if got, err := PostgresBin(t.Context()); got != bin || err != nil {
		t.Errorf("PostgresBin = %q, %v; want %q", got, err, bin)
	}
	t.Setenv(postgresVariable, t.TempDir())
	if got, err := PostgresBin(t.Context()); err == nil || !strings.Contains(err.Error(), postgresVariable) {
		t.Errorf("PostgresBin without binaries = %q, %v; want an error that names %s", got, err, postgresVariable)
	}
}

func TestVersionInsteadOfNamed(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://u:hunter2@h/d")
	r := &run{postgres: pgChoice{major: "14"}}
	ways := r.postgresWays()
	var names []string
	for _, w := range ways {
		names = append(names, w.name)
	}
	if got := strings.Join(names, " "); got != "env private npm" {
		t.Errorf("ways to a version = %q, want env private npm", got)
	}
	if _, err := ways[0].try(t.Context()); !errors.Is(err, errRefused) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("DATABASE_URL and a version = %v, want %v and no password", err, errRefused)
	}
}

// Without npm a version that is asked for is missing, and one that is only preferred changes nothing.
func TestFetchPostgresWithoutNPM(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(postgresVariable, "")
	remove, err := FetchPostgres(t.Context())
	if err != nil || os.Getenv(postgresVariable) != "" {
		t.Fatalf("no version is asked for: %v, %s=%q", err, postgresVariable, os.Getenv(postgresVariable))
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	for major := range npmVersions {
		installed := len((pgChoice{major: major}).binDirectories(t.Context())) > 0
		t.Setenv(postgresVariable, major)
		remove, err := FetchPostgres(t.Context())
		if installed != (err == nil) || !installed && !errors.Is(err, errAbsent) {
			t.Errorf("%s is asked for, installed: %t: %v", major, installed, err)
		}
		if err == nil {
			err = remove()
		}
		if installed && err != nil {
			t.Error(err)
		}
	}
}
