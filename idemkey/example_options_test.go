package idemkey_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/sagamill/sagamill/idemkey"
)

// A sealer encrypts with the newest of its keys and opens with each of them: one that is
// replaced stays until the last record that it has sealed is expired.
type sealer struct {
	newest string
	keys   map[string]cipher.AEAD
}

func (s *sealer) Seal(body, aad []byte) (sealed []byte, keyID string, err error) {
	aead := s.keys[s.newest]
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce) // it never fails
	return aead.Seal(nonce, nonce, body, aad), s.newest, nil
}

func (s *sealer) Open(sealed, aad []byte, keyID string) ([]byte, error) {
	aead, ok := s.keys[keyID]
	if !ok || len(sealed) < aead.NonceSize() {
		return nil, errors.New("the key is unknown, or the body was cut")
	}
	return aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], aad)
}

func newAEAD(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return aead
}

// Stored bodies are encrypted, by AES-GCM; who reads the table or its backup learns none.
func ExampleSealer() {
	store, _ := idemkey.NewMemory(nil)
	idem, err := idemkey.New(store, &idemkey.Options{
		SingleTenant: true,
		Response:     idemkey.ResponseOptions{Sealer: &sealer{"2025-06", map[string]cipher.AEAD{"2025-06": newAEAD([]byte("32 random bytes, of secret store"))}}},
	})
	if err != nil {
		panic(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "PIN 1234") }))
	for range 2 {
		req, rec := httptest.NewRequest("POST", "/cards", nil), httptest.NewRecorder()
		req.Header.Set("Idempotency-Key", "k")
		handler.ServeHTTP(rec, req)
		fmt.Println(rec.Body, rec.Header().Get("Idempotent-Replayed") != "")
	}
	// Output:
	// PIN 1234 false
	// PIN 1234 true
}

// Keys that nobody can guess, and errors in a form of the service's own.
func ExampleUUIDKeys() {
	store, _ := idemkey.NewMemory(nil)
	idem, err := idemkey.New(store, &idemkey.Options{
		SingleTenant: true,
		Key:          idemkey.KeyOptions{Validate: idemkey.UUIDKeys},
		Problems: idemkey.ProblemOptions{Writer: func(w http.ResponseWriter, r *http.Request, p *idemkey.Problem) {
			switch accept := r.Header.Get("Accept"); {
			case strings.Contains(accept, "application/problem+json"):
				idemkey.WriteProblem(w, r, p) // the default
			case strings.Contains(accept, "application/json"):
				idemkey.WritePlainError(w, r, p)
			default:
				http.Error(w, p.Code, p.Status)
			}
		}},
	})
	if err != nil {
		panic(err)
	}
	for _, accept := range []string{"application/problem+json", "application/json", "*/*"} {
		req, rec := httptest.NewRequest("POST", "/orders", nil), httptest.NewRecorder()
		req.Header.Set("Idempotency-Key", "order-1")
		req.Header.Set("Accept", accept)
		idem.Handler(http.NotFoundHandler()).ServeHTTP(rec, req)
		fmt.Println(rec.Code, rec.Header().Get("Content-Type"), json.Valid(rec.Body.Bytes()))
	}
	// Output:
	// 400 application/problem+json; charset=utf-8 true
	// 400 application/json; charset=utf-8 true
	// 400 text/plain; charset=utf-8 false
}

// What a policy makes of statuses, unless the handler says SetVerdict. One's own may
// depend on another.
func ExamplePolicy() {
	name := map[idemkey.Verdict]string{idemkey.Keep: "keep", idemkey.Retryable: "retryable", idemkey.Amendable: "amendable"}
	own := func(status int) idemkey.Verdict {
		if status == http.StatusUnprocessableEntity {
			return idemkey.Amendable // the form is filled in again, under the same key
		}
		return idemkey.DefaultPolicy(status)
	}
	for _, p := range []struct {
		name   string
		policy idemkey.Policy
	}{{"default", idemkey.DefaultPolicy}, {"success only", idemkey.SuccessOnly}, {"keep all", idemkey.KeepAll}, {"forget failures", idemkey.ForgetFailures}, {"own", own}} {
		fmt.Printf("%-15s 201 %s, 422 %s, 503 %s\n", p.name, name[p.policy(201)], name[p.policy(422)], name[p.policy(503)])
	}
	// Output:
	// default         201 keep, 422 keep, 503 retryable
	// success only    201 keep, 422 retryable, 503 retryable
	// keep all        201 keep, 422 keep, 503 keep
	// forget failures 201 keep, 422 amendable, 503 amendable
	// own             201 keep, 422 amendable, 503 retryable
}

