package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/outboxes"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// evil is text that a terminal would obey, in a place where others choose it.
const evil = "\x1b[2J\u009b31m\r\n\t\u202e\U000e0041\""

const secret = "s3cret-payload"

// An outboxFixture is a schema with held messages: 1 to 3 dead, 4 refused, 5
// waiting behind it, 6 delayed.
type outboxFixture struct {
	pool   *pgxpool.Pool
	schema string
}

func newOutboxFixture(t *testing.T) *outboxFixture {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	f := &outboxFixture{pool, schema}
	_, err := pool.Exec(t.Context(), `INSERT INTO `+schema+`.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, state, due_at, attempts, reason, refused_at)
		SELECT id, ('01890a5d-ac96-774b-bcce-b3020000000' || id)::uuid, topic, 'order.created', 'acme', 'key-' || id, 'pay', 'a', 'ordering',
			'saga', 'cause', 'application/json', '{"x-own": "h"}', $1, state, due, attempts, reason, refused
		FROM (VALUES (1, 'orders', 'dead', now(), 20, 'no queue', now() - interval '2 h'), (2, 'orders', 'dead', now(), 20, 'too large', now()),
			(3, 'stock', 'dead', now(), 20, 'no queue', now()), (4, 'stock', 'refused', now() + interval '1 h', 2, 'no queue', now()),
			(5, 'stock', 'waiting', 'infinity', 0, '', NULL), (6, 'stock', 'delayed', now() + interval '1 h', 0, '', NULL))
			h (id, topic, state, due, attempts, reason, refused)`, []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// run returns what the command says, and fails the test if it ends with another
// code.
func (f *outboxFixture) run(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	words := 3 // of the command
	if args[1] == "status" {
		words = 2
	}
	line := append(append([]string{}, args[:words]...), "-schema", f.schema, "-database", pgtest.URL())
	if got := run(t.Context(), append(line, args[words:]...), &out, &errs); got != code {
		t.Errorf("sagamill %s: exit %d, want %d: %s", strings.Join(args, " "), got, code, errs.String())
	}
	return out.String(), errs.String()
}

// states returns the messages by what has become of them.
func (f *outboxFixture) states(t *testing.T) map[string]string {
	t.Helper()
	rows, _ := f.pool.Query(t.Context(), "SELECT state, string_agg(id::text, ' ' ORDER BY id) FROM "+f.schema+".outbox_held GROUP BY state")
	defer rows.Close()
	states := map[string]string{}
	for rows.Next() {
		var state, ids string
		if err := rows.Scan(&state, &ids); err != nil {
			t.Fatal(err)
		}
		states[state] = ids
	}
	return states
}

// The broker's answer is the end of an error, and stays.
func TestListsOfTheOutboxKeepTheBrokersAnswer(t *testing.T) {
	t.Parallel()
	f := newOutboxFixture(t)
	const answer = "exchange invoice.lost: 312 NO_ROUTE"
	if _, err := f.pool.Exec(t.Context(), "UPDATE "+f.schema+".outbox_held SET reason = repeat('publish: ', 20) || $1 WHERE attempts > 0", answer); err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{"dead", "refused"} {
		if out, _ := f.run(t, 0, "outbox", list, "list"); !strings.Contains(out, answer) {
			t.Errorf("outbox %s list lacks %q:\n%s", list, answer, out)
		}
	}
}

func TestOutboxStatus(t *testing.T) {
	t.Parallel()
	f := newOutboxFixture(t)
	out, _ := f.run(t, 0, "outbox", "status")
	for _, want := range []string{"dead          3\n", "refused       1\n", "waiting       1\n", "delayed       1\n", "outbox_other", "epoch 0"} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	out, _ = f.run(t, 0, "outbox", "status", "-json")
	var s outboxes.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Dead != 3 || s.Schema != f.schema || len(s.Leaves) != 4 || s.CountLimit == 0 {
		t.Errorf("status -json: %v: %s", err, out)
	}
}

func TestOutboxDeadList(t *testing.T) {
	t.Parallel()
	f := newOutboxFixture(t)
	for line, want := range map[string]string{
		"dead list":                                               "1 2 3",
		"dead list -topic orders":                                 "1 2",
		"dead list -topic orders -reason queue":                   "1",
		"dead list -scope acme -key key-2":                        "2",
		"dead list -scope elsewhere":                              "",
		"dead list -older 1h":                                     "1",
		"dead list -id 3,1 -id 4":                                 "1 3",
		"dead list -message 01890a5d-ac96-774b-bcce-b30200000002": "2",
		"dead list -limit 2":                                      "1 2",
		"dead list -limit 2 -after 1":                             "2 3",
		"refused list":                                            "4",
		"refused list -topic orders":                              "",
	} {
		args := append([]string{"outbox"}, strings.Fields(line)...)
		out, errs := f.run(t, 0, args...)
		var ids []string
		for _, row := range strings.Split(strings.TrimSpace(out), "\n")[1:] {
			ids = append(ids, strings.Fields(row)[0])
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: ids %q, want %q:\n%s", line, got, want, out)
		}
		if strings.Contains(line, "-limit") != strings.Contains(errs, "-after") {
			t.Errorf("%s: how to go on: %q", line, errs)
		}
		out, _ = f.run(t, 0, append(args, "-json")...)
		if got := len(strings.Fields(want)); strings.Count(out, "\n") != got {
			t.Errorf("%s -json: %d lines, want %d:\n%s", line, strings.Count(out, "\n"), got, out)
		}
	}
	for _, line := range []string{"-limit 0", "-limit 5000", "-older -1h", "-id x", "-id 0", "-message 7", "-topic=", "now", "-nonsense"} {
		f.run(t, 1, append([]string{"outbox", "dead", "list"}, strings.Fields(line)...)...)
	}
	if out, _ := f.run(t, 0, "outbox", "refused", "list"); !strings.Contains(out, "T") || strings.Contains(out, "never") {
		t.Errorf("when it is tried again is not told:\n%s", out)
	}
}

func TestOutboxDeadShow(t *testing.T) {
	t.Parallel()
	f := newOutboxFixture(t)
	out, _ := f.run(t, 0, "outbox", "dead", "show", "-id", "1,4")
	for _, want := range []string{
		"01890a5d-ac96-774b-bcce-b30200000001", "orders", "order.created", "acme", "key-1", "pay#a", "ordering", "saga", "cause",
		"application/json", `"{\"x-own\": \"h\"}"`, "20", `"no queue"`, "14", "never", "key-4",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("show lacks %q:\n%s", want, out)
		}
	}
	out, _ = f.run(t, 0, "outbox", "dead", "show", "-id", "1", "-json", "-payload")
	got := outboxes.Letter{}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("show -json: %v: %s", err, out)
	}
	got.CreatedAt, got.RefusedAt = "", ""
	want := outboxes.Letter{
		Schema: f.schema, ID: 1, MessageID: "01890a5d-ac96-774b-bcce-b30200000001", Topic: "orders", Type: "order.created", Scope: "acme", Key: "key-1",
		Step: "pay", N: "a", OrderingKey: "ordering", CorrelationID: "saga", CausationID: "cause", ContentType: "application/json",
		Headers: json.RawMessage(`{"x-own":"h"}`), Attempts: 20, Reason: "no queue", Size: len(secret), Payload: secret,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("show -json (-want +got):\n%s", diff)
	}
	f.run(t, 1, "outbox", "dead", "show")
	if _, errs := f.run(t, 1, "outbox", "dead", "show", "-id", "5"); !strings.Contains(errs, "no such dead letter") {
		t.Errorf("show of a message that waits says %q", errs)
	}
}

