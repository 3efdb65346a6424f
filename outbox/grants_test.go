package outbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/suites/roletest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

// as gives the schema its roles, which migrations.Roles prints, and returns the fixture as a
// role sees it.
func (f *fixture) as(t *testing.T, server *pgServer, role string) *grantee {
	t.Helper()
	g := grantee{fixture: *f, owner: f, roles: roletest.New(t, server.Server, f.pool, f.schema)}
	g.pool = g.roles.Pool(t, role, func(error) {})
	return &g
}

// A grantee is a fixture that a role uses.
type grantee struct {
	fixture
	owner *fixture
	roles *roletest.Roles
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
	relay := func() *Relay {
		return f.relay(t, RelayOptions{RetryBase: time.Hour, RetryCap: time.Hour, Lanes: 1})
	}
	write := func() {
		late := msg("k", "late")
		late.Delay = time.Microsecond
		f.owner.write(t, msg("k", "yes"), msg("l", "no"), msg("l", "behind"), late)
	}
	for range 2 {
		write()
		r := relay()
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
	if !slices.Contains(f.broker.payloads(), "late") {
		return errors.New("a delayed message that is due cannot be moved into the log")
	}
	write()
	f.owner.exec(t, "SELECT setval('{schema}.outbox_id_seq', 1)") // the rows of a data-only restore
	f.owner.exec(t, "UPDATE {schema}.outbox_relay SET system_identifier = 'another'")
	if err := settle(t, relay()); err != nil {
		return err
	}
	l := f.leader(t, RelayOptions{RotateBytes: 1})
	for _, turn := range []int{1, 0} {
		l.settler.marks = l.settler.turnAt
		if l.settler.turnCursors(t.Context()); l.settler.which != turn {
			return errors.New("the tables of cursors do not take turns")
		}
		if err := l.settler.writeCheckpoint(t.Context(), l.settler.at); err != nil {
			return err
		}
	}
	if err := l.space.rotateLeaves(t.Context(), l.settler.at); err != nil {
		return err
	}
	for leaf := range leaves {
		if l.space.emptyLeaf(t.Context(), leaf, l.settler.at) == (leaf == 1) { // new messages go there
			return fmt.Errorf("leaf %d cannot be emptied, or should not be", leaf)
		}
	}
	if _, err := f.pool.Exec(t.Context(), l.sql.nextLeaf, 1); err != nil {
		return err
	}
	if !l.space.emptyLeaf(t.Context(), 1, l.settler.at) {
		return errors.New("leaf 1 cannot be emptied")
	}
	l.lease.releaseLease(t.Context(), l.epoch)
	return nil
}

// A relay needs what its role is granted, and each of it.
func TestARelayGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	server := privateServer(t)
	all := server.fixture(t).as(t, server, "relay")
	for _, g := range all.roles.Grants(t, "relay") {
		t.Run("no "+g.String(), func(t *testing.T) {
			as := server.fixture(t).as(t, server, "relay")
			as.roles.Without(t, "relay", g, func() {
				if as.everything(t) == nil {
					t.Error("nothing is missing")
				}
			})
		})
	}
	if err := all.everything(t); err != nil {
		t.Errorf("with all grants: %v", err)
	}
}

// A writer's messages go where the relay reads, also those of a role that may
// not see which leaf is in use. (PostgreSQL 15 refuses its messages.)
func TestAWriterGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	server := privateServer(t)
	late := msg("k", "late")
	late.Delay = time.Microsecond
	all := server.fixture(t).as(t, server, "entry")
	all.write(t, msg("k", "1"), late)
	for range 4 {
		all.write(t, msg("k", "2"), msg("k", "3"), msg("k", "4"), msg("k", "5"), msg("k", "6"))
	}
	if got := all.owner.count(t, "outbox_0") + all.owner.count(t, "outbox_held"); got != 22 {
		t.Errorf("%d messages are in the leaf in use and held, want 22", got)
	}

	less := server.fixture(t).as(t, server, "entry")
	less.roles.Without(t, "entry", roletest.Grant{Privilege: "USAGE", On: "SEQUENCE {schema}.outbox_leaf"}, func() {
		err := pgx.BeginFunc(t.Context(), less.pool, func(tx pgx.Tx) error { return less.writer.Write(t.Context(), tx, msg("k", "1")) })
		other := less.owner.count(t, "outbox_other")
		if denied := err != nil && strings.Contains(err.Error(), roletest.Denied); denied == (other == 1) {
			t.Errorf("without a grant on the sequence: %v, and %d messages in the catch-all", err, other)
		}
	})
}

func TestMessagesInTheCatchAllArePublished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, msg("k", "1"))
	f.exec(t, "ALTER TABLE {schema}.outbox ALTER COLUMN leaf DROP DEFAULT")
	f.write(t, msg("k", "2"))
	f.exec(t, "ALTER TABLE {schema}.outbox ALTER COLUMN leaf SET DEFAULT 7")
	f.write(t, msg("k", "3"))
	if got := f.count(t, "outbox_other"); got != 2 {
		t.Errorf("%d messages in the catch-all, want 2", got)
	}
	mustSettle(t, f.relay(t, RelayOptions{}))
	if got := strings.Join(f.broker.payloads(), " "); got != "1 2 3" {
		t.Errorf("published %q, want 1 2 3", got)
	}
}