// Expired records go by themselves in every process that runs a sweeper.
func ExampleNewSweeper() {
	run := func(ctx context.Context, store idemkey.Store) error {
		sweeper, err := idemkey.NewSweeper(store, nil)
		if err != nil {
			return err
		}
		return sweeper.Run(ctx) // until ctx ends
	}
	_ = run
}

// A secret is replaced in three deploys, so that no retry is refused. The first makes the new one
// known to all processes, the second uses it, and the third forgets the old one a TTL later.
func ExampleFingerprintOptions_Versions_secret() {
	store, _ := idemkey.NewMemory(nil)
	deploy := func(f idemkey.FingerprintOptions) http.Handler {
		idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Fingerprint: f, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			panic(err)
		}
		return idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))
	}
	send := func(process http.Handler, key string) string {
		req, rec := httptest.NewRequest("POST", "/payments", strings.NewReader("5 euros")), httptest.NewRecorder()
		req.Header.Set("Idempotency-Key", key)
		process.ServeHTTP(rec, req)
		return fmt.Sprint(rec.Code, " replayed: ", rec.Header().Get("Idempotent-Replayed") == "true")
	}
	older, newer := []byte("32 random bytes of last year ..."), []byte("32 random bytes of this year ...")

	first := deploy(idemkey.FingerprintOptions{Secret: older, Versions: []idemkey.FingerprintOptions{{Secret: newer}}})
	second := deploy(idemkey.FingerprintOptions{Secret: newer, Versions: []idemkey.FingerprintOptions{{Secret: older}}})
	third := deploy(idemkey.FingerprintOptions{Secret: newer}) // here too early

	fmt.Println("first deploy runs a  ", send(first, "a"))
	fmt.Println("second deploy on a   ", send(second, "a"))
	fmt.Println("second deploy runs b ", send(second, "b"))
	fmt.Println("first deploy on b    ", send(first, "b"))
	fmt.Println("third deploy on b    ", send(third, "b"))
	fmt.Println("third deploy on a    ", send(third, "a"))
	// Output:
	// first deploy runs a   200 replayed: false
	// second deploy on a    200 replayed: true
	// second deploy runs b  200 replayed: false
	// first deploy on b     200 replayed: true
	// third deploy on b     200 replayed: true
	// third deploy on a     409 replayed: false
}

// The secret of a route that has fields of its own is replaced in the same way. With inherits
// Versions as they are, so the route puts its fields into each.
func ExampleMiddleware_With_versions() {
	store, _ := idemkey.NewMemory(nil)
	deploy := func(f idemkey.FingerprintOptions) http.Handler {
		idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Fingerprint: f})
		if err != nil {
			panic(err)
		}
		route, err := idem.With(func(o *idemkey.Options) {
			o.Fingerprint.ExcludeFields = []string{"sentAt", "items[].sentAt"}
			for i := range o.Fingerprint.Versions {
				o.Fingerprint.Versions[i].ExcludeFields = o.Fingerprint.ExcludeFields
			}
			o.Logger = slog.New(slog.DiscardHandler)
		})
		if err != nil {
			panic(err)
		}
		return route.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ordered") }))
	}
	send := func(process http.Handler, body string) {
		req, rec := httptest.NewRequest("POST", "/orders", strings.NewReader(body)), httptest.NewRecorder()
		req.Header.Set("Idempotency-Key", "k")
		req.Header.Set("Content-Type", "application/json")
		process.ServeHTTP(rec, req)
		fmt.Println(rec.Code, rec.Body, "replayed:", rec.Header().Get("Idempotent-Replayed") == "true")
	}
	older, newer := []byte("32 random bytes of last year ..."), []byte("32 random bytes of this year ...")
	send(deploy(idemkey.FingerprintOptions{Secret: older}), `{"items":[{"id":1,"sentAt":"9:00"}]}`)
	send(deploy(idemkey.FingerprintOptions{Secret: newer, Versions: []idemkey.FingerprintOptions{{Secret: older}}}), `{"items":[{"id":1,"sentAt":"9:05"}],"sentAt":"9:05"}`)
	// Output:
	// 200 ordered replayed: false
	// 200 ordered replayed: true
}
