package browsertest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

const (
	// patience is how long a page may take to show what a test waits for, on a machine that has other work.
	patience = 3 * time.Minute

	lookPause = 20 * time.Millisecond
)

var shots = flag.String("shots", "", "write screenshots of the incidents into this directory")

// slots bounds how many browsers run at once: each has several processes.
var slots = make(chan struct{}, 2)

// A browser is a Chromium of the test's own, with an empty profile and one tab. It reaches the test's server and nothing
// else. When the test ends, it fails the test if a page had an error, or violated the console's policy.
type browser struct {
	t    *testing.T
	tab  context.Context
	base string // of the console, without a slash at the end

	mu       sync.Mutex
	faults   []string
	shot     int
	noScript bool // pages have no JavaScript
}

func newBrowser(t *testing.T, base string) *browser {
	t.Helper()
	path, err := devservices.FindProgram(devservices.BrowserProgram, devservices.BrowserProgram)
	if err != nil {
		needtest.Missing(t, "chromium", "%v", err)
	}
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("hide-scrollbars", true), chromedp.Flag("force-device-scale-factor", "1"), chromedp.DisableGPU)
	if os.Geteuid() == 0 { // whose processes Chromium cannot put into a sandbox
		options = append(options, chromedp.NoSandbox)
	}
	allocator, end := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	tab, closeTab := chromedp.NewContext(allocator)
	b := &browser{t: t, tab: tab, base: base}
	t.Cleanup(func() {
		_ = chromedp.Cancel(tab) // waits for the process, which uses the directory
		closeTab()
		end()
		b.checkFaults()
	})
	if err := chromedp.Do(tab); err != nil { // starts it, without a deadline: that would be the browser's
		t.Fatalf("start %s: %v", path, err)
	}
	if err := chromedp.Listen(tab, b.note); err != nil {
		t.Fatal(err)
	}
	tell(b, network.Enable, network.EnableParams{})
	tell(b, log.Enable, cdp.Empty{})
	tell(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: followStreams})
	b.resize(1280)
	return b
}

// followStreams lets a test wait for the first event of a page's stream, and close the stream.
const followStreams = `
window.streams = [];
window.events = 0;
window.EventSource = class extends EventSource { constructor(...a) { super(...a); window.streams.push(this); } };
document.addEventListener('htmx:sseMessage', () => { window.events++; });`

// note notes the errors of pages. Chromium reports a violated policy as an error of its log.
func (b *browser) note(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if thrown := e.ExceptionDetails.Exception; thrown != nil {
			text += " " + thrown.Description
		}
		b.addFault("exception: %s", text)
	case *runtime.EventConsoleAPICalled:
		if slices.Contains([]runtime.ConsoleAPICalledType{"error", "warning", "assert"}, e.Type) {
			var parts []string
			for _, a := range e.Args {
				parts = append(parts, string(a.Value)+a.Description)
			}
			b.addFault("console.%s: %s", e.Type, strings.Join(parts, " "))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.addFault("log: %s %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if url := e.Request.URL; !strings.HasPrefix(url, b.base+"/") && !strings.HasPrefix(url, "data:") {
			b.addFault("a request to %s", url)
		}
	}
}

func (b *browser) addFault(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, fmt.Sprintf(format, args...))
}

// forgetFault reports whether there was an error with this part in its text. The test does not fail because of it.
func (b *browser) forgetFault(part string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := len(b.faults)
	b.faults = slices.DeleteFunc(b.faults, func(fault string) bool { return strings.Contains(fault, part) })
	return len(b.faults) < before
}

func (b *browser) checkFaults() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fault := range b.faults {
		b.t.Errorf("the browser reports: %s", fault)
	}
	b.faults = nil
}

// limited returns the context of an action.
func (b *browser) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.tab, patience)
}

// do runs actions, within patience.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := b.limited()
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.fatalf("%v", err)
	}
}

// tell sends a command of the protocol to the tab.
func tell[P, R any](b *browser, command cdp.Command[P, R], params P) {
	b.t.Helper()
	ctx, cancel := b.limited()
	defer cancel()
	if _, err := chromedp.Call(ctx, command, params); err != nil {
		b.fatalf("%v", err)
	}
}

// tryToRead returns the value of JavaScript in the page. A promise is awaited.
func tryToRead[T any](b *browser, script string) (T, error) {
	ctx, cancel := b.limited()
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// read is tryToRead, and an error ends the test.
func read[T any](b *browser, script string) T {
	b.t.Helper()
	v, err := tryToRead[T](b, script)
	if err != nil {
		b.fatalf("%v", err)
	}
	return v
}

// script runs JavaScript in the page.
func (b *browser) script(text string) {
	b.t.Helper()
	read[chromedp.Void](b, text)
}

// fatalf ends the test with the text of the page that is open.
func (b *browser) fatalf(format string, args ...any) {
	b.t.Helper()
	at, _ := tryToRead[string](b, "location.href")
	text, _ := tryToRead[string](b, "document.body.innerText")
	b.screenshot("failed")
	b.t.Fatalf(format+"\nThe page %s says:\n%s", append(args, at, text)...)
}

// await looks until holds, a JavaScript expression, is true.
func (b *browser) await(what, holds string) {
	b.t.Helper()
	b.awaitThat(what, func() bool {
		is, err := tryToRead[bool](b, "!!("+holds+")")
		return err == nil && is // an error: the page is being replaced
	})
}

// awaitThat looks until holds is true.
func (b *browser) awaitThat(what string, holds func() bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.tab, patience)
	defer cancel()
	for !holds() {
		if backoff.Sleep(ctx, lookPause) != nil {
			b.fatalf("no %s after %s", what, patience)
		}
	}
}

