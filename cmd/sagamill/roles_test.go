package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/suites/roletest"
	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// What a command asks of the database its role may, and no other: a reader shows, an operator
// changes. That little is there makes no difference to PostgreSQL.
func TestCommandsGetByWithTheirRoles(t *testing.T) {
	t.Parallel()
	server := pgservertest.New(t)
	r := roletest.New(t, server, pgtest.Pool(t, server.URL()), pgtest.Name())
	logins := map[string]string{}
	for _, role := range roletest.Names() {
		logins[role] = server.URLOf(r.Member(t, role))
	}
	says := func(role, command string) string {
		t.Helper()
		var out bytes.Buffer
		args := append(strings.Fields(command), "-schema", r.Schema, "-database", logins[role])
		if code := run(t.Context(), args, &out, &out); code == 2 {
			t.Errorf("sagamill %s is no command", command)
		}
		return out.String()
	}
	r.Exec(t, "INSERT INTO "+r.Schema+`.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at)
		VALUES ('acme', 'k', gen_random_uuid(), gen_random_uuid(), 1, 'trip', '', now(), '{}', '{}', 'running', now());
		INSERT INTO `+r.Schema+`.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		SELECT state, 'action', 'acme', 'k', 'pay', '', 'pay', '', '{}', '{}', '', 'failed', now() FROM unnest('{dead,retrying}'::text[]) state;
		INSERT INTO `+r.Schema+`.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload)
		VALUES (gen_random_uuid(), 'pay', 'pay', 'acme', 'k', 'pay', '', 'k', '', '', '', '{}')`)
	for _, tt := range []struct{ may, mayNot, commands string }{
		{"reader", "consumer", "journal"},
		{"operator", "entry", "journal"},
		{"reader", "entry", "outbox status, outbox dead list, outbox dead show -id 1, outbox refused list"},
		{"reader", "relay", "dead list, dead list -state retrying, dead show -id 1, dead plan, saga list, saga show k"},
		{"operator", "reader", "outbox dead redrive -id 1, outbox dead discard -all -older 0s -yes, outbox refused release -id 1"},
		{"operator", "reader", "dead redrive -all -older 0s -yes, dead discard -id 1, dead retry -all -older 0s -yes, dead bury -id 2"},
		{"operator", "reader", "replay -key k, replay -since 2026-01-01T00:00:00Z -yes"},
		{"reader", "entry", "replay -key k -n"},
		{"operator", "reader", "saga pause k -by ann -why so, saga retry k -by ann -why so"},
		{"operator", "reader", "keys list, keys show -key k, keys complete -key k -status 200 -why so -yes, keys release -key k -why so -yes"},
		{"reader", "entry", "status"},
	} {
		for _, command := range strings.Split(tt.commands, ", ") {
			if out := says(tt.mayNot, command); !strings.Contains(out, "denied") {
				t.Errorf("%s: sagamill %s: %s; want that it is denied", tt.mayNot, command, out)
			}
			if out := says(tt.may, command); strings.Contains(out, "denied") {
				t.Errorf("%s: sagamill %s: %s", tt.may, command, out)
			}
		}
	}
	if out := says("reader", "why none"); !strings.Contains(out, "nothing is known of none in 1 schema") {
		t.Errorf("reader: sagamill why none: %s", out)
	}
	if out := says("operator", "why k"); !strings.Contains(out, "may not read") {
		t.Errorf("operator: sagamill why k: %s", out)
	}
}
