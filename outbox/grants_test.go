package outbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/pgtest"
)

// What roles need, as docs/operations.md says. A relay of one kind of log needs
// less, but not less by much.
var (
	relayGrants = []string{
		"USAGE ON SCHEMA {schema}",
		"SELECT, INSERT, UPDATE, DELETE ON {schema}.outbox",
		"SELECT, TRUNCATE ON {schema}.outbox_0, {schema}.outbox_1, {schema}.outbox_2, {schema}.outbox_other",
		"SELECT, INSERT, UPDATE, DELETE ON {schema}.outbox_held",
		"SELECT, UPDATE ON {schema}.outbox_relay",
		"SELECT, INSERT, DELETE ON {schema}.outbox_tenure",
		"SELECT, INSERT, TRUNCATE ON {schema}.outbox_cursor_0, {schema}.outbox_cursor_1",
		"USAGE ON SEQUENCE {schema}.outbox_leaf",
	}
	writerGrants = []string{
		"USAGE ON SCHEMA {schema}",
		"INSERT ON {schema}.outbox",
		"USAGE ON SEQUENCE {schema}.outbox_leaf",
		"INSERT ON {schema}.outbox_held",           // for messages with a Delay
		"USAGE ON SEQUENCE {schema}.outbox_id_seq", // for them too
	}
)

// grant makes a role of its own with the grants and returns the fixture as that
// role sees it.
func (f *fixture) grant(t *testing.T, server *pgServer, grants []string) *grantee {
	t.Helper()
	role := pgtest.Name()
	f.exec(t, "CREATE ROLE "+role+" LOGIN")
	for _, g := range grants {
		f.exec(t, "GRANT "+g+" TO "+role)
	}
	g := grantee{fixture: *f, owner: f, role: role}
	g.pool = pgtest.Pool(t, strings.ReplaceAll(server.url(), "user=postgres", "user="+role))
	return &g
}

// A grantee is a fixture that somebody with grants uses.
type grantee struct {
	fixture
	owner *fixture
	role  string
}

// everything lets a relay as its role sees it do whatever it may ever do, and
// returns the first thing that it cannot do.
func (f *grantee) everything(t *testing.T) error {
	t.Helper()
	f.broker.answer = func(p Publication) error {
		if string(p.Message.Payload) == "no" {
			return ErrRefused
		}
		return nil
	}
	relay := func(log Log) *Relay {
		return f.relay(t, RelayOptions{Log: log, RetryBase: time.Hour, RetryCap: time.Hour, Lanes: 1})
	}
	write := func() {
		late := msg("k", "late")
		late.Delay = time.Microsecond
		f.owner.write(t, msg("k", "yes"), msg("l", "no"), msg("l", "behind"), late)
	}
	for _, log := range []Log{LogAppend, LogTable, LogAppend} {
		write()
		r := relay(log)
		if err := settle(t, r); err != nil {
			return err
		}
		f.owner.due(t)
		if err := settle(t, r); err != nil {
			return err
		}
		if _, err := r.Stats(t.Context()); err != nil {
			return err
		}
	}
	f.owner.exec(t, "UPDATE {schema}.outbox_relay SET system_identifier = 'another'")
	if err := settle(t, relay(LogAppend)); err != nil {
		return err
	}
	l := f.leader(t, RelayOptions{RotateBytes: 1})
	l.marks = l.turnAt
	if l.turnCursors(t.Context()); l.tenure.which == 0 {
		return errors.New("the tables of cursors do not take turns")
	}
	if err := l.rotate(t.Context()); err != nil {
		return err
	}
	for leaf := range leaves {
		if l.empty(t.Context(), leaf) == (leaf == 1) { // new messages go there
			return fmt.Errorf("leaf %d cannot be emptied, or should not be", leaf)
		}
	}
	l.r.release(t.Context(), l.tenure.epoch)
	return nil
}

