package browsertest

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// maxVariants is how many pages with one path are looked at. They differ in the names of their query.
const maxVariants = 4

//go:embed testdata/axe.min.js
var axe string

//go:embed testdata/VENDORED.md
var vendored string

// axe-core is the file that testdata/VENDORED.md names.
func TestAxeIsAsListed(t *testing.T) {
	t.Parallel()
	digest := sha256.Sum256([]byte(axe))
	if !strings.Contains(vendored, "`"+hex.EncodeToString(digest[:])+"`") {
		t.Errorf("testdata/VENDORED.md does not have the digest %x of axe.min.js", digest)
	}
}

// newCrowdedTown returns a town in which every page has something to show: sagas of each state, dead letters of both
// sides, messages that wait, entries of the journal, and requests whose outcome nobody knows.
func newCrowdedTown(t *testing.T) *town {
	t.Helper()
	w := newTown(t, "trips", "flights", "hotels")
	full := saga.Participant(consumer.Step{Name: "book", CancelParked: true,
		Action: saga.On("hotel.book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[trip]) (trip, error) {
			if in.Key < "trip-004" {
				return trip{}, saga.Reject("no room is left")
			}
			return in.Body, note(ctx, tx, "hotels", in.Key, "hotel.book")
		}),
	})
	definition := tripOf(0)
	w.serve(sagamill.Config{Name: "hotels", Steps: []consumer.Step{full}})
	w.serve(sagamill.Config{Name: "flights", Steps: []consumer.Step{bookingOf("flights", "flight.book")}})
	trips, _ := w.serve(sagamill.Config{Name: "trips", Sagas: []saga.Plan{definition}})
	w.start(trips, definition, 8)
	hotelOfNobody := outbox.Message{Topic: "hotel.book", Type: "hotel.rename", Scope: "acme", Key: `<b>"odd"</b>`, Step: "rename", Payload: encode(trip{Traveller: "<script>alert(1)</script>"})}
	w.write(trips, hotelOfNobody)
	w.awaitQuery("SELECT string_agg(n::text, ' ') FROM (SELECT count(*) n FROM trips.saga WHERE status IN ('stuck', 'completed') GROUP BY status ORDER BY status) x", "5 3")
	w.awaitQuery("SELECT count(*) FROM hotels.parked WHERE state = 'dead'", "1")
	w.request("trips", http.StatusBadGateway, "booking-1", "<b>odd</b>")
	return w
}

// visitPages calls visit on every page: each that a link or a form leads to, and each that the source of the console
// lists. Of pages that differ in the values of their query alone it visits the first, and of each path maxVariants.
func (w *town) visitPages(visit func(path string)) {
	w.t.Helper()
	waiting, seen, variants := []string{"", "outbox?place=log"}, map[string]bool{}, map[string]int{}
	for len(waiting) > 0 {
		path := waiting[0]
		waiting = waiting[1:]
		of, kind := w.kindOf(path)
		if seen[kind] || variants[of] == maxVariants {
			continue
		}
		seen[kind] = true
		variants[of]++
		w.open(path)
		waiting = append(waiting, w.links()...)
		visit(path)
	}
	for _, path := range listedPaths(w.t) {
		if variants[path] == 0 {
			w.t.Errorf("no link leads to the page %q", path)
		}
	}
}

// kindOf returns the path of a page without its query, and with the names of its query.
func (w *town) kindOf(path string) (of, kind string) {
	w.t.Helper()
	u, err := url.Parse(path)
	if err != nil {
		w.t.Fatal(err)
	}
	return u.Path, u.Path + "?" + strings.Join(slices.Sorted(maps.Keys(u.Query())), "&")
}

// links returns where the links and the forms of the page lead, below the console. Only a status must be filled in.
func (w *town) links() (paths []string) {
	w.t.Helper()
	all := read[[]string](w.browser, `[
		...[...document.querySelectorAll('a[href]:not([download])')].map(a => a.href),
		...[...document.forms].filter(f => f.method === 'get').flatMap(f => {
			const button = f.querySelector('button[name]');
			f.querySelectorAll(':required').forEach(e => e.value ||= '201');
			const u = new URL(f.getAttribute('action') ?? '', location.href);
			u.search = new URLSearchParams([...new FormData(f, button)].filter(([, v]) => v !== ''));
			return u.href;
		})]`)
	for _, link := range all {
		if path, inside := strings.CutPrefix(link, w.base+"/"); inside {
			path, _, _ = strings.Cut(path, "#")
			paths = append(paths, path)
		}
	}
	return paths
}

