package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// putDead stores n dead letters of the inbox, each with the error of format and its number, which died ago.
func (f *fixture) putDead(t *testing.T, topic, step, reason, format string, n int, ago time.Duration) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, due_at, first_at, last_at)
		SELECT 'dead', CASE WHEN $2 = '' THEN 'unknown' ELSE 'action' END, CASE WHEN $2 <> '' THEN 'tenant' END, CASE WHEN $2 <> '' THEN $1 || i END,
			nullif($2, ''), CASE WHEN $2 <> '' THEN '1' END, $1, 'm', '{}', '{}', '{}', $3, replace($4, '%', i::text), now(), now() - $6::interval, now() - $6::interval
		FROM generate_series(1, $5) i`, topic, step, reason, format, n, ago)
}

// putDeadHeld stores n dead letters of the outbox.
func (f *fixture) putDeadHeld(t *testing.T, first, n int, topic, step, format string, ago time.Duration) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
		SELECT i, gen_random_uuid(), $3, 't', 'tenant', 'k' || i, $4, '1', '', '', '', '', '{}', 'dead', 'infinity', 3, replace($5, '%', i::text), now() - $6::interval
		FROM generate_series($1::int, $1 + $2 - 1) i`, first, n, topic, step, format, ago)
}

func letters(t *testing.T, f *fixture, side Side) *DeadLetters {
	t.Helper()
	d, err := NewDeadLetters(f.pool, side, &Options{Schema: f.schema, By: "tester", ReadTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// sqlPutError stores a dead letter of the inbox with the error $1, sqlPutReason one of the outbox.
const (
	sqlPutError = `INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, error, due_at)
		VALUES ('dead', 'unknown', 't', 'm', '{}', '{}', '', 'failed', $1, now()) RETURNING fingerprint`
	sqlPutReason = `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
		VALUES (1000000, gen_random_uuid(), 't', '', '', '', '', '', '', '', '', '', '', 'dead', 'infinity', 1, $1, now()) RETURNING fingerprint`
)

var errRolledBack = errors.New("rolled back")

// fingerprint returns the fingerprint of an error, which both tables compute.
func (f *fixture) fingerprint(t testing.TB, text string) (print string) {
	t.Helper()
	var held string
	err := pgx.BeginFunc(context.Background(), f.pool, func(tx pgx.Tx) error {
		for _, insert := range []struct {
			sql  string
			scan *string
		}{{sqlPutError, &print}, {sqlPutReason, &held}} {
			if err := tx.QueryRow(context.Background(), strings.ReplaceAll(insert.sql, "{schema}", f.schema), text).Scan(insert.scan); err != nil {
				return err
			}
		}
		return errRolledBack
	})
	if !errors.Is(err, errRolledBack) || held != print {
		t.Fatalf("fingerprint of %q in the inbox %s, in the outbox %s: %v", text, print, held, err)
	}
	return print
}

// Errors that differ in numbers, quoted texts, UUIDs and hexadecimal words have one fingerprint; others have not.
func TestAFingerprintLeavesOutWhatVaries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	same := [][]string{
		{"order 1 not found", "order 23456 not found", "order k-77 not found"},
		{"call e58ed763-928c-4155-bee9-fdbaaa8ac3f3 failed", "call abcdefab-cdef-abcd-efab-cdefabcdef1a failed"},
		{"at 0x1f", "at 0xc000123456"}, {"digest deadbeef", "digest 0badcafe"},
		{`no room "a" left`, `no room "b \" c" left`, `no room "" left`},
		{"no bed 'a' left", "no bed 'b c' left"}, {"bad `x`", "bad `y z`"},
		{`body "a`, `body "b c 'd`},
		{"can't reach host1", "can't reach host2"},
		{"key " + strings.Repeat("1", 5) + " " + strings.Repeat("word ", 60) + "end", "key " + strings.Repeat("1", 40) + " " + strings.Repeat("word ", 60) + "end"},
	}
	seen := map[string]string{}
	for _, class := range same {
		want := f.fingerprint(t, class[0])
		for _, text := range class {
			if got := f.fingerprint(t, text); got != want || len(got) != 16 {
				t.Errorf("fingerprint of %q = %s, of %q = %s", text, got, class[0], want)
			}
		}
		if other, taken := seen[want]; taken {
			t.Errorf("%q and %q have one fingerprint", other, class[0])
		}
		seen[want] = class[0]
	}
	for _, pair := range [][2]string{{"card declined", "card expired"}, {"can't read", "cannot read"}, {"", "x"}, {"no bed 'a' left", "no bed left"}} {
		if f.fingerprint(t, pair[0]) == f.fingerprint(t, pair[1]) {
			t.Errorf("%q and %q have one fingerprint", pair[0], pair[1])
		}
	}
}

// Whatever the text of an error is, it has a fingerprint, and a number in it does not change it.
func FuzzFingerprint(f *testing.F) {
	pool, schema := pgtest.Schema(f)
	fix := &fixture{pool: pool, schema: schema}
	for _, seed := range []string{"", "order not found", `"`, "'", "`", `\`, `"\`, "a'b'c", "\u202e\u0660", "0x", "(", "[", "$1", "?", strings.Repeat("a'", 600), strings.Repeat("é\"", 700)} {
		f.Add(seed, uint64(7))
	}
	f.Fuzz(func(t *testing.T, text string, n uint64) {
		text = strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?") // as the column stores it
		with := func(n uint64) string { return fix.fingerprint(t, fmt.Sprintf("%d %s", n, text)) }
		if one, other := with(n), with(n/10); len(one) != 16 || one != other && len(text) < 900 {
			t.Errorf("fingerprints of %d and %d with %q = %s and %s", n, n/10, text, one, other)
		}
	})
}

// Groups are by topic, step, reason and error, and count what the filter picks; the filter of a group picks its letters.
func TestLettersAreGrouped(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putDead(t, "pay", "charge", "failed", `order % not found`, 5, 10*time.Minute)
	f.putDead(t, "pay", "charge", "failed", `order % not found`, 2, 3*time.Hour)
	f.putDead(t, "pay", "charge", "failed", `card "%" declined`, 3, time.Minute)
	f.putDead(t, "pay", "charge", "panic", `order % not found`, 1, time.Minute)
	f.putDead(t, "pay", "", "undecodable", `byte %`, 2, time.Minute)
	f.putDeadHeld(t, 1, 4, "pay", "charge", "no queue %", time.Minute)
	f.putDeadHeld(t, 11, 2, "pay", "", "no queue %", 59*time.Minute)
	type seen struct {
		Step, Reason string
		Count        int
		Trend        [trendParts]int
	}
	for side, want := range map[Side][]seen{
		Inbox:  {{"charge", "failed", 7, [trendParts]int{9: 5}}, {"charge", "failed", 3, [trendParts]int{11: 3}}, {"", "undecodable", 2, [trendParts]int{11: 2}}, {"charge", "panic", 1, [trendParts]int{11: 1}}},
		Outbox: {{"charge", "", 4, [trendParts]int{11: 4}}, {"", "", 2, [trendParts]int{0: 2}}},
	} {
		d := letters(t, f, side)
		all, err := d.Group(t.Context(), Filter{Topic: "pay"}, 10)
		if err != nil {
			t.Fatal(err)
		}
		var got []seen
		total := 0
		for _, g := range all.Groups {
			got = append(got, seen{g.Step, string(g.Reason), g.Count, g.Trend})
			total += g.Count
			filter := Filter{Topic: g.Topic, Step: g.Step, NoStep: g.Step == "", Reason: g.Reason, Fingerprint: g.Fingerprint}
			if n, err := d.Count(t.Context(), filter); n != g.Count || err != nil {
				t.Errorf("the filter of %s group %q picks %d letters, %v; want %d", side, g.Error, n, err, g.Count)
			}
			listed, err := d.List(t.Context(), filter, 0, 1)
			if err != nil || len(listed) != 1 {
				t.Fatalf("List = %v, %v", listed, err)
			}
			if l, err := d.Get(t.Context(), listed[0].ID); err != nil || l.Fingerprint != g.Fingerprint {
				t.Errorf("letter %d has the fingerprint %q, %v; its group %q", l.ID, l.Fingerprint, err, g.Fingerprint)
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" || all.Total != total || all.Missing != 0 {
			t.Errorf("%s: total %d, missing %d; groups, -want +got:\n%s", side, all.Total, all.Missing, diff)
		}
		if some, err := d.Group(t.Context(), Filter{}, 1); err != nil || len(some.Groups) != 1 || some.Missing != len(want)-1 || some.Total != total {
			t.Errorf("the largest group of %s: %+v, %v", side, some, err)
		}
	}
}

// Groups of dead letters, and counts of a group, are read from an index of dead letters alone. Groups come in the order of
// the index: the one sort puts the largest first.
func TestGroupsAreReadFromAnIndex(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putDead(t, "pay", "charge", "failed", "order % not found", 10, time.Minute)
	f.putDeadHeld(t, 1, 10, "pay", "charge", "no queue", time.Minute)
	// As after a vacuum, which the snapshot of another test can hold up.
	f.exec(t, "UPDATE pg_class SET relpages = 1, reltuples = 10, relallvisible = 1 WHERE oid IN ('{schema}.parked'::regclass, '{schema}.outbox_held'::regclass)")
	inbox, outbox := newInboxQueries(f.schema), newOutboxQueries(f.schema)
	const byIndex = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_hashagg', 'off', true)`
	const filter = "0, now(), NULL, NULL, 'charge', '', 'failed', '', '', '', 'pay', '', NULL, '0123456789abcdef', false"
	const all = "0, now(), NULL, NULL, '', '', '', '', '', '', '', '', NULL, '', false"
	const allHeld = "0, now(), NULL, NULL, '', '', '', '', '', NULL, '', false"
	for _, tt := range []struct {
		statement, args, node string
		sorts                 int
	}{
		{inbox.count.forState(StateDead), filter, "Index Only Scan on parked", 0},
		{inbox.group.forState(StateDead), filter + ", 10", "Index Only Scan on parked", 1},
		{inbox.group.forState(StateDead), all + ", 10", "Index Only Scan on parked", 1},
		{outbox.group, allHeld + ", 10", "Index Only Scan on outbox_held", 1},
	} {
		plan := f.explainWith(t, byIndex, tt.statement, "("+tt.args+")")
		if !slices.Contains(plan, tt.node) || count(plan, "Sort")+count(plan, "Incremental Sort") != tt.sorts {
			t.Errorf("%s: %q", tt.args, plan)
		}
	}
}

// A batch of one group goes on by the primary key: by the index of groups, each batch would read the whole group.
func TestBatchesOfAGroupGoOnByThePrimaryKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const analyze = "ANALYZE {schema}.parked, {schema}.outbox_held"
	f.putDead(t, "pay", "charge", "failed", "order % not found", 4000, time.Minute)
	f.putDeadHeld(t, 1, 4000, "pay", "charge", "no queue", time.Minute)
	f.exec(t, analyze)
	f.putDead(t, "ship", "pack", "failed", "no stock", 4000, time.Minute) // a group that the statistics do not have
	f.putDeadHeld(t, 4001, 4000, "ship", "pack", "no stock", time.Minute)
	inbox, outbox := newInboxQueries(f.schema), newOutboxQueries(f.schema)
	fingerprint := func(table string) (found string) {
		t.Helper()
		if err := f.pool.QueryRow(t.Context(), "SELECT fingerprint FROM "+f.schema+"."+table+" WHERE topic = 'ship' LIMIT 1").Scan(&found); err != nil {
			t.Fatal(err)
		}
		return found
	}
	ofGroup := "4500, now(), NULL, NULL, 'pack', '', 'failed', '', '', '', 'ship', '', now(), '" + fingerprint("parked") + "', false"
	ofHeld := "4500, now(), NULL, NULL, 'ship', '', '', '', 'pack', NULL, '" + fingerprint("outbox_held") + "', false"
	for _, statistics := range []string{"SELECT 'old'", analyze} {
		f.exec(t, statistics)
		for args, statement := range map[string]string{
			ofGroup + ", 500":                   inbox.discard,
			ofGroup + ", 500, '{action}'":       inbox.pick.forState(StateDead),
			ofGroup + ", 100, '{action}', 9999": inbox.page,
			ofHeld + ", 500":                    outbox.redrive,
			ofHeld + ", 501":                    outbox.discard,
			ofGroup + ", 16, '{action}'":        inbox.pick.forState(StateDead),
		} {
			plan := f.explain(t, "force_custom_plan", statement, "("+args+")")
			if slices.Contains(plan, "Sort") || slices.ContainsFunc(plan, func(node string) bool { return strings.HasPrefix(node, "Bitmap") }) {
				t.Errorf("%s, %s: %q", statistics, args, plan)
			}
		}
	}
}

// A change with UnchangedSince redrives, discards, edits and buries each letter once, however often it is repeated and
// whatever happened to the letter meanwhile.
func TestAChangeSinceAMomentIsMadeOnce(t *testing.T) {
	t.Parallel()
	for _, side := range []Side{Inbox, Outbox} {
		t.Run(string(side), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			table, die := "parked", "state = 'dead', last_at = clock_timestamp()"
			if side == Outbox {
				table, die = "outbox_held", "state = 'dead', attempts = 1, refused_at = clock_timestamp()"
				f.putDeadHeld(t, 1, 20, "pay", "charge", "no queue", time.Minute)
			} else {
				f.putDead(t, "pay", "charge", "failed", "no", 20, time.Minute)
			}
			d := letters(t, f, side)
			moment, err := ReadClock(t.Context(), f.pool)
			if err != nil {
				t.Fatal(err)
			}
			filter := Filter{UnchangedSince: moment}
			redrive := func() (int, error) {
				done, err := d.Redrive(t.Context(), filter, nil)
				return done.Sent() + done.Removed(), err
			}
			type result struct {
				n   int
				err error
			}
			results := make(chan result)
			for range 2 { // two processes at once, and each letter dies again as soon as it is redriven
				go func() {
					n, err := redrive()
					_, dieErr := f.pool.Exec(t.Context(), "UPDATE "+f.schema+"."+table+" SET "+die+" WHERE state <> 'dead'")
					results <- result{n, errors.Join(err, dieErr)}
				}()
			}
			first, second := <-results, <-results
			if first.err != nil || second.err != nil || first.n+second.n != 20 {
				t.Fatalf("two redrives = %+v, %+v; want 20 letters", first, second)
			}
			f.exec(t, "UPDATE {schema}."+table+" SET "+die)
			if n, err := redrive(); n != 0 || err != nil {
				t.Errorf("a repeated redrive = %d, %v; want none", n, err)
			}
			if n, err := d.Discard(t.Context(), filter, nil); n != 0 || err != nil {
				t.Errorf("a discard = %d, %v; want none", n, err)
			}
			if n, err := d.Count(t.Context(), Filter{}); n != 20 || err != nil {
				t.Errorf("Count = %d, %v; want 20", n, err)
			}
		})
	}
}

// A letter that died again between the choice of a redrive and its lock is left alone.
func TestALetterThatDiesAfterItIsPickedIsLeftAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putDead(t, "pay", "charge", "failed", "no", 3, time.Minute)
	moment, err := ReadClock(t.Context(), f.pool)
	if err != nil {
		t.Fatal(err)
	}
	f.exec(t, "UPDATE {schema}.parked SET last_at = clock_timestamp() WHERE id = 1")
	f.exec(t, "UPDATE {schema}.parked SET redriven_at = clock_timestamp() WHERE id = 2")
	inboxLetters := newInboxLetters(f.pool, Options{Schema: f.schema})
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	p := &pass{inboxLetters: inboxLetters, state: StateDead, since: moment}
	h, err := p.holdLetters(t.Context(), tx, []int64{1, 2, 3}, false)
	if err != nil || len(h.letters) != 1 || h.letters[0].id != 3 {
		t.Errorf("holdLetters = %+v, %v; want letter 3", h, err)
	}
}

// An edit is a change: it is not made twice, and a redrive, a discard or another edit of before leaves its letter alone.
func TestAnEditIsAChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putDead(t, "pay", "charge", "failed", "no", 1, time.Minute)
	d := letters(t, f, Inbox)
	moment, err := ReadClock(t.Context(), f.pool)
	if err != nil {
		t.Fatal(err)
	}
	edit := Edit{Payload: []byte("1"), UnchangedSince: moment}
	if _, _, err := d.Edit(t.Context(), 1, edit); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Edit(t.Context(), 1, edit); !errors.Is(err, ErrNoDeadLetter) {
		t.Errorf("the second edit = %v, want ErrNoDeadLetter", err)
	}
	if n, err := d.Discard(t.Context(), Filter{UnchangedSince: moment}, nil); n != 0 || err != nil {
		t.Errorf("Discard = %d, %v", n, err)
	}
	now, err := ReadClock(t.Context(), f.pool)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := d.Count(t.Context(), Filter{UnchangedSince: now}); n != 1 || err != nil {
		t.Errorf("Count since now = %d, %v; want 1", n, err)
	}
}

// A burial is made once for a moment, also if the message is retrying again.
func TestABurialIsMadeOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putDead(t, "pay", "charge", "failed", "no", 1, time.Minute)
	f.exec(t, "UPDATE {schema}.parked SET state = 'retrying'")
	f.putDeadHeld(t, 1, 1, "pay", "charge", "no queue", time.Minute)
	f.exec(t, "UPDATE {schema}.outbox_held SET state = 'refused'")
	moment, err := ReadClock(t.Context(), f.pool)
	if err != nil {
		t.Fatal(err)
	}
	filter := ByID(1)
	filter.UnchangedSince = moment
	for _, side := range []Side{Inbox, Outbox} {
		d := letters(t, f, side)
		if n, err := d.Bury(t.Context(), filter); n != 1 || err != nil {
			t.Fatalf("Bury of %s = %d, %v", side, n, err)
		}
		if n, err := d.Count(t.Context(), Filter{UnchangedSince: moment}); n != 0 || err != nil {
			t.Errorf("%s: %d letters look unchanged, %v", side, n, err)
		}
		f.exec(t, map[Side]string{Inbox: "UPDATE {schema}.parked SET state = 'retrying'", Outbox: "UPDATE {schema}.outbox_held SET state = 'refused'"}[side])
		if n, err := d.Bury(t.Context(), filter); n != 0 || err != nil {
			t.Errorf("the second Bury of %s = %d, %v", side, n, err)
		}
	}
}

