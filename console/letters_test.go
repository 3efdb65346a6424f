package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/operator"
)

// putDead stores n dead letters of the inbox with keys prefix0001 and so on, which died half an hour ago.
func (f *fixture) putDead(t *testing.T, prefix string, n int) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, due_at, first_at, last_at)
		SELECT 'dead', 'action', 'acme', $1 || lpad(i::text, 4, '0'), 'charge', '1', 'pay', 'm', '{x-own,type}', '{one,pay}', '{"amount":1}', 'attempts-exhausted', 'order ' || i || ' not found',
			now(), now() - interval '1 hour', now() - interval '30 minutes' FROM generate_series(1, $2) i`, prefix, n)
}

// putRefused stores n dead letters of the outbox.
func (f *fixture) putRefused(t *testing.T, n int) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, state, due_at, attempts, reason, refused_at)
		SELECT i, gen_random_uuid(), 'stock', 't', 'acme', 'o' || lpad(i::text, 4, '0'), '', '', '', '', '', '', '{"x-own":"two"}', '{}', 'dead', 'infinity', 3, 'no queue ' || i, now() - interval '30 minutes'
		FROM generate_series(1, $1) i`, n)
}

func (f *fixture) readText(t *testing.T, query string, args ...any) (text string) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), strings.ReplaceAll(query, "{schema}", f.schema), args...).Scan(&text); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return text
}

// letterJournal returns the entries of the journal of messages, as verb, person, reason and number of letters.
func (f *fixture) letterJournal(t *testing.T) string {
	t.Helper()
	return f.readText(t, `SELECT coalesce(string_agg(concat_ws(' ', verb, who, '(' || why || ')', cardinality(ids)), '; ' ORDER BY id), '') FROM {schema}.operator_journal`)
}

func (f *fixture) letterPath(page string, id int) string {
	return "/" + page + "?" + buildTestQuery("database", "main", "schema", f.schema, "side", "inbox", "id", id)
}

var groupLink = regexp.MustCompile(`<a href="\./(letters\?[^"]*fingerprint=[^"]*)">`)

// The page of groups has each group with its count, and its link leads to the letters of the group.
func TestGroupsLeadToTheirLetters(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putDead(t, "k", 5)
	f.putRefused(t, 3)
	f.exec(t, "UPDATE {schema}.parked SET error = 'card declined' WHERE key IN ('k0001', 'k0002')")
	f.exec(t, "UPDATE {schema}.outbox_held SET step = 'pack' WHERE key = 'o0001'")
	response, text := f.get(t, "/dead")
	links := groupLink.FindAllStringSubmatch(text, -1)
	if response.StatusCode != http.StatusOK || len(links) != 4 || !strings.Contains(text, "<strong class=\"num\">8</strong> messages in 4 groups") {
		t.Fatalf("the groups = %d with %d links: %s", response.StatusCode, len(links), text)
	}
	for i, want := range []string{"k0003 k0004 k0005", "k0001 k0002", "o0002 o0003", "o0001"} {
		_, text := f.get(t, "/"+strings.ReplaceAll(links[i][1], "&amp;", "&"))
		var keys []string
		for _, found := range letterKey.FindAllStringSubmatch(text, -1) {
			keys = append(keys, found[1])
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("the link of group %d, %s, leads to %q, want %q", i, links[i][1], got, want)
		}
	}
	for query, want := range map[string]string{"side=outbox": ">3</strong> messages in 2 groups<", "reason=attempts-exhausted": ">5</strong> messages in 2", "topic=none": "No message matches",
		"key=k0001&scope=acme": ">1</strong> message in", "age=1h": "No message matches", "age=10m": ">8</strong>", "step=%28none%29": ">2</strong>", "error=declined": ">2</strong>",
		"database=main&schema=" + f.schema: ">8</strong>", "in=" + url.QueryEscape("main/"+f.schema): ">8</strong>", "in=main%2Fnone": "There is no schema"} {
		if _, text := f.get(t, "/dead?"+query); !strings.Contains(text, want) {
			t.Errorf("dead?%s lacks %q: %s", query, want, text)
		}
	}
	if _, text := f.get(t, "/"); !strings.Contains(text, "dead?side=inbox&amp;database=main&amp;schema="+f.schema) || !strings.Contains(text, "reason=attempts-exhausted") {
		t.Errorf("the overview does not link to the groups: %s", text)
	}
}

var letterKey = regexp.MustCompile(`<a href="\./letter\?[^"]*">(\w+)</a>`)

// The pages of the list have each letter of both sides once, in order.
func TestPagesOfLettersSkipAndRepeatNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putDead(t, "k", 2*lettersOnPage)
	f.putRefused(t, lettersOnPage+7)
	var keys []string
	for path, page := "/letters", 0; path != ""; page++ {
		response, text := f.get(t, path)
		if response.StatusCode != http.StatusOK || page > 10 {
			t.Fatalf("page %d = %d: %s", page, response.StatusCode, text)
		}
		for _, found := range letterKey.FindAllStringSubmatch(text, -1) {
			keys = append(keys, found[1])
		}
		path = ""
		if next := regexp.MustCompile(`rel="next" href="\./(letters\?[^"]*)"`).FindStringSubmatch(text); next != nil {
			path = "/" + strings.ReplaceAll(next[1], "&amp;", "&")
		}
	}
	if len(keys) != 3*lettersOnPage+7 {
		t.Errorf("the list has %d letters, want %d", len(keys), 3*lettersOnPage+7)
	}
	for i := 1; i < len(keys); i++ {
		if keys[i] <= keys[i-1] {
			t.Errorf("the list has %s after %s", keys[i], keys[i-1])
		}
	}
}

