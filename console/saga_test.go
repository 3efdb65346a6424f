package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/operator"
)

// tripPlan has each kind of node: steps in turn, steps in parallel, a nested saga, a pivot.
const tripPlan = `{"name":"tour","version":1,"nodes":[
	{"name":"quote","kind":"local"},
	{"name":"book","kind":"all","nodes":[
		{"name":"flight","kind":"remote","topic":"flight","type":"flight","undo":"remote","undo_topic":"no-flight","undo_type":"no-flight"},
		{"name":"hotel","kind":"remote","topic":"hotel","type":"hotel","undo":"remote","undo_topic":"no-hotel","undo_type":"no-hotel"}]},
	{"name":"rent","kind":"nested","saga":"trip","undo":"nested"},
	{"name":"ticket","kind":"remote","topic":"ticket","type":"ticket","pivot":true}]}`

// putTour stores an instance of tripPlan that began 100 s ago.
func (f *fixture) putTour(t *testing.T, key, status, progress string) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.saga_definition (name, version, hash, plan) VALUES ('tour', 1, 'h', $1) ON CONFLICT DO NOTHING`, tripPlan)
	f.exec(t, `INSERT INTO {schema}.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, reason, updated_at, ended_at, trace_parent)
		SELECT 'acme', $1, gen_random_uuid(), gen_random_uuid(), 1, 'tour', 'h', began, '{"card":"4111","traveller":"Ada"}', $3, $2, '', began,
			CASE WHEN $2 IN ('completed', 'compensated') THEN began + interval '50 s' END, '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
		FROM (SELECT clock_timestamp() - interval '100 s' AS began) m`, key, status, progress)
}

// sagaURL is the address of the page of a saga of a fixture.
func (f *fixture) sagaURL(key string) string {
	return "/saga?" + buildTestQuery("database", "main", "schema", f.schema, "scope", "acme", "key", key)
}

func (f *fixture) getSaga(t *testing.T, key string) string {
	t.Helper()
	response, text := f.get(t, f.sagaURL(key))
	if response.StatusCode != http.StatusOK {
		t.Fatalf("the page of %s = %d: %s", key, response.StatusCode, text)
	}
	if found := inline.FindString(text); found != "" {
		t.Errorf("the page of %s has %q", key, found)
	}
	return text
}

// requireTexts ends the test unless text has each of the wanted parts, in any order.
func requireTexts(t *testing.T, name, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("%s does not have %q: %s", name, want, text)
		}
	}
}

// The diagram has each state of a step, in its tone and in words, and the groups in place.
func TestADiagramShowsEachState(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	for _, tt := range []struct {
		name, status, phase, flight string
		want                        []string
	}{
		{"running", "running", "running", `{"state":"running","attempt":1,"sent":1000,"began":1000,"message":"e30="}`, []string{`class="box tone-run"`, "flight: running, for 1 min", "would be undone", "to come, pivot"}},
		{"done", "running", "running", `{"state":"done","attempt":1,"began":1000,"sent":1000,"ended":43000}`, []string{`class="box tone-done"`, "flight: done, took 42 s, would be undone"}},
		{"waiting", "running", "running", `{"state":"waiting","attempt":2,"due":900000,"reason":"503"}`, []string{`class="box tone-wait"`, "flight: retrying, attempt 2, again "}},
		{"stuck", "stuck", "running", `{"state":"stuck","attempt":3,"reason":"no seat map"}`, []string{`class="box tone-stuck"`, "flight: stuck, attempt 3, no seat map"}},
		{"skipped", "running", "running", `{"state":"skipped"}`, []string{`class="box tone-off"`, "flight: skipped"}},
		{"undoing", "compensating", "compensating", `{"state":"undoing","attempt":1,"undo_began":9000,"sent":9000,"message":"e30="}`, []string{`class="box tone-undo"`, "flight: compensating, for 1 min", "rent: will not run"}},
		{"undo-waiting", "compensating", "compensating", `{"state":"undo-waiting","attempt":1,"undo_began":9000,"due":900000}`, []string{"flight: retrying compensation, again "}},
		{"undo-stuck", "stuck", "compensating", `{"state":"undo-stuck","attempt":1,"undo_began":9000,"reason":"gone"}`, []string{`class="box tone-stuck"`, "flight: compensation stuck, gone"}},
		{"undone", "compensated", "compensated", `{"state":"undone","attempt":1,"undo_began":9000,"undo_ended":12000}`, []string{`class="box tone-undone"`, "flight: undone, undone in 3 s", "dot-end-compensated"}},
		{"rejected", "compensated", "compensated", `{"state":"rejected","attempt":1,"reason":"sold out"}`, []string{`class="box tone-reject"`, "flight: had no effect, sold out"}},
		{"unknown", "compensating", "compensating", `{"state":"unknown","attempt":1}`, []string{"flight: effect unknown", "to be undone"}},
	} {
		hotel := `{}`
		if tt.phase != "running" {
			hotel = `{"state":"rejected","attempt":1}`
		}
		f.putTour(t, tt.name, tt.status, fmt.Sprintf(`{"phase":%q,"steps":[{"state":"done","attempt":1},%s,%s,{},{}]}`, tt.phase, tt.flight, hotel))
		text := f.getSaga(t, tt.name)
		requireTexts(t, tt.name, text, append(tt.want, `role="img"`, "<title id=", "<desc id=", "book: in parallel", `class="unseen"`, `class="box-name"`)...)
	}
}

// A nested saga is drawn in the place of its step, and each page leads to the other.
func TestANestedSagaIsDrawnInPlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putTour(t, "k", "running", `{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"running","attempt":1,"message":"e30="},{}]}`)
	f.exec(t, `INSERT INTO {schema}.saga (scope, key, path, id, root, version, name, parent, plan_hash, started_at, state, progress, status, updated_at)
		VALUES ('acme', 'k', '4.1', gen_random_uuid(), gen_random_uuid(), 1, 'trip', 'tour', 'h', now(), '{}',
			'{"phase":"running","steps":[{"state":"stuck","attempt":7,"reason":"no clerk"},{}]}', 'stuck', now())`)
	text := f.getSaga(t, "k")
	requireTexts(t, "the page", text, "frame-nested", "rent: saga trip, running", "flight: stuck, attempt 7, no clerk", "path=4.1", "runs the saga trip, nested at 4.1")
	response, text := f.get(t, f.sagaURL("k")+"&path=4.1")
	if response.StatusCode != http.StatusOK {
		t.Fatalf("the nested saga = %d", response.StatusCode)
	}
	requireTexts(t, "the nested page", text, "Nested in", ">saga tour</a>", "flight: stuck, attempt 7")
	if strings.Contains(text, "frame-nested") {
		t.Error("the nested page has the frame of the outer one")
	}
}

// The timeline tells durations, gaps, and who decided what; the sentence of why is that of the command.
func TestATimelineTellsGapsAndDecisions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putTour(t, "k", "running", `{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"done","attempt":1,"began":1000,"sent":1000,"ended":3000},{"state":"done","attempt":1,"began":1000,"sent":1000,"ended":45000},{"state":"stuck","attempt":1,"began":45000,"sent":45000,"reason":"no clerk"},{}]}`)
	f.exec(t, `INSERT INTO {schema}.saga_journal (scope, key, path, at, verb, step, who, why) VALUES ('acme', 'k', '', now() - interval '40 s', 'retry', 'rent', 'bob', 'the clerk is back')`)
	requireTexts(t, "the page", f.getSaga(t, "k"), "step flight done after 2 s", "waited 42 s for hotel", "waits since then", "step hotel done after 44 s", "bob decided: retry rent. the clerk is back",
		"stuck: step rent: no clerk", "a person decides: retry, skip or reject")
}

// What is read of messages, letters and states is escaped, redacted, and limited.
func TestContentsAreEscapedRedactedAndLimited(t *testing.T) {
	t.Parallel()
	const hostile = `"></pre><script>alert(1)</script><img/src=x/onerror=alert(1)>'` + "\u202e{{.}}"
	f := newFixture(t, RoleViewer, func(o *Options) {
		o.MaxContent = 2000
		o.TraceURL = func(id string) string { return "https://traces.example/" + id }
		o.Redact = func(c Content) []byte {
			return bytes.ReplaceAll(c.Data, []byte("4111 1111"), []byte("(card of "+c.Kind+")"))
		}
	})
	f.putTour(t, "k", "running", `{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"running","attempt":1,"message":"e30="},{},{},{}]}`)
	payload, err := json.Marshal(map[string]string{"card": "4111 1111", "note": hostile})
	if err != nil {
		t.Fatal(err)
	}
	headers, err := json.Marshal(map[string]string{"x-note": hostile, "x-card": "4111 1111", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
	if err != nil {
		t.Fatal(err)
	}
	const insert = `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, headers, payload, content_type)
		VALUES (gen_random_uuid(), $1, $1, 'acme', 'k', $1, '9', $1, $1, '', $2, $3, 'application/json')`
	f.exec(t, insert, hostile, string(headers), payload)
	f.exec(t, insert, "long", nil, []byte(strings.Repeat("a", 3000)))
	f.exec(t, insert, "huge", nil, bytes.Repeat([]byte("b"), maxRead+1))
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, stack, due_at)
		VALUES ('dead', 'action', 'acme', 'k', $1, '8', $1, 'm', ARRAY['x-note'::bytea], ARRAY[convert_to($1, 'UTF8')], convert_to($1, 'UTF8'), 'failed', $1, $1, now())`, hostile)
	f.exec(t, `UPDATE {schema}.saga SET state = $1, reason = $2`, string(payload), hostile)
	f.exec(t, `INSERT INTO {schema}.saga_journal (scope, key, path, verb, step, who, why) VALUES ('acme', 'k', '', 'pause', $1, $1, $1)`, hostile)
	text := f.getSaga(t, "k")
	if strings.Contains(text, "<img/src") || strings.Contains(text, "</pre><script>") || strings.Contains(text, "\u202e") {
		t.Errorf("the page has unescaped text: %s", text)
	}
	if strings.Contains(text, "4111 1111") {
		t.Error("the page shows what Redact removes")
	}
	requireTexts(t, "the page", text, "(card of payload)", "(card of headers)", "(card of state)", "Only the first 2 KiB of 3 KiB are shown",
		"larger than 1.0 MiB, and is not shown", "https://traces.example/0af7651916cd43dd8448eb211c80319c", "&lt;script&gt;alert(1)", "side=inbox")
	if strings.Contains(text, strings.Repeat("a", 2001)) || strings.Contains(text, "bbbbbbbbbb") {
		t.Error("the page has more of a payload than MaxContent")
	}
	if strings.Contains(text, "change/decide") {
		t.Error("a viewer is offered a change")
	}
}

// A trace whose address is a script is no link.
func TestATraceIsNoScript(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, func(o *Options) { o.TraceURL = func(id string) string { return "javascript:alert('" + id + "')" } })
	f.putTour(t, "k", "running", `{"phase":"running","steps":[{"state":"running","attempt":1},{},{},{},{}]}`)
	f.getSaga(t, "k") // which looks for javascript:
	f.putTour(t, "untraced", "running", `{"phase":"running","steps":[{"state":"running","attempt":1},{},{},{},{}]}`)
	f.exec(t, `UPDATE {schema}.saga SET trace_parent = 'none' WHERE key = 'untraced'`)
	if text := f.getSaga(t, "untraced"); strings.Contains(text, "<dt>Trace</dt>") {
		t.Error("a header that is no traceparent leads to a trace")
	}
}

// A saga without an instance is drawn from its messages.
func TestMessagesOfAChoreographyAreDrawn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	write := func(id, cause, topic, step string, ago int) {
		f.exec(t, `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, payload, content_type, created_at)
			VALUES ($1, $3, $3, 'acme', 'c', $4, '1', 'c', 'c', $2, '{}', 'application/json', clock_timestamp() - $5::integer * interval '1 second')`, id, cause, topic, step, ago)
	}
	const first, second, third, fourth = "00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002", "00000000-0000-7000-8000-000000000003", "00000000-0000-7000-8000-000000000004"
	write(first, "", "order.placed", "charge", 100)
	write(second, first, "charged", "ship", 90)
	write(third, second, "unshippable", "charge", 60)
	write(fourth, third, "refunded", "close", 50)
	f.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, undo_attempts, digest, undo_digest, created_at, updated_at)
		SELECT 'acme', 'c', step, '1', state, 1, CASE state WHEN 'compensated' THEN 1 ELSE 0 END, sha256('x'), CASE state WHEN 'compensated' THEN sha256('x') END, now() - $1::integer * interval '1 s', now() - interval '55 s'
		FROM (VALUES ('charge', 'compensated'), ('ship', 'done')) v (step, state)`, 95)
	text := f.getSaga(t, "c")
	requireTexts(t, "the page", text, "No orchestrator coordinates this saga", "message order.placed leads from request to charge", "message charged leads from charge to ship",
		"message unshippable leads from ship to undo charge", "message refunded leads from undo charge to close", "charge: done, then undone", `class="lane`, "Its scope is acme")
	for _, key := range []string{"none", "c2"} {
		response, text := f.get(t, f.sagaURL(key))
		if response.StatusCode != http.StatusNotFound || !strings.Contains(text, "Nothing is known of the saga") || !strings.Contains(text, key) {
			t.Errorf("an unknown saga = %d: %s", response.StatusCode, text)
		}
	}
}

