package consumer

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

func TestRetentionStatementsAreAccepted(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.Schema(t)
	pgtest.PrepareAll(t, newRetentionQueries(schema))
}

func (f *fixture) sweeper(t *testing.T, opts SweeperOptions) *Sweeper {
	t.Helper()
	opts.Schema = f.schema
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := NewSweeper(f.pool, &opts)
	if err != nil {
		t.Fatalf("NewSweeper: %v", err)
	}
	return s
}

func (f *fixture) sweep(t *testing.T, retention time.Duration) int {
	t.Helper()
	n, err := f.sweeper(t, SweeperOptions{Retention: retention}).Sweep(t.Context())
	if err != nil {
		t.Fatalf("Sweep: %v", err)
	}
	return n
}

// age sets every row of the inbox back.
func (f *fixture) age(t *testing.T, by time.Duration) {
	t.Helper()
	f.exec(t, "UPDATE {schema}.inbox SET updated_at = updated_at - $1::interval", by)
}

// horizonAge returns how long ago the horizon is, -1 for none.
func (f *fixture) horizonAge(t *testing.T) time.Duration {
	t.Helper()
	var us int64
	err := f.pool.QueryRow(t.Context(), strings.ReplaceAll(`SELECT coalesce((extract(epoch FROM clock_timestamp() - nullif(swept_before, '-infinity')) * 1000000)::bigint, -1)
		FROM {schema}.inbox_horizon`, "{schema}", f.schema)).Scan(&us)
	if err != nil {
		t.Fatal(err)
	}
	if us < 0 {
		return -1
	}
	return time.Duration(us) * time.Microsecond
}

// sent sets when msg was sent, and that it belongs to a saga which began then.
func sent(ago time.Duration, msg *message.Message) *message.Message {
	at := time.Now().Add(-ago)
	msg.Metadata.Set(outbox.PropertyTimestamp, at.UTC().Format(time.RFC3339Nano))
	msg.Metadata.Set(outbox.PropertyCorrelation, v7(at))
	return msg
}

// v7 returns a UUIDv7 of a time.
func v7(at time.Time) string {
	u := uuid.New()
	u[6] = u[6]&0x0f | 0x70
	for i, ms := 5, at.UnixMilli(); i >= 0; i, ms = i-1, ms>>8 {
		u[i] = byte(ms)
	}
	return u.String()
}

const day = 24 * time.Hour

// A sweep removes only rows that are old, that no message will move and that no parked message needs. The
// horizon rises to the last of them, and no further.
func TestASweepRemovesWhatIsOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state, digest, undo_digest, updated_at)
		SELECT 's', state || p || days, 'step', '', state, decode(repeat('00', 32), 'hex'), decode(repeat('00', 32), 'hex'), clock_timestamp() - days * interval '1 day'
		FROM unnest('{open,retrying,dead,done,void,undoing,undo-dead,compensated}'::text[]) AS state, unnest('{-parked-,-}'::text[]) AS p, unnest('{1,9,20}'::int[]) AS days`)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		SELECT 'dead', 'action', scope, key, step, n, 't', '', '{}', '{}', '', 'r', clock_timestamp() FROM {schema}.inbox WHERE key LIKE '%-parked-%'`)
	if n := f.sweep(t, 30*day); n != 0 || f.horizonAge(t) != -1 {
		t.Fatalf("%d rows removed, horizon %s ago, although none is old", n, f.horizonAge(t))
	}
	if n := f.sweep(t, 8*day); n != 12 {
		t.Errorf("%d rows removed, want those of 6 states from 9 and 20 days ago", n)
	}
	left := f.texts(t, "SELECT key FROM {schema}.inbox WHERE key NOT LIKE '%-parked-%' AND key NOT LIKE '%-1' ORDER BY key")
	if want := []string{"retrying-20", "retrying-9", "undoing-20", "undoing-9"}; !slices.Equal(left, want) {
		t.Errorf("old rows left: %q, want %q", left, want)
	}
	if got := f.texts(t, "SELECT count(*)::text FROM {schema}.inbox"); got[0] != "36" {
		t.Errorf("%s rows left, want 36", got[0])
	}
	if got := 9*day - f.horizonAge(t); got < ClockSkew-time.Minute || got > ClockSkew {
		t.Errorf("the horizon is %s after the last row that was removed, want %s", got, ClockSkew)
	}
}

