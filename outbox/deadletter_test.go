package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// kill makes msgs dead letters, which the broker refuses because of reason, and
// returns their ids.
func (f *fixture) kill(t *testing.T, reason string, msgs ...Message) []int64 {
	t.Helper()
	var after int64
	if err := f.pool.QueryRow(t.Context(), "SELECT coalesce(max(id), 0) FROM "+f.schema+".outbox_held").Scan(&after); err != nil {
		t.Fatal(err)
	}
	f.write(t, msgs...)
	answer := f.broker.answer
	f.broker.answer = func(Publication) error { return fmt.Errorf("%s: %w", reason, ErrRefused) }
	mustSettle(t, f.relay(t, RelayOptions{MaxAttempts: 1}))
	f.broker.answer = answer
	letters, err := f.letters(t).List(t.Context(), DeadFilter{}, after, MaxList)
	if err != nil || len(letters) != len(msgs) {
		t.Fatalf("List = %d letters, %v; want %d", len(letters), err, len(msgs))
	}
	return idsOf(letters)
}

// insertDead stores n dead letters by themselves.
func (f *fixture) insertDead(t *testing.T, n int) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
		SELECT i, gen_random_uuid(), 't', 't', 's', 'k' || i, 'step', '', 'k' || i, '', '', '', '', 'dead', now(), 1, 'no queue', now()
		FROM generate_series(1, $1) i`, n)
}

func idsOf(letters []DeadLetter) (ids []int64) {
	for _, l := range letters {
		ids = append(ids, l.ID)
	}
	return ids
}

func TestADeadLetterHasAllThatIsKnown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	f.write(t, Message{
		Topic: "orders", Type: "order.created", Scope: "tenant ü", Key: "k", Step: "pay", N: "a.1", OrderingKey: "o",
		Payload: []byte("{\x00\xff}"), ContentType: "application/x-test", ID: id, CorrelationID: "saga", CausationID: "cause",
		Headers: map[string]string{"x-own": "ü\x1b"},
	})
	f.broker.answer = func(Publication) error { return fmt.Errorf("no \x1b[31mqueue: %w", ErrRefused) }
	mustSettle(t, f.relay(t, RelayOptions{MaxAttempts: 1}))
	d := f.letters(t)
	listed, err := d.List(t.Context(), DeadFilter{}, 0, 10)
	if err != nil || len(listed) != 1 {
		t.Fatalf("List = %v, %v; want one letter", listed, err)
	}
	want := DeadLetter{
		ID: listed[0].ID, MessageID: id, Topic: "orders", Type: "order.created", Scope: "tenant ü", Key: "k", Step: "pay", N: "a.1", OrderingKey: "o",
		CorrelationID: "saga", CausationID: "cause", ContentType: "application/x-test", Size: 4,
		Attempts: 1, Error: "no \x1b[31mqueue: " + ErrRefused.Error(),
	}
	apart := cmpopts.IgnoreFields(DeadLetter{}, "FirstAt", "LastAt", "HeadersJSON")
	if diff := cmp.Diff(want, listed[0], apart); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	want.Payload = []byte("{\x00\xff}")
	got, err := d.Get(t.Context(), want.ID)
	if diff := cmp.Diff(want, got, apart); diff != "" || err != nil {
		t.Errorf("Get: %v (-want +got):\n%s", err, diff)
	}
	var headers map[string]string
	if err := json.Unmarshal(got.HeadersJSON, &headers); err != nil || headers["x-own"] != "ü\x1b" {
		t.Errorf("headers %s: %v", got.HeadersJSON, err)
	}
	if got.FirstAt.IsZero() || got.LastAt.Before(got.FirstAt) {
		t.Errorf("created %s, refused %s", got.FirstAt, got.LastAt)
	}
	if _, err := d.Get(t.Context(), want.ID+1); !errors.Is(err, ErrNoDeadLetter) {
		t.Errorf("Get of another id = %v, want an ErrNoDeadLetter", err)
	}
}

func TestAFilterPicksDeadLetters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := Message{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "other", Scope: "elsewhere", Key: "b", Step: "step"}
	ids := f.kill(t, "no queue 100%", msg("a", "1"), other)
	ids = append(ids, f.kill(t, "too large", msg("c", "3"))...)
	f.exec(t, "UPDATE {schema}.outbox_held SET refused_at = refused_at - interval '2 hours' WHERE id = $1", ids[2])
	late := msg("d", "delayed")
	late.Delay = time.Hour
	f.write(t, late)
	d := f.letters(t)
	for name, tt := range map[string]struct {
		filter DeadFilter
		want   []int64
	}{
		"all":             {DeadFilter{}, ids},
		"topic":           {DeadFilter{Topic: "other"}, ids[1:2]},
		"scope":           {DeadFilter{Scope: "tenant"}, []int64{ids[0], ids[2]}},
		"key":             {DeadFilter{Key: "c"}, ids[2:]},
		"reason":          {DeadFilter{Error: "queue 100%"}, ids[:2]},
		"no pattern":      {DeadFilter{Error: "q%e"}, nil},
		"older":           {DeadFilter{Older: time.Hour}, ids[2:]},
		"message":         {DeadFilter{MessageID: other.ID}, ids[1:2]},
		"ids":             {DeadFilter{IDs: []int64{ids[2], ids[0], 4711}}, []int64{ids[0], ids[2]}},
		"two conditions":  {DeadFilter{Error: "queue", Scope: "tenant"}, ids[:1]},
		"nobody":          {DeadFilter{Key: "a", Topic: "other"}, nil},
		"no ids are none": {DeadFilter{IDs: []int64{}}, nil},
	} {
		letters, err := d.List(t.Context(), tt.filter, 0, 10)
		if err != nil || !slices.Equal(idsOf(letters), tt.want) {
			t.Errorf("%s: List = %v, %v; want %v", name, idsOf(letters), err, tt.want)
		}
		if n, err := d.Count(t.Context(), tt.filter); n != len(tt.want) || err != nil {
			t.Errorf("%s: Count = %d, %v; want %d", name, n, err, len(tt.want))
		}
	}
	var paged []int64
	for after := int64(0); ; after = paged[len(paged)-1] {
		letters, err := d.List(t.Context(), DeadFilter{}, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(letters) == 0 {
			break
		}
		paged = append(paged, idsOf(letters)...)
	}
	if !slices.Equal(paged, ids) {
		t.Errorf("in pages: %v, want %v", paged, ids)
	}
	if _, err := d.List(t.Context(), DeadFilter{MessageID: "7"}, 0, 1); !errors.Is(err, ErrDeskInvalid) {
		t.Errorf("List of no UUID = %v, want an ErrInvalid", err)
	}
}

// A redriven message has all its attempts again and keeps its id. It holds back no other message until the
// broker refuses it again.
func TestARedrivenMessageHasAllItsAttempts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := f.kill(t, "no queue", msg("k", "1"))
	letter, err := f.letters(t).Get(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	refusing := ""
	f.broker.answer = func(p Publication) error {
		if string(p.Message.Payload) == refusing {
			return ErrRefused
		}
		return nil
	}
	r := f.relay(t, RelayOptions{Lanes: 1, MaxAttempts: 2, RetryBase: time.Hour, RetryCap: time.Hour})
	f.write(t, msg("k", "2"))
	mustSettle(t, r)
	if n, err := f.letters(t).Redrive(t.Context(), DeadFilter{IDs: []int64{ids[0], ids[0] + 1000}}); n != 1 || err != nil {
		t.Fatalf("Redrive of a dead letter and of no such id = %d, %v; want 1", n, err)
	}
	if n, err := f.letters(t).Redrive(t.Context(), DeadFilter{IDs: ids[:1]}); n != 0 || err != nil {
		t.Errorf("Redrive once more = %d, %v; want 0", n, err)
	}
	refusing = "1"
	mustSettle(t, r)
	f.write(t, msg("k", "3"))
	mustSettle(t, r)
	if got := strings.Join(f.broker.payloads(), " "); got != "2" {
		t.Errorf("published %q while the redriven message is refused again", got)
	}
	if s := f.stats(t, r); s.Refused != 1 || s.Dead != 0 {
		t.Errorf("after one refusal of two: %+v", s)
	}
	refusing = ""
	f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp()")
	mustSettle(t, r)
	if got := strings.Join(f.broker.payloads(), " "); got != "2 1 3" {
		t.Errorf("published %q, want 2 1 3", got)
	}
	if got := f.broker.accepted[1].Message.UUID; got != letter.MessageID {
		t.Errorf("message id %s, want %s", got, letter.MessageID)
	}
	if s := f.stats(t, r); s != (counts{}) {
		t.Errorf("left over: %+v", s)
	}
}

// Every dead letter is redriven by one of them, and published once.
func TestOperatorsRedriveWhileTheRelayRuns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const letters = 1300
	f.insertDead(t, letters)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var relay, operators sync.WaitGroup
	r := f.relay(t, RelayOptions{})
	relay.Go(func() { _ = r.Run(ctx) })
	backwards := make([]int64, letters)
	for i := range backwards {
		backwards[i] = int64(letters - i)
	}
	var done atomic.Int64
	operate := func(verb func() (int, error)) {
		operators.Go(func() {
			n, err := verb()
			if err != nil {
				t.Errorf("after %d: %v", n, err)
			}
			done.Add(int64(n))
		})
	}
	for range 2 {
		operate(func() (int, error) { return f.letters(t).Redrive(t.Context(), DeadFilter{Topic: "t"}) })
		operate(func() (int, error) { return f.letters(t).Redrive(t.Context(), DeadFilter{IDs: backwards}) })
	}
	operators.Wait()
	if done.Load() != letters {
		t.Errorf("redrove %d of %d", done.Load(), letters)
	}
	for f.stats(t, r) != (counts{}) {
		if t.Context().Err() != nil {
			t.Fatal("not drained")
		}
	}
	stop()
	relay.Wait()
	if got := len(f.broker.accepted); got != letters {
		t.Errorf("published %d messages, want %d", got, letters)
	}
}

// The broker refuses everything at once, for good: what has died again, and what
// has died since the call began, is not met by it.
func TestRedriveAllComesToAnEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const letters = 2*letterBatch + 1
	f.insertDead(t, letters)
	f.exec(t, strings.ReplaceAll(`CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.state = 'delayed' THEN
				NEW.state := 'dead'; NEW.attempts := 1; NEW.refused_at := clock_timestamp();
				UPDATE {schema}.outbox_held SET refused_at = NEW.refused_at WHERE id = {last} AND NEW.id = 1;
			END IF;
			RETURN NEW;
		END $$`, "{last}", strconv.Itoa(letters)))
	f.exec(t, "CREATE TRIGGER refuse BEFORE UPDATE ON {schema}.outbox_held FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()")
	if n, err := f.letters(t).Redrive(t.Context(), DeadFilter{}); n != letters-1 || err != nil {
		t.Errorf("Redrive = %d, %v; want %d, without the one that died meanwhile", n, err, letters-1)
	}
}

func TestADiscardedMessageIsNeverPublished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := f.kill(t, "too large", msg("a", "1"), msg("b", "2"))
	ids = append(ids, f.kill(t, "no queue", msg("c", "3"))...)
	late := msg("d", "delayed")
	late.Delay = time.Hour
	f.write(t, late)
	d := f.letters(t)
	for name, verb := range map[string]func(context.Context, DeadFilter) (int, error){"Redrive": d.Redrive, "Discard": d.Discard} {
		if n, err := verb(t.Context(), DeadFilter{IDs: []int64{}}); n != 0 || err != nil {
			t.Errorf("%s of no ids = %d, %v; want none", name, n, err)
		}
	}
	if n, err := d.Discard(t.Context(), DeadFilter{IDs: []int64{ids[0], ids[0], ids[2] + 1}}); n != 1 || err != nil {
		t.Errorf("Discard = %d, %v; want 1", n, err)
	}
	if n, err := d.Discard(t.Context(), DeadFilter{Error: "large"}); n != 1 || err != nil {
		t.Errorf("Discard = %d, %v; want 1", n, err)
	}
	r := f.relay(t, RelayOptions{})
	if s := f.stats(t, r); s != (counts{Dead: 1, Delayed: 1}) {
		t.Errorf("left: %+v, want a dead letter and the delayed message", s)
	}
	if n, err := d.Redrive(t.Context(), DeadFilter{}); n != 1 || err != nil {
		t.Errorf("Redrive = %d, %v; want 1", n, err)
	}
	mustSettle(t, r)
	if got := strings.Join(f.broker.payloads(), " "); got != "3" {
		t.Errorf("published %q, want 3", got)
	}
}

// What waits behind a released message goes out, in order, and what comes later
// too, whether or not something was waiting.
func TestAReleasedMessageHoldsBackNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broker.answer = func(p Publication) error {
		if strings.HasSuffix(string(p.Message.Payload), "1") {
			return ErrRefused
		}
		return nil
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var relay sync.WaitGroup
	r := f.relay(t, RelayOptions{RetryBase: time.Hour, RetryCap: time.Hour})
	relay.Go(func() { _ = r.Run(ctx) })
	f.write(t, msg("a", "a1"), msg("b", "b1"))
	f.await(t, r, func(s counts) bool { return s.Refused == 2 })
	f.write(t, msg("a", "a2"), msg("a", "a3"))
	f.await(t, r, func(s counts) bool { return s.Waiting == 2 })
	d := f.letters(t)
	refused, err := d.List(t.Context(), retrying, 0, 10)
	if err != nil || len(refused) != 2 || refused[0].DueAt.Before(time.Now()) {
		t.Fatalf("List = %+v, %v; want two letters that are tried again later", refused, err)
	}
	if n, err := d.Redrive(t.Context(), DeadFilter{IDs: idsOf(refused)}); n != 0 || err != nil {
		t.Errorf("Redrive of refused ones = %d, %v; want 0", n, err)
	}
	if n, err := d.Bury(t.Context(), append(idsOf(refused), 4711)...); n != 2 || err != nil {
		t.Errorf("Bury = %d, %v; want 2", n, err)
	}
	f.write(t, msg("a", "a4"), msg("b", "b2"))
	f.await(t, r, func(s counts) bool { return s == counts{Dead: 2} })
	stop()
	relay.Wait()
	if got := f.broker.payloads(); slices.Index(got, "b2") < 0 || strings.Join(slices.DeleteFunc(got, func(p string) bool { return p == "b2" }), " ") != "a2 a3 a4" {
		t.Errorf("published %q", got)
	}
}

func (f *fixture) await(t *testing.T, r *Relay, ok func(counts) bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		s := f.stats(t, r)
		if ok(s) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it stays at %+v", s)
		}
	}
}

// refusal has the broker refuse a message, which is not tried again for an hour.
func (f *fixture) refusal(t *testing.T) (Desk, DeadLetter) {
	t.Helper()
	f.broker.answer = func(Publication) error { return ErrRefused }
	f.write(t, msg("a", "a1"))
	mustSettle(t, f.relay(t, RelayOptions{RetryBase: time.Hour, RetryCap: time.Hour}))
	d := f.letters(t)
	refused, err := d.List(t.Context(), retrying, 0, 1)
	if err != nil || len(refused) != 1 {
		t.Fatalf("List = %v, %v", refused, err)
	}
	return d, refused[0]
}

// The relay tries a refused message again, and the broker refuses it, while an operator lists or releases it.
// The message is still there, and is the one that the operator named.
func TestReleaseFindsWhatWasJustRefusedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, refused := f.refusal(t)
	if _, err := f.pool.Exec(t.Context(), "UPDATE "+f.schema+".outbox_held SET refused_at = clock_timestamp() + interval '1 minute'"); err != nil {
		t.Fatal(err)
	}
	if again, err := d.List(t.Context(), retrying, 0, 1); err != nil || len(again) != 1 {
		t.Errorf("the list is %v, %v", again, err)
	}
	if n, err := d.Bury(t.Context(), refused.ID); n != 1 || err != nil {
		t.Errorf("Bury = %d, %v; want 1", n, err)
	}
}

// A message that the relay is just putting behind a refused one is let go too.
func TestReleaseWaitsForWhatTheRelayNotes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, refused := f.refusal(t)

	noting, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer noting.Rollback(t.Context())
	q := newQueries(f.schema)
	var epoch int64
	if err := noting.QueryRow(t.Context(), q.fence, 1).Scan(&epoch); err != nil {
		t.Fatalf("fence: %v", err)
	}
	_, err = noting.Exec(t.Context(), strings.ReplaceAll(`INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, payload, state, due_at)
		SELECT 100, message_id, topic, type, scope, key, step, n, ordering_key, '', '', '', '', 'waiting', 'infinity' FROM {schema}.outbox_held`, "{schema}", f.schema))
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() {
		_, err := d.Bury(t.Context(), refused.ID)
		released <- err
	}()
	f.awaitLock(t, released)
	if err := noting.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Errorf("Bury: %v", err)
	}
	var due bool
	if err := f.pool.QueryRow(t.Context(), "SELECT due_at <= clock_timestamp() FROM "+f.schema+".outbox_held WHERE id = 100").Scan(&due); err != nil || !due {
		t.Errorf("the message behind it is due: %t, %v", due, err)
	}
}

// awaitLock waits until something waits for a lock on the lease, or done has an
// answer, which it leaves there.
func (f *fixture) awaitLock(t *testing.T, done <-chan error) {
	t.Helper()
	f.awaitWaiter(t, f.schema+".outbox_relay FOR", done)
}

// awaitWaiter does so for a statement that contains part.
func (f *fixture) awaitWaiter(t *testing.T, part string, done <-chan error) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); len(done) == 0; {
		var waiting bool
		err := f.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND position($1 IN query) > 0)`, part).Scan(&waiting)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("nothing waits for a lock on %s: %v", part, err)
		}
		if waiting {
			return
		}
	}
}