var pageInSource = regexp.MustCompile(`\{path: "([a-z/]*)"`)

// listedPaths returns the paths of pages in the source of the console.
func listedPaths(t *testing.T) (paths []string) {
	t.Helper()
	files, err := filepath.Glob("../../../console/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("the source of the console: %d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, found := range pageInSource.FindAllStringSubmatch(string(text), -1) {
			paths = append(paths, found[1])
		}
	}
	if len(paths) < 2 {
		t.Fatalf("the source of the console lists only %q", paths)
	}
	return paths
}

// axeViolations are those that keep people out.
const axeViolations = `axe.run(document, {resultTypes: ['violations']}).then(r => r.violations
	.filter(v => ['serious', 'critical'].includes(v.impact))
	.map(v => v.id + ': ' + v.help + ': ' + v.nodes.map(n => n.target.join(' ') + ' ' + n.html.slice(0, 160) + ' ' + (n.any[0]?.message ?? '')).slice(0, 3).join(' | ')))`

// axe-core finds nothing serious on any page, light or dark, wide or narrow. A narrow page is not wider than its window.
// No page has an error or violates the policy: the browser says so when the test ends.
func TestEveryPageSuitsEverybody(t *testing.T) {
	t.Parallel()
	w := newCrowdedTown(t)
	w.visitPages(func(path string) { w.audit(path) })
	w.open("sagas?state=stuck")
	w.press("Pause…")
	w.confirm(3)
	w.see("done by ann")
	w.audit("run")
	w.open("none")
	w.audit("none")
	w.awaitThat("report of status 404", func() bool { return w.forgetFault("status of 404") })
}

// audit looks at the page that is open.
func (w *town) audit(path string) {
	t := w.t
	t.Helper()
	w.closeStream()
	w.script(axe)
	for _, width := range []int64{1280, 400} {
		w.resize(width)
		for _, scheme := range []string{"light", "dark"} {
			w.prefer(scheme)
			for _, violation := range read[[]string](w.browser, axeViolations) {
				t.Errorf("%q, %d wide, %s: %s", path, width, scheme, violation)
			}
		}
		if got := read[int64](w.browser, "document.documentElement.scrollWidth"); got > width {
			t.Errorf("%q is %d wide in a window of %d: %s", path, got, width, read[string](w.browser, widest))
		}
		w.screenshot(regexp.MustCompile(`[^a-z]+`).ReplaceAllString(path, "-"))
	}
	w.resize(1280)
}

// widest names the element that reaches furthest to the right.
const widest = `(() => { let far = null; for (const e of document.querySelectorAll('main *, header *')) {
	if (e.closest('.scroll') && !e.matches('.scroll')) continue;
	if (!far || e.getBoundingClientRect().right > far.getBoundingClientRect().right) far = e; } return far.outerHTML.slice(0, 200); })()`

// With the tab key alone a person reaches the link that skips the menu first, then every control, and sees each time which
// one has the focus.
func TestEveryControlIsReachedByKeyboard(t *testing.T) {
	t.Parallel()
	w := newCrowdedTown(t)
	w.visitPages(func(path string) {
		w.closeStream()
		w.script(`window.controls = [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]')]
			.filter(e => e.checkVisibility({visibilityProperty: true}) && !e.disabled && e.tabIndex >= 0
				&& !(e.type === 'radio' && !e.checked && document.querySelector('input[type=radio][name="' + e.name + '"]:checked')));
			window.reached = new Set(); document.activeElement?.blur();`)
		n := read[int](w.browser, "window.controls.length")
		for i := range n {
			w.do(chromedp.KeyEvent(kb.Tab))
			state := read[struct {
				Known, Skip, Visible bool
				HTML                 string
			}](w.browser, `(() => { const e = document.activeElement; window.reached.add(e); const s = getComputedStyle(e), r = e.getBoundingClientRect();
				return {Known: window.controls.includes(e), Skip: e.matches('a.skip'), HTML: e.outerHTML.slice(0, 120),
					Visible: s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2 && r.bottom > 0 && r.top < innerHeight && r.width > 0}; })()`)
			switch {
			case !state.Known:
				t.Errorf("%q: the tab key leads to %s", path, state.HTML)
			case state.Skip != (i == 0):
				t.Errorf("%q: the control number %d is %s", path, i+1, state.HTML)
			case !state.Visible:
				t.Errorf("%q: nobody sees that the focus is on %s", path, state.HTML)
			}
		}
		if missed := read[[]string](w.browser, "window.controls.filter(e => !window.reached.has(e)).map(e => e.outerHTML.slice(0, 120))"); len(missed) > 0 {
			t.Errorf("%q: the tab key does not reach %q", path, missed)
		}
	})
}

