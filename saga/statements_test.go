package saga

import (
	"testing"

	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// What this package sends to the tables is recorded, so that the next migration is
// tested with it.
func TestStatementsAreRecorded(t *testing.T) {
	t.Parallel()
	const schema = "{schema}"
	pgtest.Record(t, "saga", newQueries(schema), sagarow.NewStatements(schema))
}
