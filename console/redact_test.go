package console

import (
	"bufio"
	"context"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
)

var (
	pageLink   = regexp.MustCompile(`(?:href|sse-connect)="(\./[^"#]*)"`)
	hiddenMark = regexp.MustCompile(`hide-me-[a-z]+`)
)

// putSecrets stores a mark wherever the tables have an error, a stack, a reason, a payload, a header or a state.
func (f *fixture) putSecrets(t *testing.T) {
	t.Helper()
	f.putStuck(t, "k", 2)
	f.exec(t, `UPDATE {schema}.saga SET reason = 'hide-me-instance', state = '{"card":"hide-me-state"}',
		progress = '{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"stuck","attempt":3,"sent":9000,"reason":"hide-me-step"}]}'`)
	f.putTour(t, "t1", "compensating", `{"phase":"compensating","reason":"hide-me-cause","steps":[{"state":"done","attempt":1},{"state":"undo-stuck","attempt":2,"undo_began":9000,"reason":"hide-me-undo"},{"state":"idle"},{"state":"idle"},{"state":"idle"}]}`)
	f.exec(t, `UPDATE {schema}.saga SET reason = 'hide-me-fault', status = 'stuck' WHERE key = 't1'`)
	f.exec(t, `INSERT INTO {schema}.saga_journal (scope, key, path, verb, step, who, why) VALUES ('acme', 'k0001', '', 'retry', 'hotel', 'ann', 'hide-me-decision')`)
	f.exec(t, `INSERT INTO {schema}.operator_journal (who, verb, what, ids, why)
		VALUES ('ann', 'dead redrive', '{"error":"hide-me-filter","topic":"pay"}', '{1}', 'hide-me-redrive'), ('ann', 'outbox dead discard', '{"reason":"hide-me-answer"}', '{2}', 'hide-me-discard')`)
	f.putDead(t, "k", 2)
	f.exec(t, `UPDATE {schema}.parked SET earlier_failures = '[{"at": "2026-01-02T03:04:05+00:00", "reason": "failed", "error": "hide-me-earlier", "stack": "hide-me-frames"}]',
		error = 'hide-me-error', stack = 'hide-me-stack', payload = '{"card":"hide-me-payload"}', header_names = '{x-card}', header_values = '{hide-me-header}'`)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, stack, due_at)
		VALUES ('retrying', 'action', 'acme', 'k0002', 'charge', '2', 'pay', 'm9', '{}', '{}', 'hide-me-payload', 'failed', 'hide-me-error', 'hide-me-stack', now() + interval '1 hour')`)
	f.putHeld(t, 1, "hide-me-refusal")
	f.putRefused(t, 2)
	f.exec(t, `UPDATE {schema}.outbox_held SET payload = 'hide-me-payload', headers = '{"x-card":"hide-me-header"}', reason = CASE reason WHEN '' THEN '' ELSE 'hide-me-refusal' END`)
	f.putMessages(t, "flight", 1)
	f.exec(t, `UPDATE {schema}.outbox SET payload = 'hide-me-payload', headers = '{"x-card":"hide-me-header"}', key = 'k0001'`)
}

// crawledOfPath is how many addresses of one page a crawl gets: filters lead to each other.
const crawledOfPath = 30

// crawlPages gets pages and those that they lead to, and calls see with the text of each. It opens their streams too.
func (f *fixture) crawlPages(t *testing.T, paths []string, see func(path, text string)) (pages int) {
	t.Helper()
	seen, ofPath := map[string]bool{}, map[string]int{}
	for len(paths) > 0 {
		path := paths[0]
		paths = paths[1:]
		page, _, _ := strings.Cut(path, "?")
		if seen[path] || strings.HasPrefix(path, "/assets/") || ofPath[page] >= crawledOfPath {
			continue
		}
		seen[path] = true
		ofPath[page]++
		text := ""
		if strings.HasPrefix(path, "/live/") {
			text = f.firstEvents(t, path)
		} else {
			_, text = f.get(t, path)
		}
		see(path, text)
		for _, found := range pageLink.FindAllStringSubmatch(text, -1) {
			link, err := url.Parse(html.UnescapeString(found[1]))
			if err != nil {
				t.Fatal(err)
			}
			at, _ := url.Parse("http://x" + strings.TrimPrefix(path, "/live"))
			next := at.ResolveReference(link).RequestURI()
			paths = append(paths, next)
		}
	}
	return len(seen)
}

// firstEvents returns what a stream sends first.
func (f *fixture) firstEvents(t *testing.T, path string) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.browser.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var text strings.Builder
	for lines := bufio.NewScanner(response.Body); lines.Scan() && (lines.Text() != "" || !strings.Contains(text.String(), "data: ")); {
		text.WriteString(lines.Text() + "\n")
	}
	return text.String()
}

// A payload that is larger than a page reads is cut off in the database. The page says so, and nobody edits what it lacks.
func TestAPageReadsTheBeginningOfALargePayload(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putDead(t, "k", 1)
	f.putMessages(t, "flight", 1)
	f.putRefused(t, 1)
	const large = `(SELECT convert_to('{"begin":"' || repeat('x', 3000000) || 'end"}', 'UTF8'))`
	f.exec(t, `UPDATE {schema}.parked SET payload = `+large)
	f.exec(t, `UPDATE {schema}.outbox SET payload = `+large)
	f.exec(t, `UPDATE {schema}.outbox_held SET payload = `+large)
	message := "/message?" + buildTestQuery("in", "main/"+f.schema, "id", f.readText(t, "SELECT id::text FROM {schema}.outbox"))
	outbox := "/letter?" + buildTestQuery("database", "main", "schema", f.schema, "side", "outbox", "id", f.readText(t, "SELECT id::text FROM {schema}.outbox_held"))
	for path, command := range map[string]string{f.letterPath("letter", 1): "sagamill dead show -schema " + f.schema + " -id 1 -payload", outbox: "sagamill outbox dead show", message: ""} {
		_, text := f.get(t, path)
		contains(t, text, "Only the first 64 KiB of 2.9 MiB are shown", "begin", command)
		if len(text) > 100<<10 {
			t.Errorf("%s has %d bytes", path, len(text))
		}
	}
	_, text := f.get(t, f.letterPath("letter/edit", 1))
	contains(t, text, "It has 2.9 MiB, and a form takes 64 KiB.")
	response, text := f.edit(t, `{"begin":"`, "x-a: b", nil)
	if contains(t, text, "The payload cannot be edited here. It has 2.9 MiB"); response.StatusCode != http.StatusBadRequest {
		t.Errorf("an edit of a payload that is cut off = %d", response.StatusCode)
	}
	f.start(t, RoleAdmin, func(o *Options) { o.Redact = func(c Content) []byte { return c.Data } })
	for _, path := range []string{f.letterPath("letter", 1), outbox, message} {
		_, text := f.get(t, path)
		if contains(t, text, "The payload of 2.9 MiB is larger than 1.0 MiB, and is not shown."); strings.Contains(text, "xxxx") {
			t.Errorf("%s shows a payload that Redact has got in part, or not at all", path)
		}
	}
}