// Without JavaScript a person searches, previews, confirms, and sees what was done.
func TestTheConsoleWorksWithoutJavaScript(t *testing.T) {
	t.Parallel()
	w := newCrowdedTown(t)
	tell(w.browser, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	w.noScript = true
	w.open("")
	w.press("Sagas")
	w.fill("State", "stuck")
	w.press("Search")
	w.see("trip-003")
	w.press("Pause…")
	w.confirm(3)
	w.awaitThat("the change", func() bool {
		w.open(strings.TrimPrefix(read[string](w.browser, "location.href"), w.base+"/")) // a person reloads
		return read[bool](w.browser, "document.body.innerText.includes('done by ann')")
	})
	w.check("SELECT count(*) || ' ' || min(who) FROM trips.saga_journal WHERE verb = 'pause'", "3 ann")
}

// A tab that nobody sees has no stream, and gets one again when somebody looks at it.
func TestAHiddenTabHasNoStream(t *testing.T) {
	t.Parallel()
	w := newCrowdedTown(t)
	w.open("")
	w.awaitStream()
	show := func(state string) {
		w.script(`Object.defineProperty(document, 'visibilityState', {configurable: true, value: ` + quote(state) + `}); document.dispatchEvent(new Event('visibilitychange'))`)
	}
	show("hidden")
	if open := read[int](w.browser, "window.streams.filter(s => s.readyState !== EventSource.CLOSED).length"); open != 0 {
		t.Errorf("a hidden tab has %d streams", open)
	}
	w.exec("UPDATE trips.saga SET status = 'paused' WHERE status = 'stuck'")
	show("visible")
	w.await("three paused sagas", "document.querySelector('.card-paused .figure')?.innerText === '3'")
	if open := read[int](w.browser, "window.streams.filter(s => s.readyState !== EventSource.CLOSED).length"); open != 1 {
		t.Errorf("a visible tab has %d streams", open)
	}
}

// An event of the stream replaces a part of the page. Focus and scroll positions in it stay.
func TestAnEventKeepsTheFocus(t *testing.T) {
	t.Parallel()
	w := newCrowdedTown(t)
	w.resize(400)
	w.open("")
	w.awaitStream()
	w.awaitThat("focus on a link of the table", func() bool {
		w.do(chromedp.KeyEvent(kb.Tab))
		return read[bool](w.browser, "!!document.activeElement.closest('.scroll')?.matches('[aria-labelledby=h-messages]') && document.activeElement.tagName === 'A'")
	})
	href := read[string](w.browser, "(() => { const a = document.activeElement; a.old = true; window.before = window.events; a.closest('.scroll').scrollLeft = 30; return a.getAttribute('href'); })()")
	w.exec("UPDATE trips.saga SET status = 'paused' WHERE status = 'stuck'")
	w.await("event", "window.events > window.before && [...document.querySelectorAll('[aria-labelledby=h-messages] a')].every(a => !a.old)")
	if got := read[string](w.browser, "document.activeElement.getAttribute('href') ?? document.activeElement.tagName"); got != href {
		t.Errorf("after an event the focus is on %s, want the link to %s", got, href)
	}
	if got := read[int](w.browser, "document.querySelector('.scroll[aria-labelledby=h-messages]').scrollLeft"); got != 30 {
		t.Errorf("after an event the table is scrolled by %d, want 30", got)
	}
}

// The tests of this package see the errors of a page.
func TestTheBrowserReportsViolations(t *testing.T) {
	t.Parallel()
	w := newTown(t, "trips")
	w.open("")
	w.script(`{ const s = document.createElement('script'); s.textContent = 'window.intruder = true'; document.body.append(s); }
		setTimeout(() => { throw new Error('a page fails'); }); console.error('a page complains');`)
	for _, part := range []string{"Content Security Policy", "a page fails", "a page complains"} {
		w.awaitThat("report of "+part, func() bool { return w.forgetFault(part) })
	}
	if read[bool](w.browser, "window.intruder === true") {
		t.Error("a script within the page has run")
	}
}
