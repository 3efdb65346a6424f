package outbox

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A stop does not wait for a broker that is away, however long the drain may be.
func TestAStopDoesNotWaitForABrokerThatIsAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broker.answer = func(Publication) error { return errors.New("away") }
	for i := range 20 {
		f.write(t, msg(fmt.Sprint("k", i), "x"))
	}
	var said bytes.Buffer
	r := f.relay(t, RelayOptions{DrainTimeout: time.Hour, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if err := settle(t, r); err == nil { // it would hang here
		t.Error("the broker was not away")
	}
	if !strings.Contains(said.String(), leadUnfinished) {
		t.Errorf("the log does not say that messages are left: %s", said.String())
	}
	if s := f.stats(t, r); s != (counts{Stored: 20}) {
		t.Errorf("left over: %+v, want all stored", s)
	}
	f.broker.answer = nil
	mustSettle(t, r) // at once: the lease was given back
	if got := len(f.broker.firsts()); got != 1 || f.stats(t, r) != (counts{}) {
		t.Errorf("published %d payloads, left over %+v", got, f.stats(t, r))
	}
}

func TestMissingTablesAreExplained(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, "DROP SCHEMA {schema} CASCADE")
	if err := settle(t, f.relay(t, RelayOptions{})); err == nil || !strings.Contains(err.Error(), "migrate up") {
		t.Errorf("%v, want what to do about it", err)
	}
}

func TestSagaKeyIsTheOrderingKeyByDefault(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m := msg("a:b", "x")
	f.write(t, m)
	mustSettle(t, f.relay(t, RelayOptions{}))
	got := f.broker.accepted[0].Message
	if key := SagaKey(got); key != m.orderingKeyOrDefault() {
		t.Errorf("SagaKey = %q, want %q", key, m.orderingKeyOrDefault())
	}
	for name := range map[string]bool{HeaderKey: true, HeaderScope: true} {
		other := got.Copy()
		delete(other.Metadata, name)
		if key := SagaKey(other); key != "" {
			t.Errorf("SagaKey without %s = %q", name, key)
		}
	}
}