// A list that is complete says at once how many match. The count of a longer list follows.
func TestACompleteListIsCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putDead(t, "k", lettersOnPage-1)
	f.putRefused(t, 2)
	for query, want := range map[string]string{"": "Counting…", "side=inbox": ">49</strong> match", "side=outbox": ">2</strong> match", "key=none": ">0</strong> match"} {
		if _, text := f.get(t, "/letters?"+query); !strings.Contains(text, want) || strings.Contains(text, "Counting…") != (query == "") {
			t.Errorf("letters?%s lacks %q: %s", query, want, text)
		}
	}
	if counts := f.firstEvents(t, "/live/letters?side=inbox"); !strings.Contains(counts, ">49</strong>") {
		t.Errorf("the stream counts %s", counts)
	}
	f.exec(t, "DELETE FROM {schema}.parked WHERE key <> 'k0001'")
	if _, text := f.get(t, "/letters?side=inbox"); !strings.Contains(text, ">1</strong> match") {
		t.Errorf("with one letter the list says %s", text)
	}
	if counts := f.firstEvents(t, "/live/letters?side=inbox"); !strings.Contains(counts, ">1</strong>") { // not what was counted before
		t.Errorf("after the list, the stream counts %s", counts)
	}
}

// Bad searches and letters that are not there are errors that say so.
func TestBadSearchesForLettersAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	for path, want := range map[string]int{
		"/dead?side=x": http.StatusBadRequest, "/dead?state=x": http.StatusBadRequest, "/letters?id=x": http.StatusBadRequest, "/letters?age=x": http.StatusBadRequest,
		"/letters?after=x": http.StatusBadRequest, "/letters?after=" + (&letterPlace{In: "x"}).encode(): http.StatusBadRequest, "/letters?schema=none": http.StatusNotFound,
		"/letter": http.StatusBadRequest, "/letter?side=inbox&id=1": http.StatusNotFound, f.letterPath("letter", 4): http.StatusNotFound, f.letterPath("letter/edit", 4): http.StatusNotFound,
		"/change/redrive": http.StatusBadRequest, "/change/redrive?state=retrying&topic=x": http.StatusBadRequest, "/change/bury?state=dead&topic=x": http.StatusBadRequest,
		"/change/retry?side=outbox&topic=x": http.StatusBadRequest,
		"/change/edit?id=1":                 http.StatusBadRequest, "/letters?side=outbox&reason=x&schema=" + f.schema: http.StatusOK,
	} {
		if response, text := f.get(t, path); response.StatusCode != want {
			t.Errorf("%s = %d, want %d: %s", path, response.StatusCode, want, text)
		}
	}
}

// Whatever a message has in it, pages show it as text.
func TestHostileLettersAreEscaped(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	const hostile = `"><script>alert(1)</script><img/src=x/onerror=alert(1)></textarea>'` + "\u202e{{.}}"
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, stack, due_at)
		VALUES ('dead', 'action', $1, $1, $1, $1, $1, convert_to($1, 'UTF8'), ARRAY[convert_to($1, 'UTF8'), 'x'], ARRAY[convert_to($1, 'UTF8'), '\xff00'::bytea], convert_to($1, 'UTF8'), $1, $1, $1, now())`, hostile)
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, state, due_at, attempts, reason, refused_at)
		VALUES (1, gen_random_uuid(), $1, $1, $1, $1, $1, $1, $1, $1, $1, $1, jsonb_build_object($1::text, $1::text)::json, convert_to($1, 'UTF8'), 'dead', 'infinity', 3, $1, now())`, hostile)
	outbox := strings.Replace(f.letterPath("letter", 1), "inbox", "outbox", 1)
	for _, path := range []string{"/", "/dead", "/letters", f.letterPath("letter", 1), outbox, f.letterPath("letter/edit", 1), f.letterPath("change/redrive", 1), f.letterPath("change/discard", 1),
		"/dead?" + buildTestQuery("topic", hostile, "step", hostile, "error", hostile, "database", "main"), "/letters?" + buildTestQuery("key", hostile, "scope", hostile), "/change/discard?" + buildTestQuery("key", hostile)} {
		response, text := f.get(t, path)
		if found := inline.FindString(text); found != "" || strings.Contains(text, "<img/src") || strings.Contains(text, `"><script>`) || response.StatusCode != http.StatusOK {
			t.Errorf("%s = %d has %q unescaped: %s", path, response.StatusCode, found, text)
		}
		search := strings.Contains(path, "key=") || strings.Contains(path, "topic=") // an input has the text as it is
		if !search && !strings.Contains(path, "letter/edit") && strings.Contains(text, "\u202e") {
			t.Errorf("%s shows a mark of direction", path)
		}
	}
}

