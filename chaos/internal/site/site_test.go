package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// patience limits waits, on a machine with other load.
const patience = 2 * time.Minute

// bystander is an environment variable. It makes the test binary open a site in the directory that it names,
// and wait to be killed.
const bystander = "CHAOS_SITE_BYSTANDER"

func TestMain(m *testing.M) {
	if work := os.Getenv(bystander); work != "" {
		openAndWait(work)
	}
	os.Exit(m.Run())
}

// openAndWait prints the ids of the servers' processes.
func openAndWait(work string) {
	s, err := OpenSite(context.Background(), Options{Dir: work + "/run", Work: work})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", s.spawner.thread.Load()))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	out, err := s.broker.node.Eval("list_to_integer(os:getpid())")
	fmt.Println(strings.TrimSpace(string(children)), out, err)
	select {}
}

// events collects the events of a site.
type events struct {
	mu  sync.Mutex
	all []record.Event
}

func (e *events) add(event record.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

// exits returns the Args of a process's exits, one on each line.
func (e *events) exits(process string) (args string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.all {
		if event.Fault == record.Exit && event.Target == process {
			args += event.Args + "\n"
		}
	}
	return args
}

// await waits until done returns true.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come about that %s", what)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.FailNow()
		}
	}
}

// scratch returns a directory that the servers' accounts can enter.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// open builds the programs and opens a site.
func open(t *testing.T, fuses func(string, int) string) (*Site, *events) {
	t.Helper()
	programs, err := BuildPrograms(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	log := &events{}
	s, err := OpenSite(t.Context(), Options{Dir: t.TempDir(), Work: scratch(t), Programs: programs, Log: log.add, Fuses: fuses})
	if errors.Is(err, ErrAbsent) {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, log
}

// fuses returns fuses for first starts: a flight service stops, and a hotel service is killed, when it becomes
// the active publisher.
func fuses(process string, start int) string {
	action := map[string]string{"flight": "stop", "hotel": "kill"}[ServiceOf(process)]
	if start > 1 || action == "" {
		return ""
	}
	return "outbox/before-take-over=" + action
}

func TestASiteAndWhatItTellsOfItsProcesses(t *testing.T) {
	t.Parallel()
	s, log := open(t, fuses)
	if err := s.StartProcesses(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "a fuse has killed a hotel service", func() bool {
		return strings.Contains(log.exits("hotel-1")+log.exits("hotel-2"), "by its fuse")
	})

	mail := s.processes["mail-1"]
	mail.mu.Lock()
	err := mail.cmd.Process.Kill() // as the kernel does when memory is short
	mail.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	await(t, "an end that nobody has caused is told", func() bool {
		return strings.HasPrefix(log.exits("mail-1"), "by itself: signal: killed")
	})

	for _, name := range Processes() {
		dies := name == "mail-1" || ServiceOf(name) == "hotel" // on its own, and may be just restarting
		if ok, err := s.KillProcess(name); err != nil || !ok && !dies {
			t.Errorf("Kill(%s) = %v, %v", name, ok, err)
		}
	}
	await(t, "who was killed is told", func() bool { return strings.Contains(log.exits("car-1"), "killed: signal: killed") })
	if err := s.AwaitReady(t.Context(), Processes()...); err != nil {
		t.Fatal(err)
	}
	if stopped, err := s.RestartProcess(t.Context(), "car-2"); err != nil || stopped.Code != 0 {
		t.Errorf("Restart = %+v, %v", stopped, err)
	}
	await(t, "who was told to stop is told", func() bool { return strings.Contains(log.exits("car-2"), "told to stop: exit status 0") })

	if all, err := s.Goroutines(t.Context()); len(all) != len(Processes()) || all["mail-1"] < 10 || err != nil {
		t.Errorf("Goroutines = %v, %v", all, err)
	}
	if n, err := s.BrokerConnections(); n == 0 || err != nil {
		t.Errorf("BrokerConnections = %d, %v, while services run", n, err)
	}
	for _, stopped := range s.StopProcesses(t.Context()) {
		if stopped.Code != 0 {
			t.Errorf("%s ended with %d after %s", stopped.Name, stopped.Code, stopped.Took)
		}
	}
	await(t, "no connection to the broker is left", func() bool {
		n, err := s.BrokerConnections()
		return n == 0 && err == nil
	})
	versions, err := s.Versions(t.Context())
	if err != nil || len(versions) != 2 || !regexp.MustCompile(`^PostgreSQL \d.* RabbitMQ \d`).MatchString(strings.Join(versions, " ")) {
		t.Errorf("Versions = %q, %v", versions, err)
	}
	for _, name := range Processes() {
		if args := log.exits(name); name != "mail-1" && strings.Contains(args, "by itself") {
			t.Errorf("%s ended %s", name, args)
		}
	}
}

// Committed rows and confirmed messages survive crashes of the servers.
func TestServersKeepTheirDataOverACrash(t *testing.T) {
	t.Parallel()
	s, err := OpenSite(t.Context(), Options{Dir: t.TempDir(), Work: scratch(t)})
	if errors.Is(err, ErrAbsent) {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.DatabasePool().Exec(t.Context(), "CREATE TABLE kept AS SELECT 42 AS answer"); err != nil {
		t.Fatal(err)
	}
	crashed := make(chan error, 1)
	go func() { crashed <- s.CrashPostgres(t.Context()) }()
	for over := false; !over; {
		if _, err := s.Terminate(t.Context(), ""); err != nil {
			t.Errorf("while the server crashes: %v", err)
		}
		select {
		case err := <-crashed:
			if over = true; err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	answer := 0
	await(t, "the pool has survived the crash", func() bool {
		err = s.DatabasePool().QueryRow(t.Context(), "SELECT answer FROM kept").Scan(&answer)
		return err == nil
	})
	if answer != 42 {
		t.Errorf("after the crash the table holds %d", answer)
	}

	publish(t, s.AMQPURL())
	if n, err := s.Received(); n != 1 || err != nil {
		t.Errorf("Received = %d, %v, want 1", n, err)
	}
	if err := s.KillBroker(); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Received(); n != 1 || err != nil {
		t.Errorf("after the broker was killed Received = %d, %v, want 1", n, err)
	}
	connection := dial(t, s.AMQPURL())
	if n, err := s.CloseConnections(); n != 1 || err != nil {
		t.Errorf("CloseConnections = %d, %v, want 1", n, err)
	}
	await(t, "the connection is closed", connection.IsClosed)
	ch, err := dial(t, s.AMQPURL()).Channel()
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the queue has its message again", func() bool {
		msg, ok, err := ch.Get("kept", true)
		if err != nil {
			t.Fatal(err)
		}
		return ok && string(msg.Body) == "42"
	})
}

func dial(t *testing.T, url string) *amqp.Connection {
	t.Helper()
	connection, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

// publish declares a queue and publishes a message to it, which the broker confirms.
func publish(t *testing.T, url string) {
	t.Helper()
	ch, err := dial(t, url).Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("kept", true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirmed, err := ch.PublishWithDeferredConfirm("", "kept", true, false, amqp.Publishing{Body: []byte("42")})
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := confirmed.WaitContext(t.Context()); !ok || err != nil {
		t.Fatalf("confirmed: %v, %v", ok, err)
	}
}

// A harness that is killed cleans nothing up, but no process outlives it.
func TestNothingOutlivesAHarnessThatIsKilled(t *testing.T) {
	t.Parallel()
	work := scratch(t)
	harness := exec.Command(os.Args[0])
	harness.Env = append(os.Environ(), bystander+"="+work)
	out, err := harness.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := harness.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 1<<10)
	n, _ := out.Read(line)
	_ = harness.Process.Kill()
	_ = harness.Wait()
	if strings.Contains(string(line[:n]), ErrAbsent.Error()) {
		t.Skipf("NOT TESTED: %s", line[:n])
	}
	said := strings.Fields(string(line[:n]))
	if len(said) != 3 || said[2] != "<nil>" {
		t.Fatalf("the harness says %q, want two processes", line[:n])
	}
	for _, text := range said[:2] {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		await(t, "process "+text+" is gone", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	}
}
