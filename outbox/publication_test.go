package outbox

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A log of another cluster whose tables are in a publication cannot be adopted, since they have no replica identity. The
// relay says what to change, and goes on once it is.
func TestAForeignLogInAPublication(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, msg("k", "1"))
	publication := pgtest.Name()
	f.exec(t, "CREATE PUBLICATION "+publication+" FOR TABLE {schema}.outbox_0, {schema}.outbox_1, {schema}.outbox_2")
	f.exec(t, "UPDATE {schema}.outbox_relay SET system_identifier = '1'")
	log := &logSignal{}
	log.Enable()
	f.broker.signal.Enable()
	stop := start(t, f.relay(t, RelayOptions{Logger: slog.New(log)}))
	defer stop()
	log.WaitFor(t, func(line string) bool {
		return strings.Contains(line, "adopt the log of another cluster") && strings.Contains(line, "leave the tables of sagamill out of it")
	})
	f.exec(t, "DROP PUBLICATION "+publication)
	f.broker.signal.WaitFor(t, func(p string) bool { return p == "1" })
}