// A letter's page has its parts, its outcome, and limits and redacts what it shows.
func TestALetterIsShownRedactedAndLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, func(o *Options) {
		o.MaxContent = 2000
		o.Redact = func(c Content) []byte { return []byte(strings.ReplaceAll(string(c.Data), "pan4711", "####")) }
	})
	f.putDead(t, "k", 2)
	f.exec(t, `UPDATE {schema}.parked SET payload = convert_to('{"card":"pan4711","more":"' || repeat('x', 3000) || '"}', 'UTF8'), header_values = '{pan4711,pay}', stack = 'goroutine 1',
		earlier_failures = '[{"at": "2026-01-02T03:04:05+00:00", "reason": "failed", "error": "<b>first pan4711</b>", "stack": ""}, {"at": null, "reason": "unavailable", "error": "down", "stack": "goroutine 2 pan4711"}]' WHERE id = 1`)
	f.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, digest) VALUES ('acme', 'k0001', 'charge', '1', 'dead', 5, sha256('x')), ('acme', 'k0001', 'book', '1', 'done', 1, sha256('x'))`)
	_, text := f.get(t, f.letterPath("letter", 1))
	for _, want := range []string{"####", "Only the first 2 KiB of 3 KiB are shown", "goroutine 1", "order 1 not found", "What a redrive would do", "this message", "2 earlier failures", "2026-01-02 03:04:05 UTC", "&lt;b&gt;first ####", "goroutine 2 ####",
		">book", "saga?database=main&amp;key=k0001&amp;schema=" + f.schema + "&amp;scope=acme"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}
	if strings.Contains(text, "pan4711") || len(text) > 20_000 {
		t.Errorf("the page of %d bytes is not redacted or not limited", len(text))
	}
	if strings.Contains(text, "change/") || strings.Contains(text, "letter/edit") {
		t.Errorf("the page offers a change to a viewer: %s", text)
	}
	if _, text := f.get(t, f.letterPath("letter", 2)); !strings.Contains(text, "Its handler is entered again.") {
		t.Errorf("the page does not say what a redrive does: %s", text)
	}
	f.exec(t, `UPDATE {schema}.parked SET payload = '\xff00fe'::bytea WHERE id = 2`)
	if _, text := f.get(t, f.letterPath("letter", 2)); !strings.Contains(text, "3 bytes that are not text:\nff 00 fe") {
		t.Errorf("the page does not show bytes: %s", text)
	}
}

// A hook gets headers in one form on all pages: a JSON object.
func TestHeadersOfLettersAreRedactedAsJSON(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, func(o *Options) {
		o.Redact = func(c Content) []byte {
			headers := map[string]string{}
			if c.Kind != "headers" || json.Unmarshal(c.Data, &headers) != nil {
				return c.Data
			}
			if headers["authorization"] != "" {
				headers["authorization"] = "(hidden)"
			}
			data, _ := json.Marshal(headers)
			return data
		}
	})
	f.putDead(t, "k", 1)
	f.exec(t, `UPDATE {schema}.parked SET header_names = '{authorization,kind}', header_values = '{Bearer s3cr3t,ab}'`)
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, state, due_at, attempts, reason, refused_at)
		VALUES (1, gen_random_uuid(), 't', 't', 'acme', 'k', 's', '1', '', '', '', '', '{"authorization":"Bearer s3cr3t"}', '{}', 'dead', 'infinity', 1, 'no', now())`)
	for _, path := range []string{f.letterPath("letter", 1), f.letterPath("letter/edit", 1), strings.Replace(f.letterPath("letter", 1), "inbox", "outbox", 1)} {
		response, text := f.get(t, path)
		if response.StatusCode != http.StatusOK || strings.Contains(text, "s3cr3t") || !strings.Contains(text, "(hidden)") && !strings.Contains(text, "It is redacted.") {
			t.Errorf("%s = %d: %s", path, response.StatusCode, text)
		}
	}
}

// Two processes that get one form token at once, with letters that die again, redrive each letter once; and so does each
// repeated post.
func TestAFormTokenRedrivesEachLetterOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	const n = 40
	f.putDead(t, "k", n)
	f.putRefused(t, n)
	path := "/change/redrive?" + buildTestQuery("schema", f.schema)
	form := confirmation(f.previewToken(t, path), 2*n)
	other := *f
	other.start(t, RoleOperator, nil)
	other.browser.Jar = copyCookies(t, f.browser.Jar, other.url)
	codes := make(chan int, 2)
	for _, process := range []*fixture{f, &other} {
		go func() {
			response, _ := process.post(t, "/change/redrive", form, nil)
			codes <- response.StatusCode
		}()
	}
	if a, b := <-codes, <-codes; a != http.StatusSeeOther || b != http.StatusSeeOther {
		t.Fatalf("posts = %d, %d", a, b)
	}
	die := func() {
		f.exec(t, "UPDATE {schema}.parked SET state = 'dead', last_at = clock_timestamp() WHERE state <> 'dead'")
		f.exec(t, "UPDATE {schema}.outbox_held SET state = 'dead', attempts = 1, refused_at = clock_timestamp() WHERE state <> 'dead'")
	}
	die() // while they run, perhaps
	f.console.runs.working.Wait()
	other.console.runs.working.Wait()
	redriven := func() string {
		return f.readText(t, "SELECT concat_ws(' ', sum(cardinality(ids)), count(DISTINCT who || why)) FROM {schema}.operator_journal WHERE verb IN ('dead redrive', 'outbox dead redrive')")
	}
	if got := redriven(); got != fmt.Sprint(2*n, " 1") {
		t.Fatalf("the journal has %s, want %d letters of one person and reason", got, 2*n)
	}
	die()
	third := *f
	third.start(t, RoleOperator, nil) // after a restart
	third.browser.Jar = copyCookies(t, f.browser.Jar, third.url)
	if response, text := third.post(t, "/change/redrive", form, nil); response.StatusCode != http.StatusSeeOther {
		t.Fatalf("the post after a restart = %d: %s", response.StatusCode, text)
	}
	third.console.runs.working.Wait()
	if got := redriven(); got != fmt.Sprint(2*n, " 1") {
		t.Errorf("the journal has %s after a restart, want %d", got, 2*n)
	}
}