func TestPayloadsArePrintedOnlyWhenAskedFor(t *testing.T) {
	t.Parallel()
	f := newOutboxFixture(t)
	for _, line := range []string{
		"dead list", "dead list -json", "dead show -id 1", "dead show -id 1 -json", "dead redrive -id 1 -n", "dead discard -id 1 -n -json",
		"refused list", "refused release -id 4 -n",
	} {
		if out, errs := f.run(t, 0, append([]string{"outbox"}, strings.Fields(line)...)...); strings.Contains(out+errs, secret) {
			t.Errorf("%s prints a payload:\n%s", line, out)
		}
	}
	if out, _ := f.run(t, 0, "outbox", "dead", "show", "-id", "1", "-payload"); !strings.Contains(out, secret) {
		t.Errorf("show -payload prints none:\n%s", out)
	}
	if _, err := f.pool.Exec(t.Context(), "UPDATE "+f.schema+".outbox_held SET payload = '\\xff00'"); err != nil {
		t.Fatal(err)
	}
	if out, _ := f.run(t, 0, "outbox", "dead", "show", "-id", "1", "-payload", "-json"); !strings.Contains(out, `"payload_base64":"/wA="`) {
		t.Errorf("show -payload -json of bytes: %s", out)
	}
}

func TestChangesOfDeadLetters(t *testing.T) {
	t.Parallel()
	for line, tt := range map[string]struct {
		code int
		says string
		want map[string]string // differences to the fixture
	}{
		"dead redrive -id 1,2,4":                                         {0, "redrove 2 dead letters", map[string]string{"dead": "3", "delayed": "1 2 6"}},
		"dead redrive -id 1 -id 1":                                       {0, "redrove 1 dead letter\n", map[string]string{"dead": "2 3", "delayed": "1 6"}},
		"dead redrive -id 1 -topic stock":                                {1, "nothing was changed", nil},
		"dead redrive -all -topic orders -yes":                           {0, "redrove 2 dead letters", map[string]string{"dead": "3", "delayed": "1 2 6"}},
		"dead redrive -all -older 0s -json -yes":                         {0, `{"did":"redrove","count":3}`, map[string]string{"dead": "", "delayed": "1 2 3 6"}},
		"dead redrive -all -topic orders -n":                             {0, "would redrive 2 dead letters", nil},
		"dead redrive -all -reason queue -dry-run":                       {0, "would redrive 2 dead letters", nil},
		"dead discard -id 2":                                             {0, "discarded 1 dead letter\n", map[string]string{"dead": "1 3"}},
		"dead discard -all -reason queue -older 1h -yes":                 {0, "discarded 1 dead letter\n", map[string]string{"dead": "2 3"}},
		"dead discard -all -scope acme -n":                               {0, "would discard 3 dead letters", nil},
		"dead discard -id 4,5,6":                                         {1, "nothing was changed", nil},
		"dead discard":                                                   {1, "-id", nil},
		"dead discard -all":                                              {1, "filter", nil},
		"dead discard -all -scope acme":                                  {1, "would discard 3 dead letters", nil},
		"dead redrive -all -scope acme":                                  {1, "nothing is done yet: the same with -yes does it", nil},
		"dead redrive -all -scope acme -n -yes":                          {1, "and not both", nil},
		"dead redrive -all -scope acme -rate -1":                         {1, "-rate must not be negative", nil},
		"dead redrive -all -scope acme -rate 0 -yes":                     {0, "redrove 3 dead letters", map[string]string{"dead": "", "delayed": "1 2 3 6"}},
		"dead discard -all -topic=":                                      {1, "-topic is empty", nil},
		"dead discard -topic orders":                                     {1, "-all", nil},
		"dead discard -id 1 now":                                         {1, `"now"`, nil},
		"dead redrive -all -older -1s":                                   {1, "-older", nil},
		"refused release -id 4,1":                                        {0, "released 1 refused message\n", map[string]string{"refused": "", "dead": "1 2 3 4"}},
		"refused release -id 4 -n":                                       {0, "would release 1 refused message\n", nil},
		"refused release":                                                {1, "-id", nil},
		"refused release -all -topic stock":                              {1, "-all", nil},
		"dead redrive -id 1 -database postgres://u:s3cret@127.0.0.1:1/x": {1, "connect", nil},
		"dead redrive -id 1 -database postgres://u:s3cret@h:port/x":      {1, "-database", nil},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			f := newOutboxFixture(t)
			want := f.states(t)
			for state, ids := range tt.want {
				if want[state] = ids; ids == "" {
					delete(want, state)
				}
			}
			out, errs := f.run(t, tt.code, append([]string{"outbox"}, strings.Fields(line)...)...)
			if !strings.Contains(out+errs, tt.says) || strings.Contains(out+errs, "s3cret") {
				t.Errorf("it says %q and %q, want %q", out, errs, tt.says)
			}
			if line == "dead redrive -id 1 -id 1" && errs != "" {
				t.Errorf("it complains of an id that was given twice: %q", errs)
			}
			if diff := cmp.Diff(want, f.states(t)); diff != "" {
				t.Errorf("messages by state (-want +got):\n%s", diff)
			}
		})
	}
}

