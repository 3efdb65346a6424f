package console

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

const hostileText = `"><script>alert(1)</script><img/src=x/onerror=alert(1)>'` + "\u202e{{.}}"

// putMessages stores n messages of a topic in the log, with the keys topic000 and so on.
func (f *fixture) putMessages(t *testing.T, topic string, n int) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload)
		SELECT gen_random_uuid(), $1, 'made', 'acme', $1 || lpad(i::text, 3, '0'), 's', '1', 'o', 'corr', '', 'application/json', json_build_object('x-secret', $1::text), '{"x":[1]}'
		FROM generate_series(1, $2::integer) i`, topic, n)
}

// putHeld stores n refused messages, each with one that waits behind it.
func (f *fixture) putHeld(t *testing.T, n int, reason string) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
		SELECT 1000000 + i, gen_random_uuid(), 'hotel', 'hotel', 'acme', 'held' || lpad(i::text, 3, '0'), 's', '1', 'order-' || i, 'corr', '', 'text/plain', 'p'::bytea, 'refused', now(), 3, $2::text, now() FROM generate_series(1, $1::integer) i
		UNION ALL
		SELECT 2000000 + i, gen_random_uuid(), 'hotel', 'hotel', 'acme', 'later' || lpad(i::text, 3, '0'), 's', '1', 'order-' || i, 'corr', '', 'text/plain', 'p'::bytea, 'waiting', 'infinity', 0, '', NULL FROM generate_series(1, $1::integer) i`, n, reason)
}

// walkPages returns what pattern finds on all pages of a list, in order.
func (f *fixture) walkPages(t *testing.T, path string, pattern *regexp.Regexp) (all []string) {
	t.Helper()
	next := regexp.MustCompile(`rel="next" href="\./([a-z]+\?[^"]*)"`)
	for page := 0; path != ""; page++ {
		response, text := f.get(t, path)
		if response.StatusCode != http.StatusOK || page > 30 {
			t.Fatalf("page %d, %s = %d: %s", page, path, response.StatusCode, text)
		}
		for _, found := range pattern.FindAllStringSubmatch(text, -1) {
			all = append(all, found[1])
		}
		path = ""
		if found := next.FindStringSubmatch(text); found != nil {
			path = "/" + strings.ReplaceAll(found[1], "&amp;", "&")
		}
	}
	return all
}

func contains(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not have %q: %s", want, text)
		}
	}
}

// The pages of the outbox have each message once, whatever place and filter.
func TestOutboxPagesSkipAndRepeatNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putMessages(t, "flight", 2*messagesOnPage+7)
	f.putMessages(t, "car", messagesOnPage)
	f.putHeld(t, messagesOnPage+3, "no queue")
	key := regexp.MustCompile(`<th scope="row">((?:flight|car|held|later)\d{3})<br>`)
	for query, want := range map[string]int{"": 3*messagesOnPage + 7, "place=log": 3*messagesOnPage + 7, "place=log&topic=car": messagesOnPage, "place=stored&key=flight003": 1,
		"place=refused": messagesOnPage + 3, "place=waiting": messagesOnPage + 3, "place=waiting&ordering=order-7": 1, "place=dead": 0, "place=log&type=none": 0, "place=log&correlation=corr&scope=acme&type=made": 3*messagesOnPage + 7} {
		keys := f.walkPages(t, "/outbox?"+query, key)
		if unique := slices.Compact(slices.Sorted(slices.Values(keys))); len(keys) != want || len(unique) != want {
			t.Errorf("%s lists %d messages, %d different, want %d", query, len(keys), len(unique), want)
		}
	}
	for query, want := range map[string]int{"after=e30x": 400, "message=none": 400, "place=published": 400, "in=main/other": 404,
		"after=" + encodePoint(messagePoint{In: "main/x"}): 400, "after=" + encodePoint(map[string]any{"in": "main/" + f.schema, "at": map[string]any{"id": 1, "xid": "x"}}): 400} {
		if response, text := f.get(t, "/outbox?"+query); response.StatusCode != want {
			t.Errorf("%s = %d, want %d: %s", query, response.StatusCode, want, text)
		}
	}
}

