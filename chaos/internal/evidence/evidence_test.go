package evidence

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/load"
	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/backoff"
)

const drainTimeout = 3 * time.Minute

// TestARunWithoutFaults runs all parts without any fault. Each saga of the load ends as its kind requires. Each
// poison is a dead letter of each service that got it, and no sample finds a contradiction. Copies are
// published as a relay publishes them. Publishing the whole history again changes nothing, however often.
//
// The parts build on each other.
func TestARunWithoutFaults(t *testing.T) {
	t.Parallel()
	s := startSite(t)
	s.keepHistory(t)
	began := time.Now()
	r := &trial{site: s, probe: s.probe(t), dir: t.TempDir(), now: func() record.At { return time.Since(began) }}
	r.run(t)
	r.drain(t)
	r.replay(t)
	if err := DumpTables(t.Context(), s.db, r.dir); err != nil {
		t.Fatal(err)
	}
	r.probe.check(t, r.dir)
	checkOps(t, r.dir)
	checkPoison(t, r.dir)
	checkSamples(t, r.dir)
	r.checkSessions(t)
	checkMessages(t, r.dir)
	s.checkWitness(t)
	s.checkLeft(t)
}

// A trial is a run.
type trial struct {
	*site
	probe *probe
	dir   string
	now   func() record.At
}

// run runs load, injector and sampler together.
func (r *trial) run(t *testing.T) {
	t.Helper()
	o := record.Options{Storm: 4 * time.Second, Sagas: 200, Clients: 16, Trips: 40}
	ops, samples, injections := create[record.Op](t, r.dir, record.ClientFile), create[record.Sample](t, r.dir, record.SamplesFile), create[record.Injection](t, r.dir, record.InjectedFile)
	l, err := load.NewLoad(load.Options{Seed: 1, Run: o, Orders: []string{r.orders}, Trips: []string{r.trips}, Ops: ops, Now: r.now})
	if err != nil {
		t.Fatal(err)
	}
	o.Sagas *= 5 // so that there is enough poison
	injector, err := NewInjector(InjectorOptions{DB: r.db, Broker: r.broker, Seed: 1, Run: o, Out: injections, Now: r.now})
	if err != nil {
		t.Fatal(err)
	}
	sampler, err := NewSampler(SamplerOptions{DB: r.db, Broker: r.broker, Out: samples, Now: r.now})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all, loading sync.WaitGroup
	start := func(group *sync.WaitGroup, run func(context.Context) error) {
		group.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	start(&all, sampler.Run)
	start(&loading, l.Run)
	random := rand.New(rand.NewPCG(1, 1))
	for i, c := range recipes {
		injector.publishPoison(ctx, c.makePoison(random, Listeners[i%len(Listeners)]))
	}
	start(&all, injector.Run)
	await(t, "sagas, poison and duplicates", func() bool {
		in := injector.Injected()
		return l.BegunSagas() >= 200 && in.Poison > len(recipes)+5 && in.Handled >= 20
	})
	stop()
	loading.Wait()
	all.Wait()
	if err := errors.Join(ops.Close(), samples.Close(), injections.Close()); err != nil {
		t.Fatal(err)
	}
	t.Logf("begun %d sagas, injected %+v", l.BegunSagas(), injector.Injected())
	await(t, "dead letters", func() bool {
		left, err := injector.Unburied(t.Context())
		return err == nil && len(left) == 0
	})
}

// checkSessions makes a session show a secret, which a sample must report.
func (r *trial) checkSessions(t *testing.T) {
	t.Helper()
	s := &Sampler{opts: SamplerOptions{DB: r.db}}
	for _, show := range []string{"SELECT 1", "SELECT '" + record.Card + "'"} {
		conn, err := r.db.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		var sample record.Sample
		if _, err := conn.Exec(t.Context(), show); err != nil {
			t.Fatal(err)
		}
		if err := s.sessions(t.Context(), &sample); err != nil {
			t.Fatal(err)
		}
		if leaks := strings.Contains(show, record.Card); leaks != (sample.Leak == "a card") {
			t.Errorf("while a session shows %s the sample has %q", show, sample.Leak)
		}
	}
}

func (r *trial) drain(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), drainTimeout)
	defer cancel()
	if left := AwaitDrained(ctx, r.db, r.broker); len(left) > 0 {
		t.Fatalf("not drained: %q", left)
	}
}

// replay publishes the whole history again, twice.
func (r *trial) replay(t *testing.T) {
	t.Helper()
	before := r.effects(t)
	for seed := range uint64(2) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*drainTimeout)
		n, err := ReplayHistory(ctx, r.db, r.broker, ReplayOptions{Seed: seed})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("published %d messages again", n)
		if after := r.effects(t); after != before {
			t.Errorf("replay %d has changed something:\n%s", seed, difference(before, after))
		}
	}
}

// await waits until is reports true.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), drainTimeout)
	defer cancel()
	for !is() {
		if backoff.Sleep(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("no %s", what)
		}
	}
}

