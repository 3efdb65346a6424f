package idemkeytest_test

import (
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey/idemhybrid"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/idemkey/idemredis"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

// The middleware does the same on the stores that TestFrameworks leaves out.
func TestStores(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) idemkeytest.Backend{
		"inline": func(t *testing.T) idemkeytest.Backend {
			return postgresIn(t, idempg.Options{ClaimMode: idempg.ClaimInline})
		},
		"idemredis": func(t *testing.T) idemkeytest.Backend {
			t.Helper()
			store, err := idemredis.New(redistest.Client(t), &idemredis.Options{Prefix: redistest.Prefix(t)})
			if err != nil {
				t.Fatalf("idemredis.New: %v", err)
			}
			return idemkeytest.Backend{Store: store}
		},
		"idemhybrid": func(t *testing.T) idemkeytest.Backend {
			t.Helper()
			b := postgres(t)
			store, err := idemhybrid.New(b.Store.(*idempg.Store), redistest.Client(t), &idemhybrid.Options{Prefix: redistest.Prefix(t), CallTimeout: time.Minute})
			if err != nil {
				t.Fatalf("idemhybrid.New: %v", err)
			}
			b.Store = store
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idemkeytest.RunHTTP(t, mountServeMux, open)
		})
	}
}
