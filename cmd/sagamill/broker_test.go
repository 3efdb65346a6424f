package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

func topologyFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "topology.json")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestBrokerPermissionsAreCommands(t *testing.T) {
	t.Parallel()
	file := topologyFile(t, `{"prefix": "it's.", "processes": 1, "services": [{"name": "pay", "publishes": ["paid"], "listens": ["ordered"]}]}`)
	var out, complaint bytes.Buffer
	if code := run(t.Context(), []string{"broker", "permissions", "-topology", file, "-vhost", "shop"}, &out, &complaint); code != 0 {
		t.Fatalf("exit %d, %s", code, complaint.String())
	}
	const want = `# By hand, once: each asks for a password.
#   rabbitmqctl add_user 'it'\''s.deploy'
#   rabbitmqctl add_user 'it'\''s.pay'
#   rabbitmqctl delete_user guest   # unless others use it
# As often as you like:
rabbitmqctl set_permissions --vhost 'shop' 'it'\''s.deploy' '^(it'\''s\.ordered|it'\''s\.ordered\.pay|it'\''s\.ordered\.pay\.dead)$' '^(amq\.default|it'\''s\.ordered\.pay)$' '^(it'\''s\.ordered|it'\''s\.ordered\.pay)$'
rabbitmqctl set_user_limits 'it'\''s.deploy' '{"max-connections":6,"max-channels":96}'
rabbitmqctl set_permissions --vhost 'shop' 'it'\''s.pay' '^$' '^(it'\''s\.paid)$' '^(it'\''s\.ordered\.pay|it'\''s\.ordered\.pay\.dead)$'
rabbitmqctl set_user_limits 'it'\''s.pay' '{"max-connections":8,"max-channels":128}'
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	for name, text := range map[string]string{
		"no JSON":           `prefix: x`,
		"no services":       `{"prefix": "x."}`,
		"a member mistyped": `{"prefx": "y.", "services": [{"name": "a"}]}`,
		"one of a service":  `{"services": [{"name": "a", "lisens": ["t"]}]}`,
		"a member twice":    `{"services": [{"name": "a", "name": "b"}]}`,
		"a name of ours":    `{"services": [{"name": "deploy"}]}`,
		"a line of a shell": `{"services": [{"name": "a", "listens": ["x\nrm"]}]}`,
	} {
		out.Reset()
		if code := run(t.Context(), []string{"broker", "permissions", "-topology", topologyFile(t, text)}, &out, &complaint); code != 1 || out.Len() > 0 {
			t.Errorf("%s: exit %d, %q; want 1 and nothing", name, code, out.String())
		}
	}
}

// The file that a person has at hand may be the other one, which a service says at /topology.
func TestBrokerTellsADescriptionFromATopology(t *testing.T) {
	t.Parallel()
	file := topologyFile(t, `{"service": "pay", "steps": []}`)
	var out bytes.Buffer
	code := run(t.Context(), []string{"broker", "permissions", "-topology", file}, &out, &out)
	if code != 1 || !strings.Contains(out.String(), "what a service says at /topology is for sagamill broker check, broker delete and") {
		t.Errorf("%d %q", code, out.String())
	}
}

func TestBrokerDeclare(t *testing.T) {
	t.Parallel()
	prefix := rabbittest.Name()
	queue := prefix + "ordered.pay"
	rabbittest.Delete(t, []string{queue, queue + ".dead"}, []string{prefix + "ordered"})
	file := topologyFile(t, `{"prefix": "`+prefix+`", "services": [{"name": "pay", "publishes": ["paid"], "listens": ["ordered"], "single_active_consumer": true}]}`)
	var out bytes.Buffer
	for range 2 {
		if code := run(t.Context(), []string{"broker", "declare", "-allow-plaintext", "-topology", file, "-amqp", rabbittest.URL()}, &out, &out); code != 0 {
			t.Fatalf("exit %d, %s", code, out.String())
		}
	}
	if !strings.Contains(out.String(), "service pay listens to 1 topic\n") {
		t.Errorf("it says %q", out.String())
	}
	ch := rabbittest.Channel(t, rabbittest.URL())
	for _, name := range []string{queue, queue + ".dead"} {
		if _, err := ch.QueueDeclarePassive(name, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.ExchangeDeclarePassive(prefix+"paid", "fanout", true, false, false, false, nil); err == nil {
		t.Error("there is an exchange without a queue")
	}
}

func TestBrokerDelete(t *testing.T) {
	t.Parallel()
	prefix := rabbittest.Name()
	queue := prefix + "ordered.pay"
	rabbittest.Delete(t, []string{queue, queue + ".dead"}, []string{prefix + "ordered"})
	file := topologyFile(t, `{"prefix": "`+prefix+`", "services": [{"name": "pay", "publishes": ["paid"], "listens": ["ordered"]}]}`)
	said := func(code int, verb string, flags ...string) string {
		t.Helper()
		var out bytes.Buffer
		args := append([]string{"broker", verb, "-topology", file, "-amqp", rabbittest.URL(), "-allow-plaintext"}, flags...)
		if got := run(t.Context(), args, &out, &out); got != code {
			t.Errorf("sagamill %s: exit %d, %s; want %d", strings.Join(args, " "), got, out.String(), code)
		}
		return out.String()
	}
	said(0, "declare")
	ch := rabbittest.Channel(t, rabbittest.URL())
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	if sent, err := ch.PublishWithDeferredConfirm(prefix+"ordered", "", true, false, amqp.Publishing{}); err != nil || !sent.Wait() {
		t.Fatalf("publish: %v", err)
	}
	for _, flags := range [][]string{nil, {"-n"}} {
		if got := said(1, "delete", flags...); strings.Contains(got, "deleted") || !strings.Contains(got, "queue "+queue+": 1 messages, 0 consumers") || !strings.Contains(got, "-force") {
			t.Errorf("of a queue with a message it says %q", got)
		}
	}
	deleted := "deleted queue " + queue + " with 1 message under 0 consumers\ndeleted queue " + queue + ".dead\ndeleted exchange " + prefix + "ordered\n"
	if got, want := said(0, "delete", "-force", "-dry-run"), strings.ReplaceAll(deleted, "deleted", "would delete"); got != want {
		t.Errorf("a dry run says %q, want %q", got, want)
	}
	if got := said(0, "delete", "-force"); got != deleted {
		t.Errorf("it says %q, want %q", got, deleted)
	}
	if got, want := said(0, "delete"), "there is nothing of it\n"; got != want {
		t.Errorf("once more it says %q, want %q", got, want)
	}
}

// The description of a service at /topology names all that is to be deleted.
func TestBrokerDeletesWhatAServiceDescribes(t *testing.T) {
	t.Parallel()
	prefix := rabbittest.Name()
	queues := []string{prefix + "ordered.pay", prefix + "saga.trip.pay"}
	exchanges := []string{prefix + "ordered", prefix + "saga.trip"}
	rabbittest.Delete(t, []string{queues[0], queues[0] + ".dead", queues[1], queues[1] + ".dead"}, exchanges)
	declared := topologyFile(t, `{"prefix": "`+prefix+`", "services": [{"name": "pay", "listens": ["ordered", "saga.trip"]}]}`)
	description := topologyFile(t, `{"service": "pay", "prefix": "`+prefix+`", "steps": [{"name": "charge", "action": {"topic": "ordered", "type": "ordered"},
		"emits": [{"topic": "paid", "type": "paid"}]}], "sagas": [{"name": "trip", "version": 1, "commands": [{"step": "flight", "reply": {"topic": "saga.trip", "type": "saga.reply"}}]}]}`)
	var out bytes.Buffer
	for _, args := range [][]string{{"declare", "-topology", declared}, {"delete", "-topology", description}} {
		out.Reset()
		if code := run(t.Context(), append([]string{"broker", args[0], "-allow-plaintext", "-amqp", rabbittest.URL()}, args[1:]...), &out, &out); code != 0 {
			t.Fatalf("%s: exit %d, %s", args[0], code, out.String())
		}
	}
	for _, name := range exchanges {
		if !strings.Contains(out.String(), "deleted exchange "+name+"\n") {
			t.Errorf("exchange %s is not deleted:\n%s", name, out.String())
		}
	}
	for _, name := range queues {
		if !strings.Contains(out.String(), "deleted queue "+name+"\ndeleted queue "+name+".dead\n") {
			t.Errorf("queue %s is not deleted:\n%s", name, out.String())
		}
	}
	out.Reset()
	if code := run(t.Context(), []string{"broker", "declare", "-allow-plaintext", "-amqp", rabbittest.URL(), "-topology", description}, &out, &out); code != 1 {
		t.Errorf("declare of a description: exit %d, %s", code, out.String())
	}
}
