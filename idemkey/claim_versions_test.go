package idemkey_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
)

// customPrint returns a digest of method, path and body, called alg.
func customPrint(alg string) func(*http.Request, []byte) (idemkey.Fingerprint, error) {
	return func(r *http.Request, body []byte) (idemkey.Fingerprint, error) {
		sum := sha256.Sum256([]byte(alg + " " + r.Method + " " + r.URL.Path + " " + string(body)))
		return idemkey.Fingerprint{Alg: alg, Sum: sum[:]}, nil
	}
}

// changes are deploys that change what makes requests the same.
var changes = map[string]struct{ old, now idemkey.FingerprintOptions }{
	"first secret":    {now: idemkey.FingerprintOptions{Secret: []byte("now")}},
	"other secret":    {idemkey.FingerprintOptions{Secret: []byte("old")}, idemkey.FingerprintOptions{Secret: []byte("now")}},
	"no secret":       {old: idemkey.FingerprintOptions{Secret: []byte("old")}},
	"raw":             {now: idemkey.FingerprintOptions{Raw: true}},
	"not raw":         {old: idemkey.FingerprintOptions{Raw: true}},
	"excluded":        {now: idemkey.FingerprintOptions{ExcludeFields: []string{"at"}}},
	"one more":        {idemkey.FingerprintOptions{ExcludeFields: []string{"at"}}, idemkey.FingerprintOptions{ExcludeFields: []string{"at", "items[].at"}}},
	"included":        {now: idemkey.FingerprintOptions{IncludeFields: []string{"a"}}},
	"other way round": {idemkey.FingerprintOptions{IncludeFields: []string{"a", "b"}}, idemkey.FingerprintOptions{ExcludeFields: []string{"a", "b"}}},
	"header":          {now: idemkey.FingerprintOptions{IncludeHeaders: []string{"Api-Version"}}},
	"first custom":    {now: idemkey.FingerprintOptions{Custom: customPrint("c1")}},
	"next custom":     {idemkey.FingerprintOptions{Custom: customPrint("c1")}, idemkey.FingerprintOptions{Custom: customPrint("c2")}},
	"no custom":       {old: idemkey.FingerprintOptions{Custom: customPrint("c1")}},
	"custom for all":  {idemkey.FingerprintOptions{Secret: []byte("old"), IncludeFields: []string{"a"}}, idemkey.FingerprintOptions{Custom: customPrint("c1")}},
}

const oneOrder, otherOrder = `{"a":1,"at":2}`, `{"a":2,"at":2}`

// order sends one JSON body.
func order(t *testing.T, m *idemkey.Middleware, next http.HandlerFunc, key, body string) reply {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), "POST", "/orders", strings.NewReader(body))
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	m.Handler(next).ServeHTTP(rec, req)
	return reply{rec.Code, rec.Result().Header, rec.Body.String()}
}

func unexpected(http.ResponseWriter, *http.Request) { panic("the handler ran again") }

// keptUnder leaves a record of each state under old settings. The handler of the key "running" runs
// until the caller closes done.
func keptUnder(t *testing.T, store idemkey.Store, old idemkey.FingerprintOptions) (done chan struct{}, ended chan struct{}) {
	t.Helper()
	m := newMiddleware(t, store, idemkey.Options{Fingerprint: old})
	order(t, m, created, "completed", oneOrder).expect(t, 201, "")
	order(t, m, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, "failed", oneOrder).expect(t, 503, "")
	large := newMiddleware(t, store, idemkey.Options{Fingerprint: old, Response: idemkey.ResponseOptions{NoStoreBody: true}})
	order(t, large, created, "tombstone", oneOrder).expect(t, 201, "")
	done, ended = make(chan struct{}), make(chan struct{})
	entered := make(chan struct{})
	go func() {
		defer close(ended)
		order(t, m, func(w http.ResponseWriter, r *http.Request) {
			close(entered)
			<-done
			created(w, r)
		}, "running", oneOrder)
	}()
	<-entered
	return done, ended
}

