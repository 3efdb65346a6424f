package outbox

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testsignal"
)

// A scriptedBroker is a Publisher that answers as the test says and remembers
// what it accepted, in order.
type scriptedBroker struct {
	answer func(Publication) error // default: accept

	mu       sync.Mutex
	accepted []Publication
	offered  int

	signal testsignal.Signal[string] // the payload of each message that is accepted
}

func (b *scriptedBroker) PublishBatch(_ context.Context, batch []Publication) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	results := make([]error, len(batch))
	for i, p := range batch {
		b.offered++
		if b.answer != nil {
			results[i] = b.answer(p)
		}
		if results[i] == nil {
			b.accepted = append(b.accepted, p)
			b.signal.Send(string(p.Message.Payload))
		}
	}
	return results
}

// payloads returns what was accepted so far, in order.
func (b *scriptedBroker) payloads() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for _, p := range b.accepted {
		all = append(all, string(p.Message.Payload))
	}
	return all
}

// firsts returns payloads without repetitions.
func (b *scriptedBroker) firsts() []string {
	var firsts []string
	seen := map[string]bool{}
	for _, p := range b.payloads() {
		if !seen[p] {
			seen[p] = true
			firsts = append(firsts, p)
		}
	}
	return firsts
}

type fixture struct {
	pool   *pgxpool.Pool
	schema string
	writer *Writer
	broker *scriptedBroker
}

// The tables of tests whose schema others use after them.
const (
	sqlCreateAccount   = "CREATE TABLE {schema}.account (key text PRIMARY KEY, version int NOT NULL)"
	sqlCreateDelivered = "CREATE TABLE {schema}.delivered (position bigserial, message_id text, key text)"
	sqlCreateRefusing  = "CREATE TABLE {schema}.refusing AS SELECT true AS yes"
)

// newFixture returns one whose schema has the outbox, and what own creates.
func newFixture(t *testing.T, own ...string) *fixture {
	t.Helper()
	pool, schema := pgtest.Schema(t, own...)
	return newFixtureOn(t, pool, schema)
}

func newFixtureOn(t *testing.T, pool *pgxpool.Pool, schema string) *fixture {
	t.Helper()
	w, err := NewWriter(&WriterOptions{Schema: schema})
	if err != nil {
		t.Fatalf("NewWriter: %v", err)
	}
	return &fixture{pool: pool, schema: schema, writer: w, broker: &scriptedBroker{}}
}

// relay is a relay of the fixture's outbox. Unless opts has a Retention, it keeps nothing.
func (f *fixture) relay(t *testing.T, opts RelayOptions) *Relay {
	t.Helper()
	opts.Schema = f.schema
	opts.Retention = stdcmp.Or(opts.Retention, NoRetention)
	opts.PollMax = stdcmp.Or(opts.PollMax, 250*time.Millisecond) // the fixture's writes wake no relay
	opts.DrainTimeout = stdcmp.Or(opts.DrainTimeout, time.Second)
	opts.Logger = stdcmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	r, err := NewRelay(f.pool, f.broker, &opts)
	if err != nil {
		t.Fatalf("NewRelay: %v", err)
	}
	return r
}

func (f *fixture) write(t *testing.T, msgs ...Message) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error { return f.writer.Write(t.Context(), tx, msgs...) })
	if err != nil {
		t.Fatalf("Write: %v", err)
	}
}

// settle runs r until it finds nothing to do, and returns what went wrong before
// that.
func settle(t *testing.T, r *Relay) error {
	t.Helper()
	r.signals.rested.Enable()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	err := r.signals.rested.Wait(t)
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
	return err
}

// mustSettle is settle where nothing may go wrong.
func mustSettle(t *testing.T, r *Relay) {
	t.Helper()
	if err := settle(t, r); err != nil {
		t.Fatalf("relay: %v", err)
	}
}

func (f *fixture) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", f.schema), args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// counts are the part of [Stats] that says where messages are.
type counts struct{ Stored, Delayed, Waiting, Refused, Dead int }

func (f *fixture) stats(t *testing.T, r *Relay) counts {
	t.Helper()
	s, err := r.Stats(t.Context())
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	return counts{s.Stored, s.Delayed, s.Waiting, s.Refused, s.Dead}
}