// A message that is released while it is on its way stays dead if the broker
// refuses it once more.
func TestAMessageReleasedOnItsWayStaysReleased(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var offered atomic.Int32
	onItsWay, answer := make(chan struct{}), make(chan struct{})
	f.broker.answer = func(p Publication) error {
		if string(p.Message.Payload) != "1" {
			return nil
		}
		if offered.Add(1) == 2 {
			close(onItsWay)
			<-answer
		}
		return ErrRefused
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var relay sync.WaitGroup
	r := f.relay(t, RelayOptions{RetryBase: time.Millisecond, RetryCap: time.Millisecond})
	relay.Go(func() { _ = r.Run(ctx) })
	f.write(t, msg("k", "1"), msg("k", "2"))
	<-onItsWay
	d := f.letters(t)
	refused, err := d.List(t.Context(), retrying, 0, 1)
	if err != nil || len(refused) != 1 {
		t.Fatalf("List = %v, %v", refused, err)
	}
	if n, err := d.Bury(t.Context(), refused[0].ID); n != 1 || err != nil {
		t.Errorf("Bury = %d, %v; want 1", n, err)
	}
	close(answer)
	f.await(t, r, func(s counts) bool { return s == counts{Dead: 1} })
	stop()
	relay.Wait()
	if got := strings.Join(f.broker.payloads(), " "); got != "2" || offered.Load() != 2 {
		t.Errorf("published %q, offered it %d times; want 2, and twice", got, offered.Load())
	}
}

func TestNewDeadLettersIsChecked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if _, err := OpenDesk(f.pool, "a;b"); err == nil {
		t.Error("OpenDesk with a bad schema succeeded")
	}
	if _, err := OpenDesk(nil, ""); err == nil {
		t.Error("OpenDesk without a pool succeeded")
	}
	if _, err := ReadStats(t.Context(), f.pool, "a;b"); err == nil {
		t.Error("ReadStats with a bad schema succeeded")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := f.letters(t)
	if n, err := d.Redrive(ctx, DeadFilter{}); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("RedriveAll without a database = %d, %v", n, err)
	}
	if _, err := d.Get(ctx, 1); errors.Is(err, ErrNoDeadLetter) || !errors.Is(err, context.Canceled) {
		t.Errorf("Get without a database = %v", err)
	}
}

