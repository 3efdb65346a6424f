package console

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/operator"
)

const retryStuck = "/change/decide?verb=retry&state=stuck"

// Two posts of one form token change each saga once: in one process, in another one, and after a restart.
func TestAFormTokenAppliesOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putStuck(t, "k", 3)
	form := confirmation(f.previewToken(t, retryStuck), 3)
	first, text := f.post(t, "/change/decide", form, nil)
	second, _ := f.post(t, "/change/decide", form, nil)
	if first.StatusCode != http.StatusSeeOther || second.Header.Get("Location") != first.Header.Get("Location") {
		t.Fatalf("posts = %d to %q, %d to %q: %s", first.StatusCode, first.Header.Get("Location"), second.StatusCode, second.Header.Get("Location"), text)
	}
	f.console.runs.working.Wait()
	if entries, sagas := f.journaled(t); entries != 3 || sagas != 3 {
		t.Fatalf("the journal has %d entries of %d sagas, want 3 of 3", entries, sagas)
	}
	f.exec(t, `UPDATE {schema}.saga SET status = 'stuck', progress = '{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"stuck","attempt":3}]}', due_at = NULL`)

	session := f.browser.Jar
	f.start(t, RoleOperator, nil) // another process, which does not know the run
	f.browser.Jar = copyCookies(t, session, f.url)
	response, text := f.post(t, "/change/decide", form, nil)
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("the post to another process = %d: %s", response.StatusCode, text)
	}
	f.console.runs.working.Wait()
	if entries, _ := f.journaled(t); entries != 3 {
		t.Errorf("the journal has %d entries after a post to another process, want 3", entries)
	}
	if v := f.console.runs.find(runID(t, response)).snapshot(); v.State != runDone || v.Tally.Done != 0 {
		t.Errorf("the run of the other process is %s with %d done", v.State, v.Tally.Done)
	}
}

// copyCookies gives the cookies of one browser to another console: httptest's servers differ in their ports alone.
// runID returns the id of the run that a response leads to.
func runID(t *testing.T, response *http.Response) string {
	t.Helper()
	at, err := url.Parse(response.Header.Get("Location"))
	if err != nil || at.Query().Get("id") == "" {
		t.Fatalf("the response leads to %v, %v", at, err)
	}
	return at.Query().Get("id")
}

func copyCookies(t *testing.T, from http.CookieJar, to string) http.CookieJar {
	t.Helper()
	u, err := url.Parse(to + "/")
	if err != nil {
		t.Fatal(err)
	}
	browser := newBrowser(t)
	browser.Jar.SetCookies(u, from.Cookies(u))
	if len(from.Cookies(u)) == 0 {
		t.Fatal("the browser has no cookie")
	}
	return browser.Jar
}

// A form changes nothing if its token is missing, changed, of another session or person, or old, or if it comes from
// another site.
func TestFormsOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putStuck(t, "k", 2)
	token := f.previewToken(t, retryStuck)
	refused := func(name string, form url.Values, header http.Header) {
		t.Helper()
		if response, text := f.post(t, "/change/decide", form, header); response.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d, want 403: %s", name, response.StatusCode, text)
		}
	}
	refused("without a token", url.Values{"why": {"x"}, "rate": {"1"}}, nil)
	refused("with half a token", confirmation(token[:len(token)/2], 2), nil)
	refused("with a changed token", confirmation("A"+token, 2), nil)
	refused("from another site", confirmation(token, 2), http.Header{"Sec-Fetch-Site": {"cross-site"}})
	refused("from a neighbour", confirmation(token, 2), http.Header{"Sec-Fetch-Site": {"same-site"}})
	refused("from another origin", confirmation(token, 2), http.Header{"Sec-Fetch-Site": nil, "Origin": {"https://example.com"}})

	browser := f.browser
	f.browser = newBrowser(t)
	refused("without a session", confirmation(token, 2), nil)
	f.get(t, "/")
	refused("of another session", confirmation(token, 2), nil)
	f.browser = browser

	session := "A2345678901234567890123456"
	p := proposal{ID: "x", Kind: "decide", Params: "verb=retry&state=stuck", Expires: time.Now().Add(time.Minute).Unix()}
	signed, err := f.console.signer.signProposal(p, session, "ann")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.console.signer.readProposal(signed, session, "ann", time.Now()); err != nil {
		t.Errorf("readProposal = %v", err)
	}
	for name, read := range map[string]func() (proposal, error){
		"late": func() (proposal, error) {
			return f.console.signer.readProposal(signed, session, "ann", time.Now().Add(2*time.Minute))
		},
		"person":  func() (proposal, error) { return f.console.signer.readProposal(signed, session, "bob", time.Now()) },
		"session": func() (proposal, error) { return f.console.signer.readProposal(signed, "", "ann", time.Now()) },
		"secret": func() (proposal, error) {
			return signer{[]byte("other")}.readProposal(signed, session, "ann", time.Now())
		},
	} {
		if _, err := read(); err != errToken { //nolint:errorlint // the sentinel itself
			t.Errorf("a token of another %s = %v, want errToken", name, err)
		}
	}
	if entries, _ := f.journaled(t); entries != 0 {
		t.Errorf("the journal has %d entries", entries)
	}
}

