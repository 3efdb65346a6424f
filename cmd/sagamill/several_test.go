package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/journal"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/outboxes"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
)

// newPair makes a database with the schemas orders and payments, which both have the dead letters 1 to 3 and the
// retrying message 4; payments has a dead letter 5 too.
func newPair(t *testing.T) *town {
	t.Helper()
	w := newTown(t, "orders", "payments")
	w.plant(sqlPark, "orders", "payments")
	w.plant(strings.ReplaceAll(sqlPark, "VALUES ('dead', 'terminal', 1), ('dead', 'terminal', 2), ('dead', 'key-reused', 3), ('retrying', 'failed', 4)", "VALUES ('dead', 'terminal', 5)"), "payments")
	return w
}

// on runs a command line on the database.
func (w *town) on(code int, line string) string {
	w.t.Helper()
	out, errs := sagamill(w.t, code, append(strings.Fields(line), "-database", w.url)...)
	return out + errs
}

const both = " -schema orders,payments"

// Without -schema, a command that reads is about the only schema with tables. If there are several, and for a change, it
// asks which.
func TestTheOnlySchemaIsTheDefault(t *testing.T) {
	t.Parallel()
	w := newTown(t, "orders")
	w.plant(sqlPark, "orders")
	contains(t, w.on(0, "dead list"), "terminal", "key-reused")
	contains(t, w.on(1, "dead discard -id 1 -why x"), "say which with -schema: there are tables of sagamill in orders")
	contains(t, w.on(1, "saga pause -all -older 0s -why x -yes"), "with -schema: there are")
	if err := migrations.Up(t.Context(), w.url, "payments"); err != nil {
		t.Fatal(err)
	}
	contains(t, w.on(1, "dead list"), "say which with -schema: there are tables of sagamill in orders, payments")
}

// Of a dead letter without an instance, as a choreographed saga has, why says how to redrive it with the others of its step.
func TestWhySaysHowToRedriveAChoreographedStep(t *testing.T) {
	t.Parallel()
	w := newTown(t, "orders")
	w.exec(`INSERT INTO orders.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		SELECT 'dead', kind, 'acme', 'k', step, '', 'x', 'm', '{}', '{}', '{}', 'failed', now() FROM (VALUES ('compensation', 'pay'), ('action', 'pay'), ('action', 'ship')) v (kind, step)`)
	w.exec(`INSERT INTO orders.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		VALUES ('dead', 'action', 'acme', 'gone', 'pay', 'aaaaaaaa-1.1', 'x', 'm', '{}', '{}', '{}', 'failed', now())`)
	contains(t, w.on(0, "why k"), "once the cause is fixed: sagamill dead redrive -schema orders -id 2,1\n", "once the cause is fixed: sagamill dead redrive -schema orders -id 3\n")
	if said := w.on(0, "why gone"); strings.Contains(said, "dead redrive") {
		t.Errorf("of a command whose instance is not here, why says %s", said)
	}
}

// A list goes from schema to schema, names the schema of each entry, and goes on where its last line says.
func TestListsOfSeveralSchemas(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	w.plant(sqlBegin, "orders", "payments")
	w.plant(`INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
		SELECT g, gen_random_uuid(), 'stock', '', '', '', '', '', '', '', '', '', '', 'dead', now(), 1, 'no queue', now() FROM generate_series(1, 2) g`, "orders", "payments")
	for _, tt := range []struct {
		line  string
		pages []string // of each: the first columns of its rows
	}{
		{"dead list -limit 3", []string{"orders 1, orders 2, orders 3", "payments 1, payments 2, payments 3", "payments 5"}},
		{"dead list -limit 4", []string{"orders 1, orders 2, orders 3, payments 1", "payments 2, payments 3, payments 5"}},
		{"dead list -state retrying", []string{"orders 4, payments 4"}},
		{"outbox dead list -limit 3", []string{"orders 1, orders 2, payments 1", "payments 2"}},
		{"saga list -limit 2", []string{"orders acme paused, orders acme running", "orders acme stuck, payments acme paused", "payments acme running, payments acme stuck"}},
	} {
		after := ""
		for i, want := range tt.pages {
			out := w.on(0, tt.line+both+after)
			var rows []string
			columns := strings.Count(strings.Split(want, ", ")[0], " ") + 1
			for _, row := range strings.Split(out, "\n") {
				if fields := strings.Fields(row); len(fields) > columns && (fields[0] == "orders" || fields[0] == "payments") {
					rows = append(rows, strings.Join(fields[:columns], " "))
				}
			}
			if got := strings.Join(rows, ", "); got != want || !strings.HasPrefix(out, "SCHEMA ") {
				t.Errorf("%s, page %d: %s, want %s", tt.line, i, got, want)
			}
			_, place, more := strings.Cut(out, "there may be more: -after ")
			full := strings.Contains(tt.line, fmt.Sprint("-limit ", strings.Count(want, ",")+1))
			if more != full {
				t.Errorf("%s, page %d: says %q of more", tt.line, i, place)
			}
			after = " -after " + strings.Trim(strings.TrimSpace(place), "'")
		}
	}
	for line, want := range map[string]string{
		"dead list -after 1" + both:                          "-after must name one of orders, payments",
		"dead list -after other:1" + both:                    "-after must name one of orders, payments",
		"dead list -after orders:x" + both:                   "it must be an id",
		"dead list -schema orders -after payments:1":         "-after must name one of orders",
		"dead list -schema orders,nobody":                    "schema nobody: ",
		"dead list -schema orders,":                          "-schema has an empty name",
		"saga list -after \"a\",\"b\",\"c\"" + both:          "-after must name one of",
		"migrate version" + both:                             "this command is about one schema, not about 2",
		"migrate print" + both:                               "this command is about one schema, not about 2",
		"migrate version -database postgres://other.invalid": "this command is about one database, not about 2",
	} {
		if out := w.on(1, line+" -allow-plaintext"); !strings.Contains(out, want) {
			t.Errorf("%s: %s, want %s", line, out, want)
		}
	}
	if out := w.on(0, "dead list -schema orders -after orders:2 -limit 1"); !strings.Contains(out, "there may be more: -after 3\n") || strings.Contains(out, "SCHEMA") {
		t.Errorf("of one schema it says %s", out)
	}
}