// Every payload, header, state, error, stack and reason of every page, stream, preview and export has passed Redact.
func TestRedactGetsEverything(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	kinds := map[string]bool{} // with the mark
	hidden := func(o *Options) {
		o.Redact = func(c Content) []byte {
			mu.Lock()
			defer mu.Unlock()
			return hiddenMark.ReplaceAllFunc(c.Data, func(mark []byte) []byte {
				kinds[c.Kind+" "+string(mark)] = true
				return []byte("[hidden]")
			})
		}
	}
	f := newFixture(t, RoleAdmin, hidden)
	f.putSecrets(t)
	redrive := f.previewToken(t, "/change/redrive?side=inbox&error=hide-me-error&schema="+f.schema)
	form := confirmation(redrive, 2)
	form.Set("why", "hide-me-run")
	response, text := f.post(t, "/change/redrive", form, nil)
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("the redrive = %d: %s", response.StatusCode, text)
	}
	begin := []string{"/", "/sagas", "/dead", "/dead?side=outbox", "/letters?state=retrying", "/outbox?place=refused", "/outbox?place=waiting", "/outbox?place=dead", "/outbox?place=log", "/journal", "/why?q=k0001", "/why?q=t1",
		"/why?q=held001", "/saga?key=k0001", "/saga?key=t1", "/saga?key=held001", "/saga?key=later001", "/change/decide?verb=cancel&key=t1", "/change/decide?verb=retry&state=stuck", "/" + strings.TrimPrefix(response.Header.Get("Location"), "./../")}
	pages := f.crawlPages(t, begin, func(path, text string) {
		if found := hiddenMark.FindString(text); found != "" {
			at := strings.Index(text, found)
			t.Errorf("%s shows %s: …%s…", path, found, text[max(0, at-200):min(len(text), at+80)])
		}
	})
	for _, want := range []string{"error hide-me-instance", "error hide-me-step", "error hide-me-cause", "error hide-me-undo", "error hide-me-fault", "error hide-me-error", "error hide-me-earlier", "stack hide-me-stack", "stack hide-me-frames", "error hide-me-refusal",
		"reason hide-me-decision", "reason hide-me-redrive", "reason hide-me-discard", "reason hide-me-run", "error hide-me-filter", "error hide-me-answer",
		"payload hide-me-payload", "headers hide-me-header", "state hide-me-state"} {
		if !kinds[want] {
			t.Errorf("of %d pages none has passed %s: the test does not see it", pages, want)
		}
	}
	if pages < 60 {
		t.Errorf("only %d pages were looked at", pages)
	}
}
