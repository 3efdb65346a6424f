package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

func (f *fixture) reader(t *testing.T) *Reader {
	t.Helper()
	r, err := NewReader(f.pool, &Options{Schema: f.schema, ReadTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Statements with a limit are not compiled (JIT), take one processor, and the server keeps the limit.
func TestLimitedReadsAreNotCompiled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	check := func(name string, db querier, isolation string) {
		const settings = "SELECT concat_ws(' ', current_setting('jit'), current_setting('max_parallel_workers_per_gather'), current_setting('statement_timeout'), current_setting('transaction_isolation'), current_setting('transaction_read_only'), current_setting('plan_cache_mode'))"
		var got string
		if err := db.QueryRow(t.Context(), settings).Scan(&got); err != nil || got != "off 0 1min "+isolation+" on force_custom_plan" {
			t.Errorf("%s: %q, %v; want off, 0, 1min, %s, on, force_custom_plan", name, got, err, isolation)
		}
	}
	if err := f.reader(t).read(t.Context(), func(tx pgx.Tx) error { check("Reader", tx, "read committed"); return nil }); err != nil {
		t.Error(err)
	}
	letters, err := NewDeadLetters(f.pool, Inbox, &Options{Schema: f.schema, ReadTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := letters.letters.(*inboxLetters).readLimited(t.Context(), func(db querier) error { check("DeadLetters", db, "read committed"); return nil }); err != nil {
		t.Error(err)
	}
	q := &inquiry{options: ExplainOptions{ReadTimeout: time.Minute}}
	source := &snapshotSource{Source: Source{DB: f.pool, Schema: f.schema, Name: f.schema}}
	if err := q.takeSnapshots(t.Context(), [][]*snapshotSource{{source}}, func() error { check("Explain", source.tx, "repeatable read"); return nil }); err != nil {
		t.Error(err)
	}
}

// putLog stores n messages of a topic in the log, each in a transaction of its own.
func (f *fixture) putLog(t *testing.T, topic string, n int) {
	t.Helper()
	for i := range n {
		f.exec(t, `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload)
			VALUES (gen_random_uuid(), $1, 'made', 'acme', $2, 's', '1', $2, 'corr-' || $2, '', 'application/json', '{"a":"b"}', '{"x":1}')`, topic, fmt.Sprintf("%s%03d", topic, i))
	}
}

// putHeld stores a held message.
func (f *fixture) putHeld(t *testing.T, id int64, state, orderingKey string) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload,
			state, due_at, attempts, reason, refused_at)
		SELECT $1::bigint, gen_random_uuid(), 'held', 'made', 'acme', 'h' || $1, 's', '1', $3, 'corr', '', 'text/plain', 'pay', $2,
			CASE $2 WHEN 'waiting' THEN 'infinity' ELSE now() + interval '1 hour' END, refusals, CASE WHEN refusals > 0 THEN 'no queue' ELSE '' END,
			CASE WHEN refusals > 0 THEN now() END
		FROM (SELECT CASE WHEN $2 IN ('refused', 'dead') THEN 3 ELSE 0 END AS refusals) r`, id, state, orderingKey)
}

// publishUpTo makes the log count as published up to now.
func (f *fixture) publishUpTo(t *testing.T) {
	t.Helper()
	f.exec(t, `UPDATE {schema}.outbox_relay SET epoch = 1`)
	f.exec(t, `INSERT INTO {schema}.outbox_cursor_0 (epoch, seq, from_snapshot, to_snapshot, last_id) SELECT 1, 1, pg_current_snapshot()::text, NULL, 0`)
}

// walkMessages returns the keys of all messages of a filter, read page by page.
func walkMessages(t *testing.T, r *Reader, filter MessageFilter, size int) (keys []string) {
	t.Helper()
	for mark := (&MessageMark{}); mark != nil; {
		page, next, err := r.ListMessages(t.Context(), filter, *mark, size)
		if err != nil {
			t.Fatalf("%+v: %v", filter, err)
		}
		for i := range page {
			keys = append(keys, page[i].Key)
		}
		mark = next
	}
	return keys
}

// Lists of messages have each message of their place once, whatever the size of a page.
func TestMessagesAreListedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	late, err := f.pool.Begin(t.Context()) // it has an older transaction id than messages that are published
	if err != nil {
		t.Fatal(err)
	}
	defer late.Rollback(context.WithoutCancel(t.Context()))
	if _, err := late.Exec(t.Context(), `INSERT INTO `+f.schema+`.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload)
		VALUES (gen_random_uuid(), 'late', 'made', 'acme', 'late000', 's', '1', 'k', '', '', '', '')`); err != nil {
		t.Fatal(err)
	}
	f.putLog(t, "old", 7)
	f.publishUpTo(t)
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.putLog(t, "new", 11)
	for id := int64(1_000_001); id <= 1_000_009; id++ {
		f.putHeld(t, id, []string{"refused", "waiting", "dead", "delayed"}[id%4], "k")
	}
	r := f.reader(t)
	for name, tt := range map[string]struct {
		filter MessageFilter
		want   int
		first  string
	}{
		"stored":      {MessageFilter{Place: PlaceStored}, 12, "late000"},
		"log":         {MessageFilter{Place: PlaceLog}, 19, "new010"},
		"log, topic":  {MessageFilter{Place: PlaceLog, Topic: "old"}, 7, "old006"},
		"correlation": {MessageFilter{Place: PlaceStored, CorrelationID: "corr-new004"}, 1, "new004"},
		"no such key": {MessageFilter{Place: PlaceLog, Key: "none"}, 0, ""},
		"refused":     {MessageFilter{Place: PlaceRefused}, 2, "h1000004"},
		"waiting":     {MessageFilter{Place: PlaceWaiting, OrderingKey: "k"}, 3, "h1000001"},
		"dead":        {MessageFilter{Place: PlaceDead, Scope: "acme", Type: "made"}, 2, "h1000002"},
		"delayed":     {MessageFilter{Place: PlaceDelayed}, 2, "h1000003"},
	} {
		for _, size := range []int{1, 3, 100} {
			keys := walkMessages(t, r, tt.filter, size)
			unique := slices.Compact(slices.Sorted(slices.Values(keys)))
			if len(keys) != tt.want || len(unique) != tt.want || tt.want > 0 && keys[0] != tt.first {
				t.Errorf("%s by %d: %v, want %d from %s on", name, size, keys, tt.want, tt.first)
			}
		}
	}
	for _, filter := range []MessageFilter{{}, {Place: PlacePublished}, {Place: PlaceLog, MessageID: "none"}} {
		if _, _, err := r.ListMessages(t.Context(), filter, MessageMark{}, 1); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", filter, err)
		}
	}
}

// A message is read with its content, wherever it is, and a waiting one names what it waits for.
func TestAMessageIsReadWithItsContent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putLog(t, "new", 1)
	f.putHeld(t, 1_000_001, "refused", "k")
	f.putHeld(t, 1_000_002, "waiting", "k")
	f.putHeld(t, 1_000_003, "waiting", "other")
	f.exec(t, `UPDATE {schema}.outbox SET type = '', ordering_key = '', correlation_id = '', content_type = ''`)
	r := f.reader(t)
	listed, _, err := r.ListMessages(t.Context(), MessageFilter{Place: PlaceLog}, MessageMark{}, 1)
	if err != nil || len(listed) != 1 {
		t.Fatalf("%v, %v", listed, err)
	}
	m, err := r.GetMessage(t.Context(), listed[0].ID, 100)
	if err != nil || string(m.Payload) != `{"x":1}` || string(m.Headers) != `{"a":"b"}` || m.ContentType != "application/json" || m.Place != PlaceStored || m.Size != 7 ||
		m.Type != "new" || m.OrderingKey != "acme\x1fnew000" || m.CorrelationID != m.MessageID {
		t.Errorf("of the log: %+v, %v", m, err)
	}
	m, err = r.GetMessage(t.Context(), 1_000_002, 3)
	if err != nil || m.Place != PlaceWaiting || m.Behind == nil || m.Behind.ID != 1_000_001 || m.Behind.Reason != "no queue" || string(m.Payload) != "pay" {
		t.Errorf("held: %+v, %v", m, err)
	}
	if _, err := r.GetMessage(t.Context(), 5_000_000, 100); !errors.Is(err, ErrNoMessage) {
		t.Errorf("a message that is not there: %v", err)
	}
	for _, id := range []int64{listed[0].ID, 1_000_002} {
		if cut, err := r.GetMessage(t.Context(), id, 2); err != nil || len(cut.Payload) != 2 || cut.Size <= 2 {
			t.Errorf("two bytes of message %d: %q of %d, %v", id, cut.Payload, cut.Size, err)
		}
	}
	keys, err := r.ListWaitingKeys(t.Context(), "", 10)
	if err != nil || len(keys) != 2 || keys[0].OrderingKey != "k" || keys[0].Messages != 2 || keys[0].State != PlaceRefused || keys[0].First.ID != 1_000_001 || keys[0].First.Attempts != 3 {
		t.Errorf("waiting keys: %+v, %v", keys, err)
	}
	if keys, err := r.ListWaitingKeys(t.Context(), "k", 10); err != nil || len(keys) != 1 || keys[0].OrderingKey != "other" {
		t.Errorf("behind k: %+v, %v", keys, err)
	}
}

// The flow counts what was written in the last minute, and what of it is published.
func TestFlowCountsTheLastMinute(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putLog(t, "old", 3)
	f.exec(t, `UPDATE {schema}.outbox SET created_at = now() - interval '2 minutes'`)
	f.putLog(t, "done", 4)
	f.publishUpTo(t)
	f.putLog(t, "new", 2)
	if flow, err := f.reader(t).ReadFlow(t.Context()); err != nil || flow != (Flow{Written: 6, Published: 4}) {
		t.Errorf("flow = %+v, %v; want 6 written, 4 published", flow, err)
	}
}

// Topics are those of the newest messages, of parked messages and of the plans of sagas.
func TestTopicsAreListed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putLog(t, "order.placed", 2)
	f.exec(t, `INSERT INTO {schema}.saga_definition (name, version, hash, plan) VALUES ('trip', 1, 'h', '{"nodes":[]}'), ('trip', 2, 'h', $1)`,
		`{"name":"trip","version":2,"nodes":[{"kind":"all","nodes":[{"name":"flight","kind":"remote","topic":"flight","type":"book","undo":"remote","undo_topic":"no-flight","undo_type":"cancel"}]}]}`)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		VALUES ('dead', 'compensation', 'a', 'k', 'ship', '1', 'unship', 'm', '{}', '{}', '', 'failed', now())`)
	uses, err := f.reader(t).ListTopics(t.Context())
	var got []string
	for _, u := range uses {
		got = append(got, fmt.Sprintf("%s %s sends=%t step=%s saga=%s undo=%t n=%d", u.Topic, u.Type, u.Sends, u.Step, u.Saga, u.Undo, u.Messages))
	}
	want := []string{"order.placed made sends=true step= saga= undo=false n=2", "unship  sends=false step=ship saga= undo=true n=1",
		"saga-trip saga.reply sends=false step= saga=trip undo=false n=0", "flight book sends=true step=flight saga=trip undo=false n=0", "no-flight cancel sends=true step=flight saga=trip undo=true n=0"}
	for i := range want {
		if i >= len(got) || len(got) != len(want) {
			t.Fatalf("topics = %q, %v", got, err)
		}
		if i != 2 && got[i] != want[i] { // the topic of replies is package saga's
			t.Errorf("topic %d is %q, want %q", i, got[i], want[i])
		}
	}
	if uses[2].Sends || uses[2].Saga != "trip" {
		t.Errorf("the replies: %+v", uses[2])
	}
}