// An id is that of a letter in one of the schemas; where several have it, it must be said which.
func TestLettersOfSeveralSchemas(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	for _, tt := range []struct {
		line string
		code int
		says []string
	}{
		{"dead show -id 5", 0, []string{"schema payments:\n", "id ", "5"}},
		{"dead show -id 5 -json", 0, []string{`{"schema":"payments","id":5`}},
		{"dead show -id 1", 1, []string{"1 is a letter of several schemas: say which with -schema: orders, payments"}},
		{"dead show -id 9", 1, []string{"9: operator: no such dead letter in any of orders, payments"}},
		{"dead edit -id 5 -header a=b -n", 0, []string{"would edit 1 dead letter"}},
		{"dead edit -id 5 -header a=b", 0, []string{"redrive it with sagamill dead redrive -schema payments -id 5\n"}},
		{"dead edit -id 1 -header a=b", 1, []string{"1 is a letter of several schemas"}},
		{"dead bury -id 4", 1, []string{"4 is a letter of several schemas"}},
		{"dead redrive -id 5,1 -n", 1, []string{"1 is a letter of several schemas"}},
		{"dead plan -id 5", 0, []string{"would send round 1 dead letter, remove 0"}},
		{"dead discard -id 5", 0, []string{"schema payments:\ndiscarded 1 dead letter\n"}},
		{"dead plan", 0, []string{"schema orders:\n", "schema payments:\n", "would send round 3 dead letters, remove 0, leave 0"}},
		{"dead discard -all -reason key-reused", 1, []string{"schema orders:\n", "schema payments:\n", "would discard 1 dead letter\n", "nothing is done yet"}},
		{"dead discard -all -reason key-reused -yes", 0, []string{"schema orders:\ndiscarded 1 dead letter\nschema payments:\ndiscarded 1 dead letter\n"}},
		{"dead retry -all -older 0s -yes", 0, []string{"schema orders:\nmade due 1 retrying message\nschema payments:\nmade due 1 retrying message\n"}},
		{"dead redrive -all -step pay -yes -json", 0, []string{`{"schema":"orders","did":"redrove","count":2`, `{"schema":"payments","did":"redrove","count":2`}},
		{"outbox status", 0, []string{"schema orders:\n", "schema payments:\n", "stored        0"}},
		{"outbox dead discard -all -older 0s -yes -json", 0, []string{`{"schema":"orders","did":"discarded","count":0}`, `{"schema":"payments","did":"discarded","count":0}`}},
	} {
		out := w.on(tt.code, tt.line+both)
		for _, want := range tt.says {
			if !strings.Contains(out, want) {
				t.Errorf("%s: %s, want %s", tt.line, out, want)
			}
		}
	}
	var s outboxes.Status
	first, _, _ := strings.Cut(w.on(0, "outbox status -json"+both), "\n")
	if err := json.Unmarshal([]byte(first), &s); err != nil || s.Schema != "orders" {
		t.Errorf("outbox status -json: %v, %s", err, first)
	}
}

