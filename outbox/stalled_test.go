package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A topicBroker is a Publisher whose topic red does what the test says.
type topicBroker struct {
	mu       sync.Mutex
	red      func(context.Context) error // nil: it is taken
	accepted []string
	asked    int // messages of red
}

func (b *topicBroker) PublishBatch(ctx context.Context, batch []Publication) []error {
	results := make([]error, len(batch))
	b.mu.Lock()
	red := b.red
	b.mu.Unlock()
	if batch[0].Topic == "red" && red != nil {
		b.mu.Lock()
		b.asked += len(batch)
		b.mu.Unlock()
		err := red(ctx)
		for i := range results {
			results[i] = err
		}
		return results
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range batch {
		b.accepted = append(b.accepted, string(p.Message.Payload))
	}
	return results
}

func (b *topicBroker) set(red func(context.Context) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.red = red
}

// published returns what was accepted, each message at its first time.
func (b *topicBroker) published() (firsts []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.accepted {
		if !slices.Contains(firsts, p) {
			firsts = append(firsts, p)
		}
	}
	return firsts
}

// hang is a queue that neither confirms nor refuses.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// nack is a queue that is full, or has no leader.
func nack(context.Context) error { return fmt.Errorf("nacked: %w", ErrDeferred) }

func on(topic string, m Message) Message {
	m.Topic = topic
	return m
}

// stalling returns a relay onto b whose limits are small.
func (f *fixture) stalling(t *testing.T, b Publisher, opts RelayOptions) *Relay {
	t.Helper()
	r := f.relay(t, opts)
	r.pub = b
	r.topics.patience = 20 * time.Millisecond
	return r
}

// While the queue of a topic takes nothing, other topics go on, the messages of that topic
// spend no attempt, and the order of each key is kept. When the queue is back they go out
// by themselves.
func TestAStalledTopicHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	fail := func(context.Context) error { return errors.New("outcome unknown") }
	for name, red := range map[string]func(context.Context) error{"hangs": hang, "nacks": nack, "fails": fail} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aside := counts{Waiting: 80}
			f := newFixture(t)
			b := &topicBroker{red: red}
			r := f.stalling(t, b, RelayOptions{Window: 8, Lanes: 2, MaxAttempts: 1})
			start(t, r)
			blue := 0
			for i := range 40 {
				f.write(t, on("red", msg(fmt.Sprint("r", i), fmt.Sprintf("red%d", i))), on("blue", msg(fmt.Sprint("r", i), fmt.Sprintf("behind%d", i))))
				f.write(t, on("blue", msg(fmt.Sprint("b", i), fmt.Sprintf("blue%d", i))))
				blue++
			}
			eventually(t, "every blue message is published, or one behind a red one", func() bool {
				return len(b.published()) >= blue
			})
			for _, p := range b.published() {
				if !strings.HasPrefix(p, "blue") {
					t.Fatalf("%s was published before the red message of its key", p)
				}
			}
			eventually(t, "the red messages are kept aside", func() bool { return f.stats(t, r) == aside })
			if got := r.Counters(); got.Dead != 0 || got.Refused != 0 || got.Stalled != 1 {
				t.Errorf("counters %+v, want one stalled topic and no refusal", got)
			}
			b.set(nil)
			eventually(t, "all is published", func() bool { return f.stats(t, r) == counts{} })
			published := b.published()
			if len(published) != blue+80 {
				t.Errorf("%d messages were published, want %d", len(published), blue+80)
			}
			for i := range 40 {
				if slices.Index(published, fmt.Sprintf("red%d", i)) > slices.Index(published, fmt.Sprintf("behind%d", i)) {
					t.Errorf("behind%d overtook red%d", i, i)
				}
			}
			if n := r.Counters().Stalled; n != 0 {
				t.Errorf("%d topics stall in the end", n)
			}
		})
	}
}

// A stalled topic is asked with a message at a time, not with all that wait.
func TestAStalledTopicIsProbed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := &topicBroker{red: nack}
	r := f.stalling(t, b, RelayOptions{})
	start(t, r)
	const waiting = 500
	for i := range waiting {
		f.write(t, on("red", msg(fmt.Sprint("r", i), fmt.Sprint("red", i))))
		f.write(t, on("blue", msg("b", fmt.Sprint("blue", i))))
	}
	eventually(t, "the red messages are kept aside", func() bool { return f.stats(t, r) == counts{Waiting: waiting} })
	b.mu.Lock()
	before := b.asked
	b.mu.Unlock()
	var after int
	eventually(t, "the topic is probed", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		after = b.asked
		return after >= before+2
	})
	if after > before+10 {
		t.Errorf("%d messages were sent to probe a stalled topic, want a few", after-before)
	}
}