// A dry run shows some of what it counts.
func TestADryRunIsBounded(t *testing.T) {
	t.Parallel()
	f := newOutboxFixture(t)
	_, err := f.pool.Exec(t.Context(), `INSERT INTO `+f.schema+`.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, payload, state, due_at, attempts, refused_at)
		SELECT i, gen_random_uuid(), 'many', '', '', '', '', '', '', '', '', '', '', 'dead', now(), 1, now() FROM generate_series(100, 199) i`)
	if err != nil {
		t.Fatal(err)
	}
	out, errs := f.run(t, 0, "outbox", "dead", "discard", "-all", "-topic", "many", "-n")
	if strings.Count(out, "\n") != 1+cli.PreviewLimit+1 || !strings.Contains(out, "would discard 100") || !strings.Contains(errs, "first 20") {
		t.Errorf("a dry run over 100 prints %d lines, and %q", strings.Count(out, "\n"), errs)
	}
}

// Whatever others have put into a message, a terminal does not get to see it.
func TestATerminalObeysNobody(t *testing.T) {
	t.Parallel()
	f := newOutboxFixture(t)
	headers, err := json.Marshal(map[string]string{evil: evil})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.pool.Exec(t.Context(), `UPDATE `+f.schema+`.outbox_held SET topic = $1, type = $1, scope = $1, key = $1, step = $1, n = $1, ordering_key = $1,
		correlation_id = $1, causation_id = $1, content_type = $1, reason = $1, headers = $2, payload = convert_to($1, 'UTF8')`, evil, headers)
	if err == nil {
		_, err = f.pool.Exec(t.Context(), "UPDATE "+f.schema+".outbox_relay SET holder = $1, lease_until = now() + interval '1 h'", evil)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"status", "status -json", "dead list", "dead list -json", "dead show -id 1 -payload", "dead show -id 1 -payload -json",
		"dead redrive -id 1 -n", "refused list", "refused release -id 4 -n -json",
	} {
		out, errs := f.run(t, 0, append([]string{"outbox"}, strings.Fields(line)...)...)
		for _, r := range strings.ReplaceAll(out+errs, "\n", "") {
			if !strconv.IsPrint(r) {
				t.Errorf("%s prints %U:\n%q", line, r, out)
				break
			}
		}
		if !strings.HasSuffix(line, "-json") {
			continue
		}
		var got struct{ Key, Holder, Payload, Did string }
		if err := json.Unmarshal([]byte(strings.SplitAfter(out, "\n")[0]), &got); err != nil || got.Key != evil && got.Holder != evil {
			t.Errorf("%s: %v: what was escaped does not come back: %q", line, err, fmt.Sprint(got))
		}
	}
}

func TestAnErrorIsEscaped(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	if code := run(t.Context(), []string{"migrate", "up", "-" + evil}, &errs, &errs); code != 1 || strings.ContainsAny(errs.String(), "\x1b\u202e\u009b") {
		t.Errorf("an error says %q", errs.String())
	}
}