func create[T any](t *testing.T, dir, name string) *record.Writer[T] {
	t.Helper()
	w, err := record.CreateFile[T](dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// difference returns the lines in which two fingerprints differ.
func difference(before, after string) string {
	was := strings.Split(before, "\n")
	var lines []string
	for line := range strings.Lines(after) {
		if line = strings.TrimSpace(line); !slices.Contains(was, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// rows reads a table that was dumped.
func rows[T any](t *testing.T, dir, name string) []T {
	t.Helper()
	all, err := record.ReadAll[T](dir, record.TablesDir+"/"+name+".jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// checkOps compares the clients' answers with the states of their sagas.
func checkOps(t *testing.T, dir string) {
	t.Helper()
	type ended struct{ ID, Status, Reason string }
	status := map[string]string{}
	late := map[string]bool{}
	for _, name := range []string{"order_service.orders", "trip_service.saga"} {
		for _, r := range rows[ended](t, dir, name) {
			status[r.ID] = r.Status
			late[r.ID] = r.Status == load.Compensated && (strings.Contains(r.Reason, "deadline") || strings.Contains(r.Reason, "within"))
		}
	}
	replies := map[string]string{}
	outcomes := map[string]int{}
	sagas := map[string]bool{}
	for op, err := range record.ReadFile[record.Op](dir, record.ClientFile) {
		if err != nil {
			t.Fatal(err)
		}
		outcomes[op.Method+" "+op.Outcome]++
		if op.Problem == "urn:idemkey:problem:key-reused" {
			outcomes["reused"]++
		}
		if op.Method != "POST" || op.Outcome != record.OK {
			continue
		}
		sagas[op.ID] = true
		kind, ok := load.FindKind(op.Saga, op.Kind)
		if !ok || !slices.Contains(kind.Ends, status[op.ID]) && !late[op.ID] {
			t.Errorf("%s %s (%s) ended %q, want one of %q", op.Saga, op.ID, op.Kind, status[op.ID], kind.Ends)
		}
		name := op.Saga + " " + op.Tenant + " " + op.Key
		if reply, ok := replies[name]; ok && reply != op.Reply {
			t.Errorf("%s has two replies, the second %+v", name, op)
		}
		replies[name] = op.Reply
	}
	t.Logf("requests: %v", outcomes)
	if len(sagas) != len(status) || outcomes["reused"] == 0 {
		t.Errorf("clients know %d sagas, the tables %d; %d keys were used again", len(sagas), len(status), outcomes["reused"])
	}
}

// checkPoison compares dead letters with injected poison, both ways.
func checkPoison(t *testing.T, dir string) {
	t.Helper()
	type letter struct {
		State     string
		Reason    string
		Topic     string
		Payload   string
		MessageID string `json:"message_id"`
	}
	dead := map[string][]string{} // by message id: services
	for _, name := range speaking() {
		for _, l := range rows[letter](t, dir, name+".parked") {
			dead[l.MessageID] = append(dead[l.MessageID], name+" "+l.State+" "+l.Reason+" "+l.Topic+" "+l.Payload)
		}
	}
	kinds := map[string]int{}
	for in, err := range record.ReadFile[record.Injection](dir, record.InjectedFile) {
		if err != nil {
			t.Fatal(err)
		}
		if in.Kind != record.Poison {
			continue
		}
		reason, _, _ := strings.Cut(in.What, ":")
		kinds[reason]++
		var want []string
		for _, l := range Listeners {
			if l.Topic == in.Topic {
				want = append(want, l.Schema+" dead "+reason+" "+in.Topic+" "+in.Payload)
			}
		}
		slices.Sort(want)
		got := dead[in.MessageID]
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("poison %+v became %q, want %q", in, got, want)
		}
		delete(dead, in.MessageID)
	}
	t.Logf("poison by reason: %v", kinds)
	if len(dead) > 0 {
		t.Errorf("dead letters that nobody has injected: %v", dead)
	}
}

// checkMessages looks for the messages of every topic, delayed ones too.
func checkMessages(t *testing.T, dir string) {
	t.Helper()
	topics := map[string]int{}
	seen := map[string]bool{}
	delayed := 0
	for m, err := range record.ReadFile[record.Message](dir, record.OutboxFile) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[m.MessageID] || m.Tx == 0 || m.Payload == "" || m.Held != "" {
			t.Errorf("message %+v", m)
		}
		seen[m.MessageID] = true
		topics[m.Topic]++
		if m.Delayed {
			delayed++
		}
		if len(listening(m.Topic, m.Type)) == 0 {
			t.Errorf("nobody is known to listen to type %s of topic %s", m.Type, m.Topic)
		}
	}
	for _, l := range Listeners {
		if topics[l.Topic] == 0 {
			t.Errorf("there is no message of %s", l.Topic)
		}
	}
	t.Logf("%d messages, %d delayed: %v", len(seen), delayed, topics)
	if delayed == 0 {
		t.Error("no message was delayed")
	}
}

func checkSamples(t *testing.T, dir string) {
	t.Helper()
	all, err := record.ReadAll[record.Sample](dir, record.SamplesFile)
	if err != nil || len(all) == 0 {
		t.Fatalf("%d samples, %v", len(all), err)
	}
	asked := 0
	for _, s := range all {
		if len(s.Unbalanced) > 0 || s.Err != "" {
			t.Errorf("sample %+v", s)
		}
		if s.Asked {
			asked++
		}
	}
	if asked == 0 {
		t.Error("no sample has asked for the invariants")
	}
	t.Logf("last of %d samples: %+v", len(all), all[len(all)-1])
}
