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
	"Scope":               func(o *idemkey.Options) { o.SingleTenant = false },
	"SingleTenant":        func(o *idemkey.Options) { o.Scope = func(*http.Request) (string, error) { return "", nil } },
	"Namespace":           func(o *idemkey.Options) { o.Namespace = strings.Repeat("n", 129) },
	"Header":              func(o *idemkey.Options) { o.Header = "a b" },
	"HeaderAliases":       func(o *idemkey.Options) { o.HeaderAliases = []string{""} },
	"IncludeHeaders":      func(o *idemkey.Options) { o.IncludeHeaders = []string{"a\n"} },
	"Methods":             func(o *idemkey.Options) { o.Methods = []string{""} },
	"MinKeyLen":           func(o *idemkey.Options) { o.MinKeyLen = -1 },
	"MaxKeyLen":           func(o *idemkey.Options) { o.MaxKeyLen = 256 },
	"ExecTimeout":         func(o *idemkey.Options) { o.ExecTimeout = -1 },
	"Lease":               func(o *idemkey.Options) { o.Lease = -1 },
	"TTL":                 func(o *idemkey.Options) { o.TTL = 31 * 24 * time.Hour },
	"StoreTimeout":        func(o *idemkey.Options) { o.StoreTimeout = -1 },
	"CompleteTimeout":     func(o *idemkey.Options) { o.CompleteTimeout = -1 },
	"MaxAttempts":         func(o *idemkey.Options) { o.MaxAttempts = -1 },
	"MaxRequestBody":      func(o *idemkey.Options) { o.MaxRequestBody = -1 },
	"MaxResponseBody":     func(o *idemkey.Options) { o.MaxResponseBody = -1 },
	"HardResponseLimit":   func(o *idemkey.Options) { o.HardResponseLimit = 1 },
	"Wait":                func(o *idemkey.Options) { o.Wait = 3 * time.Second },
	"LocalReplays":        func(o *idemkey.Options) { o.LocalReplays = -1 },
	"IncludeFields":       func(o *idemkey.Options) { o.IncludeFields, o.ExcludeFields = []string{"a"}, []string{"b"} },
	"MaxInFlightPerScope": func(o *idemkey.Options) { o.MaxInFlightPerScope = -1 },
	"RawFingerprint":      func(o *idemkey.Options) { o.RawFingerprint, o.ExcludeFields = true, []string{"a"} },
	"KeepHeaders":         func(o *idemkey.Options) { o.KeepHeaders = []string{"set-cookie"} },
	"ReplayHeader":        func(o *idemkey.Options) { o.ReplayHeader = ":" },
	"InFlightStatus":      func(o *idemkey.Options) { o.InFlightStatus = 200 },
	"MismatchStatus":      func(o *idemkey.Options) { o.MismatchStatus = 200 },
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
	for field, values := range map[string][]string{
		"Methods":       {"post"},
		"ExcludeFields": {"", "$", "$..id", "items[0].id", "$.items[*].id", "a."},
		"IncludeFields": {"items.*"},
	} {
		for _, value := range values {
			o := &idemkey.Options{SingleTenant: true}
			switch field {
			case "Methods":
				o.Methods = []string{value}
			case "ExcludeFields":
				o.ExcludeFields = []string{value}
			default:
				o.IncludeFields = []string{value}
			}
			if _, err := idemkey.New(store, o); err == nil || !strings.Contains(err.Error(), "Options."+field+" ") {
				t.Errorf("New with %s %q, which never matches = %v", field, value, err)
			}
		}
	}
	forgetful := &idemkey.Options{SingleTenant: true, TTL: 20 * time.Second, Lease: time.Second}
	if _, err := idemkey.New(store, forgetful); err == nil || !strings.Contains(err.Error(), "Options.TTL ") {
		t.Errorf("New with a life shorter than the handler's = %v, want an error that names it", err)
	}
	long := &idemkey.Options{SingleTenant: true, ExecTimeout: time.Minute, Lease: time.Second}
	if _, err := idemkey.New(store, long); err != nil {
		t.Errorf("New with a lease that is renewed: %v", err)
	}
	if _, err := idemkey.New(&stub{}, long); err == nil || !strings.Contains(err.Error(), "Options.Lease ") {
		t.Errorf("New with a lease that is not renewed = %v, want an error that names it", err)
	}
	for field, set := range map[string]func(*idemkey.Options){
		"AllowStreaming":  func(o *idemkey.Options) { o.AllowStreaming = true },
		"FailOpen":        func(o *idemkey.Options) { o.FailOpen = true },
		"ExternalEffects": func(o *idemkey.Options) { o.ExternalEffects = true },
		"MaxAttempts":     func(o *idemkey.Options) { o.MaxAttempts = 1 },
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
		o.Optional, o.MismatchStatus, o.Problem = true, 400, idemkey.WritePlainError
		o.Methods[0] = "PUT"
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.With(func(o *idemkey.Options) { o.TTL = -1 }); err == nil {
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
	m, err := idemkey.New(newMemory(t, nil), &idemkey.Options{SingleTenant: true, InFlightStatus: 423})
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
