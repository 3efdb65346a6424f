package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/dead"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
)

// A deadFixture is a schema with parked messages: 1 and 2 dead actions of keys k1
// and k2, 3 a message without a key, 4 a dead letter of k1's key with another
// payload, 5 an action that is retrying.
type deadFixture struct {
	pool   *pgxpool.Pool
	schema string
	stdin  string
}

// noBroker subscribes to nothing: its consumer is handed what it gets.
type noBroker struct{}

func (noBroker) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, errors.New("no broker")
}

func (noBroker) Close() error           { return nil }
func (noBroker) MarksRedelivered() bool { return true }

func newDeadFixture(t *testing.T) *deadFixture {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	f := &deadFixture{pool: pool, schema: schema}
	handler := func(_ context.Context, _ pgx.Tx, in consumer.Message[map[string]any], _ consumer.Emit) error {
		if in.Key == "k5" {
			return errors.New("for now")
		}
		return consumer.Terminal(errors.New("no such card"))
	}
	c, err := consumer.New(pool, noBroker{}, []consumer.Step{{Name: "pay", Action: consumer.On("orders", handler)}},
		&consumer.Options{Schema: schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []struct{ key, payload string }{
		{"k1", `{"secret":"` + secret + `"}`}, {"k2", "{}"}, {"", "{}"}, {"k1", `{"another":1}`}, {"k5", "{}"},
	} {
		msg := message.NewMessage("m-"+m.key, []byte(m.payload))
		if m.key != "" {
			msg.Metadata.Set(outbox.HeaderKey, m.key+":pay")
		}
		msg.Metadata.Set(outbox.HeaderScope, "acme")
		msg.Metadata.Set(outbox.PropertyType, "orders")
		if err := c.Handle(t.Context(), "orders", msg); err != nil {
			t.Fatal(err)
		}
	}
	f.exec(t, "UPDATE {schema}.parked SET last_at = last_at - interval '2 h' WHERE id = 1")
	f.exec(t, "UPDATE {schema}.parked SET due_at = 'infinity' WHERE id = 5")
	return f
}

func (f *deadFixture) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", f.schema), args...); err != nil {
		t.Fatal(err)
	}
}

// run returns what the command says, and fails the test if it ends with another
// code.
func (f *deadFixture) run(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	line := append(append([]string{}, args[:2]...), "-schema", f.schema, "-database", pgtest.URL())
	line = append(line, args[2:]...)
	cmd, rest, _ := findCommand(line)
	c := cli.NewCall(cmd, rest, &out, &errs)
	c.Stdin = strings.NewReader(f.stdin)
	if got := reportEnd(c.Command.Run(t.Context(), c), args, &errs); got != code {
		t.Errorf("sagamill %s: exit %d, want %d: %s", strings.Join(args, " "), got, code, errs.String())
	}
	return out.String(), errs.String()
}

