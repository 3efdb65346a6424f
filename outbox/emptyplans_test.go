package outbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// unplanned are statements that larger tables do not make slower, by the reason.
var unplanned = map[string]string{
	"reads no table": `insertValues insertMessages insertDelayed planByIndex asynchronous lockSoon unlimited readSystem
		currentLeaf nextLeaf leafSizes oldestWriter`,
	"is not planned": `lockLeaf truncateLeaf truncateCursor`,
	"reads tables of one row": `lockRelay takeLease beginTenure renewLease releaseLease stampSystem fence readTenure
		readRelay checkpoint lateCheckpoint`,
	"updates each message of a restored log, once": `restampMessages`,
}

// isUnplanned reports whether unplanned has a statement.
func isUnplanned(name string) bool {
	for _, names := range unplanned {
		if slices.Contains(strings.Fields(names), name) {
			return true
		}
	}
	return false
}

// ofStats are the statements that [Relay.Stats] sends, with other settings than the relay.
var ofStats = map[string]bool{"countDifference": true, "countHeld": true}

// grow adds n messages of each kind to the tables that a relay reads, and n checkpoints.
func (f *fixture) grow(t *testing.T, n int) {
	t.Helper()
	f.fill(t, n)
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, payload, state, due_at, reason, attempts, refused_at)
		SELECT nextval('{schema}.outbox_id_seq'), gen_random_uuid(), topic, topic, 's', concat(topic, i), 'step', '',
			concat_ws(' ', topic, state, due, i), '', '', '', 'x', state,
			CASE place WHEN 1 THEN clock_timestamp() + due::interval ELSE 'infinity' END,
			CASE place WHEN 1 THEN 'nacked' ELSE '' END,
			CASE WHEN state IN ('refused', 'dead') THEN 1 ELSE 0 END,
			CASE WHEN state IN ('refused', 'dead') THEN clock_timestamp() END
		FROM (VALUES ('red', 'waiting', '20 s', 2), ('blue', 'refused', '1 hour', 1), ('blue', 'refused', '-1 s', 1),
				('blue', 'delayed', '-1 s', 1), ('blue', 'delayed', '1 hour', 1), ('blue', 'dead', '0', 1))
				k (topic, state, due, each),
			(SELECT (SELECT count(*) FROM {schema}.outbox_held) + i AS i FROM generate_series(1, $1::int) i) numbered,
			generate_series(1, each) place`, n)
	f.exec(t, `INSERT INTO {schema}.outbox_cursor_1 (epoch, seq, from_snapshot, last_id)
		SELECT -1, (SELECT count(*) FROM {schema}.outbox_cursor_1) + i, '1:1:', 0
		FROM generate_series(1, $1::int) i`, n)
}

// arguments returns, for each statement, arguments with which it does the same work whatever else the tables have. What
// the log has by now counts as published, except n messages.
func (l *leader) arguments(t *testing.T, f *fixture, n int) map[string][]any {
	t.Helper()
	l.log.at.to = nil
	if err := l.log.listDifference(t.Context(), l.log.newReadBatch()); err != nil {
		t.Fatal(err)
	}
	at := l.log.at.to
	f.fill(t, n)
	var stored []int64
	var messages []string
	err := f.pool.QueryRow(t.Context(),
		"SELECT array_agg(id), array_agg(message_id::text) FROM (SELECT id, message_id FROM "+f.schema+".outbox ORDER BY id DESC LIMIT $1) m", n).Scan(&stored, &messages)
	if err != nil {
		t.Fatal(err)
	}
	held, keys := f.ids(t, "outbox_held", n), make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("red waiting 20 s ", i+1)
	}
	xmax, xip := at.xmaxText(), at.xip
	zeros, ones := make([]int64, n), slices.Repeat([]int64{1}, n)
	waiting, reasons := slices.Repeat([]string{"waiting"}, n), slices.Repeat([]string{"r"}, n)
	return map[string][]any{
		"readCursor":      nil,
		"listDifference":  {xmax, xip, 0, nil, maxList, l.epoch},
		"readNew":         {xmax, n, largePayload, l.epoch},
		"readDifference":  {xmax, n, largePayload, l.epoch, xip},
		"fetchMessages":   {stored, xmax, xip, everything},
		"judgeLeaf":       {xmax, xip, nil, 0, 0, 1},
		"lookForHeld":     nil,
		"moveDelayed":     {n, maxPageBytes},
		"listRetries":     {n, 2, []string{}},
		"fetchHeld":       {held},
		"deleteHeld":      {held},
		"refuseHeld":      {held, waiting, zeros, ones, reasons},
		"deferHeld":       {held, zeros, reasons},
		"holdMessages":    {stored, waiting, zeros, zeros, reasons, messages},
		"promote":         {keys},
		"promotePage":     {"red", n},
		"fetchProbe":      {"red", held[n-1]},
		"makeTopicDue":    {"red", n},
		"countDifference": {xmax, xip, xmax, xip, at.text, 0, n},
		"countHeld":       {n},
	}
}

// planOnce makes the server plan the relay's statements, and those of its [Relay.Stats].
func (f *fixture) planOnce(t *testing.T, url string) map[string]*pgtest.OncePlanned {
	t.Helper()
	relay, stats := map[string]string{}, map[string]string{}
	for name, statement := range pgtest.Statements(newQueries(f.schema)) {
		name, first := strings.CutSuffix(name, "0") // of an array
		switch {
		case isUnplanned(name) || !first && strings.ContainsAny(name, "0123456789"):
		case ofStats[name]:
			stats[name] = statement
		default:
			relay[name] = statement
		}
	}
	all := map[string]*pgtest.OncePlanned{}
	bySettings := map[string]map[string]string{outboxsql.PlanByIndex: relay, pg.ReadByIndex: stats}
	for settings, statements := range bySettings {
		planned := pgtest.PlanOnce(t, url, settings, statements)
		for name := range statements {
			all[name] = planned
		}
	}
	return all
}

// The relay's statements are planned once, for whatever arguments, and perhaps while the tables are empty. Such a plan
// must be as good for full tables: until they are analyzed, each message would otherwise cost a walk past all others.
func TestPlansOfEmptyTablesAreGoodForFullOnes(t *testing.T) {
	t.Parallel()
	const work, few, many = 20, 500, 5000
	server := privateServer(t)
	for name, prepare := range map[string]func(*fixture){
		"new": func(*fixture) {},
		"vacuumed": func(f *fixture) {
			f.exec(t, "VACUUM {schema}.outbox_held, {schema}.outbox_0, {schema}.outbox_cursor_1")
		},
		"analyzed with a few rows": func(f *fixture) {
			f.hold(t, 10, "delayed", "1 hour")
			f.fill(t, 10)
			f.exec(t, "ANALYZE {schema}.outbox_held, {schema}.outbox_0, {schema}.outbox_cursor_1")
			f.exec(t, "DELETE FROM {schema}.outbox_held")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := server.fixture(t)
			for _, table := range []string{"outbox_held", "outbox_0", "outbox_cursor_1"} {
				f.exec(t, "ALTER TABLE {schema}."+table+" SET (autovacuum_enabled = off)")
			}
			prepare(f)
			planned := f.planOnce(t, server.URL())
			l := f.leader(t, RelayOptions{})
			var plans [2]map[string]pgtest.Plan
			for i, n := range []int{few, many} {
				f.grow(t, n)
				plans[i] = map[string]pgtest.Plan{}
				arguments := l.arguments(t, f, work)
				for name, session := range planned {
					args, listed := arguments[name]
					if !listed {
						t.Fatalf("the statement %s is neither in arguments nor in unplanned", name)
					}
					plans[i][name] = session.Run(t, name, args...)
				}
			}
			for name, plan := range plans[1] {
				few := plans[0][name]
				if plan.RowsRead() > few.RowsRead()+2*work || plan.Buffers() > 2*few.Buffers()+2*work {
					t.Errorf("%s reads %d rows and %d blocks of larger tables, in place of %d and %d:\n%s",
						name, plan.RowsRead(), plan.Buffers(), few.RowsRead(), few.Buffers(), plan)
				}
			}
		})
	}
}