// An address that is wrong, or names several sagas, says so.
func TestSagaAddresses(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putStuck(t, "k", 1)
	f.exec(t, `INSERT INTO {schema}.saga SELECT (jsonb_populate_record(s, '{"scope":"globex"}')).* FROM {schema}.saga s`)
	f.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts) VALUES ('acme', 'messages', 'pay', '', 'open', 1), ('globex', 'messages', 'pay', '', 'open', 1)`)
	var id string
	if err := f.pool.QueryRow(t.Context(), "SELECT id FROM "+f.schema+".saga WHERE scope = 'globex'").Scan(&id); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]struct {
		status int
		text   string
	}{
		"":                              {http.StatusBadRequest, "its key is missing"},
		"key=k0001&schema=x":            {http.StatusBadRequest, "a schema without a database"},
		"key=k0001&database=x&schema=y": {http.StatusNotFound, "There is no schema"},
		"key=k0001":                     {http.StatusOK, "names several sagas"},
		"key=k0001&scope=globex":        {http.StatusOK, "saga trip, version 1, globex/k0001"},
		"key=messages":                  {http.StatusOK, "names several sagas"},
		"key=messages&scope=globex":     {http.StatusOK, "Its scope is globex"},
		"id=" + id:                      {http.StatusOK, "k0001"},
		"id=none":                       {http.StatusBadRequest, "UUID"},
		"id=00000000-0000-0000-0000-000000000000": {http.StatusNotFound, "no saga with this id"},
	} {
		response, text := f.get(t, "/saga?"+query)
		if response.StatusCode != want.status || !strings.Contains(text, want.text) {
			t.Errorf("saga?%s = %d, want %d with %q: %s", query, response.StatusCode, want.status, want.text, text)
		}
	}
	if _, text := f.get(t, "/sagas?state=stuck"); !strings.Contains(text, "saga?"+strings.ReplaceAll(url.Values{"database": {"main"}, "key": {"k0001"}, "schema": {f.schema}, "scope": {"acme"}}.Encode(), "&", "&amp;")) {
		t.Errorf("the list does not lead to the page: %s", text)
	}
}

// Each verb says what it would do. A person confirms it after a preview, if the role is enough.
func TestVerbsOnOneSaga(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putTour(t, "k", "stuck", `{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"stuck","attempt":1,"reason":"no room"},{},{}]}`)
	f.putTour(t, "other", "stuck", `{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"stuck","attempt":1,"reason":"no room"},{},{}]}`)
	text := f.getSaga(t, "k")
	requireTexts(t, "the page", text, "Not now: it is not paused.", "It would undo flight.", "or has it as a dead letter.", `name="verb" value="cancel"`, `name="verb" value="retry"`, `<input type="hidden" name="to" value="hotel">`, "Needs the role admin")
	if strings.Contains(text, `name="verb" value="skip"`) || strings.Contains(text, `name="verb" value="resume"`) {
		t.Error("the page offers a verb that would be refused")
	}
	at := operator.Address{Scope: "acme", Key: "k"}
	n, err := operator.NewInstances(f.pool, &operator.Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	is, err := n.Get(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	query := func(verb, more string) string {
		return "/change/decide?" + buildTestQuery("in", "main/"+f.schema, "scope", "acme", "key", "k", "id", is.ID, "verb", verb) + more
	}
	for more, want := range map[string]string{"skip": "needs a step", "skip&to=hotel&result={": "not JSON", "pause&to=hotel": "as a whole", "retry&to=hotel&result={}": "has a result"} {
		if response, text := f.get(t, query("", "&verb="+more)); response.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("the preview of %s = %d, want 400 with %q: %s", more, response.StatusCode, want, text)
		}
	}
	if response, _ := f.get(t, "/change/decide?verb=skip&to=hotel&key=k"); response.StatusCode != http.StatusBadRequest {
		t.Errorf("a skip of many sagas = %d, want 400", response.StatusCode)
	}
	_, text = f.get(t, "/change/decide?"+buildTestQuery("in", "main/"+f.schema, "step", "hotel", "verb", "retry"))
	requireTexts(t, "a retry of a step of many", text, "A step whose message is a dead letter at its participant is left alone")
	if token := f.previewToken(t, query("skip", "&to=hotel&result={}")); token != "" {
		t.Error("an operator may skip")
	}
	token := f.previewToken(t, query("retry", "&to=hotel"))
	if response, text := f.post(t, "/change/decide", confirmation(token, 1), nil); response.StatusCode != http.StatusSeeOther {
		t.Fatalf("the confirmation = %d: %s", response.StatusCode, text)
	}
	f.console.runs.working.Wait()
	if is, err = n.Get(t.Context(), at); err != nil || len(is.Journal) != 1 || is.Journal[0].Step != "hotel" || is.Journal[0].By != "ann" {
		t.Errorf("the journal of k = %+v, %v", is.Journal, err)
	}
	if entries, _ := f.journaled(t); entries != 1 {
		t.Errorf("%d sagas have changed, want 1", entries)
	}

	f.start(t, RoleAdmin, nil)
	f.exec(t, `UPDATE {schema}.saga SET progress = replace(progress, '"waiting"', '"stuck"'), status = 'stuck', due_at = NULL`)
	token = f.previewToken(t, query("skip", "&to=hotel&result="+url.QueryEscape(`{"room":7}`)))
	f.post(t, "/change/decide", confirmation(token, 1), nil)
	f.console.runs.working.Wait()
	if is, err = n.Get(t.Context(), at); err != nil || !is.Steps[3].Override {
		t.Errorf("after a skip of an admin, hotel is %+v, %v", is.Steps[3], err)
	}
}

// The stream of the page sends what has changed, and ends with the saga.
func TestASagaIsFollowed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putTour(t, "k", "running", `{"phase":"running","steps":[{"state":"running","attempt":1},{},{},{},{}]}`)
	ctx, leave := context.WithTimeout(t.Context(), time.Minute)
	defer leave()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/live"+f.sagaURL("k"), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.browser.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	await := func(event, text string) {
		t.Helper()
		in := false
		for lines.Scan() {
			if name, is := strings.CutPrefix(lines.Text(), "event: "); is {
				in = name == event
			}
			if in && strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("the stream ended before the event %s with %q: %v", event, text, lines.Err())
	}
	await("drawing", "quote: running")
	places, _ := f.console.listPlaces(ctx)
	at := operator.Address{Scope: "acme", Key: "k"}
	before := readRevision(ctx, places, at)
	if before == "" || readRevision(ctx, places, at) != before {
		t.Errorf("the revision of a saga that has not changed is %q, then %q", before, readRevision(ctx, places, at))
	}
	f.exec(t, `UPDATE {schema}.saga SET status = 'compensated', ended_at = now(), updated_at = now(), progress = '{"phase":"compensated","steps":[{"state":"rejected","attempt":1},{},{},{},{}]}'`)
	if after := readRevision(ctx, places, at); after == before {
		t.Errorf("the revision is %q after a change too", after)
	}
	await("drawing", "quote: had no effect")
	await("end", "")
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "event: ") {
			t.Errorf("the stream goes on after its end: %s", lines.Text())
		}
	}
	if lines.Err() != nil {
		t.Error(lines.Err())
	}
}

// A saga is followed over several databases. A step that no message names is connected by a guess.
func TestMessagesAreFollowedOverDatabases(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	pool, schema := pgtest.Schema(t)
	c, err := New([]Database{{Name: "orders", Pool: f.pool, Schemas: []string{f.schema}}, {Name: "shop", Pool: pool, Schemas: []string{schema}}},
		&Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix(prefix, c))
	defer server.Close()
	f.url = server.URL + prefix
	f.exec(t, `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, payload, content_type, created_at)
		VALUES (gen_random_uuid(), 'order.placed', 'order.placed', 'acme', 'c', 'charge', '1', 'c', 'c', '', '{}', 'application/json', now() - interval '9 s')`)
	other := &fixture{pool: pool, schema: schema}
	other.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, digest) SELECT 'acme', 'c', step, '1', 'done', 1, sha256('x') FROM unnest(ARRAY['charge', 'count']) step`)
	response, text := f.get(t, "/saga?key=c")
	if response.StatusCode != http.StatusOK {
		t.Fatalf("the page = %d: %s", response.StatusCode, text)
	}
	requireTexts(t, "the page", text, "message order.placed leads from request to charge", "message order.placed probably leads from request to count",
		"way way-faint", "orders/"+f.schema, "shop/"+schema)
}

