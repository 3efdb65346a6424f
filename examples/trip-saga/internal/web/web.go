// Package web is what the services' HTTP handlers have in common.
package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
	"github.com/sagamill/sagamill/idemkey"
)

// MaxBody is how many bytes of a request's body are read.
const MaxBody = 64 << 10

// ErrNoPrincipal reports a request without a usable bearer token.
var ErrNoPrincipal = errors.New("the request names no tenant: send Authorization: Bearer <tenant>")

var tenant = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// Tenant returns whom the request is from. The example takes the bearer token
// for the tenant's name; a real service would look the principal up.
func Tenant(r *http.Request) (string, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || !tenant.MatchString(token) {
		return "", ErrNoPrincipal
	}
	return token, nil
}

// Authenticated lets requests with a principal through and answers 401 to all
// others, before anything else is looked at.
func Authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := Tenant(r); err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			Problem(w, http.StatusUnauthorized, "scope-missing", err.Error())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Unencoded lets requests through whose body is as it says, and answers 415 to encoded
// ones: nothing is decompressed, and so nothing can be larger than what was sent. It
// comes before the idempotency key, which the client may use again then.
func Unencoded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, encoding := range r.Header.Values("Content-Encoding") {
			if !strings.EqualFold(strings.TrimSpace(encoding), "identity") {
				w.Header().Set("Accept-Encoding", "identity")
				Problem(w, http.StatusUnsupportedMediaType, "encoding-unsupported", "send the body as it is, without Content-Encoding")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Problems returns mux with its own answers, to a path that it does not know or
// a method that a path does not have, in application/problem+json.
func Problems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		plain := &discard{header: http.Header{}}
		answer.ServeHTTP(plain, r)
		if allow := plain.header.Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
			Problem(w, http.StatusMethodNotAllowed, "method-not-allowed", "this path takes "+allow)
			return
		}
		Problem(w, http.StatusNotFound, "path-unknown", "there is nothing at this path")
	})
}

// discard keeps only a response's header.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// Problem answers in application/problem+json.
func Problem(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(idemkey.Problem{
		Type: "urn:trip-saga:problem:" + code, Title: http.StatusText(status), Status: status, Detail: detail, Code: code,
		Retryable: status >= 500, SameKey: status >= 500,
	})
}

// JSON answers with v.
func JSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// Decode reads the body into v. Its error is fit for the client. Members that v has no
// field for are ignored: a client may be newer than this service.
func Decode(r *http.Request, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, MaxBody))
	if err != nil {
		return err
	}
	return consumer.DecodeJSON(body, v)
}

// Ledger answers with what read tells.
func Ledger(read func(ctx context.Context) (command.Ledger, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
		defer cancel()
		ledger, err := read(ctx)
		if err != nil {
			w.Header().Set("Retry-After", "1")
			Problem(w, http.StatusServiceUnavailable, "store-unavailable", "the ledger cannot be read now")
			return
		}
		JSON(w, http.StatusOK, ledger)
	}
}