// A letter that gets old enough after the preview is not one of the preview.
func TestAnAgeIsThatOfThePreview(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putDead(t, "k", 2)
	f.exec(t, "UPDATE {schema}.parked SET last_at = clock_timestamp() - interval '10 minutes' WHERE id = 2")
	token := f.previewToken(t, "/change/redrive?age=15m")
	p, err := f.console.signer.readProposal(token, f.sessionOf(t), "ann", time.Now())
	if err != nil || p.Count != 1 {
		t.Fatalf("the preview has %d letters, %v; want 1", p.Count, err)
	}
	for name, moment := range p.Moments {
		p.Moments[name] = moment.Add(-10 * time.Minute) // the preview is as old
	}
	f.exec(t, "UPDATE {schema}.parked SET last_at = last_at - interval '10 minutes'")
	if token, err = f.console.signer.signProposal(p, f.sessionOf(t), "ann"); err != nil {
		t.Fatal(err)
	}
	f.post(t, "/change/redrive", confirmation(token, 1), nil)
	f.console.runs.working.Wait()
	if got := f.readText(t, "SELECT string_agg(concat_ws(' ', id, state), '; ' ORDER BY id) FROM {schema}.parked"); got != "1 retrying; 2 dead" {
		t.Errorf("the letters are %q, want the first retrying", got)
	}
}

// A redrive says in words what it would do, and leaves alone what changes after its preview. A run has the counts.
func TestARedriveOfAGroupIsThatOfItsPreview(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putDead(t, "k", 3)
	f.exec(t, "INSERT INTO {schema}.inbox (scope, key, step, n, state, digest) SELECT 'acme', 'k0003', 'charge', '1', 'done', sha256(payload) FROM {schema}.parked WHERE id = 3")
	path := "/change/redrive?" + buildTestQuery("topic", "pay", "step", "charge")
	_, text := f.get(t, path)
	for _, want := range []string{`<span class="figure">3</span>`, "Its handler is entered again.", "It is removed: its step is done", "acme/k0001 charge"} {
		if !strings.Contains(text, want) {
			t.Errorf("the preview lacks %q: %s", want, text)
		}
	}
	form := confirmation(f.previewToken(t, path), 3)
	f.exec(t, "UPDATE {schema}.parked SET last_at = clock_timestamp() WHERE id = 2")
	response, text := f.post(t, "/change/redrive", form, nil)
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("the post = %d: %s", response.StatusCode, text)
	}
	f.console.runs.working.Wait()
	if got := f.readText(t, "SELECT string_agg(concat_ws(' ', id, state), '; ' ORDER BY id) FROM {schema}.parked"); got != "1 retrying; 2 dead" {
		t.Errorf("the letters are %q, want 1 retrying, 2 dead and 3 removed", got)
	}
	v := f.console.runs.find(runID(t, response)).snapshot()
	if v.State != runDone || v.Tally.Done != 2 || v.Moved() != 1 {
		t.Errorf("the run is %s with %d done and %d moved", v.State, v.Tally.Done, v.Moved())
	}
	if got := f.letterJournal(t); got != "dead redrive ann (the hotel is back) 2" {
		t.Errorf("the journal has %q", got)
	}
}

// A message that is older than the inbox's memory is redriven only by an admin who forces it.
func TestATooOldLetterIsForced(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putDead(t, "k", 2)
	f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = clock_timestamp() - interval '50 minutes'") // the first attempts were before
	f.exec(t, "INSERT INTO {schema}.inbox (scope, key, step, n, state, digest) SELECT 'acme', 'k0002', 'charge', '1', 'open', sha256(payload) FROM {schema}.parked WHERE id = 2")
	forced := "change/redrive-old?topic=pay"
	_, text := f.get(t, "/change/redrive?topic=pay")
	requireTexts(t, "the preview", text, `<span class="figure">1</span>`, "An admin can force its redrive.", `href="./../`+forced+`"`)
	f.begin(t, "/change/redrive", confirmation(f.previewToken(t, "/change/redrive?topic=pay"), 1))
	f.console.runs.working.Wait()
	letters := func() string {
		return f.readText(t, "SELECT string_agg(concat_ws(' ', id, state), '; ' ORDER BY id) FROM {schema}.parked")
	}
	if got := letters(); got != "1 dead; 2 retrying" {
		t.Fatalf("the letters are %s, want the first dead", got)
	}
	if _, text = f.get(t, "/"+forced); tokenField.MatchString(text) {
		t.Error("an operator can force a redrive")
	}
	f.start(t, RoleAdmin, nil)
	_, text = f.get(t, "/"+forced)
	requireTexts(t, "the forced preview", text, "Force the redrive of 1 dead letter", "may run a second time", "Its handler is entered again.")
	f.begin(t, "/change/redrive-old", confirmation(f.previewToken(t, "/"+forced), 1))
	f.console.runs.working.Wait()
	if got := letters(); got != "1 retrying; 2 retrying" {
		t.Errorf("the letters are %s after a forced redrive", got)
	}
	if got := f.letterJournal(t); got != "dead redrive ann (the hotel is back) 1; dead redrive ann (the hotel is back) 1" {
		t.Errorf("the journal has %s", got)
	}
}

