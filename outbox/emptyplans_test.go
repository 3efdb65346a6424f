package outbox

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/plantest"
)

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

// The relay's statements are planned once, for whatever arguments, and perhaps while the tables are empty. Such a plan
// must be as good for full tables: until they are analyzed, each message would otherwise cost a walk past all others.
func TestPlansOfEmptyTablesAreGoodForFullOnes(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const work = 20
	leaders := map[string]*leader{} // by schema
	(&plantest.Suite{
		Queries: func(schema string) []any { return []any{newQueries(schema)} },
		Settings: map[string]string{
			outboxsql.PlanByIndex: `readCursor listDifference readNew readDifference fetchMessages judgeLeaf lookForHeld moveDelayed listRetries
				fetchHeld deleteHeld refuseHeld deferHeld holdMessages promote promotePage fetchProbe makeTopicDue`,
			pg.ReadByIndex: "countDifference countHeld", // by Stats
		},
		Excepted: map[string]string{
			"reads no table": `insertValues insertMessages insertDelayed planByIndex asynchronous lockSoon unlimited readSystem
				currentLeaf nextLeaf leafSizes oldestWriter`,
			"is not planned": "lockLeaf truncateLeaf truncateCursor",
			"reads tables of one row": `lockRelay takeLease beginTenure renewLease releaseLease stampSystem fence readTenure
				readRelay checkpoint lateCheckpoint`,
			"updates each message of a restored log, once": "restampMessages",
		},
		Tables: []string{"outbox_held", "outbox_0", "outbox_cursor_1"},
		Work:   work,
		Grow: func(t *testing.T, s *plantest.Schema, n int) {
			newFixtureOn(t, s.Pool, s.Name).grow(t, n)
		},
		Arguments: func(t *testing.T, s *plantest.Schema) map[string][]any {
			f := newFixtureOn(t, s.Pool, s.Name)
			if leaders[s.Name] == nil {
				leaders[s.Name] = f.leader(t, RelayOptions{})
			}
			return leaders[s.Name].arguments(t, f, work)
		},
	}).Run(t)
}
