package console

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/operator"
)

// putUnknown stores requests whose outcome is unknown, with the keys charge1 and so on, one that runs and one that is completed.
func (f *fixture) putUnknown(t *testing.T, n int) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
		SELECT 'http', 'acme', 'charge' || i, 5, '', '', gen_random_uuid(), 1, now(), 'infinity' FROM generate_series(1, $1) i`, n)
	f.exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at) VALUES
		('http', 'acme', 'runs', 1, '', '', gen_random_uuid(), 1, now() + interval '1 hour', 'infinity'), ('http', 'acme', 'done', 3, '', '', gen_random_uuid(), 1, now(), now() + interval '1 hour')`)
}

// keyOf returns the record of a key.
func (f *fixture) keyOf(t *testing.T, key string) operator.KeyRecord {
	t.Helper()
	k, err := operator.NewKeys(f.pool, &operator.Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	found, err := k.Find(t.Context(), operator.KeyRef{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// decisionOf returns the query of the preview of a verb about a record.
func (f *fixture) decisionOf(k operator.KeyRecord, verb string, more ...string) string {
	q := url.Values{"in": {"main/" + f.schema}, "digest": {k.Digest}, "run": {k.Token}, "verb": {verb}}
	for i := 0; i+1 < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	return "/change/key?" + q.Encode()
}

// keyStates returns what has become of the keys, and the journal.
func (f *fixture) keyStates(t *testing.T) string {
	t.Helper()
	return f.readText(t, `SELECT (SELECT string_agg(concat_ws(' ', key, state, resp_status, convert_from(resp_body, 'UTF8')), ', ' ORDER BY key) FROM {schema}.idempotency_key WHERE key LIKE 'charge%')
		|| '; ' || (SELECT coalesce(string_agg(concat_ws(' ', verb, who, why, what->>'digest'), ', ' ORDER BY id), '') FROM {schema}.operator_journal)`)
}

// The page of keys lists the requests whose outcome is unknown by their digests. Keys and scopes are shown to an operator who asks.
func TestUnknownOutcomesAreListed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	_, text := f.get(t, "/requests")
	contains(t, text, "No request has an unknown outcome", "Keys in Redis are not looked at")
	f.putUnknown(t, unknownOnPage+2)
	_, text = f.get(t, "/requests")
	contains(t, text, f.keyOf(t, "charge1").Digest, `requests?plain=yes`)
	if strings.Contains(text, "charge1<") || strings.Contains(text, "acme") || strings.Count(text, "requests?digest=") != unknownOnPage {
		t.Errorf("the list names keys, or %d of them: %s", strings.Count(text, "requests?digest="), text)
	}
	next := nextLink.FindStringSubmatch(text)
	if next == nil {
		t.Fatalf("the list has no second page: %s", text)
	}
	if _, text = f.get(t, "/"+strings.ReplaceAll(next[1], "&amp;", "&")); strings.Count(text, "requests?digest=") != 2 {
		t.Errorf("the second page: %s", text)
	}
	_, text = f.get(t, "/requests?plain=yes")
	contains(t, text, "<td>charge1</td>", "<td>acme</td>")
	f.start(t, RoleViewer, nil)
	if _, text = f.get(t, "/requests?plain=yes"); strings.Contains(text, "<td>acme</td>") || strings.Contains(text, "plain=yes") || !strings.Contains(text, "requests?digest=") {
		t.Errorf("a viewer sees %s", text)
	}
}

var nextLink = regexp.MustCompile(`rel="next" href="\./([^"]*after[^"]*)"`)

// One record has both verbs, for an admin.
func TestARecordHasItsVerbs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putUnknown(t, 1)
	k := f.keyOf(t, "charge1")
	page := "/requests?in=main/" + f.schema + "&digest=" + k.Digest
	_, text := f.get(t, page)
	contains(t, text, "Nobody knows whether it had its effect", `name="verb" value="complete"`, `name="verb" value="release"`, `name="run" value="`+k.Token+`"`)
	if strings.Contains(text, "charge1") || strings.Contains(text, "acme") {
		t.Errorf("the page names the key: %s", text)
	}
	_, text = f.get(t, page+"&plain=yes")
	contains(t, text, "charge1", "acme")
	_, text = f.get(t, "/requests?in=main/"+f.schema+"&digest="+f.keyOf(t, "runs").Digest)
	contains(t, text, "No decision:", "still runs: its lease lasts until")
	if strings.Contains(text, `value="release"`) {
		t.Errorf("a request that runs has a verb: %s", text)
	}
	_, text = f.get(t, "/requests?digest="+f.keyOf(t, "done").Digest)
	contains(t, text, "No open record has this digest")
	_, text = f.get(t, "/requests?key=charge1")
	contains(t, text, "409 outcome-unknown", "Decide…", "digest="+k.Digest)
	if response, _ := f.get(t, "/requests?digest=x"); response.StatusCode != http.StatusBadRequest {
		t.Errorf("a digest that is none: %d", response.StatusCode)
	}
	f.start(t, RoleOperator, nil)
	_, text = f.get(t, page)
	contains(t, text, "Needs the role admin.")
	if strings.Contains(text, `value="release"`) {
		t.Errorf("an operator has a verb of an admin: %s", text)
	}
}

// A decision is previewed, confirmed with a reason, and in the journal without the key. The second confirmation changes nothing.
func TestAKeyIsDecided(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putUnknown(t, 2)
	one, two := f.keyOf(t, "charge1"), f.keyOf(t, "charge2")
	complete := f.decisionOf(one, "complete", "status", "201", "type", "application/json", "body", `{"paid":1}`, "ttl", "2h")
	_, text := f.get(t, complete)
	contains(t, text, "<h1>Complete key "+one.Digest+"</h1>", "A retry of the request gets the answer that you give", "paid", "201", `<span class="figure">1</span>`, `<button class="danger">`)
	if got := f.keyStates(t); got != "charge1 5, charge2 5; " {
		t.Errorf("the preview has changed %s", got)
	}
	stale := confirmation(f.previewToken(t, complete), 1)
	for _, path := range []string{complete, f.decisionOf(two, "release")} {
		f.begin(t, "/change/key", confirmation(f.previewToken(t, path), 1))
		f.console.runs.working.Wait()
	}
	f.begin(t, "/change/key", stale)
	f.console.runs.working.Wait()
	want := fmt.Sprintf(`charge1 3 201 {"paid":1}, charge2 2; keys complete ann the hotel is back %s, keys release ann the hotel is back %s`, one.Digest, two.Digest)
	if got := f.keyStates(t); got != want {
		t.Errorf("stored: %s\nwant %s", got, want)
	}
	_, text = f.get(t, complete)
	contains(t, text, "There is nothing to confirm", "its outcome is known, or its record is gone")
	_, text = f.get(t, "/journal")
	contains(t, text, "keys complete", "keys release", "digest "+one.Digest)
	if strings.Contains(text, "charge1") || strings.Contains(text, "1 message:") {
		t.Errorf("the journal names the key, or a message: %s", text)
	}
}

// What makes no sense is refused with its reason, and so is a person without the role.
func TestADecisionAboutAKeyIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putUnknown(t, 1)
	k := f.keyOf(t, "charge1")
	for path, says := range map[string]string{
		f.decisionOf(k, "forget"): "There is no verb", f.decisionOf(k, "release", "ttl", "x"): "such as 24h", f.decisionOf(k, "release", "run", ""): "open the page of the key",
		f.decisionOf(k, "complete"): "must be a number", f.decisionOf(k, "complete", "status", "99"): "200 to 999", "/change/key?verb=release": "open the page of the key",
	} {
		if response, text := f.get(t, path); response.StatusCode != http.StatusBadRequest || !strings.Contains(text, says) {
			t.Errorf("%s: %d %s; want %s", path, response.StatusCode, text, says)
		}
	}
	_, text := f.get(t, f.decisionOf(k, "release", "run", "00000000-0000-0000-0000-000000000000"))
	contains(t, text, "another run has begun since the page was shown", "There is nothing to confirm")
	f.start(t, RoleOperator, nil)
	if token := f.previewToken(t, f.decisionOf(k, "release")); token != "" {
		t.Error("an operator can confirm a decision of an admin")
	}
	if got := f.keyStates(t); got != "charge1 5; " {
		t.Errorf("stored: %s", got)
	}
}

// The overview leads to the list.
func TestTheOverviewNamesUnknownOutcomes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putUnknown(t, 3)
	_, text := f.get(t, "/")
	contains(t, text, "The outcome of requests is unknown.", `requests?in=main%2F`+f.schema)
}