func msg(key, payload string) Message {
	return Message{Topic: "t", Scope: "tenant", Key: key, Step: "step", Payload: []byte(payload)}
}

func TestQueriesArePreparable(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.Schema(t)
	pgtest.PrepareAll(t, newQueries(schema))
}

func TestAMessageArrivesAsItWasWritten(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	f.write(t, Message{
		Topic: "orders", Type: "order.created", Scope: "tenant ü", Key: "k:1 2", Step: "pay", N: "a.1",
		Payload: []byte("{\x00\xff}"), ContentType: "application/x-test", ID: id, CorrelationID: "saga", CausationID: "cause",
		Headers: map[string]string{"traceparent": "00-1", "x-own": "ü\n"},
	})
	r := f.relay(t, RelayOptions{})
	mustSettle(t, r)
	got := f.broker.accepted[0]
	if got.Topic != "orders" || got.Message.UUID != id || string(got.Message.Payload) != "{\x00\xff}" {
		t.Errorf("published %s %s %q", got.Topic, got.Message.UUID, got.Message.Payload)
	}
	stamp := got.Message.Metadata[PropertyTimestamp]
	if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil {
		t.Errorf("timestamp %q: %v", stamp, err)
	}
	delete(got.Message.Metadata, PropertyTimestamp)
	want := map[string]string{
		HeaderKey: "k:1 2:pay#a.1", HeaderScope: "tenant ü", HeaderCausation: "cause", "traceparent": "00-1", "x-own": "ü\n",
		PropertyType: "order.created", PropertyCorrelation: "saga", PropertyContentType: "application/x-test",
	}
	if diff := cmp.Diff(want, map[string]string(got.Message.Metadata)); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	mustSettle(t, r)
	if got := len(f.broker.accepted); got != 1 {
		t.Errorf("it was published %d times", got)
	}
}

func TestARolledBackMessageIsNeverPublished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.writer.Write(t.Context(), tx, msg("k", "1")); err != nil {
		t.Fatal(err)
	}
	r := f.relay(t, RelayOptions{})
	mustSettle(t, r)
	if got := f.broker.payloads(); len(got) != 0 {
		t.Errorf("published %q of an open transaction", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustSettle(t, r)
	if got := f.broker.payloads(); len(got) != 0 {
		t.Errorf("published %q of a transaction that rolled back", got)
	}
}

// A transaction that commits after a younger one has been published is not passed
// over, neither for the smaller ids of its messages nor for its own.
func TestAMessageThatCommitsLateIsPublished(t *testing.T) {
	t.Parallel()
	for name, window := range map[string]int{"read": 0, "listed first": smallDifference / 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			late, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer late.Rollback(context.WithoutCancel(t.Context()))
			if err := f.writer.Write(t.Context(), late, msg("late", "late")); err != nil {
				t.Fatal(err)
			}
			f.write(t, msg("early", "early"))
			r := f.relay(t, RelayOptions{Window: window})
			mustSettle(t, r)
			if err := late.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			mustSettle(t, r)
			if got := f.broker.payloads(); !slices.Equal(got, []string{"early", "late"}) {
				t.Errorf("published %q, want early and then late", got)
			}
		})
	}
}

// What one Write stores is published in its order, whichever statement it takes.
func TestMessagesOfOneWriteKeepTheirOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var want []string
	for _, n := range []int{maxValues, 10 * maxValues} {
		var msgs []Message
		for range n {
			payload := fmt.Sprint(len(want))
			want, msgs = append(want, payload), append(msgs, msg("k", payload))
		}
		f.write(t, msgs...)
	}
	mustSettle(t, f.relay(t, RelayOptions{}))
	if got := f.broker.payloads(); !slices.Equal(got, want) {
		t.Errorf("published %q, want %q", got, want)
	}
}

// A message of which the broker has said nothing is not published, also if nothing
// comes behind it: the next relay sends it again.
func TestAMessageWhoseOutcomeIsUnknownIsNotPublished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, msg("k", "1"))
	f.broker.answer = func(Publication) error { return errors.New("connection lost") }
	r := f.relay(t, RelayOptions{})
	if err := settle(t, r); err == nil {
		t.Error("the relay has nothing to say of a connection that was lost")
	}
	f.broker.answer = nil
	mustSettle(t, r)
	if got := f.broker.payloads(); !slices.Equal(got, []string{"1"}) {
		t.Errorf("published %q, want the message", got)
	}
}

