// Package web reads the requests and writes the answers of the examples' HTTP interfaces.
package web

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
)

// MaxBody is how many bytes of a request's body are read.
const MaxBody = 64 << 10

// ErrNoPrincipal reports a request without a usable bearer token.
var ErrNoPrincipal = errors.New("the request names no tenant: send Authorization: Bearer <tenant>")

var tenant = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// ReadTenant returns the tenant that sent r, or [ErrNoPrincipal]. The example takes the bearer
// token for the tenant's name; a real service would look the principal up.
func ReadTenant(r *http.Request) (string, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || !tenant.MatchString(token) {
		return "", ErrNoPrincipal
	}
	return token, nil
}

// A Program is the name of an example. It stands in the type of each problem that the program's
// services answer with.
type Program string

// WriteProblem answers in application/problem+json.
func (p Program) WriteProblem(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(idemkey.Problem{
		Type: "urn:" + string(p) + ":problem:" + code, Title: http.StatusText(status), Status: status, Detail: detail, Code: code,
		Retryable: status >= 500, SameKey: status >= 500,
	})
}

// RequireTenant answers 401 to requests without a principal, before anything else is checked, and
// passes all others to next.
func (p Program) RequireTenant(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := ReadTenant(r); err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			p.WriteProblem(w, http.StatusUnauthorized, "scope-missing", err.Error())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// RejectEncoded answers 415 to requests with an encoded body, and passes all others to next.
// Nothing is decompressed, so no body is larger than what was sent. RejectEncoded stands before the
// idempotency middleware: a rejected request does not use up its key.
func (p Program) RejectEncoded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, encoding := range r.Header.Values("Content-Encoding") {
			if !strings.EqualFold(strings.TrimSpace(encoding), "identity") {
				w.Header().Set("Accept-Encoding", "identity")
				p.WriteProblem(w, http.StatusUnsupportedMediaType, "encoding-unsupported", "send the body as it is, without Content-Encoding")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// CompleteMux returns a handler that serves mux. For an unknown path it answers 404, and for a method
// that the path does not take 405, both in application/problem+json.
func (p Program) CompleteMux(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		plain := &headerWriter{header: http.Header{}}
		answer.ServeHTTP(plain, r)
		if allow := plain.header.Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
			p.WriteProblem(w, http.StatusMethodNotAllowed, "method-not-allowed", "this path takes "+allow)
			return
		}
		p.WriteProblem(w, http.StatusNotFound, "path-unknown", "there is nothing at this path")
	})
}

// A headerWriter keeps only a response's header.
type headerWriter struct{ header http.Header }

func (h *headerWriter) Header() http.Header         { return h.header }
func (h *headerWriter) Write(b []byte) (int, error) { return len(b), nil }
func (h *headerWriter) WriteHeader(int)             {}

// WriteJSON answers with v.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// DecodeBody reads the body of r into v. Its error may be shown to the client. Members that v has
// no field for are ignored, because a client may be newer than this service.
func DecodeBody(r *http.Request, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, MaxBody))
	if err != nil {
		return err
	}
	return consumer.DecodeJSON(body, v)
}
