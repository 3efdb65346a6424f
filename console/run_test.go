package console

import (
	"net/http"
	"strings"
	"testing"
)

// A colleague finds the changes that run, and who wants a third one is told which ones run.
func TestChangesAreListed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putStuck(t, "k", 1)
	if _, text := f.get(t, "/changes"); !strings.Contains(text, "No change was confirmed in this process.") {
		t.Errorf("the list of no change: %s", text)
	}
	for _, name := range []string{"first", "second"} {
		if _, err := f.console.runs.start(f.console, &run{ID: name, Title: "Change " + name, Actor: "bob", Why: "<b>", Total: 7, change: adminChange{}}, "bob"); err != nil {
			t.Fatal(err)
		}
	}
	_, text := f.get(t, "/changes")
	for _, want := range []string{`<a href="./run?id=first">Change first</a>`, `<a href="./run?id=second">Change second</a>`, `state-running`, "0 of 7", "<td>bob</td>", "&lt;b&gt;"} {
		if !strings.Contains(text, want) {
			t.Errorf("the list does not have %s: %s", want, text)
		}
	}
	if strings.Index(text, "Change second") > strings.Index(text, "Change first") {
		t.Errorf("the newest change is not the first: %s", text)
	}
	response, text := f.post(t, "/change/decide", confirmation(f.previewToken(t, retryStuck), 1), nil)
	if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "2 changes run already, and nothing has changed. Running: Change first (by bob); Change second (by bob).") ||
		!strings.Contains(text, `<a href="./../changes">Changes</a>`) {
		t.Errorf("a third change = %d: %s", response.StatusCode, text)
	}
	if _, text = f.get(t, "/"); !strings.Contains(text, `<a href="./changes">Changes</a>`) {
		t.Errorf("the menu has no link to the changes: %s", text)
	}
	if _, text = f.get(t, "/run?id=first"); !strings.Contains(text, `href="./journal?by=bob&amp;since=`) {
		t.Errorf("the page of a change has no link to the journal: %s", text)
	}
}