func TestWriteRefusesWhatNoBrokerCouldCarry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	long := strings.Repeat("x", 300)
	many := map[string]string{}
	for i := range MaxHeaders + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for name, change := range map[string]func(*Message){
		"Topic empty":     func(m *Message) { m.Topic = "" },
		"Topic long":      func(m *Message) { m.Topic = long },
		"Topic control":   func(m *Message) { m.Topic = "a\nb" },
		"Type":            func(m *Message) { m.Type = long },
		"Scope empty":     func(m *Message) { m.Scope = "" },
		"Scope long":      func(m *Message) { m.Scope = long },
		"Scope NUL":       func(m *Message) { m.Scope = "a\x00" },
		"key empty":       func(m *Message) { m.Key = "" },
		"key long":        func(m *Message) { m.Key = long },
		"key unicode":     func(m *Message) { m.Key = "ü" },
		"step":            func(m *Message) { m.Step = "Pay" },
		"n":               func(m *Message) { m.N = "a:b" },
		"Payload":         func(m *Message) { m.Payload = make([]byte, MaxPayload+1) },
		"ContentType":     func(m *Message) { m.ContentType = "a\r\nb" },
		"CorrelationID":   func(m *Message) { m.CorrelationID = long },
		"CausationID":     func(m *Message) { m.CausationID = "\x1b[31m" },
		"OrderingKey":     func(m *Message) { m.OrderingKey = "\xff" },
		"ID":              func(m *Message) { m.ID = "7" },
		"Delay negative":  func(m *Message) { m.Delay = -1 },
		"Delay long":      func(m *Message) { m.Delay = MaxDelay + 1 },
		"header reserved": func(m *Message) { m.Headers = map[string]string{"X-Idempotency-Key": "x"} },
		"header CC":       func(m *Message) { m.Headers = map[string]string{"CC": "x"} },
		"header name":     func(m *Message) { m.Headers = map[string]string{long: ""} },
		"header value":    func(m *Message) { m.Headers = map[string]string{"a": "\x00"} },
		"headers many":    func(m *Message) { m.Headers = many },
		"headers large":   func(m *Message) { m.Headers = map[string]string{"a": strings.Repeat("x", MaxHeaderBytes)} },
	} {
		m := msg("k", "")
		change(&m)
		tx, err := f.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = f.writer.Write(t.Context(), tx, msg("k", ""), m)
		field, _, _ := strings.Cut(name, " ")
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: Write = %v, want an ErrInvalid that says %s", name, err, field)
		}
		if err := f.writer.Write(t.Context(), tx, msg("k", "")); err != nil {
			t.Errorf("%s: the transaction is not usable any more: %v", name, err)
		}
		tx.Rollback(t.Context())
	}
}

// A refusal or an unknown outcome holds back its own key and nothing else.
func TestOnlyTheKeyOfARefusedMessageWaits(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{"refused": fmt.Errorf("no queue: %w", ErrRefused), "unavailable": errors.New("connection lost")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var failing atomic.Bool
			failing.Store(true)
			f.broker.answer = func(p Publication) error {
				if failing.Load() && string(p.Message.Payload) == "a2" {
					return answer
				}
				return nil
			}
			for _, p := range []string{"a1", "a2", "a3", "b1", "a4", "b2"} {
				f.write(t, msg(p[:1], p))
			}
			r := f.relay(t, RelayOptions{Lanes: 1, RetryBase: time.Hour, RetryCap: time.Hour})
			if err := settle(t, r); (err == nil) != errors.Is(answer, ErrRefused) {
				t.Errorf("relay: %v", err)
			}
			f.write(t, msg("a", "a5"))
			_ = settle(t, r)
			if got := strings.Join(f.broker.firsts(), " "); got != "a1 b1 b2" {
				t.Errorf("published %q while a2 waits", got)
			}
			failing.Store(false)
			f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp()")
			mustSettle(t, r)
			if got := strings.Join(f.broker.firsts(), " "); got != "a1 b1 b2 a2 a3 a4 a5" {
				t.Errorf("published %q in the end", got)
			}
			if s := f.stats(t, r); s != (counts{}) {
				t.Errorf("left over: %+v", s)
			}
		})
	}
}