// putRequest stores the record of an idempotency key.
func (f *fixture) putRequest(t *testing.T, namespace, scope, key string, state RequestState, lease, expires time.Duration) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, resp_status, resp_body, expires_at, completed_at)
		VALUES ($1, $2, $3, $4::smallint, '', 'v1', gen_random_uuid(), 2, now() + $5::bigint * interval '1 us', CASE WHEN $4::smallint >= 3 THEN 201 END, CASE WHEN $4 = 3 THEN 'hello'::bytea END,
			now() + $6::bigint * interval '1 us', CASE WHEN $4 >= 3 THEN now() END)`, namespace, scope, key, int16(state), lease.Microseconds(), expires.Microseconds())
}

// A key is found with and without its namespace and its scope, and the record says what a retry gets.
func TestRequestsAreFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putRequest(t, "http", "acme", "k", RequestCompleted, -time.Hour, time.Hour)
	f.putRequest(t, "http", "other", "k", RequestInProgress, time.Hour, time.Hour)
	f.putRequest(t, "jobs", "acme", "k", RequestFailed, -time.Hour, time.Hour)
	f.putRequest(t, "jobs", "zoo", "x", RequestTombstone, -time.Hour, time.Hour)
	f.putRequest(t, "jobs", "zoo", "late", RequestCompleted, -time.Hour, -time.Minute)
	f.putRequest(t, "jobs", "zoo", "gone", RequestInProgress, -time.Minute, time.Hour)
	r := f.reader(t)
	for _, tt := range []struct {
		filter RequestFilter
		want   int
	}{
		{RequestFilter{Key: "k"}, 3}, {RequestFilter{Key: "k", Scope: "acme"}, 2}, {RequestFilter{Key: "k", Namespace: "http"}, 2},
		{RequestFilter{Key: "k", Namespace: "jobs", Scope: "acme"}, 1}, {RequestFilter{Key: "none"}, 0}, {RequestFilter{Key: "k", Namespace: "none"}, 0},
	} {
		if all, err := r.FindRequests(t.Context(), tt.filter); err != nil || len(all) != tt.want {
			t.Errorf("%+v: %+v, %v; want %d", tt.filter, all, err, tt.want)
		}
	}
	for key, want := range map[string]string{"x": "410 response-not-retained: the request has run with status 201, and its body was not kept. Nothing runs.",
		"late": "The request runs as a new one: the record has expired. A service that rejects expired keys answers 410 key-expired.",
		"gone": "The request runs again: the process of the earlier attempt has died or hangs, and has committed nothing."} {
		all, err := r.FindRequests(t.Context(), RequestFilter{Key: key})
		if err != nil || len(all) != 1 || all[0].DescribeRetry() != want {
			t.Errorf("%s: %+v, %v; want %s", key, all, err, want)
		}
	}
	all, err := r.FindRequests(t.Context(), RequestFilter{Namespace: "http", Scope: "acme", Key: "k"})
	if err != nil || all[0].Bytes != 5 || all[0].Status != 201 || all[0].State != RequestCompleted || all[0].Attempt != 2 ||
		all[0].DescribeRetry() != "The stored response again, with status 201. Nothing runs." {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := r.FindRequests(t.Context(), RequestFilter{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("without a key: %v", err)
	}
}

// Without the grant on the response a record has no size, and without that on the key it is refused.
func TestRequestsNeedGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putRequest(t, "http", "acme", "k", RequestCompleted, -time.Hour, time.Hour)
	role := pgtest.Name()
	f.exec(t, "CREATE ROLE "+role)
	t.Cleanup(func() {
		if _, err := f.pool.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	f.exec(t, "GRANT USAGE ON SCHEMA {schema} TO "+role+"; GRANT SELECT (state, lease_until, expires_at) ON {schema}.idempotency_key TO "+role)
	as := f.poolAs(t, role)
	r, err := NewReader(as, &Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.FindRequests(t.Context(), RequestFilter{Key: "k"}); !isDenied(err) {
		t.Errorf("as a reader: %v, want a refusal", err)
	}
	if found, err := r.Search(t.Context(), "k"); err != nil || len(found.Skipped) != 5 || !isDenied(found.Skipped[0].Err) {
		t.Errorf("a search without grants: %+v, %v", found, err)
	}
	f.exec(t, "GRANT SELECT (namespace, scope, key, attempt, resp_status, created_at, completed_at) ON {schema}.idempotency_key TO "+role)
	if all, err := r.FindRequests(t.Context(), RequestFilter{Key: "k"}); err != nil || len(all) != 1 || all[0].Bytes != -1 || all[0].Status != 201 {
		t.Errorf("without the response: %+v, %v", all, err)
	}
}

// poolAs returns a pool whose sessions have a role.
func (f *fixture) poolAs(t *testing.T, role string) *pgxpool.Pool {
	t.Helper()
	config := pgtest.DirectConfig(t)
	config.ConnConfig.RuntimeParams["role"] = role
	as, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(as.Close)
	return as
}

// A search finds a key, the ids of sagas and messages, and correlation ids, and says of which saga they are.
func TestSearchFindsWhatATextNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putLog(t, "new", 2)
	saga, child := uuid.Must(uuid.NewV7()).String(), uuid.Must(uuid.NewV7()).String()
	f.exec(t, `INSERT INTO {schema}.saga (scope, key, path, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at)
		VALUES ('acme', 'trip-1', '', $1, $1, 1, 'trip', 'h', now(), '', '{}', 'running', now()), ('acme', 'trip-1', '1.1', $2, $1, 1, 'inner', 'h', now(), '', '{}', 'running', now())`, saga, child)
	f.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state) VALUES ('acme', 'new000', 'pay', '1', 'open')`)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		VALUES ('dead', 'action', 'acme', 'p', 'ship', '1', 'ship', 'message-7', '{x,correlation-id,x-causation-id}', '{other-p,corr-p,cause-p}', '', 'failed', now())`)
	f.putRequest(t, "http", "acme", "trip-1", RequestCompleted, 0, time.Hour)
	message := f.texts(t, "SELECT message_id::text FROM {schema}.outbox WHERE key = 'new001'")[0]
	r := f.reader(t)
	for text, want := range map[string][]string{
		"trip-1":      {"saga trip-1 ", "saga trip-1 1.1", "idempotency key trip-1 "},
		saga:          {"saga trip-1 ", "saga trip-1 1.1"},
		child:         {"saga trip-1 1.1"},
		"new000":      {"step new000 "}, // a key is not looked for in the log
		message:       {"message new001 "},
		"corr-new000": {"message new000 "},
		"message-7":   {"parked message p "},
		"corr-p":      {"parked message p "},
		"cause-p":     {"parked message p "},
		"other-p":     nil,
		"nothing":     nil,
	} {
		found, err := r.Search(t.Context(), text)
		var got []string
		for _, m := range found.Matches {
			got = append(got, fmt.Sprint(m.Kind, " ", m.Key, " ", m.Path))
		}
		if err != nil || !slices.Equal(got, want) || len(found.Skipped) > 0 {
			t.Errorf("%s: %q, %+v, %v; want %q", text, got, found.Skipped, err, want)
		}
	}
}

// Both journals are listed by filters, page by page, the newest first.
func TestActivitiesAreListedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `INSERT INTO {schema}.operator_journal (at, who, verb, what, ids, why)
		SELECT date_trunc('minute', now()) - i / 3 * interval '1 minute', CASE WHEN i % 2 = 0 THEN 'ann' ELSE 'bob' END, 'dead redrive', '{"topic":"x"}', '{1,2,3,4,5,6}', 'w' FROM generate_series(1, 20) i`)
	f.exec(t, `INSERT INTO {schema}.saga_journal (scope, key, path, verb, step, who, why) SELECT 'acme', 'k' || i, '', 'retry', 'hotel', 'ann', 'y' FROM generate_series(1, 5) i`)
	f.exec(t, `INSERT INTO {schema}.operator_journal (at, who, verb, what, ids, why)
		SELECT now() - interval '2 hours', 'eve', verb, '{}', '{7,8}', 'z' FROM unnest(ARRAY['dead edit', 'outbox dead redrive', 'outbox refused release', 'replay']) verb`)
	r := f.reader(t)
	walk := func(source ActivitySource, filter ActivityFilter, size int) (ids []int64) {
		for mark := (ActivityMark{}); ; {
			page, err := r.ListActivities(t.Context(), source, filter, mark, size)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range page {
				ids = append(ids, a.ID)
				mark = ActivityMark{a.At, a.ID}
			}
			if len(page) < size {
				return ids
			}
		}
	}
	for size := 1; size <= 30; size += 7 {
		ids := walk(MessageActivity, ActivityFilter{}, size)
		if unique := slices.Compact(slices.Sorted(slices.Values(ids))); len(ids) != 24 || len(unique) != 24 {
			t.Errorf("by %d: %v", size, ids)
		}
	}
	for name, tt := range map[string]struct {
		filter ActivityFilter
		want   int
	}{"who": {ActivityFilter{By: "ann"}, 10}, "verb": {ActivityFilter{Verb: "discard"}, 0}, "verb too": {ActivityFilter{Verb: "dead redrive", By: "bob"}, 10},
		"since": {ActivityFilter{Since: time.Now().Add(-time.Hour)}, 20}, "until": {ActivityFilter{Until: time.Now().Add(-time.Hour)}, 4},
		"parked": {ActivityFilter{Side: Inbox, IDs: []int64{9, 8}}, 1}, "of the outbox": {ActivityFilter{Side: Outbox, IDs: []int64{8}}, 2},
		"another id": {ActivityFilter{Side: Inbox, IDs: []int64{9}}, 0}, "key": {ActivityFilter{Key: "k5"}, 0}} {
		if ids := walk(MessageActivity, tt.filter, 6); len(ids) != tt.want {
			t.Errorf("%s: %d entries, want %d", name, len(ids), tt.want)
		}
	}
	if about, of := walk(SagaActivity, ActivityFilter{Key: "k5"}, 6), walk(SagaActivity, ActivityFilter{Side: Inbox, IDs: []int64{8}}, 6); len(about) != 1 || len(of) != 0 {
		t.Errorf("%d decisions about k5, %d of messages; want 1, 0", len(about), len(of))
	}
	page, err := r.ListActivities(t.Context(), MessageActivity, ActivityFilter{}, ActivityMark{}, 1)
	if err != nil || page[0].Messages != 6 || len(page[0].FirstIDs) != 5 || string(page[0].What) != `{"topic": "x"}` || page[0].DBUser == "" {
		t.Errorf("%+v, %v", page, err)
	}
	page, err = r.ListActivities(t.Context(), SagaActivity, ActivityFilter{By: "ann"}, ActivityMark{}, 100)
	if err != nil || len(page) != 5 || page[0].Step != "hotel" || page[0].Key != "k5" || page[0].Scope != "acme" {
		t.Errorf("%+v, %v", page, err)
	}
}
