package saga

import (
	"testing"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

func TestInstanceStatements(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.Schema(t)
	pgtest.PrepareAll(t, newInstanceQueries(schema))
}
