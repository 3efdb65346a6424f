package outbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// What a hostile review found, each as a test.

// A delayed message that falls due overtakes none of its key that was written before
// that, whether it is stored or backs off, and none that was due before.
func TestADelayedMessageDoesNotOvertake(t *testing.T) {
	t.Parallel()
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
			r := f.relay(t, RelayOptions{Lanes: 1, RetryBase: time.Hour, RetryCap: time.Hour})
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

// A relay that hangs in the middle of a transaction loses its session, and with it
// its locks.
func TestAHangingRelayIsEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.relay(t, RelayOptions{Lease: 30 * time.Second})
	var limit string
	err := r.runTx(t.Context(), func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT current_setting('idle_in_transaction_session_timeout')").Scan(&limit)
	})
	if err != nil || limit != "30s" {
		t.Errorf("an idle transaction is ended after %q, %v; want 30s", limit, err)
	}
}

// A page is limited in bytes, whatever its number of messages.
func TestAPageIsLimitedInBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	large := strings.Repeat("x", MaxPayload)
	for i := range 6 {
		f.write(t, msg(fmt.Sprint("k", i), large))
	}
	l := f.leader(t, RelayOptions{})
	for _, want := range []int{0, 3, 3, 0} { // they are too large to be read without a list, and four take more than maxPageBytes
		rows, _, err := l.log.readPage(t.Context(), l.log.newReadBatch(), maxPage, maxPageBytes)
		if err != nil || len(rows) != want {
			t.Errorf("a page has %d messages of %d bytes, %v; want %d", len(rows), MaxPayload, err, want)
		}
	}
}

func TestAPanickingPublisherCostsOneMessage(t *testing.T) {
	t.Parallel()
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
	r := f.relay(t, RelayOptions{Lanes: 1})
	mustSettle(t, r)
	if s := f.stats(t, r); s != (counts{Refused: 1}) {
		t.Errorf("left over: %+v, want the bomb refused", s)
	}
	if got := strings.Join(f.broker.payloads(), " "); !strings.HasSuffix(got, "1 2") {
		t.Errorf("published %q, want the others", got)
	}
}
