package outbox

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A storm is random writers, relays that come and go, and a broker with moods.
// The oracle is committed, a record of what the writers know to have committed: all of
// it must be published in the end, nothing else, and each key in the order of its versions.
var (
	stormFor  = flag.Duration("storm", 2*time.Second, "how long the writers of a storm write")
	stormSeed = flag.Uint64("seed", 0, "of the storms; 0 draws one")
)

const (
	stormKeys    = 6
	stormTopics  = 3 // the messages of each key are of all of them
	stormWriters = 4
	stormRelays  = 3
	stormDrain   = 30 * time.Second // a stall is a bug too
)

// A storm is one run.
type storm struct {
	*fixture
	t    *testing.T
	seed uint64
	keep time.Duration

	broker *moodyBroker
	proxy  *pgtest.Proxy
	lossy  *pgxpool.Pool // through proxy

	mu        sync.Mutex
	committed map[string]bool // payloads
}

// rand returns the numbers of one part of the storm.
func (s *storm) rand(part uint64) *rand.Rand { return rand.New(rand.NewPCG(s.seed, part)) }

func TestStorm(t *testing.T) {
	t.Parallel()
	seed := *stormSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	for name, keep := range map[string]time.Duration{"emptied": NoRetention, "kept": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &storm{fixture: newFixture(t, sqlCreateAccount), t: t, seed: seed, keep: keep, committed: map[string]bool{}}
			s.proxy, s.lossy = pgtest.NewProxy(t)
			s.broker = &moodyBroker{rand: s.rand(1000), seed: seed, refused: map[string]int{}}
			t.Logf("-storm=%v -seed=%d", *stormFor, seed)
			s.run()
		})
	}
}

func (s *storm) run() {
	s.exec(s.t, "INSERT INTO {schema}.account SELECT 'k' || i, 0 FROM generate_series(0, $1::int - 1) i", stormKeys)

	snapshot, err := s.pool.BeginTx(s.t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = snapshot.Rollback(s.t.Context()) }()
	if _, err := snapshot.Exec(s.t.Context(), "SELECT 1"); err != nil {
		s.t.Fatal(err)
	}

	stop := make(chan struct{})
	var writing, relaying sync.WaitGroup
	for i := range stormWriters {
		writing.Go(func() { s.write(s.rand(uint64(i)), stop) })
	}
	writing.Go(func() { s.stayOpen(stop) })
	for i := range stormRelays {
		relaying.Go(func() { s.relays(s.rand(uint64(100+i)), stop) })
	}
	relaying.Go(func() { s.depose(s.rand(300), stop) })
	_ = backoff.Sleep(s.t.Context(), *stormFor)
	close(stop)
	writing.Wait()
	relaying.Wait()
	s.broker.mu.Lock()
	s.broker.calm = true
	s.broker.mu.Unlock()
	s.drain()
	s.check()
}

// write commits and rolls back until stop.
func (s *storm) write(r *rand.Rand, stop <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		var wrote []string
		err := pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) (err error) {
			if r.IntN(2) == 0 { // an id long before the messages, and before those of who commits first
				if _, err := tx.Exec(s.t.Context(), "SELECT pg_current_xact_id()"); err != nil {
					return err
				}
				_ = backoff.Sleep(s.t.Context(), time.Duration(r.IntN(20))*time.Millisecond)
			}
			wrote, err = s.transaction(tx, r)
			if err == nil && r.IntN(8) == 0 {
				_ = backoff.Sleep(s.t.Context(), time.Duration(r.IntN(50))*time.Millisecond)
			}
			if err == nil && r.IntN(5) == 0 {
				err = errRollBack
			}
			return err
		})
		if err == nil {
			s.commit(wrote)
		} else if !errors.Is(err, errRollBack) {
			s.t.Errorf("writer: %v", err)
			return
		}
	}
}

func (s *storm) commit(wrote []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range wrote {
		s.committed[w] = true
	}
}

// transaction writes messages of one to three keys in tx, some of them within a
// savepoint, and returns those that are left.
func (s *storm) transaction(tx pgx.Tx, r *rand.Rand) (wrote []string, err error) {
	for range 1 + r.IntN(2) {
		var part []string
		outside := r.IntN(2) == 0
		within := func(in pgx.Tx) (err error) {
			part, err = s.messages(in, r)
			if err == nil && !outside && r.IntN(2) == 0 {
				return errRollBack
			}
			return err
		}
		if outside {
			err = within(tx)
		} else {
			err = pgx.BeginFunc(s.t.Context(), tx, within) // a savepoint
		}
		if err != nil && (outside || !errors.Is(err, errRollBack)) {
			return nil, err
		}
		if err == nil {
			wrote = append(wrote, part...)
		}
		if len(part) > 0 {
			return wrote, nil // a second part might lock keys in another order
		}
	}
	return wrote, nil
}

