package poolertest

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// poolSize is how many connections a pgbouncer has to the server: few, so that each
// transaction of a client may be on another one.
const poolSize = 4

// A bouncer is a pgbouncer of the test's own.
type bouncer struct {
	*devservices.Pooler
	t testing.TB
}

// newBouncer starts pgbouncer in front of the tests' database, until the test ends.
func newBouncer(t testing.TB) *bouncer {
	t.Helper()
	if _, err := devservices.FindProgram(devservices.PoolerProgram, devservices.PoolerProgram); err != nil {
		needtest.Missing(t, "pgbouncer", "%v", err)
	}
	p, err := devservices.StartPooler(t.Context(), pgtest.URL(), poolSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &bouncer{p, t}
}

// url leads through pgbouncer. mode is how pgx talks: see [pgx.QueryExecMode].
func (b *bouncer) url(mode string) string {
	b.t.Helper()
	u, err := url.Parse(b.URL)
	if err != nil {
		b.t.Fatal("the pooler's URL cannot be parsed")
	}
	q := u.Query()
	q.Set("default_query_exec_mode", mode)
	u.RawQuery = q.Encode()
	return u.String()
}

// pool opens more connections than pgbouncer has to the server.
func (b *bouncer) pool(mode string) *pgxpool.Pool {
	b.t.Helper()
	return pgtest.Pool(b.t, b.url(mode))
}

// restart kills pgbouncer and starts it anew.
func (b *bouncer) restart() {
	b.t.Helper()
	if err := b.Restart(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}