// A deploy that changes what is compared answers retries as before, as long as it has the old
// settings.
func TestVersions(t *testing.T) {
	t.Parallel()
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newMemory(t, nil)
			done, ended := keptUnder(t, store, change.old)
			change.now.Versions = []idemkey.FingerprintOptions{{IncludeFields: []string{"never"}}, change.old}
			m := newMiddleware(t, store, idemkey.Options{Fingerprint: change.now})
			for range 2 {
				order(t, m, unexpected, "completed", oneOrder).expect(t, 201, "")
				order(t, m, unexpected, "tombstone", oneOrder).expect(t, 410, "response-not-retained")
				order(t, m, unexpected, "running", oneOrder).expect(t, 409, "in-progress")
			}
			for _, key := range []string{"completed", "failed", "tombstone", "running"} {
				order(t, m, unexpected, key, otherOrder).expect(t, 422, "key-reused")
			}
			order(t, m, created, "failed", oneOrder).expect(t, 201, "")
			close(done)
			<-ended
			order(t, m, unexpected, "running", oneOrder).expect(t, 201, "")
			// What ran again is bound to the new settings.
			change.now.Versions = nil
			m = newMiddleware(t, store, idemkey.Options{Fingerprint: change.now})
			order(t, m, unexpected, "failed", oneOrder).expect(t, 201, "")
		})
	}
}

// Without the old settings nothing can be compared. The request is refused and neither runs nor
// replays, the client is not blamed, and the log says what is missing.
func TestUnknownFingerprint(t *testing.T) {
	t.Parallel()
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newMemory(t, nil)
			done, ended := keptUnder(t, store, change.old)
			log, seen := newCapture(), &recorder{}
			m := newMiddleware(t, store, idemkey.Options{Fingerprint: change.now, Logger: log.logger(), Observer: seen})
			for _, key := range []string{"completed", "failed", "tombstone", "running"} {
				for _, body := range []string{oneOrder, otherOrder} {
					order(t, m, unexpected, key, body).expect(t, 409, "fingerprint-unknown")
				}
			}
			close(done)
			<-ended
			if lines := log.String(); strings.Count(lines, `"level":"ERROR"`) != 8 || strings.Count(lines, "Options.Fingerprint.Versions") != 8 {
				t.Errorf("log = %s, want 8 errors that say what to configure", lines)
			}
			for _, e := range seen.events {
				if e.Result != idemkey.ResultFingerprintUnknown || e.Code != idemkey.CodeFingerprintUnknown || e.Err == nil {
					t.Errorf("event = %+v", e)
				}
			}
		})
	}
}

// The status of what cannot be compared is the operator's choice. With 503 the client comes back,
// when Versions may have been set.
func TestUnknownFingerprintStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []int{409, 422, 503} {
		store := newMemory(t, nil)
		order(t, newMiddleware(t, store, idemkey.Options{}), created, "k", oneOrder).expect(t, 201, "")
		m := newMiddleware(t, store, idemkey.Options{
			Fingerprint: idemkey.FingerprintOptions{Secret: []byte("s")}, Problems: idemkey.ProblemOptions{UnknownFingerprintStatus: status},
		})
		got := order(t, m, unexpected, "k", oneOrder)
		got.expect(t, status, "fingerprint-unknown")
		again := status == 503
		if strings.Contains(got.body, `"retryable":true`) != again || strings.Contains(got.body, `"same_key":true`) != again || (got.header.Get("Retry-After") == "30") != again {
			t.Errorf("%d: header %v, %s", status, got.header, got.body)
		}
	}
}

// What a sum was made with is told apart, and the spelling of paths is not.
func TestFingerprintAlg(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	algOf := func(f idemkey.FingerprintOptions) string {
		store := newMemory(t, nil)
		order(t, newMiddleware(t, store, idemkey.Options{Fingerprint: f}), created, "k", oneOrder).expect(t, 201, "")
		return store.Stored(idemkey.Identity{Namespace: "http", Scope: "default", Key: "k"}).FP.Alg
	}
	for name, f := range map[string]idemkey.FingerprintOptions{
		"plain": {}, "secret": {Secret: []byte("a")}, "other secret": {Secret: []byte("b")}, "raw": {Raw: true}, "secret, raw": {Secret: []byte("a"), Raw: true},
		"header": {IncludeHeaders: []string{"A"}}, "headers": {IncludeHeaders: []string{"A", "B"}}, "order": {IncludeHeaders: []string{"B", "A"}},
		"excluded": {ExcludeFields: []string{"A"}}, "included": {IncludeFields: []string{"A"}}, "joined": {ExcludeFields: []string{"a.b"}}, "exact": {ExcludeFields: []string{`a["b"]`}},
	} {
		alg := algOf(f)
		if other, ok := seen[alg]; ok || len(alg) > 32 {
			t.Errorf("%s is %s, as %s is", name, alg, other)
		}
		seen[alg] = name
	}
	if alg := algOf(idemkey.FingerprintOptions{}); alg != "v1" {
		t.Errorf("plain settings are %s, want v1: records of older processes say so", alg)
	}
	a := algOf(idemkey.FingerprintOptions{ExcludeFields: []string{"a", "b[].c"}})
	if b := algOf(idemkey.FingerprintOptions{ExcludeFields: []string{`$["b"][]["c"]`, "$.a", "a"}}); a != b {
		t.Errorf("one set of fields is %s and %s", a, b)
	}
}