// With a moment, the ages of a filter are those at the moment: a run that takes long picks no letter that becomes old
// enough meanwhile.
func TestAgesAreThoseOfTheMoment(t *testing.T) {
	t.Parallel()
	for _, side := range []Side{Inbox, Outbox} {
		t.Run(string(side), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if side == Outbox {
				f.putDeadHeld(t, 1, 1, "pay", "charge", "no queue", 20*time.Minute)
				f.putDeadHeld(t, 2, 2, "pay", "charge", "no queue", 30*time.Minute)
			} else {
				f.putDead(t, "pay", "charge", "failed", "no", 1, 20*time.Minute)
				f.putDead(t, "pay", "charge", "failed", "no", 2, 30*time.Minute)
			}
			now, err := ReadClock(t.Context(), f.pool)
			if err != nil {
				t.Fatal(err)
			}
			d := letters(t, f, side)
			filters := map[int]Filter{
				2: {Older: 15 * time.Minute, UnchangedSince: now.Add(-10 * time.Minute)},
				0: {Older: 25 * time.Minute, UnchangedSince: now.Add(-10 * time.Minute)},
			}
			if side == Inbox {
				filters[1] = Filter{Newer: 15 * time.Minute, UnchangedSince: now.Add(-10 * time.Minute)}
			}
			for want, filter := range filters {
				if n, err := d.Count(t.Context(), filter); n != want || err != nil {
					t.Errorf("Count of %+v = %d, %v; want %d", filter, n, err, want)
				}
			}
		})
	}
}

// Errors that were made to cost time do not keep a consumer from storing them, nor the page of groups from its limit.
func TestHostileErrorsAreGroupedInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const n = 10_000
	f.putDead(t, "pay", "charge", "failed", "no", n, time.Minute)
	f.exec(t, `SET statement_timeout = '20s'; UPDATE {schema}.parked SET error = chr(103 + (id % 10)::integer) || repeat('zé-', 332) || '"'; RESET statement_timeout`)
	d, err := NewDeadLetters(f.pool, Inbox, &Options{Schema: f.schema, ReadTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	groups, err := d.Group(t.Context(), Filter{}, 100)
	if err != nil || groups.Total != n || len(groups.Groups) != 10 {
		t.Errorf("Group = %d letters in %d groups, %v; want %d in 10", groups.Total, len(groups.Groups), err, n)
	}
}