// A redrive at a rate is paused between two letters and goes on where it was.
func TestARedriveIsPausedAndGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	for _, kind := range []string{"redrive", "discard"} {
		f.putDead(t, kind, 4)
		form := confirmation(f.previewToken(t, "/change/"+kind+"?step=charge&error=order"), 4)
		form.Set("rate", "0.01")
		response, text := f.post(t, "/change/"+kind, form, nil)
		if response.StatusCode != http.StatusSeeOther {
			t.Fatalf("%s = %d: %s", kind, response.StatusCode, text)
		}
		run := f.console.runs.find(runID(t, response))
		steer := url.Values{"token": {f.console.signer.postToken(f.sessionOf(t), "ann")}, "id": {run.ID}, "do": {"pause"}}
		f.post(t, "/run", steer, nil)
		f.console.runs.working.Wait()
		if v := run.snapshot(); v.State != runPaused || v.Tally.Done > 1 {
			t.Fatalf("%s is %s with %d done", kind, v.State, v.Tally.Done)
		}
		run.options.Rate = 10_000
		steer.Set("do", "resume")
		f.post(t, "/run", steer, nil)
		f.console.runs.working.Wait()
		if v := run.snapshot(); v.State != runDone || v.Tally.Done != 4 {
			t.Errorf("%s is %s with %d done, want 4", kind, v.State, v.Tally.Done)
		}
	}
	if got := f.readText(t, "SELECT count(*)::text || ' ' || count(*) FILTER (WHERE state = 'retrying') FROM {schema}.parked"); got != "4 4" {
		t.Errorf("there are %s letters, want the 4 that were redriven", got)
	}
}

// Each change of letters needs its role, a reason and the count.
func TestChangesOfLettersNeedTheirRole(t *testing.T) {
	t.Parallel()
	for _, role := range []Role{RoleViewer, RoleOperator, RoleAdmin} {
		f := newFixture(t, role, nil)
		f.putDead(t, "k", typedCount)
		f.exec(t, "UPDATE {schema}.parked SET state = 'retrying' WHERE id > 100")
		for kind, needs := range map[string]Role{"redrive": RoleOperator, "discard": RoleAdmin, "retry": RoleOperator, "bury": RoleOperator, "edit": RoleAdmin} {
			path := f.letterPath("change/"+kind, map[bool]int{true: 101, false: 1}[kind == "bury" || kind == "retry"])
			if kind == "edit" {
				path += "&payload=%7B%7D"
			}
			token := f.previewToken(t, path)
			if (token != "") != (role >= needs) {
				t.Errorf("%s: the preview of %s for %s has the token %q", path, kind, role, token)
			}
			session := f.sessionOf(t)
			p := proposal{ID: "x" + kind, Kind: kind, Params: strings.SplitN(path, "?", 2)[1], Count: 1, Expires: time.Now().Add(time.Minute).Unix()}
			forged, err := f.console.signer.signProposal(p, session, "ann")
			if err != nil {
				t.Fatal(err)
			}
			if role < needs {
				if response, _ := f.post(t, "/change/"+kind, confirmation(forged, 1), nil); response.StatusCode != http.StatusForbidden {
					t.Errorf("%s by %s = %d, want 403", kind, role, response.StatusCode)
				}
			}
		}
		f.console.runs.working.Wait()
		if got := f.letterJournal(t); got != "" {
			t.Errorf("the journal of %s has %q", role, got)
		}
		response, _ := f.get(t, f.letterPath("letter/edit", 1))
		if want := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[role == RoleAdmin]; response.StatusCode != want {
			t.Errorf("the form for %s = %d, want %d", role, response.StatusCode, want)
		}
	}
}

// A group of more than 100 letters is discarded after its count is typed, with a reason in the journal; a burial makes one
// message a dead letter.
func TestLettersAreDiscardedAndBuried(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putDead(t, "k", typedCount)
	f.putRefused(t, 2)
	path := "/change/discard?topic=pay"
	form := confirmation(f.previewToken(t, path), typedCount-1)
	if response, _ := f.post(t, "/change/discard", form, nil); response.StatusCode != http.StatusBadRequest {
		t.Errorf("a wrong count = %d, want 400", response.StatusCode)
	}
	form.Set("count", fmt.Sprint(typedCount))
	if response, text := f.post(t, "/change/discard", form, nil); response.StatusCode != http.StatusSeeOther {
		t.Fatalf("discard = %d: %s", response.StatusCode, text)
	}
	f.console.runs.working.Wait()
	if got := f.letterJournal(t); got != fmt.Sprintf("dead discard ann (the hotel is back) %d", typedCount) {
		t.Errorf("the journal has %q", got)
	}
	f.putDead(t, "b", 2)
	f.exec(t, "UPDATE {schema}.parked SET state = 'retrying'")
	_, text := f.get(t, "/letters?state=retrying&topic=pay")
	if !strings.Contains(text, "change/bury") || strings.Contains(text, "change/redrive") {
		t.Errorf("the list of retrying messages does not offer to bury them: %s", text)
	}
	path = f.letterPath("change/bury", typedCount+1)
	if response, text := f.post(t, "/change/bury", confirmation(f.previewToken(t, path), 1), nil); response.StatusCode != http.StatusSeeOther {
		t.Fatalf("bury = %d: %s", response.StatusCode, text)
	}
	f.console.runs.working.Wait()
	if got := f.readText(t, "SELECT string_agg(state, ' ' ORDER BY id) FROM {schema}.parked"); got != "dead retrying" {
		t.Errorf("the letters are %s", got)
	}
}