// open goes to a path of the console.
func (b *browser) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + "/" + path))
}

// see waits until the page shows text. Line breaks and other space count as one blank.
func (b *browser) see(text string) {
	b.t.Helper()
	b.await("text "+quote(text), "document.body.innerText.replace(/\\s+/g, ' ').includes("+quote(text)+")")
}

// awaitStream waits until the page has got the first event of its stream, if it has one.
func (b *browser) awaitStream() {
	b.t.Helper()
	if b.noScript {
		return
	}
	b.await("event of the stream", "!document.querySelector('[sse-connect]') || window.events > 0 || window.streams.some(s => s.readyState === EventSource.CLOSED)")
}

// closeStream ends the stream of the page, so that the page does not change any more.
func (b *browser) closeStream() {
	b.t.Helper()
	b.awaitStream()
	b.script("window.streams.forEach(s => s.close())")
}

// press clicks on the first visible link, button or summary with this text, or whose text begins so, like a person with a
// mouse. If it leads to another page, press waits for that page.
func (b *browser) press(text string) {
	b.t.Helper()
	b.awaitStream() // its first event replaces parts of the page, also between the two halves of a click
	b.click("control "+quote(text), `(() => { const wanted = `+quote(strings.ToLower(text))+`;
		const all = [...document.querySelectorAll('main a, main button, main summary, header a')].filter(e => e.checkVisibility());
		const says = e => e.innerText.replace(/\s+/g, ' ').trim().toLowerCase();
		return all.find(e => says(e) === wanted) ?? all.find(e => says(e).startsWith(wanted)); })()`)
}

// click clicks on what find, a JavaScript expression, returns. It looks again until find returns an element: a stream may
// replace parts of the page. If the click leads to another page, it first closes the stream: an element that is replaced
// between the two halves of a click gets none.
func (b *browser) click(what, find string) {
	b.t.Helper()
	var target struct {
		X, Y  float64
		Leads bool
	}
	b.awaitThat(what, func() bool {
		var err error
		target, err = tryToRead[struct {
			X, Y  float64
			Leads bool
		}](b, `(() => { const c = `+find+`; c.scrollIntoView({block: 'center', behavior: 'instant'}); window.before = true; const r = c.getClientRects()[0];
			const leads = c.tagName === 'A' ? !c.getAttribute('href').startsWith('#') : c.tagName === 'BUTTON' && c.form !== null && c.type === 'submit';
			if (leads) window.streams?.forEach(s => s.close());
			return {X: r.x + Math.min(r.width / 2, 40), Y: r.y + r.height / 2, Leads: leads}; })()`)
		return err == nil
	})
	b.do(chromedp.MouseClickXY(target.X, target.Y))
	if target.Leads {
		b.await("new page", "window.before === undefined && document.readyState === 'complete'")
	}
}

// fill types into the field with this label, after it has emptied it.
func (b *browser) fill(label, text string) {
	b.t.Helper()
	b.await("field "+quote(label), "(window.field = [...document.querySelectorAll('label')].find(e => e.innerText.trim().toLowerCase().startsWith("+
		quote(strings.ToLower(label))+"))?.control)")
	b.script("window.field.scrollIntoView({block: 'center', behavior: 'instant'}); window.field.focus(); window.field.select?.()")
	if read[string](b, "window.field.tagName") == "SELECT" {
		b.script("{ const f = window.field; f.value = [...f.options].find(o => o.text === " + quote(text) + ").value; f.dispatchEvent(new Event('change', {bubbles: true})); }")
		return
	}
	b.do(chromedp.KeyEvent(kb.Backspace))
	tell(b, input.InsertText, input.InsertTextParams{Text: text})
}

// resize gives the window a width.
func (b *browser) resize(width int64) {
	b.t.Helper()
	tell(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 800, DeviceScaleFactor: 1})
}

// prefer makes the pages light or dark.
func (b *browser) prefer(scheme string) {
	b.t.Helper()
	tell(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
}

// screenshot writes the whole page as a PNG, if the tests are run with -shots.
func (b *browser) screenshot(name string) {
	b.t.Helper()
	if *shots == "" {
		return
	}
	b.shot++
	ctx, cancel := b.limited()
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Errorf("screenshot %s: %v", name, err)
		return
	}
	file := fmt.Sprintf("%s-%d-%s.png", strings.ReplaceAll(b.t.Name(), "/", "-"), b.shot, name)
	if err := errors.Join(os.MkdirAll(*shots, 0o755), os.WriteFile(filepath.Join(*shots, file), png, 0o644)); err != nil {
		b.t.Error(err)
	}
}

// quote returns text as JavaScript.
func quote(text string) string {
	quoted, _ := json.Marshal(text) // a string can be encoded
	return string(quoted)
}