// states returns the messages, and the steps, by what has become of them.
func (f *deadFixture) states(t *testing.T) map[string]string {
	t.Helper()
	rows, _ := f.pool.Query(t.Context(), strings.ReplaceAll(`
		SELECT state, string_agg(id::text, ' ' ORDER BY id) FROM {schema}.parked GROUP BY state
		UNION ALL SELECT 'step ' || key, state FROM {schema}.inbox
		UNION ALL SELECT 'due', string_agg(id::text, ' ' ORDER BY id) FROM {schema}.parked WHERE state = 'retrying' AND due_at <= now() HAVING count(*) > 0`, "{schema}", f.schema))
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

func TestDeadList(t *testing.T) {
	t.Parallel()
	f := newDeadFixture(t)
	for line, want := range map[string]string{
		"":                           "1 2 3 4",
		"-state retrying":            "5",
		"-step pay":                  "1 2 4",
		"-kind unknown":              "3",
		"-reason key-reused":         "4",
		"-error card":                "1 2",
		"-scope acme -key k1":        "1 4",
		"-scope elsewhere":           "",
		"-topic orders -message m-":  "3",
		"-older 1h":                  "1",
		"-newer 1h":                  "2 3 4",
		"-id 3,1 -id 5":              "1 3",
		"-limit 2":                   "1 2",
		"-limit 2 -after 1":          "2 3",
		"-state retrying -step none": "",
	} {
		args := append([]string{"dead", "list"}, strings.Fields(line)...)
		out, errs := f.run(t, 0, args...)
		var ids []string
		for _, row := range strings.Split(strings.TrimSpace(out), "\n")[1:] {
			ids = append(ids, strings.Fields(row)[0])
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("list %s: ids %q, want %q:\n%s", line, got, want, out)
		}
		if strings.Contains(line, "-limit") != strings.Contains(errs, "-after") {
			t.Errorf("list %s: how to go on: %q", line, errs)
		}
		if says := strings.HasPrefix(errs, "no dead letters\n") || strings.HasPrefix(errs, "no retrying messages\n"); says != (want == "") {
			t.Errorf("list %s: that there is none: %q", line, errs)
		}
		if out, errs = f.run(t, 0, append(args, "-json")...); strings.Count(out, "\n") != len(ids) || strings.HasPrefix(errs, "no ") {
			t.Errorf("list %s -json: %s%s", line, out, errs)
		}
	}
	for _, line := range []string{
		"-limit 0", "-limit 5000", "-older -1h", "-newer -1h", "-id x", "-kind both", "-state done", "-key=", "-reason=", "now",
	} {
		f.run(t, 1, append([]string{"dead", "list"}, strings.Fields(line)...)...)
	}
	if _, errs := f.run(t, 1, "dead", "list", "-reason", "nonsense"); !strings.Contains(errs, "none of key-missing, ") || !strings.Contains(errs, ", too-old") {
		t.Errorf("a reason that is none: %q", errs)
	}
}

func TestDeadShow(t *testing.T) {
	t.Parallel()
	f := newDeadFixture(t)
	f.exec(t, `UPDATE {schema}.parked SET message_id = '\xff', header_values[2] = '\xfe', stack = E'main.go:1\n\tmain()',
		earlier_failures = '[{"at": "2026-01-02T03:04:05+00:00", "reason": "unavailable", "error": "bad\u001bday", "stack": "main.go:2"}]' WHERE id = 1`)
	out, _ := f.run(t, 0, "dead", "show", "-id", "1,5")
	for _, want := range []string{`"\xff"`, "terminal", `no such card"`, "main.go:1", "main()", `x-idempotency-key = "\xfe"`, "x-idempotency-scope = acme", "never", "failed", "k5", `2026-01-02T03:04:05Z unavailable: "bad\x1bday"`, "main.go:2"} {
		if !strings.Contains(out, want) {
			t.Errorf("show lacks %q:\n%s", want, out)
		}
	}
	out, _ = f.run(t, 0, "dead", "show", "-id", "1", "-json", "-payload")
	got := dead.Letter{}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("show -json: %v: %s", err, out)
	}
	got.FirstAt, got.LastAt = "", ""
	want := dead.Letter{
		Schema: f.schema, ID: 1, State: "dead", Kind: "action", Scope: "acme", Key: "k1", Step: "pay", Topic: "orders", MessageBase64: []byte{0xff},
		Headers:       map[string]string{"x-idempotency-scope": "acme", "type": "orders"},
		HeadersBase64: map[string][]byte{"x-idempotency-key": {0xfe}},
		Earlier:       []dead.EarlierFailure{{At: "2026-01-02T03:04:05Z", Reason: "unavailable", Error: "bad\x1bday", Stack: "main.go:2"}},
		Reason:        "terminal", Error: got.Error, Stack: "main.go:1\n\tmain()", Attempts: 1, Size: 27, Payload: `{"secret":"` + secret + `"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("show -json (-want +got):\n%s", diff)
	}

	// A stack that differs from an earlier one only in numbers of one run is not printed again.
	f.exec(t, `UPDATE {schema}.parked SET stack = E'goroutine 7 [running]:\nmain(0x1f)\n\tmain.go:1', earlier_failures = jsonb_build_array(
		jsonb_build_object('reason', 'failed', 'error', 'x', 'stack', E'goroutine 12 [running]:\nmain(0x2e)\n\tmain.go:1'),
		jsonb_build_object('reason', 'failed', 'error', 'x', 'stack', E'goroutine 12 [running]:\nmain(0x2e)\n\tmain.go:9'), jsonb_build_object('reason', 'failed', 'error', 'x')) WHERE id = 1`)
	out, _ = f.run(t, 0, "dead", "show", "-id", "1")
	for text, times := range map[string]int{"main.go:1": 1, "main.go:9": 1, "same lines of code": 1} {
		if n := strings.Count(out, text); n != times {
			t.Errorf("show has %q %d times, want %d:\n%s", text, n, times, out)
		}
	}
	f.run(t, 1, "dead", "show")
	if _, errs := f.run(t, 1, "dead", "show", "-id", "99"); !strings.Contains(errs, "no such dead letter") {
		t.Errorf("show of none says %q", errs)
	}
}

func TestPayloadsOfStepsArePrintedOnlyWhenAskedFor(t *testing.T) {
	t.Parallel()
	f := newDeadFixture(t)
	for _, line := range []string{
		"list", "list -json", "show -id 1", "show -id 1 -json", "plan -id 1", "plan -id 1 -json", "redrive -id 1 -n -json", "discard -id 1 -n -json",
		"edit -id 1 -header x=y -n", "edit -id 1 -header x=y -n -json", "edit -id 1 -header x=y", "discard -id 1 -json",
	} {
		if out, errs := f.run(t, 0, append([]string{"dead"}, strings.Fields(line)...)...); strings.Contains(out+errs, secret) {
			t.Errorf("%s prints a payload:\n%s", line, out)
		}
	}
}

func TestChangesOfParkedMessages(t *testing.T) {
	t.Parallel()
	for line, tt := range map[string]struct {
		code int
		says string
		want map[string]string // differences to the fixture
	}{
		"redrive -id 1,2,5":               {0, "sent round 2 dead letters, removed 0, left 0: 2 run", map[string]string{"dead": "3 4", "retrying": "1 2 5", "due": "1 2", "step k1": "retrying", "step k2": "retrying"}},
		"redrive -all -older 0s -yes":     {0, "sent round 3 dead letters, removed 0, left 1: 1 key-reused, 2 run, 1 unread", map[string]string{"dead": "4", "retrying": "1 2 3 5", "due": "1 2 3", "step k1": "retrying", "step k2": "retrying"}},
		"redrive -all -key k2 -json -yes": {0, `{"did":"redrove","count":1,"removed":0,"left":0,"outcomes":{"run":1}}`, map[string]string{"dead": "1 3 4", "retrying": "2 5", "due": "2", "step k2": "retrying"}},
		"redrive -id 1 -rate 100 ":        {0, "sent round 1 dead letter, ", map[string]string{"dead": "2 3 4", "retrying": "1 5", "due": "1", "step k1": "retrying"}},
		"redrive -all -step pay -n":       {0, "would send round 2 dead letters, remove 0, leave 1", nil},
		"redrive -id 5":                   {1, "nothing was changed", nil},
		"redrive -id 1 -key k2":           {1, "nothing was changed", nil},
		"redrive -id 1 -rate -1":          {1, "-rate", nil},
		"redrive":                         {1, "-id", nil},
		"redrive -all":                    {1, "filter", nil},
		"redrive -all -step pay":          {1, "nothing is done yet: the same with -yes does it", nil},
		"redrive -all -step pay -n -yes":  {1, "and not both", nil},
		"discard -all -step pay":          {1, "would discard 3 dead letters", nil},
		"retry -all -step pay":            {1, "would make due 1 retrying message", nil},
		"redrive -key k1":                 {1, "-all", nil},
		"redrive -all -key=":              {1, "-key is empty", nil},
		"redrive -id 1 now":               {1, `"now"`, nil},
		"plan":                            {0, "would send round 3 dead letters, remove 0, leave 1: 1 key-reused, 2 run, 1 unread", nil},
		"plan -limit 1":                   {0, "these are the first 1", nil},
		"discard -id 2":                   {0, "discarded 1 dead letter\n", map[string]string{"dead": "1 3 4"}},
		"discard -all -kind unknown -yes": {0, "discarded 1 dead letter\n", map[string]string{"dead": "1 2 4"}},
		"discard -all -step pay -n":       {0, "would discard 3 dead letters", nil},
		"discard -id 5":                   {1, "nothing was changed", nil},
		"discard":                         {1, "-id", nil},
		"discard -all":                    {1, "filter", nil},
		"retry -id 5":                     {0, "made due 1 retrying message\n", map[string]string{"due": "5"}},
		"retry -all -step pay -n":         {0, "would make due 1 retrying message\n", nil},
		"retry -id 1":                     {1, "nothing was changed", nil},
		"retry":                           {1, "-id", nil},
		"bury -id 5":                      {0, "buried 1 retrying message\n", map[string]string{"dead": "1 2 3 4 5", "retrying": "", "step k5": "dead"}},
		"bury -id 5 -n":                   {0, "would bury 1 retrying message\n", nil},
		"bury -all -step pay":             {1, "-id", nil},
		"edit -id 1 -payload - -n":        {0, "+ payload 2 bytes", nil},
		"edit -id 5 -header a=b":          {1, "no such dead letter", nil},
		"edit -id 5 -header a=b -n":       {1, "no such dead letter", nil},
		"edit -id 1 -header a":            {1, "name=value", nil},
		"edit -id 1,2 -header a=b":        {1, "-id", nil},
		"edit -id 1 -remove-header no":    {1, "it changes nothing", nil},
		"edit -id 1":                      {1, "it changes nothing", nil},
		"edit -id 1 -payload /no/such":    {1, "no such file", nil},
		`edit -id 1 -payload {"a":1}`:     {1, "sagamill: -payload takes the name of a file", nil},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			f := newDeadFixture(t)
			f.stdin = "{}"
			want := f.states(t)
			for state, ids := range tt.want {
				if want[state] = ids; ids == "" {
					delete(want, state)
				}
			}
			out, errs := f.run(t, tt.code, append([]string{"dead"}, strings.Fields(line)...)...)
			if !strings.Contains(out+errs, tt.says) {
				t.Errorf("it says %q and %q, want %q", out, errs, tt.says)
			}
			if diff := cmp.Diff(want, f.states(t)); diff != "" {
				t.Errorf("messages by state (-want +got):\n%s", diff)
			}
		})
	}
}

// What somebody is at work on, or may have run, is told with a way on.
func TestDeadRedriveSaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	f := newDeadFixture(t)
	tx, err := f.pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "SELECT 1 FROM "+f.schema+".inbox WHERE key = 'k1' FOR UPDATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	f.exec(t, "DELETE FROM {schema}.inbox WHERE key = 'k2'")
	f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = '2100-01-01'")
	out, errs := f.run(t, 1, "dead", "redrive", "-id", "1,2,99")
	for _, want := range []string{"left 2: 1 busy, 1 too-old", "-force", "say it again", "1 of 3 ids left out"} {
		if !strings.Contains(out+errs, want) {
			t.Errorf("it lacks %q: %q, %q", want, out, errs)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, _ := f.run(t, 0, "dead", "redrive", "-id", "1,2", "-force"); !strings.Contains(out, "sent round 2") {
		t.Errorf("forced: %q", out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var buf bytes.Buffer
	if code := run(ctx, []string{"dead", "redrive", "-schema", f.schema, "-database", pgtest.URL(), "-id", "4"}, &buf, &buf); code != 1 || !strings.Contains(buf.String(), "interrupted") {
		t.Errorf("interrupted: exit %d, %q", code, buf.String())
	}
}

func TestDeadEdit(t *testing.T) {
	t.Parallel()
	f := newDeadFixture(t)
	f.stdin = "{"
	if _, errs := f.run(t, 1, "dead", "edit", "-id", "1", "-payload", "-"); !strings.Contains(errs, "-force") {
		t.Errorf("a payload that is no JSON: %q", errs)
	}
	if _, errs := f.run(t, 1, "dead", "edit", "-id", "1", "-header", outbox.HeaderKey+"=k9:pay"); !strings.Contains(errs, "identity") {
		t.Errorf("another key: %q", errs)
	}
	out, _ := f.run(t, 0, "dead", "edit", "-id", "1", "-payload", "-", "-force", "-by", "mallory", "-header", "x-new=a=\x1b", "-remove-header", "type", "-show")
	for _, want := range []string{
		"letter 1\n", "- header type = orders\n", `+ header x-new = "a=\x1b"`, "+ header x-sagamill-edited = \"edit 1 at 2", ` by mallory"`,
		`- payload "{\"secret\":`, `+ payload "{"`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("edit lacks %q:\n%s", want, out)
		}
	}
	if want := "edited 1 dead letter; redrive it with sagamill dead redrive -schema " + f.schema + " -id 1\n"; !strings.HasSuffix(out, want) {
		t.Errorf("edit does not end with %q:\n%s", want, out)
	}
	out, _ = f.run(t, 0, "dead", "edit", "-id", "1", "-header", "x=y", "-n")
	if want := "would edit 1 dead letter; nothing is changed\n"; !strings.HasSuffix(out, want) {
		t.Errorf("edit -n does not end with %q:\n%s", want, out)
	}
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, []byte(`{"mended":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ = f.run(t, 0, "dead", "edit", "-id", "3", "-payload", file, "-header", outbox.HeaderKey+"=k3:pay", "-json", "-show")
	var got dead.Letter
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Payload != `{"mended":true}` || !got.Edited || got.Headers[outbox.HeaderKey] != "k3:pay" || got.Headers[operator.HeaderEdited] == "" {
		t.Errorf("edit -json: %v: %s", err, out)
	}
	if out, _ := f.run(t, 0, "dead", "plan", "-id", "1,3"); !strings.Contains(out, "undecodable") || !strings.Contains(out, "unread") {
		t.Errorf("a plan of what was edited:\n%s", out)
	}
	whole, _ := f.run(t, 0, "dead", "plan", "-older", "0s")
	if out, _ := f.run(t, 0, "dead", "plan", "-all", "-older", "0s"); out != whole || !strings.Contains(out, "undecodable") {
		t.Errorf("a plan with the flags of a redrive:\n%s\nwant\n%s", out, whole)
	}
	if _, problem := f.run(t, 1, "dead", "plan", "-all"); !strings.Contains(problem, "say which: with -id, or with -all and a filter") {
		t.Errorf("a plan of all without a filter: %s", problem)
	}
}

// Whatever a command asks of a schema without tables, it says what to do.
func TestDeadWithoutTables(t *testing.T) {
	t.Parallel()
	f := newDeadFixture(t)
	f.schema = "no_such_schema"
	for _, line := range []string{
		"list", "show -id 1", "plan", "redrive -id 1", "redrive -id 1 -n", "edit -id 1 -header a=b", "edit -id 1 -header a=b -n",
		"discard -id 1", "discard -id 1 -json", "discard -id 1 -n", "retry -id 1", "bury -id 1",
	} {
		if _, errs := f.run(t, 1, append([]string{"dead"}, strings.Fields(line)...)...); !strings.Contains(errs, "has it been migrated (") {
			t.Errorf("%s: %q", line, errs)
		}
	}
}

// What is discarded is printed first, whole if somebody wants it so.
func TestDeadDiscardPrintsWhatItThrowsAway(t *testing.T) {
	t.Parallel()
	f := newDeadFixture(t)
	out, _ := f.run(t, 0, "dead", "discard", "-all", "-yes", "-key", "k1", "-json", "-payload")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], secret) || lines[2] != `{"did":"discarded","count":2}` {
		t.Errorf("discard -json:\n%s", out)
	}
}

// Whatever others have put into a parked message, a terminal does not get to see it.
func TestATerminalObeysNoParkedMessage(t *testing.T) {
	t.Parallel()
	f := newDeadFixture(t)
	f.exec(t, `UPDATE {schema}.inbox SET scope = $1 || id, key = $1, step = $1, n = $1 FROM (SELECT scope s, key k, row_number() OVER () id FROM {schema}.inbox) x WHERE s = scope AND k = key`, evil)
	f.exec(t, `UPDATE {schema}.parked SET scope = CASE WHEN key IS NULL THEN NULL ELSE $1 || id END, key = CASE WHEN key IS NULL THEN NULL ELSE $1 END,
		step = CASE WHEN key IS NULL THEN NULL ELSE $1 END, n = CASE WHEN key IS NULL THEN NULL ELSE $1 END, topic = $1, reason = $1, error = $1, stack = $1,
		message_id = convert_to($1, 'UTF8'), header_names = ARRAY[convert_to($1, 'UTF8')], header_values = ARRAY[convert_to($1, 'UTF8')], payload = convert_to($1, 'UTF8')`, evil)
	for _, line := range []string{
		"list", "list -json", "list -state retrying", "show -id 1 -payload", "show -id 1 -payload -json", "plan", "plan -json", "redrive -id 1 -n", "discard -id 1 -n",
		"edit -id 1 -header x=\x1b -n -show", "discard -id 1 -json -payload",
	} {
		out, errs := f.run(t, 0, append([]string{"dead"}, strings.Split(line, " ")...)...)
		for _, r := range strings.ReplaceAll(out+errs, "\n", "") {
			if !strconv.IsPrint(r) {
				t.Errorf("%s prints %U:\n%q", line, r, out)
				break
			}
		}
		if strings.Contains(line, "-json") {
			var got struct{ Key, Error string }
			if err := json.Unmarshal([]byte(strings.SplitAfter(out, "\n")[0]), &got); err != nil || got.Error != evil || got.Key != evil {
				t.Errorf("%s: %v: what was escaped does not come back: %q", line, err, fmt.Sprint(got))
			}
		}
	}
}