// A viewer, and everybody without Authorize, can preview and cannot confirm.
func TestViewersChangeNothing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){"viewer": nil, "no Authorize": func(o *Options) { o.Authorize = nil }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, RoleViewer, change)
			f.putStuck(t, "k", 2)
			if token := f.previewToken(t, retryStuck); token != "" {
				t.Error("the preview has a form token")
			}
			if _, text := f.get(t, "/sagas?state=stuck"); strings.Contains(text, "change/decide") {
				t.Error("the list offers a change")
			}
			cookie := f.sessionOf(t)
			p := proposal{ID: "x", Kind: "decide", Params: "verb=retry&state=stuck", Count: 2, Expires: time.Now().Add(time.Minute).Unix()}
			token, err := f.console.signer.signProposal(p, cookie, map[bool]Actor{true: "ann", false: ""}[change == nil])
			if err != nil {
				t.Fatal(err)
			}
			response, _ := f.post(t, "/change/decide", confirmation(token, 2), nil)
			if entries, _ := f.journaled(t); response.StatusCode != http.StatusForbidden || entries != 0 {
				t.Errorf("the post = %d with %d entries of the journal, want 403 and none", response.StatusCode, entries)
			}
		})
	}
}

func (f *fixture) sessionOf(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(f.url + "/")
	if err != nil {
		t.Fatal(err)
	}
	for _, cookie := range f.browser.Jar.Cookies(u) {
		if cookie.Name == sessionCookie {
			return cookie.Value
		}
	}
	t.Fatal("the browser has no session")
	return ""
}

// A change of more than 100 objects asks for their number; every change asks for a reason and a rate.
func TestAConfirmationIsComplete(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putStuck(t, "k", typedCount)
	token := f.previewToken(t, retryStuck)
	for name, change := range map[string]func(url.Values){
		"no count":    func(v url.Values) { v.Del("count") },
		"wrong count": func(v url.Values) { v.Set("count", "100") },
		"no reason":   func(v url.Values) { v.Set("why", "  ") },
		"long reason": func(v url.Values) { v.Set("why", strings.Repeat("a", maxWhy+1)) },
		"no rate":     func(v url.Values) { v.Set("rate", "0") },
		"odd rate":    func(v url.Values) { v.Set("rate", "NaN") },
		"tiny rate":   func(v url.Values) { v.Set("rate", "1e-300") },
	} {
		form := confirmation(token, typedCount)
		change(form)
		if response, text := f.post(t, "/change/decide", form, nil); response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s = %d, want 400: %s", name, response.StatusCode, text)
		}
	}
	if entries, _ := f.journaled(t); entries != 0 {
		t.Fatalf("the journal has %d entries", entries)
	}
	if response, text := f.post(t, "/change/decide", confirmation(token, typedCount), nil); response.StatusCode != http.StatusSeeOther {
		t.Errorf("a complete confirmation = %d: %s", response.StatusCode, text)
	}
	f.console.runs.working.Wait()
	if entries, sagas := f.journaled(t); entries != typedCount || sagas != typedCount {
		t.Errorf("the journal has %d entries of %d sagas, want %d", entries, sagas, typedCount)
	}
}

