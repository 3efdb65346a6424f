package console

import (
	"net/url"
	"strings"
	"testing"
)

// A preview names the objects once, by their number, and links to each. Only what cannot be undone is marked as dangerous.
func TestAPreviewSaysWhatItChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putStuck(t, "k", 2)
	_, text := f.get(t, retryStuck)
	requireTexts(t, "the preview of two", text, "<h1>Retry 2 sagas</h1>", `<button class="primary">Retry 2 sagas</button>`, `<span class="quiet">state</span> stuck</li>`,
		`<span class="figure">2</span> sagas would change. Those that change before you confirm are left alone.`, "Which sagas", `href="./../saga?database=main&amp;key=k0001`)
	_, text = f.get(t, "/change/decide?verb=cancel&state=stuck&key=k0001")
	requireTexts(t, "the preview of one", text, `<button class="danger">Cancel 1 saga</button>`, `<span class="figure">1</span> saga would change. If it changes before you confirm, it is left alone.`, "Which saga<")
}

// The preview of a group of letters shows their error in place of its fingerprint.
func TestAPreviewShowsTheErrorOfAGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putDead(t, "k", 2)
	_, groups := f.get(t, "/dead")
	link, err := url.Parse(strings.ReplaceAll(groupLink.FindStringSubmatch(groups)[1], "&amp;", "&"))
	if err != nil {
		t.Fatal(err)
	}
	for kind, class := range map[string]string{"redrive": "primary", "discard": "danger"} {
		_, text := f.get(t, "/change/"+kind+"?"+link.RawQuery)
		requireTexts(t, kind, text, `<span class="quiet">error like</span> order 1 not found</li>`, `<button class="`+class+`">`, `2 dead letters</button>`, `href="./../letter?database=main&amp;id=`)
		if strings.Contains(text, ">fingerprint<") {
			t.Errorf("the preview of %s shows a fingerprint: %s", kind, text)
		}
	}
}

// A preview about one saga names the steps that would be undone, in their order; one about many counts them by their steps.
func TestAPreviewNamesWhatWouldBeUndone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putTour(t, "k", "stuck", `{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"stuck","attempt":1}]}`)
	f.putStuck(t, "s", 2)
	id := f.readText(t, "SELECT id::text FROM {schema}.saga WHERE key = 'k'")
	for query, want := range map[string]string{
		"verb=cancel":                "It would undo rent, then flight and hotel.",
		"verb=compensate-to&to=book": "It would undo rent.", "verb=compensate-to&to=quote": "It would undo rent, then flight and hotel.",
	} {
		_, text := f.get(t, "/change/decide?"+query+"&key=k&id="+id)
		requireTexts(t, query, text, "<strong>"+want+"</strong>")
	}
	if _, text := f.get(t, "/change/decide?verb=pause&key=k&id="+id); strings.Contains(text, "It would undo") {
		t.Errorf("the preview of a pause undoes something: %s", text)
	}
	_, text := f.get(t, "/change/decide?verb=cancel&state=stuck")
	requireTexts(t, "the preview of many", text, `<th scope="row">hotel</th><td class="r num">2</td>`, `<th scope="row">ticket</th><td class="r num">1</td>`)
}

// The preview of a redrive, and the page of a letter, say that the saga of an action has ended.
func TestAPreviewSaysThatTheSagaHasEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putDead(t, "k", 1)
	f.putStuck(t, "k", 1)
	f.exec(t, `UPDATE {schema}.saga SET status = 'compensated', ended_at = now()`)
	f.exec(t, `UPDATE {schema}.parked SET n = right((SELECT root::text FROM {schema}.saga), 8) || '-1.1'`)
	f.exec(t, `UPDATE {schema}.inbox SET n = right((SELECT root::text FROM {schema}.saga), 8) || '-1.1'`)
	const says = "Its saga has ended: it is compensated. Nobody would undo what the handler does, so discard the message."
	id := f.readText(t, "SELECT id::text FROM {schema}.parked")
	for _, page := range []string{"/change/redrive?side=inbox&id=" + id, "/letter?database=main&schema=" + f.schema + "&side=inbox&id=" + id} {
		_, text := f.get(t, page)
		requireTexts(t, page, text, says)
	}
	f.exec(t, `UPDATE {schema}.saga SET status = 'stuck', ended_at = NULL`)
	if _, text := f.get(t, "/change/redrive?side=inbox&id="+id); strings.Contains(text, "has ended") {
		t.Errorf("a live saga has ended: %s", text)
	}
}