// The outbox says what waits and for what, which relay is active, and what passed.
func TestOutboxSaysWhatWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putMessages(t, "flight", 3)
	f.putHeld(t, 2, "no queue is bound")
	f.exec(t, `UPDATE {schema}.outbox_relay SET epoch = 7, holder = 'relay-a', lease_until = now() + interval '1 hour'`)
	f.exec(t, `INSERT INTO {schema}.outbox_cursor_0 (epoch, seq, from_snapshot, last_id) VALUES (7, 1, '3:3:', 0)`)
	_, text := f.get(t, "/outbox")
	contains(t, text, "<code>relay-a</code>", ">order-1</a>", "message 1000001</a> to hotel", "no queue is bound", `<dt>Written in the last minute</dt><dd class="num">3<`,
		`<dt>Epoch</dt><dd class="num">7<`, `<td class="r num">1</td>`)
	_, text = f.get(t, "/")
	contains(t, text, `href="./outbox?in=main%2F`+f.schema+`&amp;place=refused"`)
}

// A message is shown with headers and payload, both through Redact, and leads to its saga.
func TestAMessageIsShownRedacted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, func(o *Options) {
		o.Redact = func(c Content) []byte { return []byte(strings.ReplaceAll(string(c.Data), "hide me", "hidden")) }
	})
	f.putMessages(t, "hide me", 1)
	f.exec(t, `UPDATE {schema}.outbox SET payload = '{"card":"hide me"}'`)
	f.putHeld(t, 1, "no queue")
	f.exec(t, `UPDATE {schema}.outbox_held SET payload = '\x00ff10' WHERE state = 'refused'`)
	var id int64
	if err := f.pool.QueryRow(t.Context(), "SELECT id FROM "+f.schema+".outbox").Scan(&id); err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("/message?in=main/%s&id=", f.schema)
	_, text := f.get(t, at+fmt.Sprint(id))
	contains(t, text, "x-secret", ">hidden</td>", "&#34;card&#34;: &#34;hidden&#34;", `href="./why?key=hide&#43;me001&amp;scope=acme"`, `href="./saga?key=hide&#43;me001&amp;scope=acme"`)
	_, text = f.get(t, at+"1000001")
	contains(t, text, "The payload is not text", "no queue", "3</dd>")
	_, text = f.get(t, at+"2000001")
	contains(t, text, "It waits behind <a", "message 1000001")
	for id, want := range map[string]int{"9": 404, "0": 400, "x": 400, "": 400} {
		if response, _ := f.get(t, at+id); response.StatusCode != want {
			t.Errorf("message %q = %d, want %d", id, response.StatusCode, want)
		}
	}
}

// Text that services store is text in these pages, and no page has a script.
func TestHostileTextIsEscapedWhereverItIsRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, func(o *Options) {
		o.Topology = func(context.Context) ([]byte, error) {
			return json.Marshal(map[string]any{"service": hostileText, "emits": []any{map[string]string{"topic": hostileText, "type": hostileText}}})
		}
	})
	f.putHeld(t, 1, hostileText)
	f.putMessages(t, hostileText, 1)
	f.putStuck(t, hostileText, 1)
	f.exec(t, `UPDATE {schema}.outbox_held SET topic = $1, type = $1, scope = $1, key = $1, step = $1, ordering_key = $1, headers = json_build_object($1::text, $1::text), payload = convert_to($1, 'UTF8')`, hostileText)
	f.exec(t, `INSERT INTO {schema}.operator_journal (who, verb, what, ids, why) VALUES ($1, $1, jsonb_build_object($1::text, $1::text), '{1}', $1)`, hostileText)
	f.exec(t, `INSERT INTO {schema}.saga_journal (scope, key, path, verb, step, who, why) VALUES ($1, $1, $1, $1, $1, $1, $1)`, hostileText)
	f.exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at) VALUES ($1, $1, $1, 1, '', '', gen_random_uuid(), 1, now(), now())`, hostileText)
	at := "/message?in=main/" + f.schema + "&id="
	for _, path := range []string{"/outbox", "/outbox?place=refused", "/outbox?place=log", "/outbox?" + buildTestQuery("topic", hostileText, "place", "log"), at + "1000001", at + "2000001", "/topology", "/journal",
		"/journal?" + buildTestQuery("by", hostileText), "/journal?" + buildTestQuery("since", hostileText), "/requests?" + buildTestQuery("key", hostileText), "/requests?" + buildTestQuery("key", "none"+hostileText),
		"/why?" + buildTestQuery("q", hostileText), "/why?" + buildTestQuery("key", hostileText), "/why?" + buildTestQuery("q", hostileText+"x"), "/outbox?" + buildTestQuery("place", hostileText)} {
		_, text := f.get(t, path)
		if found := inline.FindString(text); found != "" || strings.Contains(text, "<img/src") || strings.Contains(text, `"><script>`) || strings.Contains(text, "\u202e") && !strings.Contains(path, "?") {
			t.Errorf("%s has %q unescaped: %s", path, found, text)
		}
		if !strings.Contains(text, "</html>") || strings.Contains(text, "This page has failed") {
			t.Errorf("%s is no page: %s", path, text)
		}
	}
}

