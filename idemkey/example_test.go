package idemkey_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// A retry with the same key gets the first response; another request under
// that key is refused.
func Example() {
	store, err := idemkey.NewMemory(nil)
	if err != nil {
		panic(err)
	}
	idem, err := idemkey.New(store, &idemkey.Options{
		Scope:  func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	orders := 0
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		orders++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d", orders)
	}))
	for _, body := range []string{`{"item":"book","quantity":1}`, `{"quantity":1, "item":"book"}`, `{"item":"car"}`} {
		req := httptest.NewRequest("POST", "/orders", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Tenant", "acme")
		req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, req)
		if rec.Code < 400 {
			fmt.Printf("%d %s replayed=%t\n", rec.Code, rec.Body, rec.Header().Get("Idempotent-Replayed") != "")
		} else {
			fmt.Println(rec.Code)
		}
	}
	// Output:
	// 201 order 1 replayed=false
	// 201 order 1 replayed=true
	// 422
}

// A declined payment is an error to the client, but its record must stay.
func ExampleSetVerdict() {
	_ = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		idemkey.SetVerdict(r.Context(), idemkey.CommitAnyway)
		w.WriteHeader(http.StatusPaymentRequired)
	})
}

// Above attempt 1 an earlier run may have reached the provider, so it is asked
// before it is charged again, by the key that each attempt derives.
func ExampleInfo() {
	_ = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := idemkey.Info(r.Context())
		if !ok {
			return
		}
		key := idemkey.DownstreamKey(secret, info.Identity, "charge")
		if info.Attempt > 1 && charged(r.Context(), key) {
			return
		}
		charge(r.Context(), key)
	})
}

var secret = []byte("32 random bytes, the same in every process")

func charged(context.Context, string) bool { return false }
func charge(context.Context, string)       {}

// A route with an effect that the store cannot roll back: a run whose owner has
// vanished is not repeated before the provider has been asked.
func ExampleOptions_recover() {
	store, _ := idemkey.NewMemory(nil)
	_, err := idemkey.New(store, &idemkey.Options{
		SingleTenant: true,
		Recover: func(ctx context.Context, id idemkey.Identity) (*idemkey.Response, error) {
			if !charged(ctx, idemkey.DownstreamKey(secret, id, "charge")) {
				return nil, nil // it had no effect: run
			}
			return &idemkey.Response{Status: http.StatusCreated, Body: []byte("charged")}, nil
		},
	})
	fmt.Println(err)
	// Output: <nil>
}

// A proxy cannot tell what has happened behind a 504. The upstream knows the key of DownstreamKey for a day, so within
// that time a retry may run. After it, a Reconciler asks the upstream.
func ExampleNewReconciler() {
	store, _ := idemkey.NewMemory(nil)
	pay, err := idemkey.New(store, &idemkey.Options{
		SingleTenant:    true,
		Policy:          idemkey.UpstreamPolicy,
		UpstreamDedupes: 23 * time.Hour,
		Recover: func(ctx context.Context, id idemkey.Identity) (*idemkey.Response, error) {
			if !charged(ctx, idemkey.DownstreamKey(secret, id, "charge")) {
				return nil, nil
			}
			return &idemkey.Response{Status: http.StatusCreated}, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	reconciler, err := idemkey.NewReconciler(pay, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	settled, err := reconciler.Reconcile(context.Background()) // Run does so every minute
	fmt.Println(settled, err, idemkey.UpstreamPolicy(http.StatusGatewayTimeout) == idemkey.Unknown)
	// Output: 0 <nil> true
}

// One route may have its own limits.
func ExampleMiddleware_With() {
	store, _ := idemkey.NewMemory(nil)
	idem, _ := idemkey.New(store, &idemkey.Options{SingleTenant: true})
	uploads, err := idem.With(func(o *idemkey.Options) {
		o.Limits.MaxRequestBody = 10 << 20
		o.Limits.TTL = time.Hour
		o.Fingerprint.ExcludeFields = []string{"sentAt", "$.meta.nonce"}
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", idem.Handler(http.NotFoundHandler()))
	mux.Handle("POST /uploads", uploads.Handler(http.NotFoundHandler()))
}

// A signature is checked over the body, before the middleware. Outer keeps the body for it.
func ExampleMiddleware_Outer() {
	store, _ := idemkey.NewMemory(nil)
	idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	checkSignature := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err != nil || len(body) == 0 {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r) // it has not restored r.Body
		})
	}
	pay := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "paid %s", body)
	}))
	handler := idem.Outer(checkSignature(pay))
	for _, amount := range []string{"1", "1000000"} {
		req := httptest.NewRequest("POST", "/pay", strings.NewReader(amount))
		req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, req)
		fmt.Println(rec.Code, rec.Code < 400 && rec.Body.String() == "paid "+amount)
	}
	// Output:
	// 200 true
	// 422 false
}

func ExampleMiddleware_PolicyHandler() {
	store, _ := idemkey.NewMemory(nil)
	idem, _ := idemkey.New(store, &idemkey.Options{SingleTenant: true})
	rec := httptest.NewRecorder()
	idem.PolicyHandler().ServeHTTP(rec, httptest.NewRequest("GET", "/idempotency-policy", nil))
	fmt.Println(rec.Code, strings.Contains(rec.Body.String(), `"ttl_seconds":86400`))
	// Output: 200 true
}

// Adapters turn a framework's returned error into a failed request.
func ExampleFail() {
	handler := func(w http.ResponseWriter, r *http.Request) error { return io.ErrUnexpectedEOF }
	_ = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := handler(w, r); err != nil {
			idemkey.Fail(r.Context(), err)
		}
	})
}

func ExampleStepKey() {
	s, err := idemkey.StepKey("order-7:retry", "process-payment", "2")
	fmt.Println(s, err)
	// Output: order-7:retry:process-payment#2 <nil>
}

func ExampleParseStepKey() {
	key, step, n, err := idemkey.ParseStepKey("order-7:retry:process-payment#2")
	fmt.Println(key, step, n, err)
	_, _, _, err = idemkey.ParseStepKey("no step")
	fmt.Println(err)
	// Output:
	// order-7:retry process-payment 2 <nil>
	// idemkey: invalid step key: malformed step key: no colon before the step
}
