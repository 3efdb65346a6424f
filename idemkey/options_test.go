package idemkey_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// wrongOptions are wrong in the field of that name.
var wrongOptions = map[string]func(*idemkey.Options){
	"Scope":                      func(o *idemkey.Options) { o.SingleTenant = false },
	"SingleTenant":               func(o *idemkey.Options) { o.Scope = func(*http.Request) (string, error) { return "", nil } },
	"Key.Namespace":              func(o *idemkey.Options) { o.Key.Namespace = strings.Repeat("n", 129) },
	"Key.Header":                 func(o *idemkey.Options) { o.Key.Header = "a b" },
	"Key.Aliases":                func(o *idemkey.Options) { o.Key.Aliases = []string{""} },
	"Fingerprint.IncludeHeaders": func(o *idemkey.Options) { o.Fingerprint.IncludeHeaders = []string{"a\n"} },
	"Methods":                    func(o *idemkey.Options) { o.Methods = []string{""} },
	"Key.MinLen":                 func(o *idemkey.Options) { o.Key.MinLen = -1 },
	"Key.MaxLen":                 func(o *idemkey.Options) { o.Key.MaxLen = 256 },
	"Limits.ExecTimeout":         func(o *idemkey.Options) { o.Limits.ExecTimeout = -1 },
	"Limits.Lease":               func(o *idemkey.Options) { o.Limits.Lease = -1 },
	"Limits.TTL":                 func(o *idemkey.Options) { o.Limits.TTL = 31 * 24 * time.Hour },
	"Limits.StoreTimeout":        func(o *idemkey.Options) { o.Limits.StoreTimeout = -1 },
	"Limits.CompleteTimeout":     func(o *idemkey.Options) { o.Limits.CompleteTimeout = -1 },
	"Limits.MaxAttempts":         func(o *idemkey.Options) { o.Limits.MaxAttempts = -1 },
	"Limits.MaxRequestBody":      func(o *idemkey.Options) { o.Limits.MaxRequestBody = -1 },
	"Limits.MaxResponseBody":     func(o *idemkey.Options) { o.Limits.MaxResponseBody = -1 },
	"Limits.HardResponseLimit":   func(o *idemkey.Options) { o.Limits.HardResponseLimit = 1 },
	"Limits.Wait":                func(o *idemkey.Options) { o.Limits.Wait = 3 * time.Second },
	"Response.LocalReplays":      func(o *idemkey.Options) { o.Response.LocalReplays = -1 },
	"Fingerprint.IncludeFields": func(o *idemkey.Options) {
		o.Fingerprint.IncludeFields, o.Fingerprint.ExcludeFields = []string{"a"}, []string{"b"}
	},
	"Fingerprint.Custom": func(o *idemkey.Options) { o.Fingerprint.Raw, o.Fingerprint.Custom = true, customPrint("c") },
	"Fingerprint.Versions": func(o *idemkey.Options) {
		o.Fingerprint.Versions = make([]idemkey.FingerprintOptions, idemkey.MaxFingerprintVersions+1)
	},
	"Fingerprint.Versions[1].Versions": func(o *idemkey.Options) {
		o.Fingerprint.Versions = []idemkey.FingerprintOptions{{}, {Versions: []idemkey.FingerprintOptions{{}}}}
	},
	"Fingerprint.Versions[0].Unlabelled": func(o *idemkey.Options) {
		o.Fingerprint.Versions = []idemkey.FingerprintOptions{{Unlabelled: true}}
	},
	"Fingerprint.Versions[0].ExcludeFields": func(o *idemkey.Options) {
		o.Fingerprint.Versions = []idemkey.FingerprintOptions{{ExcludeFields: []string{"items[0].id"}}}
	},
	"Fingerprint.Versions[0].IncludeHeaders": func(o *idemkey.Options) {
		o.Fingerprint.Versions = []idemkey.FingerprintOptions{{IncludeHeaders: []string{"a b"}}}
	},
	"Problems.UnknownFingerprintStatus": func(o *idemkey.Options) { o.Problems.UnknownFingerprintStatus = 200 },
	"Limits.MaxInFlightPerScope":        func(o *idemkey.Options) { o.Limits.MaxInFlightPerScope = -1 },
	"Fingerprint.Raw":                   func(o *idemkey.Options) { o.Fingerprint.Raw, o.Fingerprint.ExcludeFields = true, []string{"a"} },
	"Response.KeepHeaders":              func(o *idemkey.Options) { o.Response.KeepHeaders = []string{"set-cookie"} },
	"Response.ReplayHeader":             func(o *idemkey.Options) { o.Response.ReplayHeader = ":" },
	"Problems.InFlightStatus":           func(o *idemkey.Options) { o.Problems.InFlightStatus = 200 },
	"Problems.MismatchStatus":           func(o *idemkey.Options) { o.Problems.MismatchStatus = 200 },
}