// What moves after the preview is left alone, and a search of everything is refused.
func TestAChangeIsThatOfItsPreview(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putStuck(t, "k", 3)
	token := f.previewToken(t, retryStuck)
	f.exec(t, "UPDATE {schema}.saga SET updated_at = clock_timestamp() WHERE key = 'k0002'")
	f.putStuck(t, "later", 1)
	f.exec(t, "UPDATE {schema}.saga SET updated_at = clock_timestamp() WHERE key LIKE 'later%'")
	f.post(t, "/change/decide", confirmation(token, 3), nil)
	f.console.runs.working.Wait()
	if entries, sagas := f.journaled(t); entries != 2 || sagas != 2 {
		t.Errorf("the journal has %d entries of %d sagas, want 2", entries, sagas)
	}
	for _, query := range []string{"verb=retry", "verb=retry&state=completed", "verb=none&state=stuck"} {
		if response, _ := f.get(t, "/change/decide?"+query); response.StatusCode != http.StatusBadRequest {
			t.Errorf("the preview of %s = %d, want 400", query, response.StatusCode)
		}
	}
}

// A run that is paused goes on where it was, and the end of the console stops it between two sagas.
func TestARunIsPausedAndGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putStuck(t, "k", 4)
	form := confirmation(f.previewToken(t, retryStuck), 4)
	form.Set("rate", "0.01") // it waits after the first
	response, text := f.post(t, "/change/decide", form, nil)
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("post = %d: %s", response.StatusCode, text)
	}
	path := strings.TrimPrefix(response.Header.Get("Location"), "./..")
	id := runID(t, response)
	steer := url.Values{"token": {f.console.signer.postToken(f.sessionOf(t), "ann")}, "id": {id}, "do": {"pause"}}
	if response, _ := f.post(t, "/run", url.Values{"id": {id}, "do": {"pause"}}, nil); response.StatusCode != http.StatusForbidden {
		t.Errorf("a pause without a token = %d, want 403", response.StatusCode)
	}
	if response, text := f.post(t, "/run", steer, nil); response.StatusCode != http.StatusSeeOther {
		t.Fatalf("pause = %d: %s", response.StatusCode, text)
	}
	f.console.runs.working.Wait()
	paused := f.console.runs.find(id).snapshot()
	if entries, _ := f.journaled(t); paused.State != runPaused || paused.Tally.Done != entries || entries > 1 {
		t.Fatalf("the run is %s with %d done, the journal has %d entries", paused.State, paused.Tally.Done, entries)
	}
	if _, text := f.get(t, path); !strings.Contains(text, "Continue") {
		t.Errorf("the page of the paused run has no way on: %s", text)
	}
	f.console.runs.find(id).options.Rate = 0
	steer.Set("do", "resume")
	f.post(t, "/run", steer, nil)
	f.console.runs.working.Wait()
	if entries, sagas := f.journaled(t); entries != 4 || sagas != 4 {
		t.Errorf("the journal has %d entries of %d sagas, want 4", entries, sagas)
	}
	if v := f.console.runs.find(id).snapshot(); v.State != runDone || v.Tally.Done != 4 {
		t.Errorf("the run is %s with %d done, want 4", v.State, v.Tally.Done)
	}
	if err := f.console.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.putStuck(t, "new", 1)
	if response, _ := f.post(t, "/change/decide", confirmation(f.previewToken(t, retryStuck), 1), nil); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a change after Shutdown = %d, want 503", response.StatusCode)
	}
}

var (
	listedKey = regexp.MustCompile(`>(k\d{4}|other\d{4})</a>`)
	nextPage  = regexp.MustCompile(`rel="next" href="\./(sagas\?[^"]*)"`)
	tabLink   = regexp.MustCompile(`<a href="\./(sagas\?[^"]*)">stuck</a>`)
)