func TestOnlyARefusalSpendsAttempts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, msg("k", "1"))
	answer := errors.New("broker away")
	f.broker.answer = func(Publication) error { return answer }
	r := f.relay(t, RelayOptions{MaxAttempts: 3})
	for range 10 {
		if err := settle(t, r); !errors.Is(err, answer) {
			t.Fatalf("relay: %v, want the broker's error", err)
		}
	}
	if s := f.stats(t, r); s != (counts{Stored: 1}) {
		t.Errorf("after an outage: %+v, want the message stored", s)
	}
	answer = fmt.Errorf("unroutable: %w", ErrRefused)
	offered := f.broker.offered
	for i := range 5 {
		mustSettle(t, r)
		f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp()")
		want := counts{Refused: 1}
		if i >= 2 {
			want = counts{Dead: 1}
		}
		if s := f.stats(t, r); s != want {
			t.Errorf("after refusal %d: %+v, want %+v", i+1, s, want)
		}
	}
	if refusals := f.broker.offered - offered; refusals != 3 {
		t.Errorf("the broker refused the message %d times, want 3", refusals)
	}
	// The dead letter no longer holds back its key.
	answer = nil
	f.write(t, msg("k", "2"))
	mustSettle(t, r)
	if got := f.broker.payloads(); !slices.Equal(got, []string{"2"}) {
		t.Errorf("published %q behind a dead letter, want 2", got)
	}
}

func TestADelayedMessageIsPublishedWhenItIsDue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	late := msg("k", "late")
	late.Delay = 24 * 365 * time.Hour
	f.write(t, late, msg("k", "now"))
	r := f.relay(t, RelayOptions{})
	mustSettle(t, r)
	if got := f.broker.payloads(); !slices.Equal(got, []string{"now"}) {
		t.Errorf("published %q, want the message that is not delayed", got)
	}
	var hours int
	err := f.pool.QueryRow(t.Context(), "SELECT round(extract(epoch FROM due_at - created_at) / 3600)::int FROM "+f.schema+".outbox_held").Scan(&hours)
	if err != nil || hours != 24*365 {
		t.Errorf("due after %d h, %v; want a year", hours, err)
	}
	f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp()")
	mustSettle(t, r)
	if got := f.broker.payloads(); !slices.Equal(got, []string{"now", "late"}) {
		t.Errorf("published %q", got)
	}
}

// Writers lock the row of their key before they write, so that commits of a
// key have an order; the relays must keep it.
func TestManyRelaysPublishEveryKeyInCommitOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t, sqlCreateAccount)
	const writers, perWriter, keys = 8, 40, 5
	f.exec(t, "INSERT INTO {schema}.account SELECT 'k' || i, 0 FROM generate_series(0, $1 - 1) i", keys)

	ctx, stop := context.WithCancel(t.Context())
	var relays, writing sync.WaitGroup
	for range 3 {
		r := f.relay(t, RelayOptions{})
		relays.Go(func() { _ = r.Run(ctx) })
	}
	for w := range writers {
		writing.Go(func() {
			for i := range perWriter {
				key := fmt.Sprintf("k%d", (w+i)%keys)
				rollBack := i%5 == 0
				err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
					var version int
					if err := tx.QueryRow(t.Context(), "UPDATE "+f.schema+".account SET version = version + 1 WHERE key = $1 RETURNING version", key).Scan(&version); err != nil {
						return err
					}
					if err := f.writer.Write(t.Context(), tx, msg(key, fmt.Sprint(version))); err != nil || !rollBack {
						return err
					}
					return errRollBack
				})
				if err != nil && !errors.Is(err, errRollBack) {
					t.Errorf("writer: %v", err)
				}
			}
		})
	}
	writing.Wait()
	drained := f.relay(t, RelayOptions{})
	for f.stats(t, drained).Stored > 0 {
		if ctx.Err() != nil {
			t.Fatal("not drained")
		}
	}
	stop()
	relays.Wait()

	next := map[string]int{}
	for _, p := range f.broker.accepted {
		key := p.Message.Metadata[HeaderKey]
		next[key]++
		if want := fmt.Sprint(next[key]); string(p.Message.Payload) != want {
			t.Fatalf("key %s: published version %s, want %s", key, p.Message.Payload, want)
		}
	}
	if got, want := len(f.broker.accepted), writers*perWriter*4/5; got != want {
		t.Errorf("published %d messages, want %d", got, want)
	}
}