// A relay needs the grants of relayGrants, and each of them.
func TestARelayGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	server := privateServer(t)
	t.Run("all", func(t *testing.T) {
		if err := server.fixture(t).grant(t, server, relayGrants).everything(t); err != nil {
			t.Errorf("with all grants: %v", err)
		}
	})
	for _, g := range relayGrants {
		privileges, on, _ := strings.Cut(g, " ON ")
		for _, without := range strings.Split(privileges, ", ") {
			t.Run("no "+without+" on "+on, func(t *testing.T) {
				f := server.fixture(t)
				as := f.grant(t, server, relayGrants)
				f.exec(t, "REVOKE "+without+" ON "+on+" FROM "+as.role)
				err := as.everything(t)
				if err == nil {
					t.Errorf("nothing is missing without %s on %s", without, on)
				}
			})
		}
	}
}

// replayGrants are what an operator needs to replay what is kept. docs/operations.md
// repeats them.
var replayGrants = []string{
	"USAGE ON SCHEMA {schema}",
	"SELECT, INSERT ON {schema}.outbox",
	"SELECT ON {schema}.outbox_held",
	"SELECT ON {schema}.outbox_relay",
}

func TestAReplayGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	server := privateServer(t)
	for without := range len(replayGrants) + 1 {
		f := server.fixture(t)
		f.kept(t, 3)
		grants := slices.Concat(replayGrants[:without], replayGrants[min(without+1, len(replayGrants)):])
		as := f.grant(t, server, grants)
		p, err := as.replayer(t).ReplayRange(t.Context(), as.pool, anHourAgo(), nil)
		if all := without == len(replayGrants); (err == nil) != all || (p.Replayed == 3) != all {
			t.Errorf("with the grants %q: %+v, %v", grants, p, err)
		}
	}
}

// A writer's messages go where the relay reads, also those of a role that may
// not see which leaf is in use. (PostgreSQL 15 refuses its messages.)
func TestAWriterGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	server := privateServer(t)
	late := msg("k", "late")
	late.Delay = time.Microsecond
	all := server.fixture(t).grant(t, server, writerGrants)
	all.write(t, msg("k", "1"), late)
	for range 4 {
		all.write(t, msg("k", "2"), msg("k", "3"), msg("k", "4"), msg("k", "5"), msg("k", "6"))
	}
	if got := all.owner.count(t, "outbox_0") + all.owner.count(t, "outbox_held"); got != 22 {
		t.Errorf("%d messages are in the leaf in use and held, want 22", got)
	}

	less := server.fixture(t).grant(t, server, writerGrants[:2])
	err := pgx.BeginFunc(t.Context(), less.pool, func(tx pgx.Tx) error { return less.writer.Write(t.Context(), tx, msg("k", "1")) })
	other := less.owner.count(t, "outbox_other")
	if denied := err != nil && strings.Contains(err.Error(), "42501"); denied == (other == 1) {
		t.Errorf("without a grant on the sequence: %v, and %d messages in the catch-all", err, other)
	}
}

func TestMessagesInTheCatchAllArePublished(t *testing.T) {
	t.Parallel()
	onEachLog(t, func(t *testing.T, log Log) {
		f := newFixture(t)
		f.write(t, msg("k", "1"))
		f.exec(t, "ALTER TABLE {schema}.outbox ALTER COLUMN leaf DROP DEFAULT")
		f.write(t, msg("k", "2"))
		f.exec(t, "ALTER TABLE {schema}.outbox ALTER COLUMN leaf SET DEFAULT 7")
		f.write(t, msg("k", "3"))
		if got := f.count(t, "outbox_other"); got != 2 {
			t.Errorf("%d messages in the catch-all, want 2", got)
		}
		mustSettle(t, f.relay(t, RelayOptions{Log: log}))
		if got := strings.Join(f.broker.payloads(), " "); got != "1 2 3" {
			t.Errorf("published %q, want 1 2 3", got)
		}
	})
}
