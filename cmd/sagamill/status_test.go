package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/status"
	"github.com/sagamill/sagamill/migrations"
)

// One page has all schemas, and then the problems, each with the command to run next.
func TestStatusShowsAllSchemas(t *testing.T) {
	t.Parallel()
	w := newTown(t, "orders", "payments")
	if err := migrations.Up(t.Context(), w.url, "keys", migrations.Idempotency); err != nil {
		t.Fatal(err)
	}
	out, _ := sagamill(t, 0, "status", "-check", "-database", w.url)
	contains(t, out, "orders, version 13 of 13: idempotency, outbox, inbox, saga\n", "payments, version", "keys, version 13 of 13: idempotency\n", "\nno problems\n",
		"outbox        0 stored; 0 delayed, 0 waiting, 0 refused, 0 dead\n", "relay         none, epoch 0\n", "orchestrator  nothing is overdue\n", "requests      0 in progress\n")

	w.plant(sqlPark, "payments")
	w.plant(sqlBegin, "orders")
	w.exec("UPDATE orders.outbox_relay SET holder = 'host\x1b[31m-1', lease_until = now() + interval '1 hour', epoch = 7")
	w.exec("UPDATE payments.outbox_relay SET holder = 'host-2', lease_until = now() - interval '1 hour', epoch = 8")
	out, _ = sagamill(t, 0, "status", "-database", w.url)
	contains(t, out,
		`relay         "host\x1b[31m-1", its lease for 59m`, "more, epoch 7\n", "relay         none; the lease of host-2 ended 1h", "epoch 8\n",
		"inbox         1 retrying, 0 calling, the oldest for 2h0m, nothing is overdue; 3 dead: 2 terminal, 1 key-reused, the oldest for 2h0m\n",
		"sagas         1 running, 0 compensating, one unchanged for 4h0m; 1 stuck, the oldest for 4h0m; 1 paused, the oldest for 4h0m\n",
		"problems:\n", "  payments  3 dead letters of steps: 2 terminal, 1 key-reused, the oldest for 2h0m", "sagamill dead list -schema payments\n",
		"1 saga stuck, the oldest for 4h0m", "sagamill saga list -status stuck -schema orders\n", "sagamill saga list -status paused -schema orders\n")
	if _, errs := sagamill(t, 1, "status", "-check", "-database", w.url); errs != "sagamill: 3 problems: run the command that the page names for each\n" {
		t.Errorf("-check says %q", errs)
	}
	if out, _ := sagamill(t, 0, "status", "-check", "-schema", "keys", "-database", w.url); strings.Contains(out, "orders") {
		t.Errorf("of one schema it says\n%s", out)
	}
	out, _ = sagamill(t, 0, "status", "-json", "-database", w.url)
	all := map[string]status.Schema{}
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var s status.Schema
		if err := d.Decode(&s); err != nil {
			t.Fatal(err)
		}
		all[s.Schema] = s
	}
	p, o := all["payments"], all["orders"]
	if len(all) != 3 || p.Version != 13 || p.Inbox == nil || p.Inbox.Dead != 3 || len(p.Inbox.Parked) != 3 || p.Outbox.Lease > -3600 || len(p.Problems) != 1 || p.Problems[0].Command != "sagamill dead list -schema payments" ||
		o.Sagas.Stuck != 1 || o.Sagas.OldestStuck < 4*3600 || len(o.Problems) != 2 || all["keys"].Outbox != nil || all["keys"].Requests == nil {
		t.Errorf("-json says\n%s", out)
	}
	w.exec("DELETE FROM payments.parked WHERE state = 'dead'")
	out, _ = sagamill(t, 0, "status", "-schema", "payments", "-database", w.url)
	contains(t, out, "\nno problems that need a person; 1 retrying message\n")
}

// Several databases are on one page. The commands to run next name the database of each, and no password.
func TestStatusShowsSeveralDatabases(t *testing.T) {
	t.Parallel()
	a, b := newTown(t, "orders", "payments"), newTown(t, "orders")
	a.plant(sqlPark, "orders")
	b.plant(sqlPark, "orders")
	withPassword := strings.Replace(b.url, "postgres@", "postgres:s3cret@", 1)
	out, _ := sagamill(t, 0, "status", "-database", a.url, "-database", withPassword)
	contains(t, out, a.name()+"/orders, version", a.name()+"/payments, version", b.name()+"/orders, version", " -schema orders -database ")
	if strings.Contains(out, "s3cret") {
		t.Errorf("it prints a password:\n%s", out)
	}
	out, _ = sagamill(t, 0, "status", "-schema", "payments", "-database", a.url, "-database", b.url)
	if strings.Count(out, "version") != 1 || !strings.Contains(out, a.name()+"/payments, ") {
		t.Errorf("of a schema that one database has it says\n%s", out)
	}
	const away = "postgres://nobody:s3cret@127.0.0.1:1/away"
	out, errs := sagamill(t, 1, "status", "-database", away, "-database", a.url)
	contains(t, out, a.name()+"/orders, version", "\nproblems:\n")
	contains(t, errs, "database away: ")
	if strings.Contains(out+errs, "s3cret") {
		t.Errorf("it prints a password:\n%s%s", out, errs)
	}
	for args, want := range map[string]string{
		"-database " + away:                                         "sagamill: ",
		"-schema nobody -database " + a.url:                         "no tables of sagamill in schema nobody",
		"-schema nobody -database " + a.url + " -database " + b.url: "no tables of sagamill in schema nobody",
		"-schema a;b -database " + a.url:                            `schema "a;b" must match`,
		"-schema= -database " + a.url:                               "-schema has an empty name",
		"-database " + a.url + " -database " + a.url:                "-database names the same database twice",
		"-database " + newTown(t).url:                               "no schema with tables of sagamill",
		"-database=":                                                "no database",
	} {
		if _, errs := sagamill(t, 1, append([]string{"status"}, strings.Fields(args)...)...); !strings.Contains(errs, want) {
			t.Errorf("status %s says %q, want %q", args, errs, want)
		}
	}
}