var errRollBack = errors.New("roll back")

func TestAStandbyTakesOverWhenTheActiveRelayIsGone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, msg("k", "1"))
	gone := f.relay(t, RelayOptions{Lease: time.Hour})
	tenure, err := lease{&gone.core}.takeOver(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := f.relay(t, RelayOptions{Lease: time.Second})
	r.signals.standby.Enable()
	start(t, r)
	r.signals.standby.Wait(t)
	if got := f.broker.payloads(); len(got) != 0 {
		t.Errorf("a standby published %q", got)
	}
	lease{&gone.core}.releaseLease(t.Context(), tenure.epoch)
	eventually(t, "the standby publishes", func() bool { return slices.Equal(f.broker.payloads(), []string{"1"}) })
}

func TestRunStopsAndStartsAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	arrived := make(chan string, 10)
	f.broker.answer = func(p Publication) error {
		arrived <- string(p.Message.Payload)
		return nil
	}
	for i := range 5 {
		r := f.relay(t, RelayOptions{PollMax: time.Hour, PollMin: time.Hour, Lease: time.Hour})
		r.signals.rested.Enable()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		if err := r.signals.rested.Wait(t); err != nil {
			t.Fatal(err)
		}
		f.write(t, msg("k", fmt.Sprint(i)))
		r.Wake() // the poll would come in an hour
		if got := <-arrived; got != fmt.Sprint(i) {
			t.Errorf("published %q, want %d", got, i)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}
}

// A stop lets the pass in hand finish: what the broker has taken is forgotten,
// not published again by the next relay.
func TestAStopFinishesThePassInHand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, msg("k", "1"))
	entered, release := make(chan struct{}), make(chan struct{})
	f.broker.answer = func(Publication) error {
		close(entered)
		<-release
		return nil
	}
	r := f.relay(t, RelayOptions{})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	<-entered
	stop()
	close(release)
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
	if s := f.stats(t, r); s != (counts{}) {
		t.Errorf("left over: %+v", s)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for field, opts := range map[string]RelayOptions{
		"Schema":         {Schema: "x;y"},
		"PollMax":        {PollMin: time.Hour},
		"PublishTimeout": {PublishTimeout: -1},
		"DrainTimeout":   {DrainTimeout: -1},
		"MaxAttempts":    {MaxAttempts: -1},
		"Retention":      {Retention: -time.Hour},
		"RetryCap":       {RetryBase: time.Hour},
	} {
		if _, err := NewRelay(f.pool, f.broker, &opts); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("NewRelay with a bad %s = %v", field, err)
		}
	}
	if _, err := NewRelay(nil, f.broker, nil); err == nil {
		t.Error("NewRelay without a pool succeeded")
	}
	if _, err := NewWriter(&WriterOptions{Schema: "pg_x"}); err == nil || !strings.Contains(err.Error(), "Schema") {
		t.Errorf("NewWriter with a bad schema = %v", err)
	}
}

// What the broker took is published again when the checkpoint fails.
func TestAFailedCheckpointRepeatsThePage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, msg("k", "1"))
	l := f.leader(t, RelayOptions{})
	rows, _, err := l.log.readPage(t.Context(), l.log.newReadBatch(), maxPage, maxPageBytes)
	if err != nil || len(rows) != 1 {
		t.Fatalf("read = %v, %v", rows, err)
	}
	if err := (sender{l.core}).publishWave(t.Context(), []*item{{row: rows[0]}})[0]; err != nil {
		t.Fatal(err)
	}
	l.lease.releaseLease(t.Context(), l.epoch) // and no checkpoint
	mustSettle(t, f.relay(t, RelayOptions{}))
	if got := f.broker.accepted; len(got) != 2 || got[0].Message.UUID != got[1].Message.UUID {
		t.Errorf("published %d times, want the same message twice", len(got))
	}
}
