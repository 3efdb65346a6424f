package outbox

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// What a hostile review found, each as a test.

// A delayed message that falls due overtakes none of its key that was written before
// that, whether it is stored or backs off, and none that was due before.
func TestADelayedMessageDoesNotOvertake(t *testing.T) {
	t.Parallel()
	onEachLog(t, func(t *testing.T, log Log) {
		for name, refuse := range map[string]string{"stored": "", "refused": "1"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				refusing := refuse
				f.broker.answer = func(p Publication) error {
					if string(p.Message.Payload) == refusing {
						return ErrRefused
					}
					return nil
				}
				r := f.relay(t, RelayOptions{Log: log, Lanes: 1, RetryBase: time.Hour, RetryCap: time.Hour})
				last, third := msg("k", "4"), msg("k", "3")
				last.Delay, third.Delay = 2*time.Hour, time.Hour
				f.write(t, msg("k", "1"))
				f.write(t, last)
				f.write(t, third)
				f.write(t, msg("k", "2"))
				f.exec(t, "UPDATE {schema}.outbox_held SET due_at = due_at - interval '3 hours'")
				mustSettle(t, r) // 1 backs off now
				if refusing != "" && len(f.broker.payloads()) != 0 {
					t.Errorf("published %q while 1 backs off", f.broker.payloads())
				}
				refusing = ""
				f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp()")
				mustSettle(t, r)
				if got := strings.Join(f.broker.payloads(), " "); got != "1 2 3 4" {
					t.Errorf("published %q, want 1 2 3 4", got)
				}
			})
		}
	})
}

// Nor does it overtake what is stored and takes more than one read of the log.
func TestADelayedMessageDoesNotOvertakeABacklog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	delayed := msg("k", "delayed")
	delayed.Delay = time.Hour
	f.write(t, delayed)
	for i := range 6 {
		f.write(t, msg("k", fmt.Sprint(i)))
	}
	f.due(t)
	r := f.relay(t, RelayOptions{})
	r.limits.page = 1
	mustSettle(t, r)
	if got := strings.Join(f.broker.payloads(), " "); got != "0 1 2 3 4 5 delayed" {
		t.Errorf("published %q, want the delayed message behind those that were stored when it was due", got)
	}
}

// A relay that hangs in the middle of a pass loses its session, and with it
// its locks.
func TestAHangingRelayIsEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.relay(t, RelayOptions{Log: LogTable, PublishTimeout: 20 * time.Second})
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := r.take(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	var limit string
	if err := tx.QueryRow(t.Context(), "SELECT current_setting('idle_in_transaction_session_timeout')").Scan(&limit); err != nil || limit != "30s" {
		t.Errorf("an idle pass is ended after %q, %v; want 30s", limit, err)
	}
}

func TestRefusedMessagesLeaveHalfOfABatchToOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broker.answer = func(p Publication) error {
		if p.Topic == "broken" {
			return ErrRefused
		}
		return nil
	}
	for i := range 20 {
		m := msg(fmt.Sprint("b", i), "x")
		m.Topic = "broken"
		f.write(t, m)
	}
	r := f.relay(t, RelayOptions{Log: LogTable, Batch: 4})
	for f.stats(t, r).Stored > 0 {
		pass(t, r)
	}
	f.write(t, msg("k", "1"))
	f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp()")
	pass(t, r)
	if got := strings.Join(f.broker.payloads(), " "); got != "1" {
		t.Errorf("one pass published %q, want the message of the other topic", got)
	}
}

func TestABatchIsLimitedInBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	large := strings.Repeat("x", MaxPayload)
	for i := range 6 {
		f.write(t, msg(fmt.Sprint("k", i), large))
	}
	r := f.relay(t, RelayOptions{Log: LogTable})
	for _, want := range []int{4, 2, 0} { // half of maxBatchBytes
		if n := pass(t, r); n != want {
			t.Errorf("a pass took %d messages of %d bytes, want %d", n, MaxPayload, want)
		}
	}
}

func TestAPanickingPublisherCostsOneMessage(t *testing.T) {
	t.Parallel()
	onEachLog(t, func(t *testing.T, log Log) {
		f := newFixture(t)
		f.broker.answer = func(p Publication) error {
			if string(p.Message.Payload) == "bomb" {
				f.broker.mu.Unlock() // as the deferred unlock would be
				defer f.broker.mu.Lock()
				panic("cannot marshal")
			}
			return nil
		}
		f.write(t, msg("a", "1"), msg("b", "bomb"), msg("c", "2"))
		r := f.relay(t, RelayOptions{Log: log, Lanes: 1})
		mustSettle(t, r)
		if s := f.stats(t, r); s != (counts{Refused: 1}) {
			t.Errorf("left over: %+v, want the bomb refused", s)
		}
		if got := strings.Join(f.broker.payloads(), " "); !strings.HasSuffix(got, "1 2") {
			t.Errorf("published %q, want the others", got)
		}
	})
}
