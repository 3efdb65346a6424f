package outbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// snapshots writes messages in transactions that overlap, and returns what was
// visible at some moments. There are messages of transactions that were open at
// each of them.
func (f *fixture) snapshots(t *testing.T) []string {
	t.Helper()
	var all []string
	look := func() {
		var s string
		if err := f.pool.QueryRow(t.Context(), "SELECT pg_current_snapshot()::text").Scan(&s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	var open []pgx.Tx
	look()
	for i := range 4 {
		tx, err := f.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context()) // what is committed stays so
		if err := f.writer.Write(t.Context(), tx, msg("open", "1"), msg("open", "2")); err != nil {
			t.Fatal(err)
		}
		open = append(open, tx)
		f.write(t, msg("at once", "1"))
		look()
		if i > 0 {
			if err := open[i-1].Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			look()
		}
		f.exec(t, "SELECT nextval('{schema}.outbox_leaf')")
		f.write(t, msg("at once", "2"), msg("at once", "3"))
	}
	return all
}

// What Stats say is stored is what lies behind the cursor, wherever that is.
func TestStatsCountWhatIsBehindTheCursor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.relay(t, RelayOptions{})
	snapshots := f.snapshots(t)
	f.exec(t, "UPDATE {schema}.outbox SET created_at = clock_timestamp() - interval '1 hour' * id")
	check := func(seq int64, from string, to *string, last int) {
		t.Helper()
		f.exec(t, "INSERT INTO {schema}.outbox_cursor_0 (epoch, seq, from_snapshot, to_snapshot, last_id) VALUES (1, $1, $2, $3, $4)", seq, from, to, last)
		var count, hours int
		err := f.pool.QueryRow(t.Context(), `SELECT count(*), coalesce(max(id), 0) FROM `+f.schema+`.outbox
			WHERE NOT pg_visible_in_snapshot(xid, $1::text::pg_snapshot)
				AND NOT ($2::text IS NOT NULL AND id <= $3 AND pg_visible_in_snapshot(xid, $2::text::pg_snapshot))`, from, to, last).Scan(&count, &hours)
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.Stats(t.Context())
		if err != nil || s.Stored != count || int(s.Oldest.Hours()) != hours {
			t.Errorf("cursor %d, from %s after %d: %d stored, the oldest for %s, %v; want %d for %d h", seq, from, last, s.Stored, s.Oldest, err, count, hours)
		}
	}
	seq := int64(0)
	for i, from := range snapshots {
		check(seq, from, nil, 0)
		seq++
		for j := i; j < len(snapshots); j++ {
			for _, last := range []int{0, 5, 9, 14} {
				check(seq, from, &snapshots[j], last)
				seq++
			}
		}
	}
	if s, err := ReadStats(t.Context(), f.pool, f.schema); err != nil || s.Stored == 0 {
		t.Errorf("ReadStats = %+v, %v", s, err)
	}
}

// A look at an outbox does not get slower with what is in it.
func TestStatsCountUpToALimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insertDead(t, 10)
	for i := range 10 {
		f.write(t, msg(fmt.Sprint("k", i), ""))
	}
	q := newQueries(f.schema)
	const limit = 4
	var n, delayed, waiting, refused, dead int
	var age float64
	err := f.pool.QueryRow(t.Context(), q.countDifference, "1", []string{}, "1", []string{}, nil, 0, limit).Scan(&n, &age)
	if err != nil || n != limit || age <= 0 {
		t.Errorf("the log has %d messages for %f s, %v; want %d", n, age, err, limit)
	}
	err = f.pool.QueryRow(t.Context(), q.countHeld, limit).Scan(&delayed, &waiting, &refused, &dead, &age)
	if err != nil || delayed+waiting+refused != 0 || dead != limit {
		t.Errorf("%d dead letters, %v; want %d", dead, err, limit)
	}
}

func TestCountersSayWhatTheRelayDid(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	answer := errors.New("away")
	f.broker.answer = func(p Publication) error {
		if string(p.Message.Payload) == "bad" {
			return ErrRefused
		}
		return answer
	}
	f.write(t, msg("a", "1"))
	r := f.relay(t, RelayOptions{Lanes: 1, MaxAttempts: 1})
	if err := settle(t, r); err == nil {
		t.Error("an outage was not reported")
	}
	if c := r.Counters(); c.Unavailable == 0 || c.Published != 0 || c.Confirm.Count != c.Unavailable {
		t.Errorf("after an outage: %+v", c)
	}
	answer = nil
	f.write(t, msg("b", "bad"))
	r = f.relay(t, RelayOptions{Lanes: 1, MaxAttempts: 1})
	r.signals.rested.Enable()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	if err := r.signals.rested.Wait(t); err != nil {
		t.Fatal(err)
	}
	c := r.Counters()
	if !c.Active || c.Published != 1 || c.Refused != 1 || c.Dead != 1 || c.Unavailable != 0 || c.Confirm.Count == 0 || c.Confirm.Sum <= 0 {
		t.Errorf("counters: %+v", c)
	}
	stop()
	if err := <-done; err != nil || r.Counters().Active {
		t.Errorf("Run = %v, active afterwards: %t", err, r.Counters().Active)
	}
}

func TestLatencyBuckets(t *testing.T) {
	t.Parallel()
	var c counters
	for _, d := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, 30 * time.Second, time.Minute} {
		c.countCall(d, nil)
	}
	l := c.readLatency()
	if l.Count != 5 || l.Sum != 90*time.Second+2*time.Millisecond+1 {
		t.Errorf("%d calls in %s", l.Count, l.Sum)
	}
	for _, b := range l.Buckets {
		want := uint64(3)
		switch b.AtMost {
		case time.Millisecond:
			want = 2
		case 30 * time.Second:
			want = 4
		}
		if b.Count != want {
			t.Errorf("at most %s: %d, want %d", b.AtMost, b.Count, want)
		}
	}
}

// Stats say which relay had the lease last, and what is left of it, or since when it is over.
func TestStatsTellTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, tt := range []struct {
		set          string
		holder, last string
		lease        time.Duration
	}{
		{"holder = '', lease_until = 'epoch'", "", "", 0},
		{"holder = 'a', lease_until = clock_timestamp() + interval '1 hour'", "a", "a", time.Hour},
		{"holder = 'a', lease_until = clock_timestamp() - interval '1 hour'", "", "a", -time.Hour},
	} {
		f.exec(t, "UPDATE {schema}.outbox_relay SET "+tt.set)
		s, err := ReadStats(t.Context(), f.pool, f.schema)
		if err != nil || s.Holder != tt.holder || s.LastHolder != tt.last || (s.Lease-tt.lease).Abs() > time.Minute {
			t.Errorf("%s: the active relay is %q, the last one %q, for %s, %v; want %q, %q, %s", tt.set, s.Holder, s.LastHolder, s.Lease, err, tt.holder, tt.last, tt.lease)
		}
	}
	f.insertDead(t, 3)
	f.exec(t, "UPDATE {schema}.outbox_held SET refused_at = clock_timestamp() - interval '2 hours' WHERE id = (SELECT max(id) FROM {schema}.outbox_held)")
	if s, err := ReadStats(t.Context(), f.pool, f.schema); err != nil || s.Dead != 3 || (s.OldestDead-2*time.Hour).Abs() > time.Minute {
		t.Errorf("%d dead letters, the oldest for %s, %v", s.Dead, s.OldestDead, err)
	}
}
