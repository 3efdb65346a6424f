package outbox

import (
	"testing"

	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// A pgServer is a PostgreSQL of the test's own.
type pgServer struct{ *pgservertest.Server }

// privateServer starts a server with config on its command line. It ends with
// the test.
func privateServer(t *testing.T, config ...string) *pgServer {
	t.Helper()
	return &pgServer{pgservertest.New(t, config...)}
}

// fixture is newFixture on the server.
func (s *pgServer) fixture(t *testing.T) *fixture {
	t.Helper()
	schema := pgtest.Name()
	if err := migrations.Up(t.Context(), s.URL(), schema); err != nil {
		t.Fatal(err)
	}
	return newFixtureOn(t, pgtest.Pool(t, s.URL()), schema)
}