// edit sends the form of an edit.
func (f *fixture) edit(t *testing.T, payload, headers string, more url.Values) (*http.Response, string) {
	t.Helper()
	form := url.Values{"database": {"main"}, "schema": {f.schema}, "side": {"inbox"}, "id": {"1"}, "payload": {payload}, "headers": {headers},
		"token": {f.console.signer.postToken(f.sessionOf(t), "ann")}}
	for name, values := range more {
		form[name] = values
	}
	return f.post(t, "/letter/edit", form, nil)
}

// An edit shows its difference, is made once for a token, and is in the journal with the person.
func TestAnEditShowsItsDifferenceAndIsMadeOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putDead(t, "k", 2)
	_, text := f.get(t, f.letterPath("letter/edit", 1))
	if !strings.Contains(text, "type: pay\nx-own: one\n</textarea>") || !strings.Contains(text, "{&#34;amount&#34;:1}</textarea>") {
		t.Errorf("the form does not have the letter: %s", text)
	}
	large := strings.Repeat("y", 40_000)
	response, text := f.edit(t, "{\"amount\":2,\r\n\"note\":\""+large+"\"}", "x-new: 1: 2\r\ntype: pay\r\n", nil)
	for _, want := range []string{`class="removed">`, `class="added">`, "&#34;amount&#34;: 1", "&#34;amount&#34;: 2", "x-own: one", "x-new: 1: 2"} {
		if !strings.Contains(text, want) {
			t.Errorf("the preview lacks %q", want)
		}
	}
	token := tokenField.FindStringSubmatch(text)
	if response.StatusCode != http.StatusOK || token == nil {
		t.Fatalf("the preview = %d: %.3000s", response.StatusCode, text)
	}
	for range 2 {
		if response, text := f.post(t, "/change/edit", confirmation(token[1], 1), nil); response.StatusCode != http.StatusSeeOther {
			t.Fatalf("the edit = %d: %.2000s", response.StatusCode, text)
		}
		f.console.runs.working.Wait()
	}
	other := *f
	other.start(t, RoleAdmin, nil)
	other.browser.Jar = copyCookies(t, f.browser.Jar, other.url)
	if response, text := other.post(t, "/change/edit", confirmation(token[1], 1), nil); response.StatusCode != http.StatusSeeOther {
		t.Fatalf("the edit in another process = %d: %.2000s", response.StatusCode, text)
	}
	other.console.runs.working.Wait()
	if got := f.letterJournal(t); got != "dead edit ann (the hotel is back) 1" {
		t.Errorf("the journal has %q", got)
	}
	want := "{\"amount\":2,\n\"note\":\"" + large + "\"}"
	if got := f.readText(t, "SELECT convert_from(payload, 'UTF8') FROM {schema}.parked WHERE id = 1"); got != want {
		t.Errorf("the payload is %.100s", got)
	}
	d, err := operator.NewDeadLetters(f.pool, operator.Inbox, &operator.Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.Get(t.Context(), 1)
	if err != nil || l.Headers.Get("x-new") != "1: 2" || l.Headers.Get("x-own") != "" || !strings.HasSuffix(l.Headers.Get(operator.HeaderEdited), " by ann") {
		t.Errorf("the letter has the headers %v, %v", l.Headers, err)
	}
}

// The page of a dead letter of the outbox has no edit and says why.
func TestADeadLetterOfTheOutboxIsNotEdited(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putRefused(t, 1)
	query := buildTestQuery("database", "main", "schema", f.schema, "side", "outbox", "id", f.readText(t, "SELECT id::text FROM {schema}.outbox_held"))
	if _, text := f.get(t, "/letter?"+query); !strings.Contains(text, "The message is not edited") || strings.Contains(text, "letter/edit") {
		t.Errorf("the page of the letter: %s", text)
	}
	if response, text := f.get(t, "/letter/edit?"+query); response.StatusCode != http.StatusConflict || !strings.Contains(text, "A message of the outbox cannot be edited") {
		t.Errorf("the form = %d: %s", response.StatusCode, text)
	}
}