// The journals of several schemas are one, the newest entry first.
func TestJournalOfSeveralSchemas(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	for _, line := range []string{"dead discard -id 1 -schema orders", "dead discard -id 1 -schema payments", "dead discard -id 2 -schema orders"} {
		w.on(0, line)
	}
	read := func(line string) (got []string, out string) {
		t.Helper()
		out = w.on(0, "journal -json"+line+both)
		text, _, _ := strings.Cut(out, "there may be more")
		for d := json.NewDecoder(strings.NewReader(text)); d.More(); {
			var e journal.Entry
			if err := d.Decode(&e); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(e.Schema, " ", e.IDs))
		}
		return got, out
	}
	if got, _ := read(""); cmp.Diff([]string{"orders [2]", "payments [1]", "orders [1]"}, got) != "" {
		t.Errorf("the journal has %q", got)
	}
	got, out := read(" -limit 2")
	if cmp.Diff([]string{"orders [2]", "payments [1]"}, got) != "" || !strings.Contains(out, "-before orders:2,payments:1\n") {
		t.Errorf("the first page has %q:\n%s", got, out)
	}
	if got, _ := read(" -limit 2 -before orders:2,payments:1"); cmp.Diff([]string{"orders [1]"}, got) != "" {
		t.Errorf("the next page has %q", got)
	}
	for line, want := range map[string]string{
		"journal -before 1" + both:      `-before names "", which -schema does not`,
		"journal -before x:1" + both:    "-before names x, which -schema does not",
		"journal -before orders" + both: "want SCHEMA:ID",
	} {
		if out := w.on(1, line); !strings.Contains(out, want) {
			t.Errorf("%s: %s, want %s", line, out, want)
		}
	}
	if out := w.on(0, "journal"+both); !strings.HasPrefix(out, "SCHEMA ") {
		t.Errorf("the table begins %.40q", out)
	}
}

// What takes several schemas takes several databases: a schema may be in any of them.
func TestCommandsOnSeveralDatabases(t *testing.T) {
	t.Parallel()
	a, b := newPair(t), newTown(t, "payments", "shipping")
	b.plant(sqlPark, "shipping")
	b.plant(sqlBegin, "shipping")
	on := func(code int, line string) string {
		t.Helper()
		out, errs := sagamill(t, code, append(strings.Fields(line), "-database", a.url, "-database", b.url)...)
		return out + errs
	}
	contains(t, on(0, "dead list -schema orders,shipping -limit 4"), a.name()+"/orders  ", b.name()+"/shipping  ", "-after "+b.name()+"/shipping:1\n")
	out := on(0, "dead list -schema orders,shipping -after "+b.name()+"/shipping:1")
	if strings.Contains(out, "/orders") || !strings.Contains(out, b.name()+"/shipping  2 ") {
		t.Errorf("the next page is %s", out)
	}
	contains(t, on(1, "dead list -schema payments,nobody"), `schema "nobody" has no tables of sagamill in any of the databases`)
	contains(t, on(0, "outbox status -schema payments"), "schema "+a.name()+"/payments:\n", "schema "+b.name()+"/payments:\n")
	contains(t, on(0, "saga show stuck"), "schema    "+b.name()+"/shipping\n")
	contains(t, on(1, "saga show none"), "no such instance in any of "+b.name()+"/shipping\n")
	out = on(0, "why stuck")
	contains(t, out, "acme/stuck in schema "+b.name()+"/shipping: stuck")
	a.plant(sqlBegin, "orders")
	contains(t, on(1, "saga pause stuck -why x"), "is in several schemas: say which with -schema: "+a.name()+"/orders, "+b.name()+"/shipping")

	write := func(w *town, schema, scope string) {
		t.Helper()
		writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: schema})
		if err == nil {
			err = pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
				return writer.Write(t.Context(), tx, outbox.Message{Topic: "orders", Scope: scope, Key: "k", Step: "pay", Payload: []byte("{}")})
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(a, "orders", "acme")
	write(b, "shipping", "acme")
	contains(t, on(0, "replay -key k -schema orders,shipping"), "replayed 2 messages\n", a.name()+"/orders", b.name()+"/shipping")
	contains(t, on(0, "replay -yes -since "+time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)+" -schema orders,shipping"), "replayed 2 messages\n")
	write(b, "shipping", "globex")
	contains(t, on(1, "replay -key k -schema orders,shipping"), "the key is used in several scopes: say which with -scope: acme globex")
	var n int
	if err := a.db.QueryRow(t.Context(), "SELECT count(*) FROM orders.outbox").Scan(&n); err != nil || n != 3 {
		t.Errorf("the first database has %d messages, %v; want 3, as nothing is replayed before all scopes are known", n, err)
	}
}
