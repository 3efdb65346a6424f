package evidence

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// checkWitness plants statements that no service executes. Each committed one is recorded row by row, even if
// it changed no value; a rolled-back one is not.
func (s *site) checkWitness(t *testing.T) {
	t.Helper()
	const ledger = "INSERT INTO payment_gateway.ledger (kind, key, order_id, amount) SELECT 'charge', 'k', $1, 7 FROM generate_series(1, 2)"
	const inbox = "INSERT INTO order_service.inbox (scope, key, step, n, state, digest) VALUES ('s', 'k', 'record', $1, 'done', sha256('')) ON CONFLICT (scope, key, step, n) DO "
	id := uuid.NewString()
	before := s.effects(t)
	s.exec(t, ledger, id)
	if lines := difference(before, s.effects(t)); strings.Count(lines, "\n") != 1 || !strings.HasPrefix(lines, "payment_gateway.ledger") {
		t.Errorf("two charges more make this difference:\n%s", lines)
	}
	s.exec(t, inbox+"NOTHING", id)
	s.exec(t, inbox+"NOTHING", id) // writes nothing
	s.exec(t, inbox+"UPDATE SET state = 'done'", id)
	s.exec(t, "DELETE FROM order_service.inbox WHERE n = $1", id)
	undone := errors.New("rolled back")
	err := pgx.BeginFunc(t.Context(), s.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), ledger, id)
		return errors.Join(err, undone)
	})
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	want := []record.Change{
		{Table: "payment_gateway.ledger", Op: "INSERT", Saga: id, Key: "k", State: "charge", What: "7"},
		{Table: "payment_gateway.ledger", Op: "INSERT", Saga: id, Key: "k", State: "charge", What: "7"},
		{Table: "order_service.inbox", Op: "INSERT", Saga: id, Key: "s|k|record|" + id, State: "done", What: "attempts 0 undo 0"},
		{Table: "order_service.inbox", Op: "UPDATE", Saga: id, Key: "s|k|record|" + id, State: "done", What: "attempts 0 undo 0"},
		{Table: "order_service.inbox", Op: "DELETE", Saga: id, Key: "s|k|record|" + id, State: "done", What: "attempts 0 undo 0"},
	}
	dir := t.TempDir()
	if err := DumpTables(t.Context(), s.db, dir); err != nil {
		t.Fatal(err)
	}
	var got []record.Change
	last := int64(0)
	for c, err := range record.ReadFile[record.Change](dir, record.ChangesFile) {
		if err != nil || c.Seq <= last || c.Tx == 0 || c.At.IsZero() {
			t.Fatalf("change %+v after %d: %v", c, last, err)
		}
		last = c.Seq
		if c.Saga == id {
			got = append(got, record.Change{Table: c.Table, Op: c.Op, Saga: c.Saga, Key: c.Key, State: c.State, What: c.What})
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	s.checkUnbalanced(t)
}

func (s *site) effects(t *testing.T) string {
	t.Helper()
	effects, err := DigestEffects(t.Context(), s.db)
	if err != nil {
		t.Fatal(err)
	}
	return effects
}

// checkUnbalanced plants two charges without an order, which a sample must find.
func (s *site) checkUnbalanced(t *testing.T) {
	t.Helper()
	sampler := &Sampler{opts: SamplerOptions{DB: s.db, Broker: s.broker, Now: func() record.At { return 0 }}, gauge: gauge{broker: s.broker}}
	defer sampler.gauge.dropChannel()
	if sample := sampler.takeSample(t.Context()); len(sample.Unbalanced) != 1 || sample.Err != "" {
		t.Errorf("sample %+v", sample)
	}
	s.exec(t, "UPDATE flight_service.stock SET free = free - 1 WHERE item = 'LH100'")
	sampler.rested = sampler.rested.AddDate(-1, 0, 0)
	if sample := sampler.takeSample(t.Context()); len(sample.Unbalanced) != 2 || sample.Err != "" {
		t.Errorf("sample %+v", sample)
	}
}

// checkLeft removes rows that a service has written, which then count as unfinished work.
func (s *site) checkLeft(t *testing.T) {
	t.Helper()
	look := func(what string, want int) {
		left, err := FindLeftovers(t.Context(), s.db, s.broker)
		if err != nil || len(left) != want {
			t.Errorf("%s: %q is left, %v; want %d lines", what, left, err, want)
		}
	}
	look("after a run", 0)
	paid := s.read(t, "payment_service", "payment.processed")
	if heard, err := listened(t.Context(), s.db, paid); err != nil || len(heard) != 1 || !heard[0].ended {
		t.Errorf("a message that both services have had: %+v, %v", heard, err)
	}
	s.exec(t, "UPDATE shipping_service.inbox SET state = 'open' WHERE n = $1", paid[0].N)
	if heard, err := listened(t.Context(), s.db, paid); err != nil || len(heard) != 1 || heard[0].ended {
		t.Errorf("a message that one service has begun with: %+v, %v", heard, err)
	}
	s.exec(t, "DELETE FROM shipping_service.inbox WHERE n = $1", paid[0].N)
	if heard, err := listened(t.Context(), s.db, paid); err != nil || len(heard) != 0 {
		t.Errorf("a message that one service has not had: %+v, %v", heard, err)
	}
	look("without a row of an inbox", 1)
	s.exec(t, "UPDATE order_service.orders SET status = 'paid' WHERE id = (SELECT id FROM order_service.orders LIMIT 1)")
	look("with an order that has not ended", 1) // later checks are skipped
}

// read returns the first message of a topic.
func (s *site) read(t *testing.T, schema, topic string) []stored {
	t.Helper()
	rows, _ := s.db.Query(t.Context(), "SELECT "+loggedColumns+" FROM "+schema+".outbox m WHERE topic = $1 ORDER BY id LIMIT 1", topic)
	m, err := pgx.CollectExactlyOneRow(rows, scanStored)
	if err != nil {
		t.Fatal(err)
	}
	return []stored{m}
}

func (s *site) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := s.db.Exec(context.Background(), statement, args...); err != nil {
		t.Fatal(err)
	}
}