// A previous store is what processes of the release before labels make of store: they store v1
// whatever their settings, and compare both parts.
type previous struct{ idemkey.Store }

func (s previous) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	c.FP.Alg, c.Prior = "v1", nil
	d, err := s.Store.Begin(ctx, c)
	if d.Kind == idemkey.KindFingerprintUnknown {
		d.Kind = idemkey.KindMismatch
	}
	return d, err
}

// Processes that do not know labels yet, and those that do, replay each other's responses while
// one replaces the other: with plain settings always, with others as long as Unlabelled is set.
func TestUnlabelled(t *testing.T) {
	t.Parallel()
	settings := idemkey.FingerprintOptions{Secret: []byte("s"), ExcludeFields: []string{"at"}}
	unlabelled := settings
	unlabelled.Unlabelled = true
	for name, tt := range map[string]struct{ before, during, after idemkey.FingerprintOptions }{
		"plain": {}, "settings": {settings, unlabelled, settings},
	} {
		store := newMemory(t, nil)
		old := newMiddleware(t, previous{store}, idemkey.Options{Fingerprint: tt.before})
		during := newMiddleware(t, store, idemkey.Options{Fingerprint: tt.during})
		after := newMiddleware(t, store, idemkey.Options{Fingerprint: tt.after})
		order(t, old, created, "old", oneOrder).expect(t, 201, "")
		order(t, during, created, "during", oneOrder).expect(t, 201, "")
		order(t, after, created, "after", oneOrder).expect(t, 201, "")
		for key, who := range map[string][]*idemkey.Middleware{"old": {old, during, after}, "during": {old, during, after}, "after": {during, after}} {
			for i, m := range who {
				if got := order(t, m, unexpected, key, oneOrder); got.status != 201 {
					t.Errorf("%s: %s asked by %d: %d %s", name, key, i, got.status, got.body)
				}
				if got := order(t, m, unexpected, key, otherOrder); got.status != 422 && got.status != 409 {
					t.Errorf("%s: another %s asked by %d: %d %s", name, key, i, got.status, got.body)
				}
			}
		}
	}
}

// Settings that have changed together with the release, or after it, find the records that say v1.
func TestUnlabelledVersions(t *testing.T) {
	t.Parallel()
	store := newMemory(t, nil)
	settings := idemkey.FingerprintOptions{Secret: []byte("s"), ExcludeFields: []string{"at"}}
	old := newMiddleware(t, previous{store}, idemkey.Options{Fingerprint: settings})
	order(t, old, created, "k", oneOrder).expect(t, 201, "")
	m := newMiddleware(t, store, idemkey.Options{Fingerprint: idemkey.FingerprintOptions{
		Secret: []byte("now"), Versions: []idemkey.FingerprintOptions{settings},
	}})
	order(t, m, unexpected, "k", oneOrder).expect(t, 201, "")
	order(t, m, unexpected, "k", otherOrder).expect(t, 409, "fingerprint-unknown") // v1 may be of any settings
}

// The store is asked once more, and not again each time: a request that waits asks often.
func TestOlderSettingsAreFoundOnce(t *testing.T) {
	t.Parallel()
	store := &counting{Memory: newMemory(t, nil)}
	old := newMiddleware(t, store, idemkey.Options{})
	id := idemkey.Identity{Namespace: "http", Scope: "default", Key: "k"}
	m := newMiddleware(t, store, idemkey.Options{
		Fingerprint: idemkey.FingerprintOptions{Secret: []byte("now"), Versions: []idemkey.FingerprintOptions{{}}},
		Recover: func(context.Context, idemkey.Identity) (*idemkey.Response, error) {
			return &idemkey.Response{Status: 202}, nil
		},
	})
	order(t, old, func(http.ResponseWriter, *http.Request) {
		store.Lapse(id)
		store.begins = 0
		order(t, m, unexpected, "k", oneOrder).expect(t, 202, "")
		if store.begins != 3 { // other settings, unknown outcome, taken over
			t.Errorf("%d claims, want 3", store.begins)
		}
	}, "k", oneOrder)
}