// What waits for a stalled topic when the relay dies is tried at once by the next one.
func TestAnotherRelayTriesWhatWaitsForAStalledTopic(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := &topicBroker{red: nack}
	stop := start(t, f.stalling(t, b, RelayOptions{}))
	for i := range 30 {
		f.write(t, on("red", msg(fmt.Sprint("r", i), fmt.Sprint("red", i))))
		f.write(t, on("blue", msg("b", fmt.Sprint("blue", i))))
	}
	r := f.stalling(t, b, RelayOptions{})
	r.limits.resume = 7
	eventually(t, "the red messages are kept aside", func() bool { return f.stats(t, r) == counts{Waiting: 30} })
	stop()
	f.exec(t, "UPDATE {schema}.outbox_held SET due_at = due_at + interval '1 hour'") // so that time alone brings none back
	b.set(nil)
	start(t, r)
	eventually(t, "all is published", func() bool { return f.stats(t, r) == counts{} && len(b.published()) == 60 })
}

// A topic that takes nothing and fills the window makes room for others, although none of
// them has got through by then.
func TestAStalledTopicDoesNotKeepTheWindow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := &topicBroker{red: nack}
	for i := range 100 {
		f.write(t, on("red", msg(fmt.Sprint("r", i), fmt.Sprint("red", i))))
	}
	f.write(t, on("blue", msg("b", "blue")))
	r := f.stalling(t, b, RelayOptions{Window: 10})
	r.limits.stall = time.Hour
	start(t, r)
	eventually(t, "the blue message is published", func() bool { return slices.Equal(b.published(), []string{"blue"}) })
}

// A message that the queue defers while others of its topic get through is tried again
// later, and never becomes a dead letter.
func TestADeferredMessageSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broker.answer = func(p Publication) error {
		if string(p.Message.Payload) == "late" {
			return ErrDeferred
		}
		return nil
	}
	r := f.relay(t, RelayOptions{MaxAttempts: 1, Lanes: 1})
	start(t, r)
	f.write(t, msg("k", "late"), msg("k", "behind"))
	for i := range 2 * maxStrikes {
		f.write(t, msg("o", fmt.Sprint("other", i)))
		eventually(t, "others get through", func() bool { return len(f.broker.payloads()) == i+1 })
		f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp() WHERE due_at < 'infinity'")
	}
	eventually(t, "it waits", func() bool {
		return f.stats(t, r) == counts{Waiting: 2} || f.stats(t, r) == counts{Waiting: 1, Stored: 1}
	})
	f.broker.mu.Lock()
	f.broker.answer = nil
	f.broker.mu.Unlock()
	eventually(t, "it is published", func() bool { return f.stats(t, r) == counts{} })
}

// The messages in flight take half of the window's bytes, and all of them while the broker does not answer, give or take
// a message. Go's heap grows to twice as much.
func TestMessagesInFlightKeepToTheBytesOfTheWindow(t *testing.T) {
	t.Parallel()
	const payload, fit = 1000, 12 // so many messages take WindowBytes
	for name, c := range map[string]struct {
		state string
		stall time.Duration
		most  int
	}{
		"stored": {"", time.Hour, fit/2 + 1}, "stored, no answer": {"", 0, fit + 1},
		"due": {"delayed", time.Hour, fit/2 + 1}, "due, no answer": {"delayed", 0, fit/2 + 1},
		"held": {"refused", time.Hour, fit/4 + 1}, "held, no answer": {"refused", 0, fit/4 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if c.state == "" {
				f.fill(t, 40)
			} else {
				f.hold(t, 40, c.state, "-1 s")
			}
			for _, table := range []string{"outbox", "outbox_held"} {
				f.exec(t, "UPDATE {schema}."+table+" SET payload = convert_to(repeat('x', $1), 'utf8')", payload)
			}
			l := f.leader(t, RelayOptions{WindowBytes: fit * (payload + messageOverhead)})
			l.limits.stall = c.stall
			for range 50 { // nobody publishes
				if _, err := l.doRound(t.Context(), false); err != nil {
					t.Fatal(err)
				}
			}
			memory := 0
			for _, p := range l.window.pages {
				for i := range p.items {
					memory += p.items[i].memory()
				}
			}
			if n := l.window.messages; n < c.most-2 || n > c.most || l.window.bytes != memory {
				t.Errorf("%d messages are in flight, and %d bytes count; want up to %d messages, which take %d bytes",
					n, l.window.bytes, c.most, memory)
			}
		})
	}
}

// A message that is decided takes no memory for its payload, although its page waits for another one.
func TestADecidedMessageKeepsNoPayload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.leader(t, RelayOptions{Lanes: 1})
	f.write(t, msg("k", "published"), msg("o", "refused"))
	f.publishPage(t, l, func(p Publication) error {
		if string(p.Message.Payload) == "refused" {
			return ErrRefused
		}
		return nil
	})
	for _, m := range l.window.pages[0].items {
		if m.outcome == undecided || m.Payload != nil || m.Headers != nil {
			t.Errorf("a message with the outcome %d has a payload of %d bytes", m.outcome, len(m.Payload))
		}
	}
}