// messages locks some keys, in their order, and writes some messages of each in
// one call, and now and then a delayed one, which must come behind those of its key.
func (s *storm) messages(tx pgx.Tx, r *rand.Rand) (wrote []string, err error) {
	keys := r.Perm(stormKeys)[:1+r.IntN(3)]
	slices.Sort(keys)
	var messages []Message
	var version int
	for _, k := range keys {
		n := 1 + r.IntN(3)
		err := tx.QueryRow(s.t.Context(), "UPDATE "+s.schema+".account SET version = version + $2 WHERE key = $1 RETURNING version",
			fmt.Sprint("k", k), n).Scan(&version)
		if err != nil {
			return nil, err
		}
		for v := version - n + 1; v <= version; v++ {
			messages = append(messages, on(fmt.Sprint("t", v%stormTopics), msg(fmt.Sprint("k", k), fmt.Sprintf("k%d:%d", k, v))))
		}
	}
	if r.IntN(6) == 0 {
		k := keys[len(keys)-1]
		m := msg(fmt.Sprint("k", k), fmt.Sprintf("late:k%d:%d:%d", k, version, r.Uint64()))
		m.Delay = time.Duration(1+r.IntN(100)) * time.Millisecond
		messages = append(messages, m)
	}
	for _, m := range messages {
		wrote = append(wrote, string(m.Payload))
	}
	if r.IntN(2) == 0 {
		return wrote, s.writer.Write(s.t.Context(), tx, messages...)
	}
	batch := &pgx.Batch{}
	if err := s.writer.Queue(s.t.Context(), batch, messages...); err != nil {
		return nil, err
	}
	return wrote, tx.SendBatch(s.t.Context(), batch).Close()
}

// stayOpen writes at once and commits at the end.
func (s *storm) stayOpen(stop <-chan struct{}) {
	err := pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		if err := s.fixture.writer.Write(s.t.Context(), tx, msg("open", "open:1"), msg("open", "open:2")); err != nil {
			return err
		}
		<-stop
		return nil
	})
	if err != nil {
		s.t.Errorf("the writer that stays open: %v", err)
	}
	s.commit([]string{"open:1", "open:2"})
}

// relays runs one relay after the other until stop.
func (s *storm) relays(r *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Duration(20+r.IntN(500))*time.Millisecond)
		if err := s.relay(r).Run(ctx); err != nil {
			s.t.Errorf("Run = %v", err)
		}
		cancel()
	}
}

// depose ends the lease of the active relay, which continues until it notices. For a while it loses the relays'
// commits, or the answers to them.
func (s *storm) depose(r *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			s.proxy.Lose(pgtest.LoseNothing)
			return
		case <-time.After(time.Duration(30+r.IntN(100)) * time.Millisecond):
			s.exec(s.t, "UPDATE {schema}.outbox_relay SET lease_until = 'epoch'")
			s.proxy.Lose([]pgtest.Loss{pgtest.LoseNothing, pgtest.LoseReply, pgtest.LoseNothing, pgtest.LoseCommit}[r.IntN(4)])
		}
	}
}

// relay returns a relay with limits so small that each is reached.
func (s *storm) relay(r *rand.Rand) *Relay {
	db := []*pgxpool.Pool{s.pool, s.lossy}[r.IntN(2)]
	relay, err := NewRelay(db, s.broker, &RelayOptions{
		Schema: s.schema, Logger: slog.New(slog.DiscardHandler), NoListen: r.IntN(2) == 0,
		Window: 1 + r.IntN(30), Lanes: 1 + r.IntN(4), DrainTimeout: time.Duration(1+r.IntN(200)) * time.Millisecond,
		PollMin: time.Millisecond, PollMax: 10 * time.Millisecond, MaxAttempts: 1000, RetryBase: time.Millisecond, RetryCap: 20 * time.Millisecond,
		RotateBytes: 1, RotateAfter: time.Nanosecond, Retention: s.keep,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	relay.opts.Lease = 200 * time.Millisecond
	relay.limits = limits{
		list: 1 + r.IntN(20), page: 1 + r.IntN(20), small: 1 + r.IntN(8), large: r.IntN(8), cursors: int64(1 + r.IntN(10)),
		held: 5 * time.Millisecond, rotate: time.Duration(1+r.IntN(20)) * time.Millisecond, stall: 50 * time.Millisecond,
		resume: 1 + r.IntN(10),
	}
	relay.topics.patience = 10 * time.Millisecond
	return relay
}

// drain lets relays run until nothing is left.
func (s *storm) drain() {
	stop := make(chan struct{})
	var relaying sync.WaitGroup
	relaying.Go(func() { s.relays(s.rand(200), stop) })
	ctx, cancel := context.WithCancel(s.t.Context())
	calm, err := NewRelay(s.pool, s.broker, &RelayOptions{Schema: s.schema, Retention: s.keep, Logger: slog.New(slog.DiscardHandler), RetryBase: time.Millisecond, RetryCap: 20 * time.Millisecond})
	if err != nil {
		s.t.Fatal(err)
	}
	relaying.Go(func() { _ = calm.Run(ctx) })
	defer relaying.Wait()
	defer cancel()
	defer close(stop)
	reading := s.relay(s.rand(201))
	left := counts{Stored: 1}
	for deadline := time.Now().Add(stormDrain); left != (counts{}); left = s.stats(s.t, reading) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not drained within %v: %+v", stormDrain, left)
		}
		_ = backoff.Sleep(s.t.Context(), 10*time.Millisecond)
	}
}