// A route's records are told apart from a changed deploy: the routes of one middleware know each
// other's settings. So a key that is reused on another route is the client's mistake, and options
// that move from the middleware to a route need no Versions.
func TestRoutesKnowEachOther(t *testing.T) {
	t.Parallel()
	store := newMemory(t, nil)
	before := newMiddleware(t, store, idemkey.Options{})
	order(t, before, created, "before", oneOrder).expect(t, 201, "")
	base := newMiddleware(t, store, idemkey.Options{})
	route, err := base.With(func(o *idemkey.Options) { o.Fingerprint.ExcludeFields = []string{"at"} })
	if err != nil {
		t.Fatal(err)
	}
	order(t, route, unexpected, "before", oneOrder).expect(t, 201, "")
	order(t, route, unexpected, "before", otherOrder).expect(t, 422, "key-reused")
	order(t, route, created, "route", oneOrder).expect(t, 201, "")
	order(t, base, unexpected, "route", otherOrder).expect(t, 422, "key-reused")
}

// A route's lists are its own: With replaces what it sets and inherits the rest.
func TestWithReplacesLists(t *testing.T) {
	t.Parallel()
	base := newMiddleware(t, newMemory(t, nil), idemkey.Options{Fingerprint: idemkey.FingerprintOptions{
		ExcludeFields: []string{"at"}, Versions: []idemkey.FingerprintOptions{{ExcludeFields: []string{"old"}}},
	}})
	route, err := base.With(func(o *idemkey.Options) {
		o.Fingerprint.ExcludeFields = []string{"nonce"}
		o.Fingerprint.Versions[0].ExcludeFields[0] = "x" // a copy
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := base.With(func(o *idemkey.Options) {
		if got := o.Fingerprint.Versions[0].ExcludeFields[0]; got != "old" {
			t.Errorf("another route has changed the inherited version to %q", got)
		}
	}); err != nil {
		t.Fatal(err)
	}
	order(t, base, created, "k1", `{"a":1,"at":1}`).expect(t, 201, "")
	order(t, base, unexpected, "k1", `{"a":1,"at":2}`).expect(t, 201, "")
	order(t, route, created, "k2", `{"a":1,"at":1,"nonce":1}`).expect(t, 201, "")
	order(t, route, unexpected, "k2", `{"a":1,"at":1,"nonce":2}`).expect(t, 201, "")
	order(t, route, unexpected, "k2", `{"a":1,"at":2,"nonce":1}`).expect(t, 422, "key-reused")
}

// An older Custom that fails compares nothing, and its error is in the log.
func TestOlderCustomFails(t *testing.T) {
	t.Parallel()
	store, log := newMemory(t, nil), newCapture()
	m := newMiddleware(t, store, idemkey.Options{Fingerprint: idemkey.FingerprintOptions{Custom: customPrint("c1")}})
	order(t, m, created, "k", oneOrder).expect(t, 201, "")
	m = newMiddleware(t, store, idemkey.Options{Logger: log.logger(), Fingerprint: idemkey.FingerprintOptions{Versions: []idemkey.FingerprintOptions{
		{Custom: func(*http.Request, []byte) (idemkey.Fingerprint, error) {
			return idemkey.Fingerprint{}, errors.New("no such key")
		}},
	}}})
	order(t, m, unexpected, "k", oneOrder).expect(t, 409, "fingerprint-unknown")
	if !strings.Contains(log.String(), "no such key") {
		t.Errorf("log = %s", log)
	}
}

// An older Custom may read the request: the handler of a retry still gets the whole body.
func TestOlderCustomReadsTheBody(t *testing.T) {
	t.Parallel()
	store := newMemory(t, nil)
	reading := func(r *http.Request, body []byte) (idemkey.Fingerprint, error) {
		if err := r.ParseForm(); err != nil {
			return idemkey.Fingerprint{}, err
		}
		sum := sha256.Sum256([]byte(r.PostForm.Get("a")))
		return idemkey.Fingerprint{Alg: "form", Sum: sum[:]}, nil
	}
	ask := func(f idemkey.FingerprintOptions, next http.HandlerFunc) reply {
		req := keyed(strings.NewReader("a=1"), "k")
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return serveDirect(t, store, next, idemkey.Options{Fingerprint: f}, req)
	}
	ask(idemkey.FingerprintOptions{Custom: reading}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }).expect(t, 503, "")
	if got := ask(idemkey.FingerprintOptions{Versions: []idemkey.FingerprintOptions{{Custom: reading}}}, created); got.body != "created a=1\n" {
		t.Errorf("the handler got %d %q", got.status, got.body)
	}
}
