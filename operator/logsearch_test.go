package operator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/outboxsql"
)

// sqlFillLog stores messages $1 to $2, four for each key, with those of a key far from each other.
const sqlFillLog = `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload)
	SELECT ('018f0000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, 't', '', 'acme', 'k' || i % 5000, '', '', '', 'corr' || i, 'cause' || i, '', '{}' FROM generate_series($1::integer, $2::integer) i`

// fillLog stores messages of a log whose last pages have no summary in the index outbox_search.
func (f *fixture) fillLog(t *testing.T) {
	t.Helper()
	f.exec(t, sqlFillLog, 1, 20000)
	f.exec(t, `SELECT brin_summarize_new_values(indexrelid) FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam
		WHERE amname = 'brin' AND relkind = 'i' AND relnamespace = '{schema}'::regnamespace`)
	f.exec(t, sqlFillLog, 20001, 22000)
}

// sqlSearched tells whether this transaction has searched the log by its index, and how the next statement is planned.
const sqlSearched = `
SELECT CASE WHEN sum(pg_stat_get_xact_numscans(indexrelid)) > 0 THEN 'by index' ELSE 'by a scan' END || ', then enable_seqscan ' || current_setting('enable_seqscan')
FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam WHERE amname = 'brin' AND relnamespace = '{schema}'::regnamespace`

// The messages of a saga, and a message by its id, are found without a scan of the log, whatever the statistics.
func TestTheLogIsSearchedByItsIndex(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.fillLog(t)
	const id = "'018f0000-0000-7000-8000-000000000777'"
	locate, read := newOutboxQueries(f.schema), newReaderQueries(f.schema)
	for _, statistics := range []string{"SELECT 'fresh'", "ANALYZE {schema}.outbox"} {
		f.exec(t, statistics)
		for args, statement := range map[string]string{
			"('', 'k777', 1000)":     locate.locate,
			"('acme', 'k777', 1000)": locate.locate,
			"('', '', '', 'k777', '', NULL, '', 9223372036854775807, 100)":          read.listLog,
			"('', '', '', '', '', " + id + ", '', 9223372036854775807, 100)":        read.listLog,
			"(" + id + ", 'corr777', 50)":                                           read.findMessages,
			"(NULL, 'cause777', 50)":                                                read.findMessages,
			"('', '', 'acme', 'k777', '', NULL, '', 9223372036854775807, 100)":      read.listLog,
			"('t', '', 'acme', 'k777', '', " + id + ", '', 9223372036854775807, 9)": read.listLog,
		} {
			plan := f.explainWith(t, outboxsql.PlanBySearch, statement, args)
			others := func(node string) bool {
				return strings.HasSuffix(node, "Scan on outbox_0") && !strings.HasPrefix(node, "Bitmap")
			}
			if !slices.Contains(plan, "Bitmap Heap Scan on outbox_0") || slices.ContainsFunc(plan, others) {
				t.Errorf("%s, %s: %q", statistics, args, plan)
			}
		}
	}
}

