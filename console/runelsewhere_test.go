package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// begin posts a form that starts a change, and returns the path of its page and its id.
func (f *fixture) begin(t *testing.T, path string, form url.Values) (page, id string) {
	t.Helper()
	response, text := f.post(t, path, form, nil)
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("%s = %d: %s", path, response.StatusCode, text)
	}
	return "/" + strings.TrimPrefix(response.Header.Get("Location"), "./../"), runID(t, response)
}

// A process that does not know a change shows what is left of it, and does that, each object once.
func TestAnotherProcessShowsWhatIsLeft(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]struct{ preview, post, left string }{
		"sagas":   {retryStuck, "/change/decide", "SELECT count(*)::text FROM {schema}.saga WHERE updated_at < now() - interval '10 minutes'"},
		"letters": {"/change/redrive?topic=pay", "/change/redrive", "SELECT count(*)::text FROM {schema}.parked WHERE last_at < now() - interval '10 minutes' AND redriven_at IS NULL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, RoleOperator, nil)
			f.putStuck(t, "k", 4)
			f.putDead(t, "k", 4)
			form := confirmation(f.previewToken(t, kind.preview), 4)
			form.Set("rate", "0.01") // it waits after the first
			page, id := f.begin(t, kind.post, form)
			steer := url.Values{"token": {f.console.signer.postToken(f.sessionOf(t), "ann")}, "id": {id}, "do": {"pause"}}
			f.post(t, "/run", steer, nil)
			f.console.runs.working.Wait()
			// What is done matches the search again, and so does what has changed since for another reason.
			f.exec(t, `UPDATE {schema}.saga SET status = 'stuck', progress = '{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"stuck","attempt":3}]}', due_at = NULL`)
			f.exec(t, `UPDATE {schema}.parked SET state = 'dead', last_at = clock_timestamp() WHERE state = 'retrying' OR id = 4`)
			f.exec(t, `UPDATE {schema}.saga SET updated_at = clock_timestamp() WHERE key = 'k0004'`)
			left := f.readText(t, kind.left)

			session := f.browser.Jar
			f.start(t, RoleOperator, nil)
			f.browser.Jar = copyCookies(t, session, f.url)
			_, text := f.get(t, page)
			contains(t, text, "This process of the console does not run the change", "It was started in process ", ">"+left+" of 4<", "Do the rest here", "the hotel is back", "journal?by=ann&amp;since=")
			if strings.Contains(text, `value="pause"`) {
				t.Errorf("the page offers to pause what its process does not run: %s", text)
			}
			at, err := url.Parse(page)
			if err != nil {
				t.Fatal(err)
			}
			steer.Set("of", at.Query().Get("of"))
			if response, text := f.post(t, "/run", steer, nil); response.StatusCode != http.StatusConflict || !strings.Contains(text, "Only the process that runs this change can pause it") {
				t.Errorf("a pause of it = %d: %s", response.StatusCode, text)
			}
			steer.Set("do", "resume")
			if response, text := f.post(t, "/run", steer, nil); response.StatusCode != http.StatusSeeOther {
				t.Fatalf("the rest = %d: %s", response.StatusCode, text)
			}
			f.console.runs.find(id).stop() // it waits after the first
			f.console.runs.working.Wait()
			f.console.runs.find(id).options.Rate = 0
			f.post(t, "/run", steer, nil)
			f.console.runs.working.Wait()
			if got := f.readText(t, kind.left); got != "0" {
				t.Errorf("%s are left, want none", got)
			}
			if v := f.console.runs.find(id).snapshot(); v.State != runDone || v.Actor != "ann" {
				t.Errorf("the run is %s of %s", v.State, v.Actor)
			}
			f.start(t, RoleOperator, nil)
			_, text = f.get(t, page)
			if contains(t, text, ">0 of 4<"); strings.Contains(text, "Do the rest here") {
				t.Errorf("nothing is left, and the page offers to do it: %s", text)
			}
		})
	}
}

// The address of a change is signed, is of a day, and gives nobody a right.
func TestTheAddressOfAChangeIsNoRight(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putStuck(t, "k", 1)
	page, id := f.begin(t, "/change/decide", confirmation(f.previewToken(t, retryStuck), 1))
	f.console.runs.working.Wait()
	f.putStuck(t, "new", 1)
	at, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	note, err := f.console.signer.readRun(at.Query().Get("of"))
	if err != nil || note.Proposal.ID != id || note.Actor != "ann" {
		t.Fatalf("the note is %+v, %v", note, err)
	}
	note.Begun = time.Now().Add(-noteAge - time.Minute)
	old, err := f.console.signer.signRun(*note)
	if err != nil {
		t.Fatal(err)
	}
	f.start(t, RoleViewer, nil)
	for name, of := range map[string]string{"none": "", "old": old, "forged": at.Query().Get("of") + "x"} {
		if response, text := f.get(t, "/run?"+buildTestQuery("id", id, "of", of)); response.StatusCode != http.StatusNotFound || !strings.Contains(text, "does not know this change") {
			t.Errorf("%s: %d: %s", name, response.StatusCode, text)
		}
	}
	if response, _ := f.get(t, "/run?"+buildTestQuery("id", "other", "of", at.Query().Get("of"))); response.StatusCode != http.StatusNotFound {
		t.Errorf("the note of another change = %d, want 404", response.StatusCode)
	}
	response, text := f.get(t, page)
	if response.StatusCode != http.StatusOK || strings.Contains(text, "<button") {
		t.Errorf("the page of a viewer = %d: %s", response.StatusCode, text)
	}
	steer := url.Values{"token": {f.console.signer.postToken(f.sessionOf(t), "ann")}, "id": {id}, "of": {at.Query().Get("of")}, "do": {"resume"}}
	if response, _ := f.post(t, "/run", steer, nil); response.StatusCode != http.StatusForbidden {
		t.Errorf("a viewer goes on: %d, want 403", response.StatusCode)
	}
}