// check compares what was published with what was committed.
func (s *storm) check() {
	published := s.broker.accepted
	seen := map[string]bool{}
	last := map[string]int{}
	for _, p := range published {
		if seen[p] {
			continue
		}
		seen[p] = true
		key, number, _ := strings.Cut(p, ":")
		if key == "late" {
			parts := strings.Split(number, ":")
			if version, _ := strconv.Atoi(parts[1]); last[parts[0]] < version {
				s.t.Errorf("%s was first published after %s:%d", p, parts[0], last[parts[0]])
			}
			continue
		}
		version, err := strconv.Atoi(number)
		if err != nil || version != last[key]+1 {
			s.t.Errorf("%s was first published after %s:%d", p, key, last[key])
		}
		last[key] = max(version, last[key])
	}
	for w := range s.committed {
		if !seen[w] {
			s.t.Errorf("%s was committed and not published", w)
		}
	}
	for p := range seen {
		if !s.committed[p] {
			s.t.Errorf("%s was published and not committed", p)
		}
	}
	if s.keep > 0 {
		kept := s.texts(s.t, "SELECT convert_from(payload, 'utf8') FROM {schema}.outbox")
		for w := range s.committed {
			if !slices.Contains(kept, w) {
				s.t.Errorf("%s was committed, and the log has not kept it", w)
			}
		}
	}
	if len(s.committed) < 10 {
		s.t.Errorf("%d messages are no storm", len(s.committed))
	}
	s.t.Logf("%d messages of %d keys, %d published again", len(seen), len(slices.Collect(maps.Keys(last))), len(published)-len(seen))
}

// A moodyBroker refuses some messages a few times, is away now and then, takes none of
// a topic for a while, and sometimes takes a message without saying so.
type moodyBroker struct {
	seed uint64

	mu       sync.Mutex
	calm     bool // from now on it takes everything
	rand     *rand.Rand
	away     int            // publications until it comes back
	stalled  map[string]int // calls until it takes messages of the topic again
	refused  map[string]int // how often
	accepted []string
}

var errAway = errors.New("the broker is away")

func (b *moodyBroker) PublishBatch(ctx context.Context, batch []Publication) []error {
	results := make([]error, len(batch))
	if err := b.stall(ctx, batch[0].Topic); err != nil {
		for i := range results {
			results[i] = err
		}
		return results
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, p := range batch {
		results[i] = b.publish(string(p.Message.Payload))
	}
	return results
}

// stall returns an error if the broker takes none of a topic at present, in some calls
// when ctx ends.
func (b *moodyBroker) stall(ctx context.Context, topic string) error {
	b.mu.Lock()
	if b.stalled == nil {
		b.stalled = map[string]int{}
	}
	if b.stalled[topic] == 0 && b.rand.IntN(60) == 0 {
		b.stalled[topic] = 1 + b.rand.IntN(20)
	}
	if b.calm || b.stalled[topic] == 0 {
		b.mu.Unlock()
		return nil
	}
	b.stalled[topic]--
	hangs := b.rand.IntN(3) == 0
	b.mu.Unlock()
	if !hangs {
		return ErrDeferred
	}
	_ = backoff.Sleep(ctx, time.Second)
	return cmp.Or(context.Cause(ctx), errAway)
}

func (b *moodyBroker) publish(payload string) error {
	if b.calm {
		b.accepted = append(b.accepted, payload)
		return nil
	}
	if b.away > 0 {
		b.away--
		return errAway
	}
	if b.rand.IntN(300) == 0 {
		b.away = 1 + b.rand.IntN(10)
		return errAway
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(payload))
	if times := int((h.Sum64() ^ b.seed) % 30); times < 6 && b.refused[payload] < times {
		b.refused[payload]++
		return fmt.Errorf("%w: not yet", ErrRefused)
	}
	b.accepted = append(b.accepted, payload)
	if b.rand.IntN(200) == 0 {
		return errors.New("the answer is lost")
	}
	return nil
}
