package operator

import (
	"strings"
	"testing"

	"github.com/sagamill/sagamill/saga"
)

// Choices offers exactly the verbs that the instance would take, and says why it would refuse the others.
func TestChoicesAreThoseThatAreNotRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `INSERT INTO {schema}.saga_definition (name, version, hash, plan) VALUES ('trip', 1, 'h', $1)`,
		`{"name":"trip","version":1,"nodes":[
			{"name":"flight","kind":"remote","topic":"flight","type":"flight","undo":"remote","undo_topic":"no-flight","undo_type":"no-flight"},
			{"name":"car","kind":"nested","saga":"rent","undo":"nested"},
			{"name":"ticket","kind":"remote","topic":"ticket","type":"ticket","pivot":true},
			{"name":"mail","kind":"remote","topic":"mail","type":"mail","retry":{"attempts":3}}]}`)
	n, err := NewInstances(f.pool, &Options{Schema: f.schema, By: "ann", Why: "test"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ status, progress, want string }{
		"first runs":   {"running", `{"phase":"running","steps":[{"state":"running","attempt":1,"message":"e30="},{},{},{}]}`, "pause cancel retry:flight skip:flight reject:flight"},
		"nested runs":  {"running", `{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"running","attempt":1,"message":"e30="},{},{}]}`, "pause cancel compensate-to:flight retry:car skip:car reject:car"},
		"stuck behind": {"stuck", `{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"stuck","attempt":1}]}`, "retry pause retry:mail skip:mail"},
		"paused":       {"paused", `{"phase":"running","paused":true,"steps":[{"state":"done","attempt":1},{},{},{}]}`, "resume cancel"},
		"ended":        {"completed", `{"phase":"completed","steps":[{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"done","attempt":1},{"state":"done","attempt":1}]}`, ""},
	} {
		f.exec(t, `INSERT INTO {schema}.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, ended_at)
			VALUES ('acme', $1, gen_random_uuid(), gen_random_uuid(), 1, 'trip', 'h', now(), '{}', $2, $3, now(), CASE WHEN $3 = 'completed' THEN now() END)`, name, tt.progress, tt.status)
		choices, err := n.Choices(t.Context(), saga.Address{Scope: "acme", Key: name})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range choices {
			word := string(c.Verb)
			if c.Step != "" {
				word += ":" + c.Step
			}
			if c.Refusal != "" && c.Step != "" {
				t.Errorf("%s: the choice %s of a step has the refusal %q", name, word, c.Refusal)
			}
			if c.Refusal == "" {
				got = append(got, word)
			}
			seen, err := n.PreviewAll(t.Context(), InstanceFilter{Scope: "acme", Key: name}, Decision{Verb: c.Verb, Step: c.Step}, nil)
			if err != nil || tt.status != "completed" && (seen.Decided == 1) != (c.Refusal == "") {
				t.Errorf("%s: %s has the refusal %q, and its preview is %+v, %v", name, word, c.Refusal, seen, err)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: choices %s, want %s, of %+v", name, strings.Join(got, " "), tt.want, choices)
		}
	}
	if _, err := n.Choices(t.Context(), saga.Address{Scope: "acme", Key: "none"}); err == nil || !strings.Contains(err.Error(), "no such instance") {
		t.Errorf("choices of no instance: %v", err)
	}
}

// Contents reads log and held messages, each once, and leaves out what is larger than the limit.
func TestContentsOfMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l, err := NewLocator(&Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	f.exec(t, `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, headers, payload, content_type)
		SELECT gen_random_uuid(), 'a', 'a', 's', 'k', 'a', '1', 'k', 'c', '', '{"x-a":"1"}', convert_to(repeat('p', size), 'UTF8'), CASE size WHEN 3 THEN '' ELSE 'text/plain' END FROM unnest(ARRAY[3, 10, 11]) size`)
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, state, due_at, attempts, refused_at)
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, NULL::json, payload, 'dead', now(), 1, now() FROM {schema}.outbox WHERE octet_length(payload) = 10
		UNION ALL SELECT 99, gen_random_uuid(), 'a', 'a', 's', 'k', 'a', '1', 'k', 'c', '', 'text/plain', NULL, 'held', 'dead', now(), 1, now()`)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	all, err := l.Contents(t.Context(), tx, []int64{1, 2, 3, 50, 99}, 10)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range all {
		got = append(got, string(c.Payload))
	}
	if want := "ppp pppppppppp  held"; strings.Join(got, " ") != want || all[0].Headers["x-a"] != "1" || all[0].ContentType != "application/json" || all[1].ContentType != "text/plain" || all[2].Payload != nil {
		t.Errorf("contents = %q, want %q; the first is %+v", strings.Join(got, " "), want, all[0])
	}
}