// Who watches a saga that changes is told that the verbs are those of the load. The page that was just loaded says nothing.
func TestAStreamSaysThatThePageIsOld(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putTour(t, "k", "running", `{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"inflight","attempt":1},{},{},{}]}`)
	_, text := f.get(t, f.sagaURL("k"))
	found := regexp.MustCompile(`sse-connect="\.(/[^"]*)"`).FindStringSubmatch(text)
	if found == nil || strings.Contains(text, "Reload for verbs") {
		t.Fatalf("the page has no stream, or is old at once: %s", text)
	}
	stream := strings.ReplaceAll(found[1], "&amp;", "&")
	if text := f.firstEvents(t, stream); strings.Contains(text, "Reload for verbs") {
		t.Errorf("the stream of an unchanged saga calls its page old: %s", text)
	}
	f.exec(t, "UPDATE {schema}.saga SET status = 'stuck', updated_at = clock_timestamp()")
	requireTexts(t, "the stream", f.firstEvents(t, stream), "Reload for verbs and messages", `href="./saga?`)
}

// A letter, a message and a saga without an instance lead to their traces.
func TestLettersAndMessagesLeadToTraces(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, func(o *Options) { o.TraceURL = func(id string) string { return "https://traces.example/" + id } })
	trace := func(id string) string { return "00-" + strings.Repeat(id, 32) + "-b7ad6b7169203331-01" }
	for i, id := range []string{"a", "b"} {
		f.exec(t, `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, headers, payload, content_type, created_at)
			VALUES (gen_random_uuid(), 't', 't', 'acme', 'c', 's', '1', 'c', 'c', '', $1, '{}', 'application/json', clock_timestamp() + $2::integer * interval '1 second')`, `{"traceparent":"`+trace(id)+`"}`, i-9)
	}
	f.putDead(t, "k", 1)
	f.exec(t, "UPDATE {schema}.parked SET header_names = '{traceparent}', header_values = ARRAY[convert_to($1, 'UTF8')]", trace("d"))
	for path, id := range map[string]string{f.letterPath("letter", 1): "d", "/saga?key=c&scope=acme": "a", "/message?in=main/" + f.schema + "&id=1": "a"} {
		_, text := f.get(t, path)
		if i := strings.Index(text, "https://traces.example/"); i < 0 || !strings.HasPrefix(text[i:], "https://traces.example/"+strings.Repeat(id, 32)) {
			t.Errorf("%s does not lead to trace %s first: %s", path, id, text)
		}
	}
	head := `<a href="https://traces.example/` + strings.Repeat("a", 32) + `" rel="noreferrer">Trace of the first message</a>`
	if _, text := f.get(t, "/saga?key=c&scope=acme"); !strings.Contains(text, head) {
		t.Errorf("the head of the saga does not lead to the trace of its first message: %s", text)
	}
}
