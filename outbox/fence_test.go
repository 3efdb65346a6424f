package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// An overtaken relay whose tables of cursors are due to take turns leaves them
// alone: the new one may note its cursor in the one that would be emptied.
func TestAnOvertakenRelayEmptiesNoTableOfCursors(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.leader(t, RelayOptions{})
	f.exec(t, "UPDATE {schema}.outbox_relay SET epoch = epoch + 1")
	f.exec(t, "INSERT INTO {schema}.outbox_cursor_1 (epoch, seq, from_snapshot, last_id) SELECT epoch, 0, '1:1:', 0 FROM {schema}.outbox_relay")
	l.settler.marks = l.settler.turnAt
	l.settler.turnCursors(t.Context())
	if got := f.count(t, "outbox_cursor_1"); got != 1 {
		t.Errorf("%d cursors are left, want the new relay's", got)
	}
}

// A read of the log that takes longer than the lease, as the list of a long
// backlog does, does not cost the relay its lease: it would start the same read
// again for ever.
func TestAReadMayTakeLongerThanTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const lease = 3 * time.Second // a busy machine may need a second to renew it
	active := f.relay(t, RelayOptions{Lease: lease})
	active.signals.rested.Enable()
	start(t, active)
	if err := active.signals.rested.Wait(t); err != nil {
		t.Fatal(err)
	}
	epoch := f.epoch(t)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+f.schema+".outbox_2"); err != nil {
		t.Fatal(err)
	}
	standby := f.relay(t, RelayOptions{Lease: lease})
	standby.signals.standby.Enable()
	start(t, standby)
	for range 3 * looksPerLease {
		standby.signals.standby.Wait(t)
	}
	f.write(t, msg("k", "1"))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "publish", func() bool { return len(f.broker.payloads()) == 1 })
	if got := f.epoch(t); got != epoch {
		t.Errorf("epoch %d, want %d", got, epoch)
	}
}

// A hangingBroker answers a call only when it is released, whatever its context says.
type hangingBroker struct {
	scriptedBroker
	entered, release chan struct{}
	once             sync.Once
}

func newHangingBroker() *hangingBroker {
	return &hangingBroker{entered: make(chan struct{}), release: make(chan struct{})}
}

func (b *hangingBroker) PublishBatch(ctx context.Context, batch []Publication) []error {
	b.once.Do(func() {
		close(b.entered)
		<-b.release
	})
	return b.scriptedBroker.PublishBatch(ctx, batch)
}

