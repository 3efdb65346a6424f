// Package adopt tests the move of a service from watermill-amqp to sagamill.
package adopt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

const patience = time.Minute

// A move changes few lines, imports among them: lines of the second program that the first does not have.
func TestTheMoveChangesFewLines(t *testing.T) {
	t.Parallel()
	for _, move := range []struct {
		before, after string
		most          int
	}{{"before", "after", 20}, {"sendbefore", "sendafter", 40}} {
		has := map[string]int{}
		for _, line := range codeLines(t, move.before+"/main.go") {
			has[line]++
		}
		changed := 0
		for _, line := range codeLines(t, move.after+"/main.go") {
			if has[line]--; has[line] < 0 {
				changed++
			}
		}
		t.Logf("%s to %s: %d lines changed", move.before, move.after, changed)
		if changed > move.most {
			t.Errorf("%s to %s: %d lines changed, want at most %d", move.before, move.after, changed, move.most)
		}
	}
}

// codeLines returns the lines of a file from its imports on.
func codeLines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, body, found := strings.Cut(string(text), "import (\n")
	if !found {
		t.Fatalf("%s has no imports", file)
	}
	return strings.Split(strings.TrimSpace(body), "\n")
}

// A fleet is one process of a program, which is started again when it is killed.
type fleet struct {
	binary string
	env    []string
	cmd    *exec.Cmd
}

func (f *fleet) start(t *testing.T) {
	t.Helper()
	f.cmd = exec.Command(f.binary)
	f.cmd.Env = f.env
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (f *fleet) kill() {
	_ = f.cmd.Process.Kill()
	_ = f.cmd.Wait()
}

// Old and new processes take turns at one queue and are killed again and again. No greeting is lost, and what the new
// ones do, they do once.
func TestFaultsOfMixedFleets(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const greetings, kills = 600, 24
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	database, topic := pgtest.DirectDatabase(t), "greetings-"+rabbittest.Name()
	rabbittest.Delete(t, []string{topic}, nil)
	pool := pgtest.Pool(t, database)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE greeting (id text, text text, fleet text)"); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "DATABASE_URL="+database, "AMQP_URL="+rabbittest.URL(), "TOPIC="+topic)
	var fleets []*fleet
	for _, name := range []string{"before", "after"} {
		binary := filepath.Join(t.TempDir(), name)
		if out, err := exec.Command("go", "build", "-o", binary, "./"+name).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
		for range 2 {
			f := &fleet{binary: binary, env: env}
			f.start(t)
			t.Cleanup(f.kill)
			fleets = append(fleets, f)
		}
	}
	publisher, err := wamqp.NewPublisher(wamqp.NewDurableQueueConfig(rabbittest.URL()), watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = publisher.Close() })
	sent := 0
	publish := func(n int) {
		for range n {
			sent++
			msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "greeting %d", sent))
			for range 1 + random.IntN(8)/7 { // a publisher that tries again sends some twice
				if err := publisher.Publish(topic, msg.Copy()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	await(t, "a greeting of a new process, which makes its tables first", func() bool {
		publish(1)
		return count(t, pool, "SELECT count(*) FROM greeting WHERE fleet = 'new'") > 0
	})
	for range kills {
		before := count(t, pool, "SELECT count(*) FROM greeting")
		publish(greetings / kills)
		await(t, "progress", func() bool { return count(t, pool, "SELECT count(*) FROM greeting") > before })
		f := fleets[random.IntN(len(fleets))]
		f.kill()
		f.start(t)
	}
	await(t, "all greetings", func() bool { return count(t, pool, "SELECT count(DISTINCT id) FROM greeting") == sent })
	for _, f := range fleets {
		f.kill()
	}
	byNew := count(t, pool, "SELECT count(*) FROM greeting WHERE fleet = 'new'")
	doubled := count(t, pool, "SELECT count(*) FROM (SELECT FROM greeting WHERE fleet = 'new' GROUP BY id HAVING count(*) > 1) d")
	t.Logf("%d greetings, %d kills: %d stored by new processes, %d of them twice; %d stored by old ones", sent, kills, byNew, doubled,
		count(t, pool, "SELECT count(*) FROM greeting WHERE fleet = 'old'"))
	if doubled != 0 || byNew == 0 {
		t.Errorf("%d greetings stored by new processes, %d of them twice", byNew, doubled)
	}
	if dead := count(t, pool, "SELECT count(*) FROM greeter.parked WHERE state = 'dead'"); dead != 0 {
		t.Errorf("%d dead letters", dead)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, query string) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.WithoutCancel(t.Context()), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// await asks until done returns true.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); !done(); {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("no %s after %s", what, patience)
		}
	}
}