// An edit of a letter that has changed since its preview is not made.
func TestAnEditLeavesAChangedLetterAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putDead(t, "k", 1)
	f.get(t, "/")
	_, text := f.edit(t, `{"amount":2}`, "type: pay\nx-own: one\n", nil)
	token := tokenField.FindStringSubmatch(text)
	if token == nil {
		t.Fatalf("the preview has no token: %s", text)
	}
	f.exec(t, "UPDATE {schema}.parked SET last_at = clock_timestamp()")
	response, text := f.post(t, "/change/edit", confirmation(token[1], 1), nil)
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("the edit = %d: %s", response.StatusCode, text)
	}
	f.console.runs.working.Wait()
	v := f.console.runs.find(runID(t, response)).snapshot()
	if got := f.letterJournal(t); got != "" || v.State != runDone || v.Moved() != 1 {
		t.Errorf("the run is %s with %d moved, the journal has %q", v.State, v.Moved(), got)
	}
}

// The form of an edit says what is wrong and keeps what was typed.
func TestABadEditKeepsWhatWasTyped(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putDead(t, "k", 1)
	f.get(t, "/")
	f.exec(t, "UPDATE {schema}.parked SET header_names = '{x-sagamill-key,type}', header_values = '{k,pay}'")
	key := f.readText(t, "SELECT convert_from(header_names[1], 'UTF8') FROM {schema}.parked")
	for _, tt := range []struct{ payload, headers, want string }{
		{`{"amount":`, "typed: yes", "The payload is not JSON"},
		{`{"amount":2}`, "typed yes", "Line 1 of the headers"},
		{`{"amount":2}`, "typed: yes\ntyped: no", "is there twice"},
		{`{"amount":2}`, "typed: yes\n" + strings.Repeat("n", 300) + ": 1", "The edit is refused"},
		{`{"amount":2}` + strings.Repeat(" ", maxEdited), "typed: yes", "at most 65536 bytes"},
		{`{"amount":` + "\x01" + `}`, "typed: yes", "without control characters"},
		{`{"amount":1}`, key + ": k\ntype: pay\n", "it changes nothing"},
	} {
		response, text := f.edit(t, tt.payload, tt.headers, nil)
		if response.StatusCode != http.StatusBadRequest || !strings.Contains(text, tt.want) {
			t.Errorf("the edit to %.40q and %.40q = %d, want 400 with %q: %.3000s", tt.payload, tt.headers, response.StatusCode, tt.want, text)
		}
		if tt.want != "it changes nothing" && (!strings.Contains(text, "typed") || !strings.Contains(text, "{&#34;amount&#34;:")) {
			t.Errorf("the form with %q has lost what was typed: %.3000s", tt.want, text)
		}
	}
	if response, text := f.edit(t, `{"amount":`, "x: y", url.Values{"notjson": {"yes"}}); response.StatusCode != http.StatusOK {
		t.Errorf("text that is meant = %d: %.2000s", response.StatusCode, text)
	}
	if response, _ := f.edit(t, `{}`, "", url.Values{"token": {"x"}}); response.StatusCode != http.StatusForbidden {
		t.Errorf("an edit without a token = %d, want 403", response.StatusCode)
	}
	if response, _ := f.edit(t, strings.Repeat("a", maxEditForm), "", nil); response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a large form = %d, want 413", response.StatusCode)
	}
	f.exec(t, "UPDATE {schema}.parked SET payload = convert_to(repeat('x', 70000), 'UTF8')")
	if _, text := f.get(t, f.letterPath("letter/edit", 1)); !strings.Contains(text, "larger than a form takes, which is 64 KiB") || strings.Contains(text, `name="payload"`) {
		t.Errorf("the form of a large payload: %.2000s", text)
	}
	if got := f.letterJournal(t); got != "" {
		t.Errorf("the journal has %q", got)
	}
}

func TestADifferenceHasTheLinesThatChange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ was, is, want string }{
		{"a\nb\nc", "a\nc\nd", " a −b  c +d"},
		{`{"a":1,"b":2}`, `{"a":1,"b":3}`, ` { ` + `   "a": 1, ` + `−  "b": 2 ` + `+  "b": 3 ` + ` }`},
		{"x", "x", " x"},
		{`{"a":1}`, `{ "a": 1 }`, `−{"a":1} +{ "a": 1 }`},
	} {
		var got []string
		for _, line := range diffContent("x", tt.was, tt.is).Lines {
			got = append(got, line.Mark+line.Text)
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("diff of %q and %q = %q, want %q", tt.was, tt.is, text, tt.want)
		}
	}
	large := strings.Repeat("a\n", 3000)
	if got := len(diffContent("x", large+"b", strings.Repeat("c\n", 3000)).Lines); got != 6001 {
		t.Errorf("a large difference has %d lines", got)
	}
}

