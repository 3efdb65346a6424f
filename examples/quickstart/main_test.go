package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

const patience = time.Minute

// The program charges once for an order that is sent twice, and ends without an error on SIGTERM.
func TestAnOrderThatIsSentTwiceIsChargedOnce(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "quickstart")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for name, broker := range map[string]string{"in this process": "", "RabbitMQ": rabbittest.URL()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if broker != "" {
				rabbittest.Delete(t, []string{"order.created.shop", "order.created.shop.dead"}, []string{"order.created"})
			}
			runQuickstart(t, binary, broker)
		})
	}
}

// runQuickstart gives the program a separate database, because the name of its schema is fixed.
func runQuickstart(t *testing.T, binary, broker string) {
	database, address := pgtest.DirectDatabase(t), freeAddress(t)
	program := exec.CommandContext(t.Context(), binary)
	program.Env = append(os.Environ(), "DATABASE_URL="+database, "AMQP_URL="+broker, "LISTEN="+address)
	var log bytes.Buffer
	program.Stderr = &log
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()

	await(t, "/readyz of "+address, func() bool { return send(t, "GET", "http://"+address+"/readyz", "") == http.StatusOK })
	for range 2 {
		if status := send(t, "POST", "http://"+address+"/orders", "order-1"); status != http.StatusAccepted {
			t.Errorf("POST /orders: %d, want 202", status)
		}
	}
	pool := pgtest.Pool(t, database)
	payments := func() (n int) {
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM shop.payment").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	await(t, "payment", func() bool { return payments() > 0 })
	_ = program.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the program ended with %v:\n%s", err, log.String())
		}
	case <-time.After(patience):
		t.Fatalf("the program still runs %s after SIGTERM", patience)
	}
	if n := payments(); n != 1 {
		t.Errorf("%d payments, want 1", n)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// send returns the status of an answer, 0 without one.
func send(t *testing.T, method, url, key string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(`{"item":"book","amount":4200}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Tenant", "acme")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

// await asks until holds is true.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("no %s after %s", what, patience)
		}
		<-time.After(20 * time.Millisecond)
	}
}