// A standby takes over from a relay whose publisher hangs and whose lease has
// ended, and that one can do no harm when it goes on.
func TestARelayThatHangsInThePublisherIsOvertaken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	broker := newHangingBroker()
	broker.answer = func(Publication) error { return ErrRefused } // it would hold the messages
	hung, err := NewRelay(f.pool, broker, &RelayOptions{Schema: f.schema, Lease: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	hung.signals.rested.Enable()
	f.write(t, msg("k", "1"), msg("k", "2"))
	start(t, hung)
	<-broker.entered
	f.exec(t, "UPDATE {schema}.outbox_relay SET lease_until = clock_timestamp()")
	r := f.relay(t, RelayOptions{Lease: time.Second})
	start(t, r)
	eventually(t, "the standby publishes", func() bool { return len(f.broker.payloads()) == 2 && f.stats(t, r) == counts{} })
	before := f.everyRow(t, "outbox_held")
	close(broker.release)
	if err := hung.signals.rested.Wait(t); !errors.Is(err, errOvertaken) {
		t.Errorf("the relay that hung ends with %v, want an errOvertaken", err)
	}
	f.write(t, msg("k", "3"))
	eventually(t, "the standby goes on", func() bool { return len(f.broker.payloads()) == 3 && f.stats(t, r) == counts{} })
	if after := f.everyRow(t, "outbox_held"); after != before {
		t.Errorf("held: %s", after)
	}
	if got := strings.Join(f.broker.payloads(), " "); got != "1 2 3" {
		t.Errorf("published %q", got)
	}
}

// A silentBroker answers nothing until the context of a call ends.
type silentBroker struct {
	entered chan struct{}
	once    sync.Once
}

func (b *silentBroker) PublishBatch(ctx context.Context, batch []Publication) []error {
	b.once.Do(func() { close(b.entered) })
	<-ctx.Done()
	return slices.Repeat([]error{ctx.Err()}, len(batch))
}

// A relay that cannot renew its lease says that its messages are not settled, before it gives up the lead.
func TestALeaseThatRunsOutIsTold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	broker := &silentBroker{entered: make(chan struct{})}
	var said bytes.Buffer
	r, err := NewRelay(f.pool, broker, &RelayOptions{Schema: f.schema, Lease: time.Second, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	r.signals.rested.Enable()
	f.write(t, msg("k", "1"))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	<-broker.entered
	err = pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error { // no renewal gets past this lock
		if _, err := tx.Exec(t.Context(), "SELECT FROM "+f.schema+".outbox_relay FOR UPDATE"); err != nil {
			return err
		}
		r.signals.rested.WaitFor(t, func(err error) bool { return errors.Is(err, errExpired) })
		return nil
	})
	stop()
	if err := errors.Join(err, <-done); err != nil || !strings.Contains(said.String(), leadUnfinished) {
		t.Errorf("Run = %v; the log does not say that messages are left: %s", err, said.String())
	}
}

// everyRow returns the tables' rows as text.
func (f *fixture) everyRow(t *testing.T, tables ...string) string {
	t.Helper()
	var all strings.Builder
	for _, table := range tables {
		var rows string
		err := f.pool.QueryRow(t.Context(), "SELECT coalesce(string_agg(o::text, E'\n' ORDER BY o::text), '') FROM "+f.schema+"."+table+" o").Scan(&rows)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s\n%s\n", table, rows)
	}
	return all.String()
}

// Whatever an overtaken relay still tries changes nothing: not after another has
// taken over, and not after a crash of the server.
func TestATenureThatIsOverChangesNothing(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]string{
		"overtaken":        "UPDATE {schema}.outbox_relay SET epoch = epoch + 1; UPDATE {schema}.outbox_tenure SET epoch = epoch + 1",
		"after a crash":    "TRUNCATE {schema}.outbox_tenure",
		"of another epoch": "UPDATE {schema}.outbox_tenure SET epoch = epoch + 1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			l := f.leader(t, RelayOptions{Lanes: 1})
			ctx := t.Context()
			f.write(t, msg("a", "1"))
			f.publishPage(t, l, nil)
			l.mustSettlePages(t)
			tables := []string{"outbox", "outbox_held", "outbox_relay", "outbox_cursor_0", "outbox_cursor_1"}

			f.write(t, msg("a", "2"))
			f.publishPage(t, l, nil)
			f.exec(t, over)
			before := f.everyRow(t, tables...)
			if err := l.settler.writeCheckpoint(ctx, l.window.pages[0].after); !errors.Is(err, errOvertaken) {
				t.Fatalf("noting what is published: %v", err)
			}
			l.window.pages[0].items[0].outcome, l.window.pages[0].items[0].refusal = refused, ErrRefused
			if _, err := l.settlePages(ctx); !errors.Is(err, errOvertaken) {
				t.Errorf("noting a refusal: %v", err)
			}
			if l.space.emptyLeaf(ctx, 1, l.settler.at) {
				t.Error("a leaf was emptied")
			}
			l.settler.marks = l.settler.turnAt
			l.settler.turnCursors(ctx)
			if _, err := l.lease.renewLease(ctx, l.epoch); !errors.Is(err, errOvertaken) {
				t.Errorf("renew: %v", err)
			}
			if _, _, err := l.log.readPage(ctx, l.log.newReadBatch(), 10, maxPageBytes); !errors.Is(err, errOvertaken) {
				t.Errorf("read: %v", err)
			}
			if after := f.everyRow(t, tables...); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// A page is read leaf by leaf. If another relay takes over in between, it may hold a message back
// that this one has seen as not held, and empty the leaf in which it was: the message behind it
// would overtake it.
func TestARelayThatIsOvertakenInAReadReadsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const turn = "SELECT nextval('{schema}.outbox_leaf')"
	f.exec(t, turn)
	f.write(t, msg("k", "1"))
	f.exec(t, turn+", nextval('{schema}.outbox_leaf')") // the first leaf is read before that of 1
	f.write(t, msg("k", "2"))
	old := f.leader(t, RelayOptions{})
	old.sql.fetchMessages[0] += " AND (SELECT pg_advisory_xact_lock(hashtext('" + f.schema + "')) IS NOT NULL)"
	gate, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gate.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_xact_lock(hashtext($1))", f.schema); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		rows, _, err := old.log.readPage(t.Context(), old.log.newReadBatch(), 10, maxPageBytes)
		if err == nil {
			err = fmt.Errorf("%d messages, the first %s, behind %d", len(rows), rows[0].Payload, rows[0].behind)
		}
		read <- err
	}()
	eventually(t, "the first leaf is being read", func() bool {
		return f.isWaitedFor(t, gate)
	})
	f.exec(t, "UPDATE {schema}.outbox_relay SET lease_until = 'epoch'")
	l := f.leader(t, RelayOptions{Lanes: 1, RetryBase: time.Hour, RetryCap: time.Hour})
	_ = f.refuse("1")
	f.publishPage(t, l, f.broker.answer)
	l.mustSettlePages(t)
	if !l.space.emptyLeaf(t.Context(), 1, l.settler.at) {
		t.Fatal("the leaf of 1 is not emptied")
	}
	if err := gate.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-read; !errors.Is(err, errOvertaken) {
		t.Errorf("the overtaken relay has read: %v", err)
	}
}

// isWaitedFor reports whether a session waits for tx.
func (f *fixture) isWaitedFor(t *testing.T, tx pgx.Tx) (waits bool) {
	t.Helper()
	err := f.pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))", tx.Conn().PgConn().PID()).Scan(&waits)
	if err != nil {
		t.Fatal(err)
	}
	return waits
}

// publishPage reads a page and lets the first lane publish it, with answer for
// each of its messages.
func (f *fixture) publishPage(t *testing.T, l *leader, answer func(Publication) error) {
	t.Helper()
	f.broker.answer = answer
	l.expectsMessages = true
	if n, err := l.readLog(t.Context()); n == 0 || err != nil {
		t.Fatalf("read %d messages, %v", n, err)
	}
	f.publishPending(t, l)
}

// mustSettlePages settles the decided pages and writes the checkpoint.
func (l *leader) mustSettlePages(t *testing.T) {
	t.Helper()
	_, err := l.settlePages(t.Context())
	if err == nil {
		err = l.settler.flushCheckpoint(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// publishPending lets the first lane deal with what it has been handed.
func (f *fixture) publishPending(t *testing.T, l *leader) {
	t.Helper()
	lane := l.lanes.all[0]
	for {
		for len(lane.in) > 0 {
			lane.pending = append(lane.pending, <-lane.in...)
		}
		if len(lane.pending) == 0 {
			return
		}
		for _, c := range lane.pickCalls(time.Now()) {
			c.results = sender{lane.core}.publishTopic(t.Context(), c.flow.topic, c.wave)
			if lane.takeResults(t.Context(), c); c.flow.failures > 0 {
				t.Fatalf("publish: %v", c.results)
			}
		}
	}
}
