package idemkeytest_test

import (
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

// Whoever writes an adapter runs the suite with it; a nil backend is memory.
func ExampleRunHTTP() {
	_ = func(t *testing.T) { idemkeytest.RunHTTP(t, mountServeMux, nil) }
}

// chi needs no adapter: the middleware is mounted by route, where the pattern is known.
func ExampleMount_chi() {
	store, _ := idemkey.NewMemory(nil)
	idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true})
	if err != nil {
		panic(err)
	}
	r := chi.NewRouter()
	r.Use(middleware.Recoverer)
	r.With(idem.Handler).Post("/orders", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
}

// Neither does net/http.
func ExampleMount_netHTTP() {
	store, _ := idemkey.NewMemory(nil)
	idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	})))
}