// The pages of a list have each saga once, in order, also if some begin meanwhile, and also in a search for a step.
func TestPagesSkipAndRepeatNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	const n = 2*sagasOnPage + 17
	f.putStuck(t, "k", n)
	f.putStuck(t, "other", 30)
	f.exec(t, `UPDATE {schema}.saga SET progress = '{"phase":"running","steps":[{"state":"stuck","attempt":3},{}]}' WHERE key LIKE 'other%'`)
	for query, want := range map[string]int{"state=stuck": n + 30, "state=stuck&step=hotel": n, "step=flight&name=trip": 30} {
		var keys []string
		for path, page := "/sagas?"+query, 0; path != ""; page++ {
			response, text := f.get(t, path)
			if response.StatusCode != http.StatusOK || page > 20 {
				t.Fatalf("page %d of %s = %d: %s", page, query, response.StatusCode, text)
			}
			for _, found := range listedKey.FindAllStringSubmatch(text, -1) {
				keys = append(keys, found[1])
			}
			path = ""
			if next := nextPage.FindStringSubmatch(text); next != nil {
				path = "/" + strings.ReplaceAll(next[1], "&amp;", "&")
			}
		}
		if len(keys) != want {
			t.Errorf("%s lists %d sagas, want %d", query, len(keys), want)
		}
		for i := 1; i < len(keys); i++ {
			if keys[i] <= keys[i-1] {
				t.Errorf("%s lists %s after %s", query, keys[i], keys[i-1])
			}
		}
	}
}

// A link keeps the search and changes its state.
func TestLinksKeepTheSearch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putStuck(t, "k", 3)
	_, text := f.get(t, "/sagas?key=k0002&scope=acme")
	link := tabLink.FindStringSubmatch(text)
	if link == nil {
		t.Fatalf("the list has no link to the stuck ones: %s", text)
	}
	_, text = f.get(t, "/"+strings.ReplaceAll(link[1], "&amp;", "&"))
	if found := listedKey.FindAllString(text, -1); len(found) != 1 || !strings.Contains(text, `value="acme"`) || !strings.Contains(text, `<option selected>stuck`) {
		t.Errorf("the link %s leads to %v: %s", link[1], found, text)
	}
	_, text = f.get(t, "/")
	if !strings.Contains(text, `href="./sagas?state=stuck"`) {
		t.Errorf("the overview does not link to the stuck ones: %s", text)
	}
}

// A stream sends the count again once it has changed, and the slot of a stream is free when the browser has gone.
func TestAStreamSendsWhatChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putStuck(t, "k", 2)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/live/sagas?state=stuck", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.browser.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	event := func() string {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return data
			}
		}
		t.Fatalf("the stream has ended: %v", lines.Err())
		return ""
	}
	if got := event(); response.Header.Get("Content-Type") != "text/event-stream" || !strings.Contains(got, `>2<`) {
		t.Errorf("the first event of a stream of %s is %s", response.Header.Get("Content-Type"), got)
	}
	f.putStuck(t, "more", 3)
	if got := event(); !strings.Contains(got, `>5<`) {
		t.Errorf("the second event is %s", got)
	}
	leave()
	f.console.live <- struct{}{} // there is room for it in any case
	if response, _ := f.get(t, "/live/sagas?state=none"); response.StatusCode != http.StatusBadRequest {
		t.Errorf("a stream of an invalid search = %d, want 400", response.StatusCode)
	}
	if response, _ := f.get(t, "/live/change/decide?verb=retry"); response.StatusCode != http.StatusNotFound {
		t.Errorf("a stream of a page without live parts = %d, want 404", response.StatusCode)
	}
}