// Retrying messages have groups too. Those of a group are retried now after a preview; messages of another topic, and those
// of the outbox, keep their time.
func TestRetryingMessagesAreGroupedAndRetried(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putDead(t, "k", 3)
	f.putDead(t, "b", 1)
	f.putHeld(t, 1, "no queue")
	f.exec(t, "UPDATE {schema}.parked SET state = 'retrying', reason = 'failed', due_at = 'infinity', topic = CASE WHEN key < 'c' THEN 'other' ELSE topic END")
	_, text := f.get(t, "/dead?state=retrying")
	links := map[string][]string{}
	for _, found := range regexp.MustCompile(`href="\./(change/[a-z]+)\?([^"]*)"`).FindAllStringSubmatch(text, -1) {
		query := strings.ReplaceAll(found[2], "&amp;", "&")
		links[found[1]] = append(links[found[1]], query)
	}
	if len(links["change/retry"]) != 2 || len(links["change/bury"]) != 3 || len(links) != 2 {
		t.Fatalf("the groups of retrying messages offer %v", links)
	}
	contains(t, text, "<title>Retrying messages", `href="./dead" `, `href="./dead?state=retrying" aria-current="true"`)
	query := links["change/retry"][0]
	_, text = f.get(t, "/letters?"+query)
	contains(t, text, `href="./dead?`, "state=retrying", ">k0001<")
	path := "/change/retry?" + query
	if response, text := f.post(t, "/change/retry", confirmation(f.previewToken(t, path), 3), nil); response.StatusCode != http.StatusSeeOther {
		t.Fatalf("retry = %d: %s", response.StatusCode, text)
	}
	f.console.runs.working.Wait()
	if got := f.letterJournal(t); got != "dead retry ann (the hotel is back) 3" {
		t.Errorf("the journal has %q", got)
	}
	if got := f.readText(t, "SELECT string_agg(key, ' ' ORDER BY key) FROM {schema}.parked WHERE due_at <= now()"); got != "k0001 k0002 k0003" {
		t.Errorf("%s are due", got)
	}
}

// The pages of a parked message, of its saga and Why? tell what people have done to it. The address of one that is gone
// leads to the journal, which can be searched for a message and for a saga.
func TestWhatPeopleHaveDoneToAMessageIsShown(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putDead(t, "k", 2)
	f.exec(t, `INSERT INTO {schema}.operator_journal (at, who, verb, what, ids, why) VALUES
		(now() - interval '5 minutes', 'eve', 'dead edit', '{}', '{1}', 'a typo'),
		(now() - interval '4 minutes', 'eve', 'outbox dead redrive', '{}', '{1}', 'other side'),
		(now() - interval '3 minutes', 'eve', 'dead discard', '{}', '{9}', 'no use')`)
	f.exec(t, `INSERT INTO {schema}.saga_journal (scope, key, path, verb, who, why) VALUES ('acme', 'k0001', '', 'retry', 'bob', 'again')`)
	letter := f.letterPath("letter", 1)
	link := "letter?database=main&amp;id=1&amp;schema=" + f.schema + "&amp;side=inbox"
	for path, link := range map[string]string{letter: "", "/saga?scope=acme&key=k0001": link, "/why?scope=acme&key=k0001": link} {
		_, text := f.get(t, path)
		contains(t, text, "eve", "dead edit", "a typo", link)
		if strings.Contains(text, "other side") || strings.Contains(text, "no use") {
			t.Errorf("%s tells of other messages: %s", path, text)
		}
	}
	if _, text := f.get(t, f.letterPath("letter", 2)); strings.Contains(text, "a typo") {
		t.Error("the page of a letter tells of another one")
	}
	response, text := f.get(t, f.letterPath("letter", 9))
	if response.StatusCode != http.StatusNotFound {
		t.Errorf("a letter that is gone = %d", response.StatusCode)
	}
	contains(t, text, `href="./journal?id=9&amp;side=inbox"`)
	for query, want := range map[string]string{"id=9&side=inbox": "no use", "id=1&side=outbox": "other side", "id=1": "a typo", "key=k0001": "again"} {
		_, text := f.get(t, "/journal?"+query)
		if contains(t, text, want); strings.Count(text, "<th scope=\"row\">") != 1 {
			t.Errorf("journal?%s has other entries: %s", query, text)
		}
	}
	if response, _ := f.get(t, "/journal?id=x"); response.StatusCode != http.StatusBadRequest {
		t.Errorf("journal?id=x = %d, want 400", response.StatusCode)
	}
}

// A page that shows a message that waits for a person leads to the page on which the person can act.
func TestPagesLeadToWhereAPersonCanAct(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putRefused(t, 1)
	f.exec(t, "UPDATE {schema}.outbox_held SET id = 500")
	f.putHeld(t, 1, "no queue")
	f.putMessages(t, "hotel", 1)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, due_at)
		VALUES ('dead', 'unknown', '', '', '', '', 'pay', 'message-9', '{}', '{}', 'x', 'key-missing', 'no key', now())`)
	act := func(side string, id int) string {
		return "letter?database=main&amp;id=" + fmt.Sprint(id) + "&amp;schema=" + f.schema + "&amp;side=" + side
	}
	stored := f.readText(t, "SELECT id::text FROM {schema}.outbox")
	in := "message?in=" + url.QueryEscape("main/"+f.schema) + "&id="
	for path, want := range map[string]string{
		"/" + in + "500": act("outbox", 500), "/" + in + "1000001": act("outbox", 1000001), "/saga?scope=acme&key=o0001": act("outbox", 500), "/why?scope=acme&key=held001": act("outbox", 1000001),
		"/saga?scope=acme&key=hotel001": "message?id=" + stored, "/why?q=message-9": act("inbox", 1),
	} {
		_, text := f.get(t, path)
		contains(t, text, `href="./`+want)
	}
	if _, text := f.get(t, "/"+in+stored); strings.Contains(text, `href="./letter?`) {
		t.Error("the page of a stored message offers to act on it")
	}
	_, text := f.get(t, "/sagas?key=o0001")
	contains(t, text, `href="./why?q=o0001"`)
}
