package adopt

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/migrations"
)

// greeted are the greetings that an old subscriber has received.
type greeted struct {
	mu  sync.Mutex
	all map[string]int
}

func receive(t *testing.T, topic string) *greeted {
	t.Helper()
	subscriber, err := wamqp.NewSubscriber(wamqp.NewDurableQueueConfig(rabbittest.URL()), watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = subscriber.Close() })
	messages, err := subscriber.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	g := &greeted{all: map[string]int{}}
	go func() {
		for msg := range messages {
			g.mu.Lock()
			g.all[string(msg.Payload)]++
			g.mu.Unlock()
			msg.Ack()
		}
	}()
	return g
}

func (g *greeted) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all)
}

// A sender with an outbox is killed again and again, anywhere. Each visitor that it has stored is greeted, and nobody else.
func TestFaultsOfASender(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const kills, visitors = 12, 50
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	database, topic := pgtest.DirectDatabase(t), "greetings-"+rabbittest.Name()
	rabbittest.Delete(t, []string{topic}, nil)
	if err := migrations.Up(t.Context(), database, "greeter", migrations.Outbox); err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t, database)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE visitor (name text)"); err != nil {
		t.Fatal(err)
	}
	got := receive(t, topic)
	binary := filepath.Join(t.TempDir(), "sendafter")
	if out, err := exec.Command("go", "build", "-o", binary, "./sendafter").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	f := &fleet{binary: binary, env: append(os.Environ(), "DATABASE_URL="+database, "AMQP_URL="+rabbittest.URL(), "TOPIC="+topic)}
	for round := range kills {
		before := count(t, pool, "SELECT count(*) FROM visitor")
		names := f.startReading(t)
		go func() {
			for i := range visitors {
				_, _ = fmt.Fprintf(names, "v%d-%d\n", round, i)
			}
		}()
		enough := before + 1 + random.IntN(visitors)
		await(t, "visitors", func() bool { return count(t, pool, "SELECT count(*) FROM visitor") >= enough })
		f.kill()
	}
	if err := f.startReading(t).Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.kill)
	stored := count(t, pool, "SELECT count(*) FROM visitor")
	await(t, "all greetings", func() bool { return got.count() >= stored })
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Wait(); err != nil {
		t.Errorf("the sender ends with %v", err)
	}
	t.Logf("%d visitors", stored)
	for greeting := range got.all {
		if count(t, pool, "SELECT count(*) FROM visitor WHERE 'hello ' || name = '"+greeting+"'") != 1 {
			t.Errorf("%q is greeted, and no visitor", greeting)
		}
	}
}

// startReading starts the process, which reads what is written.
func (f *fleet) startReading(t *testing.T) io.WriteCloser {
	t.Helper()
	f.cmd = exec.Command(f.binary)
	f.cmd.Env = f.env
	names, err := f.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return names
}