// Who lets a change of somebody else go on is named in the journal for what is changed then.
func TestTheJournalNamesWhoLetsAChangeGoOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, func(o *Options) {
		o.Authorize = func(r *http.Request) (Actor, Role, error) {
			return Actor(cmp.Or(r.Header.Get("X-Person"), "ann")), RoleOperator, nil
		}
	})
	f.putStuck(t, "k", 4)
	form := confirmation(f.previewToken(t, retryStuck), 4)
	form.Set("rate", "0.01") // it waits after the first
	response, text := f.post(t, "/change/decide", form, nil)
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("post = %d: %s", response.StatusCode, text)
	}
	id := runID(t, response)
	steer := func(person Actor, do string) {
		t.Helper()
		form := url.Values{"token": {f.console.signer.postToken(f.sessionOf(t), person)}, "id": {id}, "do": {do}}
		if response, text := f.post(t, "/run", form, http.Header{"X-Person": {string(person)}}); response.StatusCode != http.StatusSeeOther {
			t.Fatalf("%s = %d: %s", do, response.StatusCode, text)
		}
	}
	steer("ann", "pause")
	f.console.runs.working.Wait()
	byAnn, _ := f.journaled(t)
	f.console.runs.find(id).options.Rate = 0
	steer("bob", "resume")
	f.console.runs.working.Wait()
	got := f.readText(t, "SELECT concat_ws(' ', count(*) FILTER (WHERE who = 'ann'), count(*) FILTER (WHERE who = 'bob' AND why = 'the hotel is back (confirmed by ann)')) FROM {schema}.saga_journal")
	if want := fmt.Sprintf("%d %d", byAnn, 4-byAnn); got != want || byAnn > 1 {
		t.Errorf("the journal has %s decisions of ann and bob, want %s", got, want)
	}
	if _, text := f.get(t, "/run?id="+id); !strings.Contains(text, "by ann, continued by bob") {
		t.Errorf("the page does not name bob: %s", text)
	}
}

// A stored text with the ends of lines that a browser knows begins no event of its own.
func TestAStoredTextBeginsNoEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.putStuck(t, "k", 1)
	const hostile = "no answer\revent: now\rdata: all is well\r\revent: end\rdata: x\r\r"
	f.exec(t, "UPDATE {schema}.saga SET status = 'compensated', ended_at = clock_timestamp(), due_at = NULL, reason = $1", hostile)
	_, text := f.get(t, "/live/saga?key=k0001") // it ends: the saga has ended
	if !strings.Contains(text, "all is well") {
		t.Fatalf("the stream does not have the text: %s", text)
	}
	if strings.Contains(text, "\r") || strings.Count(text, "\nevent: now\n") != 1 || strings.Count(text, "\nevent: end\n") != 1 {
		t.Errorf("a stored text has begun an event: %q", text)
	}
}

// The ages in a search are those at the preview: a saga that has become old or silent enough since is not changed.
func TestAgesOfSagasAreThoseOfThePreview(t *testing.T) {
	t.Parallel()
	for _, search := range []string{"age=15m", "silent=15m"} {
		t.Run(search, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, RoleOperator, nil)
			f.putStuck(t, "k", 2)
			f.exec(t, "UPDATE {schema}.saga SET started_at = clock_timestamp() - interval '10 minutes', updated_at = clock_timestamp() - interval '10 minutes' WHERE key = 'k0002'")
			token := f.previewToken(t, "/change/decide?verb=retry&state=stuck&"+search)
			p, err := f.console.signer.readProposal(token, f.sessionOf(t), "ann", time.Now())
			if err != nil || p.Count != 1 {
				t.Fatalf("the preview has %d sagas, %v; want 1", p.Count, err)
			}
			for name, moment := range p.Moments {
				p.Moments[name] = moment.Add(-10 * time.Minute) // the preview is as old
			}
			f.exec(t, "UPDATE {schema}.saga SET started_at = started_at - interval '10 minutes', updated_at = updated_at - interval '10 minutes'")
			if token, err = f.console.signer.signProposal(p, f.sessionOf(t), "ann"); err != nil {
				t.Fatal(err)
			}
			f.post(t, "/change/decide", confirmation(token, 1), nil)
			f.console.runs.working.Wait()
			if got := f.readText(t, "SELECT string_agg(key, ' ' ORDER BY key) FROM {schema}.saga_journal"); got != "k0001" {
				t.Errorf("decided about %q, want k0001", got)
			}
		})
	}
}