// A wrong option is an error of New that names it.
func TestOptions(t *testing.T) {
	t.Parallel()
	store := newMemory(t, nil)
	for field, set := range wrongOptions {
		o := &idemkey.Options{SingleTenant: true}
		set(o)
		if _, err := idemkey.New(store, o); err == nil || !strings.Contains(err.Error(), "Options."+field+" ") {
			t.Errorf("New = %v, want an error that names %s", err, field)
		}
	}
	for _, name := range []string{"idempotency-key", "X-KEY", "Idempotent-Replayed"} {
		o := &idemkey.Options{SingleTenant: true, Key: idemkey.KeyOptions{Aliases: []string{"X-Key"}}, Response: idemkey.ResponseOptions{KeepHeaders: []string{name}}}
		if _, err := idemkey.New(store, o); err == nil || !strings.Contains(err.Error(), "Options.Response.KeepHeaders "+name+" is set by the middleware") {
			t.Errorf("New = %v, want an error that names KeepHeaders and %s", err, name)
		}
	}
	for field, values := range map[string][]string{
		"Methods":                   {"post"},
		"Fingerprint.ExcludeFields": {"", "$", "$..id", "items[0].id", "$.items[*].id", "a.", "items[]", "items[?(@.a)].b"},
		"Fingerprint.IncludeFields": {"items.*"},
	} {
		for _, value := range values {
			o := &idemkey.Options{SingleTenant: true}
			switch field {
			case "Methods":
				o.Methods = []string{value}
			case "Fingerprint.ExcludeFields":
				o.Fingerprint.ExcludeFields = []string{value}
			default:
				o.Fingerprint.IncludeFields = []string{value}
			}
			if _, err := idemkey.New(store, o); err == nil || !strings.Contains(err.Error(), "Options."+field+" ") {
				t.Errorf("New with %s %q, which never matches = %v", field, value, err)
			}
		}
	}
	forgetful := &idemkey.Options{SingleTenant: true, Limits: idemkey.Limits{TTL: 20 * time.Second, Lease: time.Second}}
	if _, err := idemkey.New(store, forgetful); err == nil || !strings.Contains(err.Error(), "Options.Limits.TTL ") {
		t.Errorf("New with a life shorter than the handler's = %v, want an error that names it", err)
	}
	long := &idemkey.Options{SingleTenant: true, Limits: idemkey.Limits{ExecTimeout: time.Minute, Lease: time.Second}}
	if _, err := idemkey.New(store, long); err != nil {
		t.Errorf("New with a lease that is renewed: %v", err)
	}
	if _, err := idemkey.New(&stub{}, long); err == nil || !strings.Contains(err.Error(), "Options.Limits.Lease ") {
		t.Errorf("New with a lease that is not renewed = %v, want an error that names it", err)
	}
	for field, set := range map[string]func(*idemkey.Options){
		"Response.AllowStreaming": func(o *idemkey.Options) { o.Response.AllowStreaming = true },
		"FailOpen":                func(o *idemkey.Options) { o.FailOpen = true },
		"ExternalEffects":         func(o *idemkey.Options) { o.ExternalEffects = true },
		"Limits.MaxAttempts":      func(o *idemkey.Options) { o.Limits.MaxAttempts = 1 },
	} {
		o := &idemkey.Options{SingleTenant: true}
		set(o)
		s := describing{traits: idemkey.Traits{Transactional: true, Traceless: true}}
		if _, err := idemkey.New(s, o); err == nil || !strings.Contains(err.Error(), "Options."+field+" ") {
			t.Errorf("New on a store that cannot do it = %v, want an error that names %s", err, field)
		}
	}
	if _, err := idemkey.New(nil, &idemkey.Options{SingleTenant: true}); err == nil {
		t.Error("New accepted no store")
	}
	if _, err := idemkey.New(store, nil); err == nil {
		t.Error("New accepted no scope")
	}
}

// A route's own options leave the others alone.
func TestWith(t *testing.T) {
	t.Parallel()
	m, err := idemkey.New(newMemory(t, nil), &idemkey.Options{SingleTenant: true, Logger: quiet, Methods: []string{"POST"}})
	if err != nil {
		t.Fatal(err)
	}
	relaxed, err := m.With(func(o *idemkey.Options) {
		o.Key.Optional, o.Problems.MismatchStatus, o.Problems.Writer = true, 400, idemkey.WritePlainError
		o.Methods[0] = "PUT"
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.With(func(o *idemkey.Options) { o.Limits.TTL = -1 }); err == nil {
		t.Error("With accepted a negative TTL")
	}
	send := func(m *idemkey.Middleware, method, key, body string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, "/", strings.NewReader(body))
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		rec := httptest.NewRecorder()
		m.Handler(http.HandlerFunc(created)).ServeHTTP(rec, req)
		return rec
	}
	if got := send(m, "POST", "", "x").Code; got != 400 {
		t.Errorf("without a key: %d, want 400", got)
	}
	if got := send(relaxed, "PUT", "", "x").Code; got != 201 {
		t.Errorf("without a key where it is optional: %d, want 201", got)
	}
	send(relaxed, "PUT", "k", "x")
	rec := send(relaxed, "PUT", "k", "y")
	if rec.Code != 400 || strings.TrimSpace(rec.Body.String()) != `{"error":"Idempotency key reused","code":"key-reused"}` {
		t.Errorf("mismatch = %d %s", rec.Code, rec.Body)
	}
}

func TestPolicyHandler(t *testing.T) {
	t.Parallel()
	m, err := idemkey.New(newMemory(t, nil), &idemkey.Options{SingleTenant: true, Problems: idemkey.ProblemOptions{InFlightStatus: 423}})
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	m.PolicyHandler().ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
	var policy struct {
		Header string         `json:"header"`
		TTL    int            `json:"ttl_seconds"`
		Max    int            `json:"max_length"`
		Codes  map[string]int `json:"codes"`
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &policy); err != nil {
		t.Fatal(err)
	}
	if policy.Header != "Idempotency-Key" || policy.TTL != 86400 || policy.Max != 255 || policy.Codes["in-progress"] != 423 {
		t.Errorf("policy = %+v", policy)
	}
}

type describing struct {
	*stub
	traits idemkey.Traits
}

func (d describing) Traits() idemkey.Traits { return d.traits }
