package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// snapshots are texts that may be one, or not.
var snapshots = []string{
	"1:1:", "10:20:", "10:20:10", "10:20:10,14,19", "3:3:", "4294967295:4294967297:4294967296",
	"9223372036854775806:9223372036854775807:9223372036854775806", "18446744073709551615:18446744073709551615:",
	"", ":", "::", "1:", "1:1", "1::", "::1", "0:1:", "0:0:", "2:1:", "10:20:20", "10:20:9", "10:20:10,", "10:20:,10", "10:20:10,,11",
	"10:20:11,10", "10:20:11,11", "10:20:10:", "10:20:10:11", "a:b:c", "1:1:x", "-1:1:", "+1:2:", " 1:2:", "1:2: ", "1:2:1 ", "01:02:", "1_0:20:",
	"18446744073709551616:18446744073709551616:", "99999999999999999999999:1:", "1:1:\x00", "１:２:", "0x1:0x2:",
}

// What the server writes is what it reads: parseSnapshot takes each text that
// comes back unchanged from the server's own parser, and means the same by it.
// It may refuse others, but takes none that the server refuses.
func TestSnapshotsAreReadAsTheServerReadsThem(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL())
	for _, text := range snapshots {
		s, err := parseSnapshot(text)
		var back, xmax string
		var xip []string
		asked := pool.QueryRow(t.Context(), "SELECT s::text, pg_snapshot_xmax(s)::text, ARRAY(SELECT x::text FROM pg_snapshot_xip(s) x) FROM CAST($1::text AS pg_snapshot) s", text).Scan(&back, &xmax, &xip)
		var refusal *pgconn.PgError
		if asked != nil && !errors.As(asked, &refusal) {
			t.Fatal(asked)
		}
		switch {
		case err == nil && asked != nil:
			t.Errorf("parseSnapshot took %q, which the server refuses: %v", text, asked)
		case err != nil && asked == nil && back == text:
			t.Errorf("parseSnapshot(%q) = %v, but the server writes it", text, err)
		case err == nil && (s.xmaxText() != xmax || !slices.Equal(s.xip, xip) && len(s.xip)+len(xip) > 0):
			t.Errorf("parseSnapshot(%q) has xmax %s and %q, the server says %s and %q", text, s.xmaxText(), s.xip, xmax, xip)
		}
	}
}

// What is visible in a snapshot, by the server, is what the relay does not read
// from it on: a transaction before xmax that is not in progress.
func TestWhatASnapshotShows(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL())
	for _, text := range []string{"1:1:", "10:20:", "10:20:10", "10:20:10,14,19"} {
		s, err := parseSnapshot(text)
		if err != nil {
			t.Fatal(err)
		}
		for xid := uint64(1); xid < 25; xid++ {
			var visible bool
			x := strconv.FormatUint(xid, 10)
			if err := pool.QueryRow(t.Context(), "SELECT pg_visible_in_snapshot($1::text::xid8, $2::text::pg_snapshot)", x, s.text).Scan(&visible); err != nil {
				t.Fatal(err)
			}
			if unread := xid >= s.xmax || slices.Contains(s.xip, x); unread == visible {
				t.Errorf("xid %d in %q: visible is %v, and unread %v", xid, text, visible, unread)
			}
			if b := s.withoutRunning(); xid < b.xmax && !visible {
				t.Errorf("xid %d is over before %q, the snapshot before %q, but not visible in that", xid, b.text, text)
			}
		}
	}
}

// A transaction that has written first and commits last is published, by the relay
// that has read beyond it meanwhile as by one that takes over.
func TestWhatCommitsLateIsPublished(t *testing.T) {
	t.Parallel()
	for _, takeOver := range []bool{false, true} {
		t.Run(fmt.Sprint("after a take-over ", takeOver), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			late, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
			if err := f.writer.Write(t.Context(), late, msg("a", "late")); err != nil {
				t.Fatal(err)
			}
			f.write(t, msg("b", "early"))
			l := f.leader(t, RelayOptions{Lanes: 1})
			f.publishPage(t, l, nil)
			l.mustSettlePages(t)
			if err := late.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if takeOver {
				f.exec(t, "UPDATE {schema}.outbox_relay SET lease_until = clock_timestamp()")
				l = f.leader(t, RelayOptions{Lanes: 1})
			}
			f.publishPage(t, l, nil)
			if got := strings.Join(f.broker.payloads(), " "); got != "early late" {
				t.Errorf("published %q", got)
			}
		})
	}
}

func FuzzSnapshot(f *testing.F) {
	for _, text := range snapshots {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSnapshot(text)
		if err != nil {
			return
		}
		// It can be written as the server would, and read again.
		xmin, _, _ := strings.Cut(text, ":")
		low, _ := strconv.ParseUint(xmin, 10, 64)
		again, err := parseSnapshot(fmt.Sprintf("%d:%d:%s", low, s.xmax, strings.Join(s.xip, ",")))
		if err != nil || again.xmax != s.xmax || !slices.Equal(again.xip, s.xip) {
			t.Errorf("parseSnapshot(%q) = %+v, and then %+v, %v", text, s, again, err)
		}
		if low == 0 || low > s.xmax {
			t.Errorf("parseSnapshot took %q", text)
		}
		last := uint64(0)
		for _, x := range s.xip {
			n, err := strconv.ParseUint(x, 10, 64)
			if err != nil || n < low || n >= s.xmax || n < last {
				t.Errorf("parseSnapshot took %q", text)
			}
			last = n
		}
		if b, err := parseSnapshot(s.withoutRunning().text); err != nil || b.xmax != low || len(b.xip) != 0 {
			t.Errorf("before %q is %+v, %v", text, b, err)
		}
	})
}