// The sparkline leaves out the minutes that are not known, and the one that goes on. Its sum has them, as the cards of states do.
func TestSparklinesShowKnownMinutes(t *testing.T) {
	t.Parallel()
	pace := operator.Pace{Minutes: make([]operator.MinutePace, 60), Known: 10}
	for i := range pace.Minutes {
		pace.Minutes[i].Started = i
	}
	v := newPaceView()
	v.add(&pace)
	s := v.Sparklines()[0]
	if got := len(strings.Fields(s.Line)); got != 9 || s.Last != 58 || s.Peak != 58 || s.Sum != 59*60/2 {
		t.Errorf("the line has %d points, last %d, peak %d, sum %d", got, s.Last, s.Peak, s.Sum)
	}
}

// The form of a viewer is refused before it is read.
func TestAViewersFormIsNotRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.get(t, "/")
	for name, form := range map[string]url.Values{"without a token": {"why": {"x"}}, "too large": {"why": {strings.Repeat("a", maxForm)}}} {
		response, text := f.post(t, "/change/decide", form, nil)
		if response.StatusCode != http.StatusForbidden || !strings.Contains(text, "this needs the role operator") {
			t.Errorf("a form %s = %d, want 403 because of the role: %s", name, response.StatusCode, text)
		}
	}
}

// An adminChange is a change for admins, which runs until it is stopped.
type adminChange struct{ change }

func (adminChange) role() Role { return RoleAdmin }
func (adminChange) apply(ctx context.Context, _ *applyOptions, _ func(tally)) (tally, error) {
	<-ctx.Done()
	return tally{}, ctx.Err()
}

// An operator sees the change of an admin, and can neither pause it nor let it go on.
func TestARunIsSteeredByWhoMayStartIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.get(t, "/")
	r, err := f.console.runs.start(f.console, &run{ID: "theirs", Title: "a change for admins", Actor: "bob", change: adminChange{}}, "bob")
	if err != nil {
		t.Fatal(err)
	}
	steer := func(do, state string) {
		t.Helper()
		form := url.Values{"token": {f.console.signer.postToken(f.sessionOf(t), "ann")}, "id": {"theirs"}, "do": {do}}
		if response, text := f.post(t, "/run", form, nil); response.StatusCode != http.StatusForbidden || !strings.Contains(text, "this needs the role admin") {
			t.Errorf("%s = %d, want 403 because of the role: %s", do, response.StatusCode, text)
		}
		if now := r.snapshot().State; now != state {
			t.Errorf("after %s the change is %s, want %s", do, now, state)
		}
	}
	steer("pause", runActive)
	if _, text := f.get(t, "/run?id=theirs"); !strings.Contains(text, "a change for admins") || strings.Contains(text, "<button") {
		t.Errorf("the page of the change has a button, or is another one: %s", text)
	}
	r.mu.Lock()
	r.stop()
	r.mu.Unlock()
	f.console.runs.working.Wait()
	steer("resume", runPaused)
}

// The link to the next page leads to a page with sagas: none is there if the last saga is on this page.
func TestTheNextPageIsNeverEmpty(t *testing.T) {
	t.Parallel()
	for rows, want := range map[int]bool{sagasOnPage - 1: false, sagasOnPage: false, sagasOnPage + 1: true} {
		f := newFixture(t, RoleOperator, nil)
		f.putStuck(t, "k", rows)
		for _, query := range []string{"state=stuck", "step=hotel"} {
			if _, text := f.get(t, "/sagas?"+query); strings.Contains(text, `rel="next"`) != want {
				t.Errorf("%s: the first page of %d sagas has a link to a next page: %t, want %t", query, rows, !want, want)
			}
		}
	}
}

// Sagas that left the search after the preview count as moved when the change is done.
func TestWhatLeavesTheSearchHasMoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putStuck(t, "k", 3)
	token := f.previewToken(t, retryStuck)
	f.exec(t, "UPDATE {schema}.saga SET status = 'running' WHERE key <> 'k0001'")
	response, text := f.post(t, "/change/decide", confirmation(token, 3), nil)
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("the post = %d: %s", response.StatusCode, text)
	}
	f.console.runs.working.Wait()
	if v := f.console.runs.find(runID(t, response)).snapshot(); v.Tally.Done != 1 || v.Moved() != 2 {
		t.Errorf("%d done and %d moved, want 1 and 2", v.Tally.Done, v.Moved())
	}
}