// A dead letter is found by the ids that it has, without a scan of all of them. An entry of an index is cut, and the id is
// not. A message that is retried is found too.
func TestParkedMessagesAreFoundByIndexes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	long := strings.Repeat("long", 1000)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		SELECT 'dead', 'action', 'acme', 'k' || i, 's', '', 't', convert_to('m' || i, 'UTF8'), '{x-causation-id}', ARRAY[convert_to('c' || i, 'UTF8')], '', 'failed', now() FROM generate_series(1, 5000) i`)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, due_at)
		VALUES ('dead', 'unknown', 't', convert_to($1, 'UTF8'), ARRAY['correlation-id'::bytea], ARRAY[convert_to($1, 'UTF8')], '', 'undecodable', now())`, long)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		VALUES ('retrying', 'action', 'acme', 'again', 's', '', 't', 'm', '{correlation-id}', '{c}', '', 'failed', now())`)
	f.exec(t, "ANALYZE {schema}.parked")
	plan := f.explain(t, "force_custom_plan", newReaderQueries(f.schema).findParked, "('m7', 50)")
	if count(plan, "Bitmap Index Scan") < 3 || slices.Contains(plan, "Seq Scan on parked") {
		t.Errorf("parked messages are found by %q", plan)
	}
	r := f.reader(t)
	for text, want := range map[string][]string{"m7": {"k7"}, "c4999": {"k4999"}, long: {""}, long[:255]: nil, long + "x": nil, "m": {"again"}, "c": {"again"}} {
		found, err := r.Search(t.Context(), text)
		var keys []string
		for _, m := range found.Matches {
			keys = append(keys, m.Key)
		}
		if err != nil || len(found.Skipped) > 0 || !slices.Equal(keys, want) {
			t.Errorf("Search of %.20s = %+v, %v", text, found, err)
		}
	}
}

// A held message is found by its key and by the ids that it has: dead letters without a scan of all of them, and those
// that are delayed or retried too.
func TestHeldMessagesAreFoundByIndexes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type,
			payload, state, due_at, attempts, refused_at, reason)
		SELECT i, ('018f0000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, 't', 't', 'acme', 'k' || i, 's', '', 'o' || i, 'corr' || i, 'cause' || i, '', '',
			CASE i WHEN 1 THEN 'delayed' WHEN 2 THEN 'refused' WHEN 3 THEN 'waiting' ELSE 'dead' END, now(), CASE i WHEN 1 THEN 0 ELSE 1 END,
			CASE i WHEN 1 THEN NULL ELSE now() END, 'no' FROM generate_series(1, 5000) i`)
	f.exec(t, "ANALYZE {schema}.outbox_held")
	const id = "'018f0000-0000-7000-8000-000000000777'"
	plan := f.explainWith(t, outboxsql.PlanBySearch, newReaderQueries(f.schema).findMessages, "("+id+", "+id+", 50)")
	// One index of the key, three of dead letters, one each of delayed and of retried messages, four conditions on each leaf.
	if want := 6 + 4*len(outboxsql.Leaves); slices.Contains(plan, "Seq Scan on outbox_held") || count(plan, "Bitmap Index Scan") != want {
		t.Errorf("held messages are found by %q", plan)
	}
	plan = f.explainWith(t, outboxsql.PlanBySearch, newOutboxQueries(f.schema).locate, "('', 'k777', 1000)")
	if slices.Contains(plan, "Seq Scan on outbox_held") {
		t.Errorf("the held messages of a key are found by %q", plan)
	}
	r := f.reader(t)
	for i, n := range []string{"1", "2", "3", "4999"} {
		for _, text := range []string{"018f0000-0000-7000-8000-" + strings.Repeat("0", 12-len(n)) + n, "corr" + n, "cause" + n, "k" + n} {
			found, err := r.Search(t.Context(), text)
			if err != nil || len(found.Skipped) > 0 || len(found.Matches) != 1 || found.Matches[0].Key != "k"+n {
				t.Errorf("message %d: Search of %s = %+v, %v", i, text, found, err)
			}
		}
	}
}

// count returns how often text is in all.
func count(all []string, text string) (n int) {
	for _, one := range all {
		if one == text {
			n++
		}
	}
	return n
}

// A search finds the messages of a key in parts of the log with a summary and without.
func TestASearchOfTheLogMissesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.fillLog(t)
	l, err := NewLocator(&Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	r := f.reader(t)
	for _, key := range []string{"k0", "k1", "k777", "k1999", "k4999", "none"} {
		want := f.texts(t, "SELECT o.id::text FROM {schema}.outbox o WHERE key = $1 ORDER BY o.id", key)
		var located, listed []string
		var after string
		err := pgx.BeginTxFunc(t.Context(), f.pool, oneSnapshot, func(tx pgx.Tx) error {
			found, err := l.Outbox(t.Context(), tx, LocateFilter{Key: key})
			for _, m := range found.Messages {
				located = append(located, fmt.Sprint(m.ID))
			}
			if err == nil {
				err = tx.QueryRow(t.Context(), strings.ReplaceAll(sqlSearched, "{schema}", f.schema)).Scan(&after)
			}
			return err
		})
		if want := "by index, then enable_seqscan on"; after != want {
			t.Errorf("Outbox has searched %q, want %q", after, want)
		}
		if diff := cmp.Diff(want, located, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("Outbox of %s: %v (-want +got):\n%s", key, err, diff)
		}
		all, _, err := r.ListMessages(t.Context(), MessageFilter{Place: PlaceLog, Key: key}, MessageMark{}, 100)
		for _, m := range all {
			listed = append(listed, fmt.Sprint(m.ID))
		}
		slices.Reverse(listed)
		if diff := cmp.Diff(want, listed, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("ListMessages of %s: %v (-want +got):\n%s", key, err, diff)
		}
	}
	for _, i := range []int{1, 9999, 20000, 20001, 22000} {
		id := fmt.Sprintf("018f0000-0000-7000-8000-%012d", i)
		found, err := r.Search(t.Context(), id)
		if err != nil || len(found.Skipped) > 0 || len(found.Matches) != 1 || found.Matches[0].Key != fmt.Sprint("k", i%5000) || found.Matches[0].UUID != id {
			t.Errorf("Search of %s = %+v, %v", id, found, err)
		}
		for _, text := range []string{fmt.Sprint("corr", i), fmt.Sprint("cause", i)} {
			found, err := r.Search(t.Context(), text)
			if err != nil || len(found.Skipped) > 0 || len(found.Matches) != 1 || found.Matches[0].UUID != id {
				t.Errorf("Search of %s = %+v, %v", text, found, err)
			}
		}
		if all, _, err := r.ListMessages(t.Context(), MessageFilter{Place: PlaceLog, MessageID: id}, MessageMark{}, 100); err != nil || len(all) != 1 || all[0].MessageID != id {
			t.Errorf("ListMessages of %s = %+v, %v", id, all, err)
		}
	}
}