// putJournals stores entries in both journals, several of one moment.
func (f *fixture) putJournals(t *testing.T, n int) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.saga_journal (at, scope, key, path, verb, step, who, why)
		SELECT date_trunc('hour', now()) - i / 7 * interval '1 minute', 'acme', 'saga' || lpad(i::text, 4, '0'), '', 'retry', 'hotel', 'ann', 'why' FROM generate_series(1, $1::integer) i`, n)
	f.exec(t, `INSERT INTO {schema}.operator_journal (at, who, verb, what, ids, why)
		SELECT date_trunc('hour', now()) - i / 7 * interval '1 minute', 'bob', 'dead redrive', '{}', ARRAY[90000 + i], '=1+1' FROM generate_series(1, $1::integer) i`, n)
}

// The journal has each entry of both journals once, by pages and in its exports.
func TestTheJournalSkipsAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putJournals(t, 2*entriesOnPage+11)
	either := regexp.MustCompile(`(saga\d{4}</a>|class="num">9\d{4}<)`)
	for query, want := range map[string]int{"": 4*entriesOnPage + 22, "of=sagas": 2*entriesOnPage + 11, "by=bob": 2*entriesOnPage + 11, "verb=retry&by=ann": 2*entriesOnPage + 11, "by=nobody": 0, "since=1000d": 4*entriesOnPage + 22,
		"until=2020-01-31": 0, "since=2020-01-31+12:00&of=messages": 2*entriesOnPage + 11} {
		found := f.walkPages(t, "/journal?"+query, either)
		if unique := slices.Compact(slices.Sorted(slices.Values(found))); len(found) != want || len(unique) != want {
			t.Errorf("%s lists %d entries, %d different, want %d", query, len(found), len(unique), want)
		}
		_, text := f.get(t, "/journal.jsonl?"+query)
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if text == "" {
			lines = nil
		}
		for _, line := range lines {
			if !json.Valid([]byte(line)) {
				t.Errorf("line %s is not JSON", line)
			}
		}
		if unique := slices.Compact(slices.Sorted(slices.Values(lines))); len(lines) != want || len(unique) != want {
			t.Errorf("%s exports %d entries, want %d", query, len(lines), want)
		}
	}
	for query, want := range map[string]int{"since=x": 400, "of=x": 400, "after=e30x": 400, "after=" + encodePoint(journalPoint{Source: "x"}): 400} {
		if response, _ := f.get(t, "/journal?"+query); response.StatusCode != want {
			t.Errorf("%s = %d, want %d", query, response.StatusCode, want)
		}
	}
}

// A cell of the CSV file is no formula, and the file is complete.
func TestAnExportHasNoFormulas(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	for _, why := range []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "plain", "a,\"b\"\nc"} {
		f.exec(t, `INSERT INTO {schema}.saga_journal (scope, key, path, verb, who, why) VALUES ('=x', '@k', '', 'retry', '-ann', $1)`, why)
	}
	response, text := f.get(t, "/journal.csv")
	if response.Header.Get("Content-Type") != "text/csv; charset=utf-8" || response.Header.Get("Content-Disposition") != `attachment; filename="sagamill-journal.csv"` ||
		response.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers: %v", response.Header)
	}
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(rows) != 9 || !slices.Equal(rows[0], exportColumns) {
		t.Fatalf("%d rows, %v: %s", len(rows), err, text)
	}
	for _, row := range rows[1:] {
		for _, cell := range row {
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r") {
				t.Errorf("the cell %q is a formula", cell)
			}
		}
		if row[4] != "'-ann" || row[8] != "'=x" || row[9] != "'@k" {
			t.Errorf("row %q", row)
		}
	}
	for cell, want := range map[string]string{"x;=1+1": "x;'=1+1", `x;"=1"`: `x;"'=1"`, "x; =1": "x; '=1", "\uff1d1": "'\uff1d1", "\uff0b1": "'\uff0b1", "\uff0d1": "'\uff0d1", "\uff20a": "'\uff20a",
		" =1": " '=1", "\ufeff=1": "\ufeff'=1", "a\n=1": "a\n'=1", "x\t@a": "x\t'@a", "a=b-c;d": "a=b-c;d", "2026-01-31T12:00:00Z": "2026-01-31T12:00:00Z", "\t=1": "'\t'=1", "": ""} {
		if got := quoteFormula(cell); got != want {
			t.Errorf("the cell %q is written as %q, want %q", cell, got, want)
		}
	}
	if response, _ := f.get(t, "/journal.csv?since=x"); response.StatusCode != http.StatusBadRequest {
		t.Errorf("a bad search = %d, want 400", response.StatusCode)
	}
}

// An export that fails once it has begun breaks the connection.
func TestAnExportThatFailsIsNotComplete(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	rows := []journalRow{{}}
	rows[0].Where = &place{Name: "x"}
	reader := &journalReader{journals: []journal{{&place{Name: "x", Schema: "no_such", pool: f.pool}, "sagas"}}, failed: func(_ journal, err error) error { return err }}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	if err := copyJournal(ctx, w, reader.pointOf, reader.read, rows, true, &jsonExport{json.NewEncoder(w)}); err == nil || strings.Count(w.Body.String(), "\n") != 1 {
		t.Errorf("copyJournal = %v after %s", err, w.Body)
	}
}

// A limited export says that there is more.
func TestALimitedExportSaysSo(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, one := range []export{newCSVExport(&text), &jsonExport{json.NewEncoder(&text)}} {
		text.Reset()
		if err := one.end(true); err != nil || !strings.Contains(text.String(), "more than 100000 entries") {
			t.Errorf("%T ends with %q, %v", one, text.String(), err)
		}
	}
}

// startAs starts the console with a role of the database that has these grants.
func (f *fixture) startAs(t *testing.T, grants ...string) {
	t.Helper()
	role := pgtest.Name()
	f.exec(t, "CREATE ROLE "+role)
	t.Cleanup(func() {
		if _, err := f.pool.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	for _, grant := range append(grants, "USAGE ON SCHEMA {schema}") {
		f.exec(t, "GRANT "+grant+" TO "+role)
	}
	config := pgtest.DirectConfig(t)
	config.ConnConfig.RuntimeParams["role"] = role
	as, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(as.Close)
	owner := f.pool
	f.pool = as
	f.start(t, RoleViewer, nil)
	f.pool = owner
}

// Pages say in words what the role may not read, and show the rest.
func TestPagesSayWhatTheRoleMayNotRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putJournals(t, 1)
	f.putHeld(t, 1, "no queue")
	f.exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, resp_status, expires_at) VALUES ('http', 'acme', 'k1', 3, '', '', gen_random_uuid(), 1, now(), 201, now() + interval '1 hour')`)
	f.startAs(t, "SELECT ON {schema}.schema_version", "SELECT (state, lease_until, expires_at) ON {schema}.idempotency_key", "SELECT ON {schema}.saga_journal")
	_, text := f.get(t, "/requests?key=k1")
	contains(t, text, "may not read the idempotency keys of schema "+f.schema, "GRANT SELECT (namespace, scope, key", "on purpose")
	if strings.Contains(text, "No record has this key") {
		t.Errorf("the page says that there is no record: %s", text)
	}
	_, text = f.get(t, "/journal")
	contains(t, text, "saga0001", "is left out: The database role of the console may not read or change this.")
	_, text = f.get(t, "/outbox")
	contains(t, text, "The database role of the console may not read or change this.")
	_, text = f.get(t, "/topology")
	contains(t, text, "The database role of the console may not read or change this.")
	_, text = f.get(t, "/why?q=k1")
	contains(t, text, "Nothing is known of", "idempotency key in "+f.schema+": the database role of the console may not read it.", "saga in "+f.schema)
}

