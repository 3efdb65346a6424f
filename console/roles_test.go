package console

import (
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/suites/roletest"
	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// All pages and previews need the rights of a reader, and all changes those of an operator.
func TestTheConsoleGetsByWithTwoRoles(t *testing.T) {
	t.Parallel()
	server := pgservertest.New(t)
	roles := roletest.New(t, server, pgtest.Pool(t, server.URL()), pgtest.Name())
	denied := func(err error) {
		if !strings.Contains(err.Error(), "table idempotency_key") { // which a reader does not see, as the pages say
			t.Error(err)
		}
	}
	f := &fixture{pool: roles.Admin, schema: roles.Schema, reader: roles.Pool(t, "reader", denied), changer: roles.Pool(t, "operator", denied)}
	f.putDefinition(t)
	f.putSecrets(t)
	f.start(t, RoleAdmin, nil)

	f.crawlPages(t, append([]string{"/message?id=1", f.sagaURL("k0001"), f.letterPath("letter", 1)}, pagesOfTests...), func(string, string) {})
	for _, c := range []struct {
		path, preview string
		count         int
	}{
		{"/change/decide", "?verb=retry&key=k0001", 1},
		{"/change/decide", "?verb=pause&key=k0002", 1},
		{"/change/redrive", "?topic=pay&side=inbox", 2},
		{"/change/retry", "?topic=pay", 3},
		{"/change/bury", "?topic=pay&side=inbox", 3},
		{"/change/discard", "?topic=pay&side=inbox", 3},
	} {
		f.begin(t, c.path, confirmation(f.previewToken(t, c.path+c.preview), c.count))
		f.console.runs.working.Wait()
	}
	f.putUnknown(t, 1)
	f.begin(t, "/change/key", confirmation(f.previewToken(t, f.decisionOf(f.keyOf(t, "charge1"), "release")), 1))
	f.console.runs.working.Wait()
	const letters = "; dead redrive ann (the hotel is back) 2; dead retry ann (the hotel is back) 3; dead bury ann (the hotel is back) 3; dead discard ann (the hotel is back) 3; keys release ann (the hotel is back) 1"
	if got := f.letterJournal(t); !strings.HasSuffix(got, letters) {
		t.Errorf("journal: %s", got)
	}
	if decisions, sagas := f.journaled(t); decisions != 2 || sagas != 2 {
		t.Errorf("%d decisions about %d sagas, want 2 about 2", decisions, sagas)
	}
}