// A message whose row was removed is a dead letter, once, and does not run. So is
// one of which the age is not known, and the compensation of an old saga, however
// young itself. All others run.
func TestAMessageFromBeforeTheHorizon(t *testing.T) {
	t.Parallel()
	none := func(m *message.Message) *message.Message { return m }
	with := func(id string) func(*message.Message) *message.Message {
		return func(m *message.Message) *message.Message { m.UUID = id; return m }
	}
	old, young := 20*day, time.Hour
	const tooOldAction, tooOldUndo = "dead action too-old 0", "dead compensation too-old 0"
	for name, tt := range map[string]struct {
		msg                   *message.Message
		row, parked, mentions string
	}{
		"old":         {sent(old, act("k")), "", tooOldAction, "the message, of "},
		"young":       {sent(young, act("k")), "done 1 0", "", ""},
		"age unknown": {act("k"), "", tooOldAction, "the age of the message is not known"},
		"no time": {func() *message.Message {
			m := act("k")
			m.Metadata.Set(outbox.PropertyTimestamp, "yesterday")
			return m
		}(), "", tooOldAction, "not known"},
		"old id":      {with(v7(time.Now().Add(-old)))(act("k")), "", tooOldAction, "the message, of "},
		"young id":    {with(v7(time.Now().Add(-young)))(act("k")), "done 1 0", "", ""},
		"random id":   {with(uuid.NewString())(act("k")), "", tooOldAction, "not known"},
		"undo, old":   {sent(old, undo("k")), "", tooOldUndo, "the saga, of "},
		"undo, young": {sent(young, undo("k")), "void 0 0", "", ""},
		"undo, young, old": {func() *message.Message {
			m := sent(young, undo("k"))
			m.Metadata.Set(outbox.PropertyCorrelation, v7(time.Now().Add(-old)))
			return m
		}(), "", tooOldUndo, "the saga, of "},
		"undo, no saga": {none(undo("k")), "", tooOldUndo, "the age of the saga is not known"},
		"undo, own saga": {func() *message.Message {
			m := undo("k")
			m.UUID = v7(time.Now())
			m.Metadata.Set(outbox.PropertyCorrelation, m.UUID)
			return m
		}(), "", tooOldUndo, "not known"},
	} {
		for _, redelivered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s redelivered=%t", name, redelivered), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				c := f.consumer(t, Options{}, f.step(f.effect("paid"), f.effect("refunded")))
				f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = clock_timestamp() - interval '10 days'")
				msg, row, parked := tt.msg.Copy(), tt.row, tt.parked
				if redelivered {
					msg.Metadata.Set(outbox.PropertyRedelivered, "true")
					row = strings.ReplaceAll(row, "done 1", "done 2")
					if strings.HasPrefix(parked, "dead action") {
						parked = "dead action too-old 1"
					}
				}
				handle(t, c, msg, msg.Copy(), msg.Copy())
				compareStored(t, stored{Row: row, Parked: parked}, stored{Row: f.row(t), Parked: f.parked(t)})
				if got := strings.Join(f.texts(t, "SELECT error FROM {schema}.parked"), ""); !strings.Contains(got, tt.mentions) {
					t.Errorf("error %q, want %q in it", got, tt.mentions)
				}
			})
		}
	}
}

// The whole way: what ran, was removed and comes again is a dead letter; without
// a horizon nothing is too old.
func TestARedeliveryOfASweptMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	step := f.step(f.effect("paid"), f.effect("refunded"))
	c := f.consumer(t, Options{}, step)
	a, b := sent(20*day, act("k")), sent(20*day, undo("k"))
	handle(t, c, a.Copy(), b.Copy(), sent(20*day, act("other")))
	f.age(t, 20*day)
	if n := f.sweep(t, day); n != 2 {
		t.Fatalf("%d rows removed, want 2", n)
	}
	handle(t, c, a.Copy(), b.Copy(), b.Copy(), a.Copy())
	compareStored(t, stored{Parked: "dead action too-old 0; dead compensation too-old 0"}, stored{Row: f.row(t), Parked: f.parked(t)})
	if got, want := f.effects(t), "paid k 1, refunded k 2, paid other 1"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
	// A parked copy without a row is as old as its message.
	f.exec(t, "UPDATE {schema}.parked SET state = 'retrying', attempts = 3")
	if n := runParkedOnce(t, c); n != 2 {
		t.Fatalf("%d parked messages ran, want 2", n)
	}
	compareStored(t, stored{Parked: "dead action too-old 3; dead compensation too-old 3"}, stored{Row: f.row(t), Parked: f.parked(t)})
}

// Rows are removed only as far as the horizon that has committed allows, whatever
// a sweeper believes.
func TestNothingIsRemovedAheadOfTheHorizon(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	handle(t, c, act("k"))
	f.age(t, 60*day)
	s := f.sweeper(t, SweeperOptions{})
	s.sql.raiseHorizon = "SELECT $1::timestamptz" // it is lost
	if n, err := s.Sweep(t.Context()); n != 0 || err != nil {
		t.Errorf("Sweep = %d, %v; want no row removed", n, err)
	}
	if got := f.row(t); got != "done 1 0" {
		t.Errorf("row %q", got)
	}
}

// The horizon never falls, regardless of which process raises it.
func TestTheHorizonOnlyRises(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.sweeper(t, SweeperOptions{})
	at := time.Now().Add(-100 * day).Truncate(time.Second)
	var raising sync.WaitGroup
	for i := range 20 {
		raising.Go(func() {
			if err := s.raiseHorizon(t.Context(), &sweepPass{}, at.Add(time.Duration((i*7)%20)*day)); err != nil {
				t.Error(err)
			}
		})
	}
	raising.Wait()
	p, err := s.planSweep(t.Context())
	if err != nil || !p.horizon.Equal(at.Add(19*day)) {
		t.Errorf("horizon %s, %v; want %s", p.horizon, err, at.Add(19*day))
	}
}