// A key is shown with what a retry gets; without its response if the role may not read that.
func TestAKeySaysWhatARetryGets(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, resp_status, resp_body, expires_at) VALUES
		('http', 'acme', 'k1', 3, '', '', gen_random_uuid(), 2, now(), 201, 'the secret response', now() + interval '1 hour'),
		('http', 'other', 'k1', 1, '', '', gen_random_uuid(), 1, now() + interval '1 hour', NULL, NULL, now() + interval '1 hour')`)
	_, text := f.get(t, "/requests?key=k1")
	contains(t, text, "The stored response again, with status 201", "status 201, 19 B", "409 in-progress", `href="./why?key=k1&amp;scope=acme"`)
	if strings.Contains(text, "secret response") {
		t.Error("the page has the response")
	}
	_, text = f.get(t, "/requests?key=k1&scope=other")
	if strings.Contains(text, "status 201") {
		t.Errorf("another scope is shown: %s", text)
	}
	_, text = f.get(t, "/requests?key=none")
	contains(t, text, "No record has this key", "Keys in Redis are not looked at")
	f.startAs(t, "SELECT ON {schema}.schema_version", "SELECT (namespace, scope, key, state, attempt, lease_until, resp_status, created_at, completed_at, expires_at) ON {schema}.idempotency_key")
	_, text = f.get(t, "/requests?key=k1&scope=acme")
	contains(t, text, "of a size that the role may not read")
}

// The topology joins what services declare, what tables have and the queues, and shows no secret.
func TestTopologyJoinsWhatIsKnown(t *testing.T) {
	t.Parallel()
	var user string
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _, _ = r.BasicAuth()
		if r.URL.EscapedPath() != "/api/queues/my%2Fhost" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, `{"items":[{"name":"shop.pay.payments","messages":41,"messages_unacknowledged":3,"consumers":0,"state":"running"},{"name":"shop.pay.payments.dead","messages":2},{"name":"else","messages":1,"consumers":1}]}`)
	}))
	defer broker.Close()
	management := &Management{URL: broker.URL, User: "watcher", Password: "s3cr3t", VHost: "my/host"}
	f := newFixture(t, RoleViewer, func(o *Options) {
		o.Management = management
		o.Topology = func(context.Context) ([]byte, error) {
			return []byte(`[{"service":"payments","prefix":"shop.","steps":[{"name":"charge","action":{"topic":"pay","type":"pay"},"compensation":{"topic":"unpay","type":"unpay"},"emits":[{"topic":"paid","type":"paid"}]}]}]
				{"service":"orders","sagas":[{"name":"order","version":1,"commands":[{"step":"charge","message":{"topic":"pay","type":"pay"},"reply":{"topic":"saga.order"}}]}]}`), nil
		}
	})
	f.putMessages(t, "seen", 4)
	_, text := f.get(t, "/topology")
	contains(t, text, ">pay</a>", "step charge", "saga order, step charge", "<code>shop.pay.payments</code>", ">41<", "no consumer", ">seen</a>", "4 in the log", "no receiver is known", ">saga.trip</a>",
		"Other queues", "<code>else</code>", `<strong class="num bad">2<`)
	if others := text[strings.Index(text, "Other queues"):]; strings.Contains(others, "shop.pay") {
		t.Errorf("the queues of a topic are among the others: %s", others)
	}
	if user != "watcher" || strings.Contains(text, "s3cr3t") || strings.Contains(text, "watcher") || strings.Contains(text, broker.URL) {
		t.Errorf("user %q, or the page has a secret: %s", user, text)
	}
}

// A broker that does not answer, refuses or answers nonsense is a sentence, and the rest of the page is there.
func TestABrokerThatFailsIsASentence(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"refused":   {401, "", "refuses the user"},
		"no vhost":  {404, "", "does not know the virtual host"},
		"failing":   {500, "", "answers with status 500"},
		"nonsense":  {200, "<html>", "cannot be read"},
		"other":     {200, `{"a":1}`, "cannot be read"},
		"redirects": {302, "", "answers with status 302"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			followed := false
			broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				followed = followed || strings.HasPrefix(r.URL.Path, "/elsewhere")
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.body)
			}))
			defer broker.Close()
			f := newFixture(t, RoleViewer, func(o *Options) {
				o.Management = &Management{URL: broker.URL, User: "watcher", Password: "s3cr3t"}
				o.Topology = func(context.Context) ([]byte, error) { return []byte("{"), nil }
			})
			_, text := f.get(t, "/topology")
			contains(t, text, tt.want, "The descriptions of services cannot be read.", ">flight</a>")
			if followed || strings.Contains(text, "s3cr3t") {
				t.Errorf("followed the redirect %t, or the page has a secret: %s", followed, text)
			}
		})
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	f := newFixture(t, RoleViewer, func(o *Options) { o.Management = &Management{URL: gone.URL} })
	_, text := f.get(t, "/topology")
	contains(t, text, "The management API at 127.0.0.1:", "does not answer (dial tcp")
	for _, address := range []string{"", "mq:15672", "ftp://mq", "https://user:s3cr3t@mq"} {
		_, err := New([]Database{{Name: "main", Pool: f.pool}}, &Options{Management: &Management{URL: address}})
		if err == nil || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("URL %q: %v", address, err)
		}
	}
}

// Why? finds a saga by any of its names in two databases, and says the same for its key and for its id.
func TestWhyFollowsAKeyThroughAllDatabases(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	other, otherSchema := pgtest.Schema(t)
	second := &fixture{pool: other, schema: otherSchema}
	c, err := New([]Database{{Name: "main", Pool: f.pool, Schemas: []string{f.schema}}, {Name: "more", Pool: other, Schemas: []string{otherSchema}}}, &Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix(prefix, c))
	t.Cleanup(server.Close)
	f.console, f.url = c, server.URL+prefix
	f.putStuck(t, "trip", 1)
	f.putMessages(t, "flight", 1)
	f.exec(t, `UPDATE {schema}.outbox SET key = 'trip0001', correlation_id = 'corr-7'`)
	f.exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, resp_status, expires_at) VALUES ('http', 'acme', 'trip0001', 3, '', '', gen_random_uuid(), 1, now(), 202, now() + interval '1 hour')`)
	second.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, due_at)
		VALUES ('dead', 'action', 'acme', 'trip0001', 'charge', '1', 'pay', 'message-9', '{}', '{}', '', 'failed', 'card declined', now())`)
	var saga, message string
	if err := f.pool.QueryRow(t.Context(), strings.ReplaceAll("SELECT s.id::text, o.message_id::text FROM {schema}.saga s, {schema}.outbox o", "{schema}", f.schema)).Scan(&saga, &message); err != nil {
		t.Fatal(err)
	}
	way := regexp.MustCompile(`(?s)<h2 id="h-why">.*</table>`)
	var first string
	for _, query := range []string{"q=trip0001", "q=" + saga, "q=" + message, "q=corr-7", "q=message-9", "q=+trip0001+", "key=trip0001&scope=acme", "key=trip0001"} {
		response, text := f.get(t, "/why?"+query)
		got := way.FindString(text)
		if first == "" {
			first = got
			contains(t, got, "stuck", "card declined", "dead letter 1 of step charge", "with status 202", "made to flight", "main/"+f.schema, "more/"+otherSchema,
				`href="./message?id=`, `href="./letter?database=more&amp;id=1&amp;schema=`+otherSchema+`&amp;side=inbox"`)
			contains(t, text, `href="./why?key=trip0001&amp;scope=acme"`)
		}
		if response.StatusCode != http.StatusOK || got != first {
			t.Errorf("%s = %d, another page: %s", query, response.StatusCode, text)
		}
	}
	f.putStuck(t, "trip", 0)
	second.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state) VALUES ('globex', 'trip0001', 'pay', '1', 'open')`)
	for _, query := range []string{"q=trip0001", "key=trip0001"} {
		_, text := f.get(t, "/why?"+query)
		contains(t, text, "2 things match", `href="./why?key=trip0001&amp;scope=globex"`, `href="./why?key=trip0001&amp;scope=acme"`)
	}
	for _, query := range []string{"q=nothing", "key=nothing", "q=" + uuid.NewString()} {
		_, text := f.get(t, "/why?"+query)
		contains(t, text, "Nothing is known of", "Looked in main/"+f.schema+", more/"+otherSchema, "Upper and lower case count")
	}
}

// A database that is down does not hide the others.
func TestWhyLooksInTheDatabasesThatAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putStuck(t, "k", 1)
	gone, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gone.Close)
	c, err := New([]Database{{Name: "main", Pool: f.pool, Schemas: []string{f.schema}}, {Name: "gone", Pool: gone}}, &Options{Logger: slog.New(slog.DiscardHandler), ReadTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix(prefix, c))
	t.Cleanup(server.Close)
	f.url = server.URL + prefix
	_, text := f.get(t, "/why?q=k0001")
	contains(t, text, "Database gone: The database does not answer.", "Where it is, and what it waits for")
	_, text = f.get(t, "/why?"+url.Values{"q": {"none"}}.Encode())
	contains(t, text, "Database gone: The database does not answer.", "Nothing is known of")
}

// A key that begins or ends with a blank is found on each page, and the page says that the search has one.
func TestKeysWithBlanksAroundThemAreFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	const key = " k 1\t"
	f.putStuck(t, "k", 1)
	f.exec(t, `UPDATE {schema}.saga SET key = $1, scope = ' acme '`, key)
	f.putDead(t, "k", 1)
	f.exec(t, `UPDATE {schema}.parked SET key = $1, scope = ' acme '`, key)
	f.putMessages(t, "flight", 1)
	f.exec(t, `UPDATE {schema}.outbox SET key = $1, scope = ' acme '`, key)
	f.exec(t, `INSERT INTO {schema}.saga_journal (scope, key, path, verb, who, why) VALUES (' acme ', $1, '', 'retry', ' ann ', 'why')`, key)
	search := buildTestQuery("key", key, "scope", " acme ")
	for path, want := range map[string]string{"/sagas?" + search: "<td>trip <span", "/letters?" + search: ">charge<", "/dead?" + search: ">1</strong> message in", "/outbox?place=log&" + search: "place-stored",
		"/requests?" + search: "", "/journal?" + buildTestQuery("by", " ann "): ">retry<"} {
		_, text := f.get(t, path)
		if contains(t, text, "There is a blank at the beginning or the end of: ", want); strings.Contains(text, "matches.</p>") {
			t.Errorf("%s finds nothing", path)
		}
	}
	for _, path := range []string{"/sagas?", "/letters?", "/outbox?place=log&"} {
		if _, text := f.get(t, path+buildTestQuery("key", strings.TrimSpace(key))); !strings.Contains(text, "matches.</p>") || strings.Contains(text, "There is a blank") {
			t.Errorf("%s finds the key without its blanks, or says that it has some: %s", path, text)
		}
	}
	f.putStuck(t, "plain", 1)
	for query, want := range map[string]string{key: "Why?  k 1", " plain0001 ": "Why? plain0001"} {
		_, text := f.get(t, "/why?"+buildTestQuery("q", query))
		contains(t, text, "<title>"+want)
	}
}
