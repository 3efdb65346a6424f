package evidence

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

const startTimeout = 60 * time.Second

// A site runs both examples, one process of each service, on a separate database and in separate namespaces.
type site struct {
	db     *pgxpool.Pool
	broker Broker
	orders string
	trips  string
}

func startSite(t *testing.T) *site {
	t.Helper()
	programs := t.TempDir()
	build := exec.Command("go", "-C", "../../..", "build", "-o", programs, "./examples/order-saga", "./examples/trip-saga") // of the other module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the examples: %v\n%s", err, out)
	}
	url := pgtest.Database(t)
	names := map[string]string{record.Order: rabbittest.Name() + record.Order, record.Trip: rabbittest.Name() + record.Trip}
	s := &site{broker: Broker{URL: rabbittest.URL(), Namespace: func(saga string) string { return names[saga] }}}
	s.deleteQueues(t)
	s.orders = startProcess(t, url, filepath.Join(programs, "order-saga"), "serve", "-namespace", names[record.Order])
	s.trips = startProcess(t, url, filepath.Join(programs, "trip-saga"), "serve", "-namespace", names[record.Trip], "-patience", "5s")
	s.db = pgtest.Pool(t, url)
	awaitReady(t, s.orders)
	awaitReady(t, s.trips)
	if err := InstallTriggers(t.Context(), s.db); err != nil {
		t.Fatal(err)
	}
	return s
}

// startProcess runs a service until the test ends, and returns its URL.
func startProcess(t *testing.T, database, program string, args ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	var out bytes.Buffer
	cmd := exec.Command(program, append(args, "-listen", address)...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "AMQP_URL="+rabbittest.URL(), "GOMAXPROCS=1")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	devservices.DieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the end is not under test
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), out.Bytes()[max(0, out.Len()-4096):])
		}
	})
	return "http://" + address
}

func awaitReady(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		if backoff.Sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("%s is not ready: %v", url, err)
		}
	}
}

// deleteQueues removes what the examples have declared when the test ends.
func (s *site) deleteQueues(t *testing.T) {
	var exchanges []string
	for _, l := range Listeners {
		exchanges = append(exchanges, s.broker.exchange(l.Saga, l.Topic))
	}
	t.Cleanup(func() {
		conn, err := amqp.Dial(s.broker.URL)
		if err != nil {
			t.Errorf("clean up: %v", err)
			return
		}
		defer conn.Close()
		ch, err := conn.Channel()
		for _, queue := range s.broker.queueNames() {
			if err == nil {
				_, err = ch.QueueDelete(queue, false, false, false)
			}
		}
		for _, exchange := range exchanges {
			if err == nil {
				err = ch.ExchangeDelete(exchange, false, false)
			}
		}
		if err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}
