package outbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// everything is a snapshot in which each message is visible.
const everything = "9000000000000000000:9000000000000000000:"

// scans returns how the relations are read, except those that are small.
func scans(p pgtest.Plan) map[string]string {
	scans := map[string]string{}
	p.Each(func(n pgtest.Plan) {
		if strings.HasPrefix(n.Relation, "outbox") && n.Relation != "outbox_tenure" && n.Relation != "outbox_relay" {
			scans[n.Relation] += n.Type + " "
		}
	})
	return scans
}

// explain runs statement as the relay does, as a prepared one behind the statement settings, and returns its plan.
func (f *fixture) explain(t *testing.T, settings, statement string, args ...any) pgtest.Plan {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	execute := pgtest.Execute("explained", args)
	for _, statement := range []string{settings, "PREPARE explained AS " + statement, execute} { // what it needs from the catalogues is not counted
		if _, err := tx.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	plan := pgtest.Explain(t, tx, "ANALYZE, BUFFERS, ", execute)
	if _, err := tx.Exec(t.Context(), "DEALLOCATE explained"); err != nil {
		t.Fatal(err)
	}
	return plan
}

// fill stores n messages at once.
func (f *fixture) fill(t *testing.T, n int) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload)
		SELECT gen_random_uuid(), 't', 't', 's', 'k' || i, 'step', '', 'k' || i % 1000, '', '', '', 'x' FROM generate_series(1, $1::int) i`, n)
}

// The statements of the relay find what is not published by an index, whatever
// the statistics say, and it makes no difference how much is published already.
func TestWhatIsPublishedCostsNothing(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const many, few = 100_000, 1000
	buffers, others := map[string]map[int]int{}, 0
	for _, published := range []int{few, many} {
		for name, prepare := range map[string]func(f *fixture){
			"fresh":      func(f *fixture) { f.fill(t, published) },
			"analyzed":   func(f *fixture) { f.fill(t, published); f.exec(t, "ANALYZE {schema}.outbox_0") },
			"misleading": func(f *fixture) { f.fill(t, 10); f.exec(t, "ANALYZE {schema}.outbox_0"); f.fill(t, published) },
		} {
			f := newFixture(t)
			f.exec(t, "ALTER TABLE {schema}.outbox_0 SET (autovacuum_enabled = off)")
			prepare(f)
			r := f.relay(t, RelayOptions{})
			l := f.leader(t, RelayOptions{})
			if err := l.log.listDifference(t.Context(), l.log.newReadBatch()); err != nil {
				t.Fatal(err)
			}
			at := cursor{from: *l.log.at.to}
			others = max(others, len(at.from.xip))
			for i := range 10 {
				f.write(t, msg(fmt.Sprint("new", i), "x"))
			}
			ids := []int64{int64(published), int64(published) + 1, int64(published) + 2}
			for statement, p := range map[string]pgtest.Plan{
				"listDifference":  f.explain(t, outboxsql.PlanByIndex, r.sql.listDifference, at.from.xmaxText(), at.from.xip, 0, nil, maxList, l.epoch),
				"countDifference": f.explain(t, pg.ReadByIndex, r.sql.countDifference, at.from.xmaxText(), at.from.xip, at.from.xmaxText(), at.from.xip, at.from.text, 0, 1000),
				"fetchMessages":   f.explain(t, outboxsql.PlanByIndex, r.sql.fetchMessages[0], ids, "1", nil, everything),
				"listKept":        f.explain(t, outboxsql.PlanByIndex, pgtest.Statement(t, "operator", "outboxQueries.listLogged", f.schema), "", "", nil, nil, published, published+10, 10),
				"judgeLeaf":       f.explain(t, outboxsql.PlanByIndex, r.sql.judgeLeaf[0], at.from.xmaxText(), at.from.xip, nil, 0, 0, 1),
			} {
				for relation, scan := range scans(p) {
					if strings.Contains(scan, "Seq Scan") && relation == "outbox_0" {
						t.Errorf("%s, %s, %d published: %s by %s", statement, name, published, relation, scan)
					}
				}
				key := statement + " " + name
				if buffers[key] == nil {
					buffers[key] = map[int]int{}
				}
				buffers[key][published] = p.Buffers()
			}
		}
	}
	for key, b := range buffers {
		t.Logf("%s: %d and %d buffers", key, b[few], b[many])
		if b[many] > b[few]+40+30*others { // an index has a level more, and each transaction that other tests have open is looked up, twice in each leaf
			t.Errorf("%s touches %d buffers with %d messages published, %d with %d", key, b[few], few, b[many], many)
		}
	}
}

// hold stores n held messages in a state. Every tenth has the key k, each other one a separate key.
func (f *fixture) hold(t *testing.T, n int, state, due string) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload,
			state, due_at, attempts, refused_at)
		SELECT nextval('{schema}.outbox_id_seq'), gen_random_uuid(), 't', 't', 's', 'k', 'step', '', CASE WHEN i % 10 = 0 THEN 'k' ELSE 'k' || i END, '', '', '', 'x',
			$2, CASE $2 WHEN 'waiting' THEN 'infinity' ELSE clock_timestamp() + $3::interval END,
			CASE $2 WHEN 'delayed' THEN 0 ELSE 1 END, CASE WHEN $2 <> 'delayed' THEN clock_timestamp() END
		FROM generate_series(1, $1::int) i`, n, state, due)
}

