package outbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// replay replays what filter picks, or lists it.
func (f *fixture) replay(t *testing.T, filter ReplayFilter, dry bool) ([]LoggedMessage, error) {
	t.Helper()
	r := f.letters(t)
	var kept []LoggedMessage
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) (err error) {
		if dry {
			kept, err = r.ListLogged(t.Context(), tx, filter)
		} else {
			kept, err = r.Replay(t.Context(), tx, filter)
		}
		return err
	})
	return kept, err
}

// keeping publishes msgs and keeps them.
func (f *fixture) keeping(t *testing.T, msgs ...Message) *Relay {
	t.Helper()
	r := f.relay(t, RelayOptions{Retention: time.Hour, Lanes: 1})
	f.write(t, msgs...)
	mustSettle(t, r)
	return r
}

// A copy is the message that was published, in every detail but the mark that says
// what it is.
func TestAReplayIsWhatWasPublished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := msg("k", "1")
	first.Type, first.N, first.CausationID, first.CorrelationID, first.ContentType = "created", "n1", "cause", "saga", "text/plain"
	first.Headers, first.OrderingKey = map[string]string{"x-own": "h", "x-größe": "\u2028\"1.0"}, "o"
	f.keeping(t, first, msg("l", "other"), msg("k", "2"))
	again := msg("k", "3")
	again.Headers = map[string]string{HeaderReplayed: "by other means"}
	f.keeping(t, again)
	began := f.replayClock(t)
	for round := range 2 {
		kept, err := f.replay(t, ReplayFilter{Scope: "tenant", Key: "k"}, false)
		if err != nil || len(kept) != 3 {
			t.Fatalf("replay %d: %d messages, %v; want each of 3 once", round, len(kept), err)
		}
		before := len(f.broker.accepted)
		mustSettle(t, f.relay(t, RelayOptions{Retention: time.Hour, Lanes: 1}))
		got := slices.Clone(f.broker.accepted[before:])
		want := []Publication{f.broker.accepted[0], f.broker.accepted[2], f.broker.accepted[3]}
		if len(got) != len(want) {
			t.Fatalf("replay %d published %d messages, want %d", round, len(got), len(want))
		}
		for i := range want {
			at, err := time.Parse(time.RFC3339, got[i].Message.Metadata.Get(HeaderReplayed))
			if err != nil || at.Before(began) || at.After(f.replayClock(t)) || at.Location() != time.UTC {
				t.Errorf("replay %d, message %d was replayed at %v (%v)", round, i, at, err)
			}
			want[i].Message = want[i].Message.Copy()
			want[i].Message.Metadata.Set(HeaderReplayed, got[i].Message.Metadata.Get(HeaderReplayed))
			if got[i].Topic != want[i].Topic || !got[i].Message.Equals(want[i].Message) {
				t.Errorf("replay %d, message %d: %+v, want %+v", round, i, got[i].Message, want[i].Message)
			}
			if kept[i].MessageID != want[i].Message.UUID || kept[i].Size != 1 {
				t.Errorf("replay %d returns %+v for message %s", round, kept[i], want[i].Message.UUID)
			}
		}
	}
	if got := f.texts(t, "SELECT DISTINCT ordering_key FROM {schema}.outbox WHERE message_id::text = $1", f.broker.accepted[0].Message.UUID); !cmp.Equal(got, []string{"o"}) {
		t.Errorf("ordering keys %q", got)
	}
}

// replayClock is the database's time, to the second.
func (f *fixture) replayClock(t *testing.T) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, f.texts(t, `SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')`)[0])
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// The mark stays with a copy that the broker refuses, however often it is tried.
func TestARefusedCopyStaysMarked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keeping(t, msg("k", "1"))
	if _, err := f.replay(t, ReplayFilter{Key: "k"}, false); err != nil {
		t.Fatal(err)
	}
	f.refuse("1")
	mustSettle(t, f.relay(t, RelayOptions{Retention: time.Hour, Lanes: 1}))
	if got := f.texts(t, "SELECT (headers ->> $1 IS NOT NULL)::text FROM {schema}.outbox_held", HeaderReplayed); !cmp.Equal(got, []string{"true"}) {
		t.Errorf("held copies are marked: %q", got)
	}
}

func (f *fixture) texts(t *testing.T, query string, args ...any) []string {
	t.Helper()
	rows, _ := f.pool.Query(t.Context(), strings.ReplaceAll(query, "{schema}", f.schema), args...)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return all
}

