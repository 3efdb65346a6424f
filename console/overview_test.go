package console

import (
	"html"
	"strings"
	"testing"
)

// The counts of the overview lead to lists of its schema, and no card says "now" for an age that is not known.
func TestTheOverviewLeadsToLists(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putStuck(t, "k", 3)
	f.exec(t, "UPDATE {schema}.saga SET status = 'completed', ended_at = now() - CASE key WHEN 'k0002' THEN interval '10 minutes' ELSE interval '2 hours' END WHERE key <> 'k0001'")
	f.putHeld(t, 1, "no queue")
	in := "in=main%2F" + f.schema
	_, text := f.get(t, "/?in=main/"+f.schema)
	requireTexts(t, "the overview", text, `<a class="card card-stuck" href="./sagas?`+in+`&amp;state=stuck"`, `href="./outbox?`+in+`&amp;place=stored"`, `href="./outbox?`+in+`&amp;place=refused"`, `href="./outbox?`+in+`&amp;place=waiting"`,
		`href="./letters?database=main&amp;schema=`+f.schema+`&amp;side=inbox&amp;state=retrying"`, "oldest unchanged for", "Ages are by the clock of the console's machine.")
	if strings.Contains(text, `<span class="quiet">now</span>`) {
		t.Errorf("a card says now: %s", text)
	}
	completed := "/sagas?ended=1h&" + in + "&state=completed"
	if events := f.firstEvents(t, "/live/?"+in); !strings.Contains(events, `href="./`+html.EscapeString(completed[1:])+`"`) {
		t.Errorf("the card of completed sagas does not lead to %s: %s", completed, events)
	}
	if _, text = f.get(t, completed); !strings.Contains(text, "k0002") || strings.Contains(text, "k0003") {
		t.Errorf("the list of the last hour is not k0002 alone: %s", text)
	}
	if _, text = f.get(t, "/sagas"); !strings.Contains(text, "Search to act on all that match.") {
		t.Errorf("the list of all sagas does not say why it has no verbs: %s", text)
	}
	if _, text = f.get(t, "/sagas?state=stuck"); strings.Contains(text, "Search to act on all that match.") {
		t.Errorf("a search asks for a search: %s", text)
	}
}
