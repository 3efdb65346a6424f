package main

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A saga that runs another waits where that does.
func TestWhyOfANestedSaga(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	inner, within := f.definition, func(s *trip) trip { return *s }
	f.definition = saga.Must(saga.Define("tour", 1, saga.Step[trip]{Name: "there", Do: saga.Nested(inner, within, nil)}, saga.Step[trip]{
		Name: "back", Do: saga.Remote("back.reserve", within, func(*trip, trip) {}),
	}))
	f.orchestrate(f.definition)
	f.relay(f.home)
	f.start("k")
	f.why("k", "step there: runs the saga trip, nested at 1.1")
	f.why("k", "saga trip, version 1, acme/k, nested at 1.1 in schema trips: running, started at 20")
	f.deliver("flight.reserve")
	f.why("k", "step flight: handled at 20")
	f.relay(f.flights)
	f.deliver("saga.trip")
	f.why("k", "step hotel: published")
	f.command(0, "saga", "skip", "k", "-path", "1.1", "-step", "hotel", "-why", "test")
	f.deliver("saga.tour")
	f.why("k", "step back: published")
	f.command(0, "saga", "cancel", "k", "-why", "test")
	f.why("k", "compensation of step there: published")
	f.why("k", "nested at 1.1 in schema trips: completed, started at 20")
	f.deliver("saga.trip")
	f.why("k", "compensation of step there: participant revoke-trip in schema trips: the saga trip, nested at 1.1, compensates")
	out := f.command(0, "saga", "list", "-key", "k")
	if !strings.Contains(out, "1.1") || !strings.Contains(out, "tour") || strings.Count(out, "compensating") != 2 {
		t.Errorf("list:\n%s", out)
	}
	out = f.command(0, "saga", "show", "k")
	for _, want := range []string{"saga trip, nested at 1.1: compensating", "is still to be undone: there\n", "cancel by "} {
		if !strings.Contains(out, want) {
			t.Errorf("show says\n%swant %s", out, want)
		}
	}
}

// Of a message that several services listen to, only the step that it is for has it, however
// many others have moved since under the same n.
func TestWhyOfAMessageThatOthersHaveHandled(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	f.exec(`INSERT INTO {home}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload)
		VALUES (gen_random_uuid(), 'paid', 'paid', 'acme', 'k', 'ship', 'x1', 'k', '', '', 'application/json', '{}')`)
	f.relay(f.home)
	f.exec("INSERT INTO {flights}.inbox (scope, key, step, n, state, digest) VALUES ('acme', 'k', 'note', 'x1', 'done', sha256(''))")
	f.why("k", "message paid for step ship, written at 20")
	f.exec("INSERT INTO {flights}.inbox (scope, key, step, n, state, digest) VALUES ('acme', 'k', 'ship', 'x1', 'done', sha256(''))")
	if out := f.why("k", "known: step ship#x1"); strings.Contains(out, "message paid") {
		t.Errorf("why says\n%s", out)
	}
}

// What stands in an outbox besides what is simply stored.
func TestWhyOfAMessageThatIsHeld(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	f.post.refuse("refused")
	w, err := outbox.NewWriter(&outbox.WriterOptions{Schema: f.home})
	if err != nil {
		t.Fatal(err)
	}
	write := func(m outbox.Message) {
		t.Helper()
		m.Scope, m.Step, m.Payload, m.OrderingKey = "acme", "pay", []byte("{}"), "one"
		if err := pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error { return w.Write(t.Context(), tx, m) }); err != nil {
			t.Fatal(err)
		}
	}
	f.relay(f.home)
	write(outbox.Message{Topic: "refused", Key: "first"})
	f.why("first", "message refused was refused by the broker")
	write(outbox.Message{Topic: "second", Key: "second"})
	f.why("second", "message second waits behind another of its ordering key")
	f.why("second", " of acme/first to refused, refused by the broker")
	write(outbox.Message{Topic: "late", Key: "late", Delay: time.Hour})
	f.why("late", "message late is not published before 20")
	f.why("first", "again at 20")
	var refused struct{ ID int64 }
	if err := json.Unmarshal([]byte(f.command(0, "outbox", "refused", "list", "-json")), &refused); err != nil {
		t.Fatal(err)
	}
	f.command(0, "outbox", "refused", "release", "-id", strconv.FormatInt(refused.ID, 10))
	f.why("first", "message refused is dead letter ")
	f.why("first", "sagamill outbox dead show -schema trips -id ")
	f.exec("UPDATE {home}.outbox_held SET state = 'waiting', attempts = 0, refused_at = NULL, reason = 'no leader', due_at = clock_timestamp() + interval '1 h' WHERE key = 'first'")
	f.why("first", "message refused waits for its topic, refused, of which the broker takes no messages: no leader")
}

// What may not be read is named, and the rest is told.
func TestWhyNamesWhatItMayNotRead(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	f.start("k")
	_, old := pgtest.Schema(t)
	f.exec("DROP TABLE " + old + ".inbox_horizon")
	role := pgtest.Name()
	f.exec("CREATE ROLE " + role)
	t.Cleanup(func() {
		admin := pgtest.Pool(t, pgtest.URL())
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	f.exec("GRANT USAGE ON SCHEMA {home} TO " + role)
	f.exec("GRANT SELECT ON ALL TABLES IN SCHEMA {home} TO " + role)
	f.exec("REVOKE SELECT ON {home}.saga_journal FROM " + role)
	out := f.command(0, "why", "k", "-schema", f.both()+","+old, "-database", as(t, role))
	for _, want := range []string{
		"message flight.reserve is not published yet", "instances in schema trips are left out: the role may not read saga_journal",
		"schema flights is left out: the role may not read inbox, inbox_horizon", "schema " + old + " is left out: its migrations are older",
	} {
		if !strings.Contains(f.plain(out), want) {
			t.Errorf("why says\n%swant %s", f.plain(out), want)
		}
	}
	f.exec("GRANT SELECT ON {home}.saga_journal TO " + role)
	if out := f.command(0, "why", "k", "-schema", f.home, "-database", as(t, role)); !strings.Contains(out, "step flight: command flight.reserve") {
		t.Errorf("with SELECT on all tables, why says\n%s", out)
	}
	if out := f.command(0, "saga", "show", "k", "-database", as(t, role)); !strings.Contains(out, "would be undone") {
		t.Errorf("with SELECT on all tables, show says\n%s", out)
	}
	if out := f.command(1, "saga", "pause", "k", "-why", "test", "-database", as(t, role)); !strings.Contains(out, "permission denied") {
		t.Errorf("without UPDATE: %s", out)
	}
	f.exec("GRANT UPDATE ON {home}.saga TO " + role)
	f.exec("GRANT INSERT ON {home}.saga_journal TO " + role)
	f.command(0, "saga", "pause", "k", "-why", "test", "-database", as(t, role))
}

// as is the URL of the tests' database, as that role.
func as(t *testing.T, role string) string {
	t.Helper()
	u, err := url.Parse(pgtest.URL())
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("role", role)
	u.RawQuery = q.Encode()
	return u.String()
}
