package idemkeytest_test

import (
	"net/http"
	"testing"
	"time"

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

// A store passes the suite: each test opens an empty one, and says how an owner of its
// dies and a record expires.
func ExampleRun() {
	open := func(t *testing.T) idemkeytest.Subject {
		store := newOwnStore(t)
		return idemkeytest.Subject{
			Store:  store,
			Crash:  func(t testing.TB, id idemkey.Identity, _ idemkey.Execution) { store.setLease(t, id, -time.Second) },
			Expire: func(t testing.TB, id idemkey.Identity) { store.setExpiry(t, id, -time.Second) },
		}
	}
	_ = func(t *testing.T) { idemkeytest.Run(t, open) } // func TestStore(t *testing.T)

	// What the suite does not know, such as a limit of the store's own, is tested by claims like its own.
	_ = func(t *testing.T) {
		d, err := newOwnStore(t).Begin(t.Context(), idemkeytest.Claim("k", "a request"))
		if err != nil || d.Kind != idemkey.KindProceed {
			t.Errorf("Begin = %v, %v; want to proceed", d.Kind, err)
		}
	}
}

// An ownStore stands for a store of one's own.
type ownStore struct{ idemkey.Store }

func newOwnStore(testing.TB) *ownStore { return nil }

func (*ownStore) setLease(testing.TB, idemkey.Identity, time.Duration)  {}
func (*ownStore) setExpiry(testing.TB, idemkey.Identity, time.Duration) {}
