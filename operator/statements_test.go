package operator

import (
	"testing"

	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// Record writes the statements that this package executes, so that the next migration is
// tested with them.
func TestStatementsAreRecorded(t *testing.T) {
	t.Parallel()
	const schema = "{schema}"
	pgtest.Record(t, "operator", newInboxQueries(schema), newOutboxQueries(schema), newInstanceQueries(schema), newKeyQueries(schema), newOverviewQueries(schema), newReaderQueries(schema), sagarow.NewStatements(schema))
}
