package operator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

func TestStatementsOnTheOutboxArePreparable(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.Schema(t)
	pgtest.PrepareAll(t, newOutboxQueries(schema))
}

// An operator's process that was stopped in the middle of a transaction does not keep
// the relay out for ever.
func TestAnOperatorsTransactionOnTheOutboxIsLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var limit, isolation string
	err := newOutboxLetters(f.pool, Options{Schema: f.schema}).commitBatch(t.Context(), "none", nil, func(tx pgx.Tx) ([]int64, error) {
		if err := tx.QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&limit); err != nil {
			return nil, err
		}
		return nil, tx.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&isolation)
	})
	if err != nil || limit != "10s" || isolation != "read committed" {
		t.Errorf("an operator's transaction is ended after %q without a statement, isolation %q, %v", limit, isolation, err)
	}
}

// At a limited rate, batches are as large as what goes in a second, and spaced.
func TestARedriveOfTheOutboxIsPaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id,
			content_type, payload, state, due_at, attempts, reason, refused_at)
		SELECT i, gen_random_uuid(), 't', 't', 's', 'k', 'step', '', 'k', '', '', '', '', 'dead', now(), 1, 'no queue', now() FROM generate_series(1, 5) i`)
	d := newOutboxLetters(f.pool, Options{Schema: f.schema})
	var pauses []time.Duration
	d.pause = func(_ context.Context, p time.Duration) error {
		pauses = append(pauses, p)
		return nil
	}
	if n, err := d.redriveLetters(t.Context(), Filter{}, RedriveOptions{Rate: 2}); n.Sent() != 5 || err != nil {
		t.Errorf("Redrive = %v, %v; want 5", n, err)
	}
	if want := []time.Duration{time.Second, time.Second}; !cmp.Equal(want, pauses) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	if _, err := (&DeadLetters{d}).Redrive(t.Context(), Filter{}, &RedriveOptions{Rate: -1}); err == nil {
		t.Error("a negative rate = nil error")
	}
}

// A batch has no more payload than may be copied at once, but always a message.
func TestABatchOfARangeIsCut(t *testing.T) {
	t.Parallel()
	of := func(sizes ...int) (kept []LoggedMessage) {
		for _, size := range sizes {
			kept = append(kept, LoggedMessage{Size: size})
		}
		return kept
	}
	for _, tt := range []struct {
		kept []LoggedMessage
		want int
	}{{nil, 0}, {of(1, 2, 3), 3}, {of(replayBytes, 1), 1}, {of(replayBytes + 1), 1}, {of(1, replayBytes-1, 1), 2}} {
		if got := len(cutBatch(tt.kept)); got != tt.want {
			t.Errorf("cutBatch(%v) = %d, want %d", tt.kept, got, tt.want)
		}
	}
}

// The outbox refuses what only the inbox has, and counts what the relay retries.
func TestTheOutboxHasNoStepsAndNoEdits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, err := NewDeadLetters(f.pool, Outbox, &Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id,
			content_type, payload, state, due_at, attempts, reason, refused_at)
		SELECT i, gen_random_uuid(), 't', 't', 's', 'k', 'step', '', 'k', '', '', '', 'abcdef', CASE i WHEN 1 THEN 'dead' ELSE 'refused' END, now(), 1, 'no queue', now() FROM generate_series(1, 3) i`)
	var seen []Preview
	counts, err := d.Preview(t.Context(), Filter{}, nil, func(p Preview) error { seen = append(seen, p); return nil })
	if err != nil || counts[OutcomeRun] != 1 || len(seen) != 1 || seen[0].State != StateDead || seen[0].Side != Outbox || seen[0].Why == "" {
		t.Errorf("Preview = %v, %v, %+v", counts, err, seen)
	}
	if n, err := d.Count(t.Context(), Filter{State: StateRetrying}); n != 2 || err != nil {
		t.Errorf("Count of retrying messages = %d, %v; want 2", n, err)
	}
	for limit, want := range map[int]string{0: "", 3: "abc", 100: "abcdef"} {
		if got, err := d.GetLimited(t.Context(), 1, limit); err != nil || string(got.Payload) != want || got.Size != 6 {
			t.Errorf("%d bytes of the payload: %q of %d, %v", limit, got.Payload, got.Size, err)
		}
	}
	for name, call := range map[string]func() error{
		"reason":   func() error { _, err := d.Count(t.Context(), Filter{Reason: consumer.ReasonFailed}); return err },
		"state":    func() error { _, err := d.Count(t.Context(), Filter{State: "done"}); return err },
		"age":      func() error { _, err := d.Count(t.Context(), Filter{Older: -1}); return err },
		"retrying": func() error { _, err := d.Redrive(t.Context(), Filter{State: StateRetrying}, nil); return err },
		"force":    func() error { _, err := d.Redrive(t.Context(), Filter{}, &RedriveOptions{Force: true}); return err },
		"plan": func() error {
			_, err := d.Preview(t.Context(), Filter{}, &PreviewOptions{Force: true}, nil)
			return err
		},
		"keep": func() error {
			_, err := d.Discard(t.Context(), Filter{}, func(DeadLetter) error { return nil })
			return err
		},
		"retry":  func() error { _, err := d.RetryNow(t.Context(), Filter{}); return err },
		"edit":   func() error { _, _, err := d.Edit(t.Context(), 1, Edit{By: "ann", Payload: []byte("{}")}); return err },
		"side":   func() error { _, err := NewDeadLetters(f.pool, "both", nil); return err },
		"pool":   func() error { _, err := NewReplayer(nil, nil); return err },
		"schema": func() error { _, err := NewReplayer(f.pool, &Options{Schema: "no such"}); return err },
	} {
		if call() == nil {
			t.Errorf("%s: nil error", name)
		}
	}
	none := &NotKeptError{Schema: "s"}
	if !errors.Is(none, ErrNotKept) {
		t.Errorf("%v is no ErrNotKept", none)
	}
}