// Dead letters of a key that are redriven together keep their order, however they lie.
func TestLettersRedrivenTogetherKeepTheirOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insertDead(t, 100)
	f.exec(t, `CREATE TABLE {schema}.reversed AS SELECT * FROM {schema}.outbox_held ORDER BY id DESC`)
	f.exec(t, `ALTER TABLE {schema}.reversed DROP COLUMN fingerprint`) // the last column; it is computed
	f.exec(t, `TRUNCATE {schema}.outbox_held`)
	f.exec(t, `INSERT INTO {schema}.outbox_held SELECT * FROM {schema}.reversed`)
	f.exec(t, `UPDATE {schema}.outbox_held SET ordering_key = 'k', payload = convert_to(to_char(id, '00000'), 'UTF8')`)
	f.exec(t, `SELECT setval('{schema}.outbox_id_seq', 1000)`)
	f.hold(t, 1000, "delayed", "1 h")
	f.exec(t, `ANALYZE {schema}.outbox_held`)
	if n, err := f.letters(t).Redrive(t.Context(), DeadFilter{}); n != 100 || err != nil {
		t.Fatalf("Redrive = %d, %v; want 100", n, err)
	}
	mustSettle(t, f.relay(t, RelayOptions{}))
	if got := f.broker.payloads(); len(got) != 100 || !slices.IsSorted(got) {
		t.Errorf("%d are published, in the order %q", len(got), got)
	}
}
