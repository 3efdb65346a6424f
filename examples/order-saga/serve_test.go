package main

import (
	"bufio"
	"bytes"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

// The error of a port in use names the port and the flag, and comes before any server is looked for or started.
func TestAPortInUseIsFoundFirst(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	t.Setenv("DATABASE_URL", "")
	t.Setenv("AMQP_URL", "")
	t.Setenv("SAGAMILL_SERVICES", "private")
	address := listener.Addr().String()
	var out, complaint bytes.Buffer
	code := runCommand(t.Context(), []string{"serve", "-listen", address}, &out, &complaint)
	want := "order-saga: -listen: " + address + " is in use by another program: end that one, or run order-saga serve -listen 127.0.0.1:0, which takes a free port\n"
	if code != 2 || complaint.String() != want {
		t.Errorf("exit %d, %q; want 2 and %q", code, complaint.String(), want)
	}
}

// The lines that serve prints lead to its private server, with the password; and the database is not said to be kept.
func TestServePrintsExportsThatWork(t *testing.T) {
	t.Parallel()
	if _, err := devservices.PostgresBin(t.Context()); err != nil {
		needtest.Missing(t, "postgres", "%v", err)
	}
	serve := exec.CommandContext(t.Context(), os.Args[0], "serve", "-listen", "127.0.0.1:0")
	serve.Env = append(os.Environ(), "ORDER_SAGA_MAIN=1", "DATABASE_URL=", "AMQP_URL="+devservices.InProcess, "SAGAMILL_SERVICES=private,env")
	stderr, err := serve.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	exports, said := "", ""
	for lines := bufio.NewScanner(stderr); lines.Scan() && !strings.Contains(lines.Text(), "msg=serving"); {
		said += lines.Text() + "\n"
		if strings.HasPrefix(lines.Text(), "export ") {
			exports += lines.Text() + "\n"
		}
	}
	if !strings.Contains(said, "database order_saga, gone with its server when this program ends") || strings.Contains(said, "kept") {
		t.Errorf("serve does not say what becomes of its database:\n%s", said)
	}
	url, err := exec.CommandContext(t.Context(), "sh", "-c", exports+`printf %s "$DATABASE_URL"`).Output()
	if err != nil {
		t.Fatalf("no shell reads %q: %v", exports, err)
	}
	conn, err := pgx.Connect(t.Context(), string(url))
	if err != nil {
		t.Fatalf("the printed URL does not work: %v\n%s", err, said)
	}
	if _, err := conn.Exec(t.Context(), "SELECT FROM order_service.outbox"); err != nil {
		t.Error(err)
	}
	_ = conn.Close(t.Context())
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}