func TestReplayPicks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keeping(t, msg("k", "1"), msg("k", "2"), msg("l", "3"))
	f.exec(t, "UPDATE {schema}.outbox SET created_at = '2020-01-01' WHERE payload = '1'")
	newYear := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		filter ReplayFilter
		want   int
	}{
		"key":         {ReplayFilter{Key: "k"}, 2},
		"scope":       {ReplayFilter{Scope: "tenant", Key: "l"}, 1},
		"since":       {ReplayFilter{Since: newYear}, 3},
		"later":       {ReplayFilter{Since: newYear.Add(1)}, 3 - 1},
		"until":       {ReplayFilter{Key: "k", Until: newYear.Add(time.Second)}, 1},
		"until then":  {ReplayFilter{Key: "k", Until: newYear}, 0},
		"other scope": {ReplayFilter{Scope: "other", Key: "k"}, 0},
	} {
		kept, err := f.replay(t, tt.filter, true)
		if tt.filter.Since.Nanosecond() == 1 {
			tt.filter.Since = newYear.Add(time.Microsecond)
			kept, err = f.replay(t, tt.filter, true)
		}
		if len(kept) != tt.want || (err == nil) != (tt.want > 0) {
			t.Errorf("%s: %d messages, %v; want %d", name, len(kept), err, tt.want)
		}
	}
	if _, err := f.replay(t, ReplayFilter{Scope: "tenant"}, false); !errors.Is(err, ErrDeskInvalid) {
		t.Errorf("a replay of everything = %v", err)
	}
	if got := f.count(t, "outbox"); got != 3 {
		t.Errorf("listing leaves %d messages, want 3", got)
	}
	f.exec(t, fmt.Sprintf(`INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload)
		SELECT gen_random_uuid(), 't', 't', 's', 'many', 's', '', 'o', '', '', '', '' FROM generate_series(1, %d)`, MaxReplay+1))
	if _, err := f.replay(t, ReplayFilter{Key: "many"}, true); !errors.Is(err, ErrDeskInvalid) {
		t.Errorf("a replay of more than %d = %v", MaxReplay, err)
	}
}

// Where nothing is kept, the error says why.
func TestNothingIsKept(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		arrange func(t *testing.T, f *fixture)
		want    string
	}{
		"empty": {func(t *testing.T, f *fixture) { mustSettle(t, f.relay(t, RelayOptions{})) }, "log is empty"},
		"other": {func(t *testing.T, f *fixture) { f.keeping(t, msg("l", "1")) }, "or not since"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tt.arrange(t, f)
			_, err := f.replay(t, ReplayFilter{Key: "k"}, false)
			if !errors.Is(err, ErrNotKept) || !strings.Contains(err.Error(), f.schema) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Replay = %v, want %q", err, tt.want)
			}
		})
	}
}

// What the broker has refused has its own way, dead or not.
func TestAReplayLeavesHeldMessagesAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.refuse("refused")
	f.keeping(t, msg("k", "1"), msg("k", "refused"), msg("k", "behind"))
	kept, err := f.replay(t, ReplayFilter{Key: "k"}, false)
	if err != nil || len(kept) != 1 || f.count(t, "outbox_held") != 2 {
		t.Errorf("Replay = %+v, %v; want the one that was published", kept, err)
	}
}

// The copies of an old message do not make the young ones before them look old.
func TestAReplayDoesNotShortenTheRetention(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keeping(t, msg("k", "old"), msg("l", "young"))
	f.exec(t, "UPDATE {schema}.outbox SET created_at = created_at - interval '2 hours' WHERE key = 'k'")
	if _, err := f.replay(t, ReplayFilter{Key: "k"}, false); err != nil {
		t.Fatal(err)
	}
	r := f.brisk(t, RelayOptions{Retention: time.Hour, Lanes: 1})
	r.signals.passed.Enable()
	stop := start(t, r)
	eventually(t, "the copy is published", func() bool { return len(f.broker.payloads()) == 3 })
	f.write(t, msg("m", "to the next leaf"))
	for range 20 { // rounds in which leaves are looked at
		r.signals.passed.Wait(t)
	}
	stop()
	if got := f.texts(t, "SELECT count(*)::text FROM {schema}.outbox WHERE key = 'l'"); got[0] != "1" {
		t.Error("a young message is not kept")
	}
}