// holdDeferred stores n messages, each of a key of its own, that wait because a topic stalled.
func (f *fixture) holdDeferred(t *testing.T, n int, topic, due string) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload,
			state, due_at, reason)
		SELECT nextval('{schema}.outbox_id_seq'), gen_random_uuid(), $2, 't', 's', 'k', 'step', '', gen_random_uuid()::text, '', '', '', convert_to($2 || i, 'utf8'),
			'waiting', clock_timestamp() + $3::interval, 'nacked'
		FROM generate_series(1, $1::int) i`, n, topic, due)
}

// ids returns n ids of a table.
func (f *fixture) ids(t *testing.T, table string, n int) (ids []int64) {
	t.Helper()
	rows, _ := f.pool.Query(t.Context(), "SELECT id FROM "+f.schema+"."+table+" ORDER BY id LIMIT $1", n)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// What is due is found by an index among what is not, among dead letters, and among what waits
// for stalled topics. So a relay that begins to lead, and one that leads, does the same work however
// many messages are held.
func TestWhatIsNotDueCostsNothing(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for name, analyze := range map[string]string{"fresh": "SELECT", "analyzed": "ANALYZE {schema}.outbox_held"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.exec(t, "ALTER TABLE {schema}.outbox_held SET (autovacuum_enabled = off)")
			for _, stalled := range []string{"a", "red", "z"} {
				f.holdDeferred(t, 10_000, stalled, "-1 s")
				f.holdDeferred(t, 5_000, stalled, "1 hour")
			}
			f.holdDeferred(t, 5, "blue", "1 hour")
			f.hold(t, 5, "refused", "-1 s")
			f.hold(t, 5, "delayed", "-1 s")
			f.hold(t, 20_000, "dead", "0")
			f.hold(t, 20_000, "delayed", "100 years")
			f.hold(t, 20_000, "refused", "1 hour")
			f.hold(t, 20_000, "waiting", "0")
			f.fill(t, 20_000)
			f.exec(t, analyze)
			r := f.relay(t, RelayOptions{})
			stalled := []string{"a", "red", "z"}
			for statement, p := range map[string]pgtest.Plan{
				"listRetries":  f.explain(t, outboxsql.PlanByIndex, r.sql.listRetries, maxDue, maxFollowers, stalled),
				"listAll":      f.explain(t, outboxsql.PlanByIndex, r.sql.listRetries, 10, 2, []string{}),
				"promotePage":  f.explain(t, outboxsql.PlanByIndex, r.sql.promotePage, "", 50),
				"promotePage2": f.explain(t, outboxsql.PlanByIndex, r.sql.promotePage, "k2", 50),
				"fetchProbe":   f.explain(t, outboxsql.PlanByIndex, r.sql.fetchProbe, "blue", 0),
				"fetchProbe2":  f.explain(t, outboxsql.PlanByIndex, r.sql.fetchProbe, "red", 1000),
				"makeTopicDue": f.explain(t, outboxsql.PlanByIndex, r.sql.makeTopicDue, "blue", 10),
				"makeAllDue":   f.explain(t, outboxsql.PlanByIndex, r.sql.makeTopicDue, "", 10),
				"fetchPage":    f.explain(t, outboxsql.PlanByIndex, r.sql.fetchMessages[0], f.ids(t, "outbox", 20), "1", nil, everything),
				"deleteHeld":   f.explain(t, outboxsql.PlanByIndex, r.sql.deleteHeld, []int64{1, 2, 3}),
				"refuseHeld":   f.explain(t, outboxsql.PlanByIndex, r.sql.refuseHeld, []int64{1, 2, 3}, []string{"refused", "refused", "refused"}, []int64{1, 1, 1}, []int64{1, 1, 1}, []string{"r", "r", "r"}),
				"deferHeld":    f.explain(t, outboxsql.PlanByIndex, r.sql.deferHeld, []int64{1, 2, 3}, []int64{1, 1, 1}, []string{"r", "r", "r"}),
				"holdMessages": f.explain(t, outboxsql.PlanByIndex, r.sql.holdMessages, f.ids(t, "outbox", 3), []string{"waiting", "waiting", "waiting"}, []int64{1, 1, 1}, []int64{0, 0, 0}, []string{"r", "r", "r"}, slices.Repeat([]string{uuid.Nil.String()}, 3)),
				"moveDelayed":  f.explain(t, outboxsql.PlanByIndex, r.sql.moveDelayed, 2, maxPageBytes),
				"fetchHeld":    f.explain(t, outboxsql.PlanByIndex, r.sql.fetchHeld, []int64{1, 2, 3}),
				"promote":      f.explain(t, outboxsql.PlanByIndex, r.sql.promote, []string{"k1", "k2", "k3"}),
			} {
				for relation, scan := range scans(p) {
					if strings.Contains(scan, "Seq Scan") {
						t.Errorf("%s: %s by %s", statement, relation, scan)
					}
				}
				if p.Buffers() > 500 {
					t.Errorf("%s touches %d buffers", statement, p.Buffers())
				}
				t.Logf("%s: %d buffers", statement, p.Buffers())
			}
		})
	}
}

// So it is while nearly all that is held is of one topic and due, and the relay does not know yet that
// the topic stalls.
func TestOneTopicWithManyHeldMessagesCostsAPage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, "ALTER TABLE {schema}.outbox_held SET (autovacuum_enabled = off)")
	f.holdDeferred(t, 50_000, "red", "-1 s")
	f.exec(t, "ANALYZE {schema}.outbox_held")
	r := f.relay(t, RelayOptions{})
	for statement, p := range map[string]pgtest.Plan{
		"listRetries":  f.explain(t, outboxsql.PlanByIndex, r.sql.listRetries, 10, 2, []string{}),
		"moveDelayed":  f.explain(t, outboxsql.PlanByIndex, r.sql.moveDelayed, 2, maxPageBytes),
		"fetchProbe":   f.explain(t, outboxsql.PlanByIndex, r.sql.fetchProbe, "red", 1000),
		"makeTopicDue": f.explain(t, outboxsql.PlanByIndex, r.sql.makeTopicDue, "red", 10),
	} {
		if p.Buffers() > 300 {
			t.Errorf("%s touches %d buffers", statement, p.Buffers())
		}
	}
}