// A person sees what waits for a stalled topic, and may give it up: it is a dead letter
// then, and what waits behind it goes on.
func TestAPersonReleasesWhatWaitsForAStalledTopic(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := &topicBroker{red: nack}
	r := f.stalling(t, b, RelayOptions{})
	start(t, r)
	f.write(t, on("red", msg("k", "red")), on("blue", msg("k", "behind")))
	letters := f.letters(t)
	var listed []DeadLetter
	eventually(t, "the message is kept aside", func() bool {
		var err error
		listed, err = letters.List(t.Context(), retrying, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(listed) == 1
	})
	l := listed[0]
	if l.Topic != "red" || l.Attempts != 0 || l.Error == "" || l.DueAt.IsZero() || l.LastAt.IsZero() {
		t.Errorf("listed is %+v", l)
	}
	if got, err := letters.Get(t.Context(), l.ID); err != nil || string(got.Payload) != "red" {
		t.Errorf("Get = %q, %v", got.Payload, err)
	}
	if n, err := letters.Bury(t.Context(), l.ID); n != 1 || err != nil {
		t.Fatalf("Release = %d, %v", n, err)
	}
	eventually(t, "what waits behind it is published", func() bool { return slices.Equal(b.published(), []string{"behind"}) })
	eventually(t, "it is a dead letter", func() bool { return f.stats(t, r) == counts{Dead: 1} })
}

// The relay locks what waits for the moment in which it reads. A person who gives up the message before it waits for
// that lock: what is skipped would be found only a minute later.
func TestWhatWaitsIsFreedAlthoughItIsLocked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.hold(t, 1, "refused", "1 hour")
	f.hold(t, 1, "waiting", "0")
	f.exec(t, "UPDATE {schema}.outbox_held SET ordering_key = 'one'")
	ids := f.ids(t, "outbox_held", 2)
	reader, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.Background()) }()
	if _, err := reader.Exec(t.Context(), strings.ReplaceAll("SELECT FROM {schema}.outbox_held WHERE id = $1 FOR UPDATE", "{schema}", f.schema), ids[1]); err != nil {
		t.Fatal(err)
	}
	letters, buried := f.letters(t), make(chan error, 1)
	go func() {
		_, err := letters.Bury(t.Context(), ids[0])
		buried <- err
	}()
	eventually(t, "the burial waits, or is done", func() bool {
		if len(buried) > 0 {
			return true
		}
		var waits bool
		err := f.pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))", reader.Conn().PgConn().PID()).Scan(&waits)
		return err == nil && waits
	})
	if err := reader.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-buried; err != nil {
		t.Fatal(err)
	}
	var due bool
	if err := f.pool.QueryRow(t.Context(), "SELECT due_at < 'infinity' FROM "+f.schema+".outbox_held WHERE id = $1", ids[1]).Scan(&due); err != nil || !due {
		t.Errorf("the message behind is due: %t, %v", due, err)
	}
}

// The relay waits for the burial, which must not wait for a person who has locked a message. It says so, and changes
// nothing.
func TestABurialDoesNotWaitForAPerson(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"the message", "the message behind it"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.hold(t, 1, "refused", "1 hour")
			f.hold(t, 1, "waiting", "0")
			f.exec(t, "UPDATE {schema}.outbox_held SET ordering_key = 'one'")
			ids := f.ids(t, "outbox_held", 2)
			person, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = person.Rollback(context.Background()) }()
			if _, err := person.Exec(t.Context(), strings.ReplaceAll("SELECT FROM {schema}.outbox_held WHERE id = $1 FOR UPDATE", "{schema}", f.schema), ids[i]); err != nil {
				t.Fatal(err)
			}
			letters, buried := f.letters(t), make(chan error, 1)
			go func() {
				_, err := letters.Bury(t.Context(), ids[0])
				buried <- err
			}()
			eventually(t, "the burial has given up", func() bool { return len(buried) > 0 })
			if err := <-buried; err == nil || !strings.Contains(err.Error(), "another session has locked a message") {
				t.Errorf("the burial: %v, want an error that names the lock", err)
			}
			if err := person.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if changed := f.texts(t, "SELECT id::text FROM {schema}.outbox_held WHERE state = 'dead' OR state = 'waiting' AND due_at < 'infinity'"); len(changed) > 0 {
				t.Errorf("the messages %s were changed", changed)
			}
			if n, err := letters.Bury(t.Context(), ids[0]); n != 1 || err != nil {
				t.Errorf("after the lock %d messages were buried, %v; want one", n, err)
			}
		})
	}
}

// A relay that is stuck sends nothing that could show that the broker is there: that others got
// through since the first failure of the topic is enough then.
func TestATopicStallsWhileTheRelayIsStuck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pressure pressure
		want     bool
	}{{calm, false}, {pressed, false}, {stuck, true}} {
		ts := topics{changed: func() {}}
		call := func(topic string, result error) { ts.endCall(ts.beginCall(topic), []error{result}, false) }
		ts.setPressure(c.pressure)
		call("red", errors.New("outcome unknown"))
		call("blue", nil)
		for range maxVain {
			call("red", errors.New("outcome unknown"))
		}
		if got := ts.isStalled("red"); got != c.want {
			t.Errorf("pressure %d: the topic stalls: %v, want %v", c.pressure, got, c.want)
		}
	}
}
