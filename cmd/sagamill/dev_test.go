package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// runIn runs a command line in a directory.
func runIn(t *testing.T, dir, args string) (code int, output string) {
	t.Helper()
	var out bytes.Buffer
	t.Chdir(dir)
	code = run(t.Context(), strings.Fields(args), &out, &out)
	return code, out.String()
}

// init refuses what is no name, and what exists, and says so. It leaves nothing behind then.
func TestInitRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o777); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for args, says := range map[string]string{
		"init":                             "NAME is missing",
		"init Shop -replace " + root:       `"Shop" is not of the form`,
		"init ../shop -replace " + root:    "is not of the form",
		"init shop cart -replace " + root:  `"cart" is one word too many`,
		"init taken -replace " + root:      "taken: file exists: choose another NAME",
		"init shop":                        "name their directory with -replace",
		"init shop -replace " + dir:        "no sources of github.com/sagamill/sagamill",
		"init shop -replace " + dir + "/x": "no sources of github.com/sagamill/sagamill",
	} {
		code, out := runIn(t, dir, args)
		if code != 1 || !strings.Contains(out, says) {
			t.Errorf("%s: %d %q, want %q", args, code, out, says)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// What init writes compiles, passes its own test, and can call the command as its tool.
func TestInitWritesAServiceThatWorks(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if code, out := runIn(t, dir, "init -replace "+root+" my-shop"); code != 0 || !strings.HasSuffix(out, "saga show order-1\n") {
		t.Fatalf("init: %d\n%s", code, out)
	}
	for _, command := range []string{"go mod tidy", "go vet ./...", "go test ./...", "go tool sagamill version"} {
		words := strings.Fields(command)
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Dir = filepath.Join(dir, "my-shop")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
}

// dev migrates, prints what a shell needs, and waits; with a command it has the servers in the command's environment.
func TestDev(t *testing.T) {
	t.Parallel()
	schema := pgtest.Name()
	pgtest.DropSchema(t, schema)
	ctx, stop := context.WithCancel(t.Context())
	out := &notifier{line: make(chan string, 10)}
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"dev", "-migrate", schema}, out, &bytes.Buffer{}) }()
	database := <-out.line
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("dev ended with %d", code)
	}
	url := strings.TrimSuffix(strings.TrimPrefix(strings.SplitN(database, "\n", 2)[0], "export DATABASE_URL='"), "'")
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("%q: %v", database, err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), "SELECT FROM "+schema+".saga"); err != nil {
		t.Error(err)
	}

	var said bytes.Buffer
	if code := run(t.Context(), []string{"dev", "sh", "-c", `echo "at $DATABASE_URL"`}, &said, &bytes.Buffer{}); code != 0 || !strings.Contains(said.String(), "at "+url) {
		t.Errorf("dev with a command: %d %q", code, said.String())
	}
	if code := run(t.Context(), []string{"dev", "sh", "-c", "exit 3"}, &said, &said); code != 1 || !strings.Contains(said.String(), "sh: exit status 3") {
		t.Errorf("dev with a command that fails: %d %q", code, said.String())
	}
}

// Commands find the servers of a program that runs, if nothing names others; the URL of a broker within that program
// helps nobody.
func TestCommandsFindARunningProgram(t *testing.T) {
	parent, err := os.MkdirTemp("/tmp", "sagamill-test-") // t.TempDir is closed to the accounts of servers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	schema := pgtest.Name()
	pgtest.DropSchema(t, schema)
	database := pgtest.Direct()
	t.Setenv("TMPDIR", parent)
	t.Setenv("DATABASE_URL", database)
	t.Setenv("AMQP_URL", "inproc:")
	program, err := devservices.Start(t.Context(), &devservices.Options{Log: io.Discard, Steps: "env", KeepDatabase: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	if err := program.Advertise("a program"); err != nil {
		t.Fatal(err)
	}
	twin, err := devservices.Start(t.Context(), &devservices.Options{Log: io.Discard, Steps: "env", KeepDatabase: true}) // with the same servers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = twin.Close() })
	if err := twin.Advertise("a program"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DATABASE_URL", "")
	t.Setenv("AMQP_URL", "")
	t.Setenv("SAGAMILL_SERVICES", "")
	topology := filepath.Join("..", "..", "examples", "order-saga", "topology.json")
	for _, tt := range []struct {
		args, says string
		code       int
	}{
		{"migrate up -schema " + schema, "sagamill: using the database of the running a program\n", 0},
		{"outbox status -database= -schema " + schema, "no database: give -database or set DATABASE_URL\n", 1},
		{"broker declare -topology " + topology, "no broker: the running a program has one that only it can use; give -amqp or set AMQP_URL\n", 1},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), strings.Fields(tt.args), &out, &out); code != tt.code || !strings.Contains(out.String(), tt.says) {
			t.Errorf("%s: %d %q, want %d and %q", tt.args, code, out.String(), tt.code, tt.says)
		}
	}
	t.Setenv("DATABASE_URL", "postgres://another.invalid/")
	var said bytes.Buffer
	run(t.Context(), []string{"version"}, &said, &said)
	run(t.Context(), []string{"status", "-schema", schema, "-database", database}, &said, &said)
	if strings.Contains(said.String(), "using DATABASE_URL") {
		t.Errorf("without a use of DATABASE_URL: %s", said.String())
	}
	run(t.Context(), []string{"status", "-schema", schema}, &said, &said)
	if !strings.Contains(said.String(), "sagamill: using DATABASE_URL, and not the database of the running a program\n") {
		t.Errorf("with another database in DATABASE_URL: %s", said.String())
	}
	t.Setenv("DATABASE_URL", "")
	if err := errors.Join(program.Close(), twin.Close()); err != nil {
		t.Error(err)
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"outbox", "status", "-schema", schema}, &out, &out); code != 1 || !strings.Contains(out.String(), "no database") {
		t.Errorf("after the end of the program: %d %q", code, out.String())
	}
}

// When dev ends, so does all that its command has started.
func TestDevEndsWhatItsCommandHasStarted(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	out := &notifier{line: make(chan string, 10)}
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"dev", "sh", "-c", "trap : TERM; sh -c 'trap \"echo ended\" EXIT; trap exit TERM; echo began; while :; do sleep 0.05; done'"}, out, &bytes.Buffer{})
	}()
	<-out.line
	stop()
	if said := <-out.line; said != "ended\n" {
		t.Errorf("the program of the command says %q", said)
	}
	if code := <-ended; code != 0 {
		t.Errorf("dev ended with %d", code)
	}
}

// A notifier hands over each text that is written.
type notifier struct{ line chan string }

func (n *notifier) Write(text []byte) (int, error) {
	n.line <- string(text)
	return len(text), nil
}
