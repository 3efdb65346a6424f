package outbox

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A listener is a log handler that remembers what was said at a level.
type listener struct {
	level slog.Level
	mu    sync.Mutex
	said  []string
}

func (l *listener) Enabled(_ context.Context, level slog.Level) bool { return level == l.level }
func (l *listener) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, r.Message)
	return nil
}
func (l *listener) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *listener) WithGroup(string) slog.Handler      { return l }

func (l *listener) heard(part string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.said {
		if strings.Contains(s, part) {
			n++
		}
	}
	return n
}

// dump returns the schema with its rows as SQL.
func (f *fixture) dump(t *testing.T, program, url string) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(program, "--no-owner", "--schema="+f.schema, "--dbname="+url)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("pg_dump: %v\n%s", err, errs.Bytes())
	}
	return out.Bytes()
}

// restore runs what dump has returned.
func restore(t *testing.T, program, url string, dump []byte) {
	t.Helper()
	cmd := exec.Command(program, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname="+url)
	cmd.Stdin = bytes.NewReader(dump)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
}

// halfPublished leaves an outbox in which something of every kind is: published,
// published from the middle of a difference, refused, waiting, delayed and
// stored messages. It returns what is not published, key by key.
func (f *fixture) halfPublished(t *testing.T) map[string][]string {
	t.Helper()
	for i := range 4 {
		f.write(t, msg("p", fmt.Sprint("p", i)), msg("q", fmt.Sprint("q", i)))
	}
	late := msg("d", "d0")
	late.Delay = time.Hour
	f.write(t, msg("r", "r0"), msg("r", "r1"), late)
	f.broker.answer = func(p Publication) error {
		if string(p.Message.Payload) == "r0" {
			return ErrRefused
		}
		return nil
	}
	mustSettle(t, f.relay(t, RelayOptions{Lanes: 1, RetryBase: time.Hour, RetryCap: time.Hour}))

	// The cursor stops in the middle of a difference.
	for i := range 6 {
		f.write(t, msg("m", fmt.Sprint("m", i)), msg(fmt.Sprint("m", i), fmt.Sprintf("m%d0", i)))
	}
	f.write(t, msg("r", "r2"))
	l := f.leader(t, RelayOptions{})
	rows, at, err := l.log.readPage(t.Context(), l.log.newReadBatch(), 5, maxPageBytes)
	if err != nil || len(rows) != 5 {
		t.Fatalf("read %d messages, %v", len(rows), err)
	}
	if err := l.settler.writeCheckpoint(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	l.lease.releaseLease(t.Context(), l.epoch)
	f.write(t, msg("s", "s0"), msg("r", "r3"))
	f.broker.accepted = nil
	f.broker.answer = nil
	return map[string][]string{
		"m": {"m3", "m4", "m5"}, "m2": {"m20"}, "m3": {"m30"}, "m4": {"m40"}, "m5": {"m50"},
		"r": {"r0", "r1", "r2", "r3"}, "s": {"s0"}, "d": {"d0"},
	}
}

// checkAll checks that each of the wanted messages is among the first
// publications, in the order of its key.
func (f *fixture) checkAll(t *testing.T, want map[string][]string) {
	t.Helper()
	got := f.broker.firsts()
	for key, payloads := range want {
		at := -1
		for _, p := range payloads {
			next := slices.Index(got, p)
			if next <= at {
				t.Errorf("key %s: published %q, want %q among it in this order", key, got, payloads)
				break
			}
			at = next
		}
	}
}

// A dump may be restored anywhere: what is unpublished in it is published, and
// what is written then; nothing is published again and again.
func TestADumpIsPublishedWhereverItIsRestored(t *testing.T) {
	t.Parallel()
	server := privateServer(t) // whose transaction ids are low
	pgDump, psql := server.Program(t, "pg_dump"), server.Program(t, "psql")
	for _, tt := range []struct {
		name     string
		from     func(t *testing.T) (*fixture, string)
		to       func(t testing.TB) string
		warnings int
	}{
		{"lower ids", shared, func(testing.TB) string { return server.URL() }, 1},
		{"higher ids", func(t *testing.T) (*fixture, string) { return server.fixture(t), server.URL() }, pgtest.DirectDatabase, 1},
		{"the same cluster", shared, pgtest.DirectDatabase, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, url := tt.from(t)
			want := f.halfPublished(t)
			dump, to := f.dump(t, pgDump, url), tt.to(t)
			restore(t, psql, to, dump)

			f.pool = pgtest.Pool(t, to)
			heard := &listener{level: slog.LevelWarn}
			opts := RelayOptions{Schema: f.schema, Logger: slog.New(heard), DrainTimeout: time.Second}
			for i := range 3 {
				r, err := NewRelay(f.pool, f.broker, &opts)
				if err != nil {
					t.Fatal(err)
				}
				f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp()")
				f.write(t, msg("w", fmt.Sprint("w", i)))
				want["w"] = append(want["w"], fmt.Sprint("w", i))
				mustSettle(t, r)
				mustSettle(t, r) // what was held has its turn
				if s := f.stats(t, r); s != (counts{}) {
					t.Errorf("left over: %+v", s)
				}
				f.checkAll(t, want)
			}
			if got := heard.heard("restored into another cluster"); got != tt.warnings {
				t.Errorf("warned %d times, want %d: %q", got, tt.warnings, heard.said)
			}
			published := f.broker.payloads()
			if tt.warnings == 0 && len(published) != len(f.broker.firsts()) {
				t.Errorf("published again: %q", published)
			}
			for _, p := range f.broker.firsts() {
				if n := count(published, p); n > 2 { // a refused one is in the log as well as held
					t.Errorf("published %s %d times", p, n)
				}
			}
		})
	}
}

func shared(t *testing.T) (*fixture, string) { return newFixture(t), pgtest.Direct() }

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

// A cursor from the future, of a copy of this very cluster, say, would make all
// that is written until then look published.
func TestACursorFromTheFutureIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]string{
		"from": "from_snapshot = '900000000000:900000000000:'",
		"to":   "to_snapshot = '900000000000:900000000000:', last_id = 1000000",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.write(t, msg("k", "1"))
			mustSettle(t, f.relay(t, RelayOptions{}))
			f.exec(t, "UPDATE {schema}.outbox_cursor_0 SET "+set)
			heard := &listener{level: slog.LevelWarn}
			for i := range 3 {
				f.write(t, msg("k", fmt.Sprint(i+2)))
				r, err := NewRelay(f.pool, f.broker, &RelayOptions{Schema: f.schema, Logger: slog.New(heard)})
				if err != nil {
					t.Fatal(err)
				}
				mustSettle(t, r)
			}
			if got := strings.Join(f.broker.firsts(), " "); got != "1 2 3 4" {
				t.Errorf("published %q, want 1 2 3 4", got)
			}
			if got := heard.heard("another cluster"); got != 1 {
				t.Errorf("warned %d times, want once: %q", got, heard.said)
			}
		})
	}
}
