package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/operator"
)

// withoutRow are the commands that leave no row in the journal of operators: they show
// something, are about sagas, which have a journal of their own, or know no database. The pages of the console leave rows.
var withoutRow = []string{
	"init", "dev", "console", "status", "migrate up", "migrate print", "migrate roles", "migrate version", "migrate down", "broker permissions", "broker declare", "broker check", "broker delete", "topology asyncapi", "version",
	"outbox status", "outbox dead list", "outbox dead show", "outbox refused list", "dead list", "dead show", "dead plan", "journal", "why", "keys list", "keys show",
	"saga list", "saga show", "saga check",
	"saga pause", "saga resume", "saga cancel", "saga compensate", "saga skip", "saga reject", "saga retry",
}

// A deed is a command line, and what the journal says of it.
type deed struct {
	line string
	ids  []int64
	what string
}

// deeds are all that changes messages, by the fixture whose they are.
var deeds = map[string][]deed{
	"dead": {
		{"dead redrive -id 1,2", []int64{1, 2}, `{}`},
		{"dead redrive -id 1 -key k1", []int64{1}, `{"key":"k1"}`},
		{"dead redrive -all -step pay -older 0s -force -yes", []int64{1, 2}, `{"step":"pay","force":"true"}`},
		{"dead edit -id 1 -header x-own=s3cret-payload -remove-header type", []int64{1}, `{"set":"x-own","removed":"type"}`},
		{"dead edit -id 2 -payload -", []int64{2}, `{"payload":"SHA-256 860c5e…","payload_was":"SHA-256 44136f…"}`},
		{"dead discard -id 2,99", []int64{2}, `{}`},
		{"dead discard -all -kind unknown -yes", []int64{3}, `{"kind":"unknown"}`},
		{"dead discard -all -kind unknown -yes -json", []int64{3}, `{"kind":"unknown"}`},
		{"dead retry -id 5", []int64{5}, `{}`},
		{"dead bury -id 5", []int64{5}, `{}`},
	},
	"outbox": {
		{"outbox dead redrive -id 1", []int64{1}, `{}`},
		{"outbox dead redrive -all -reason queue -yes", []int64{1, 3}, `{"reason":"queue"}`},
		{"outbox dead discard -all -topic orders -older 1h -yes", []int64{1}, `{"topic":"orders","older":"1h0m0s"}`},
		{"outbox refused release -id 4", []int64{4}, `{}`},
	},
	"keys": {
		{"keys release " + digest1 + " -yes", []int64{1}, `{"digest":"` + digest1 + `","namespace":"http","ttl":"24h0m0s"}`},
		{"keys complete " + digest1 + " -status 204 -ttl 1h -yes", []int64{1}, `{"digest":"` + digest1 + `","namespace":"http","status":"204","ttl":"1h0m0s"}`},
	},
	"replay": {
		{"replay -key k1", []int64{2}, `{"key":"k1"}`},
		{"replay -since 2020-01-01T00:00:00Z -scope acme -yes", []int64{1, 2, 3}, `{"since":"2020-01-01T00:00:00Z","scope":"acme"}`},
	},
}

// idle are command lines that change nothing.
var idle = map[string][]string{
	"dead":   {"dead redrive -id 1 -n", "dead redrive -id 4", "dead redrive -all -step pay", "dead discard -id 99", "dead retry -id 1", "dead bury -id 1", "dead edit -id 1 -header a=b -n", "dead edit -id 1"},
	"outbox": {"outbox dead redrive -all -topic orders", "outbox dead discard -id 4", "outbox refused release -id 1"},
	"replay": {"replay -key k1 -n", "replay -key none", "replay -since 2020-01-01T00:00:00Z"},
}

// open returns the schema of a fixture, and the id of the message that deeds call 1.
func open(t *testing.T, fixture string) (schema string, first int64) {
	t.Helper()
	switch fixture {
	case "dead":
		return newDeadFixture(t).schema, 1
	case "outbox":
		return newOutboxFixture(t).schema, 1
	case "keys":
		return newKeysFixture(t).schema, 1
	}
	pool, schema := kept(t, several(3)...)
	if err := pool.QueryRow(t.Context(), "SELECT min(id) FROM "+schema+".outbox").Scan(&first); err != nil {
		t.Fatal(err)
	}
	return schema, first
}

// say runs a command line on a schema.
func say(t *testing.T, schema, line string, out io.Writer, more ...string) (code int) {
	t.Helper()
	cmd, rest, found := findCommand(strings.Fields(line))
	if !found {
		t.Fatalf("there is no command %s", line)
	}
	c := cli.NewCall(cmd, append(append(rest, "-schema", schema, "-database", pgtest.URL()), more...), out, io.Discard)
	c.Stdin = strings.NewReader(`{"mended":"` + secret + `"}`)
	if c.RunCommand(t.Context()) != nil {
		return 1
	}
	return 0
}

// entriesOf returns what sagamill journal says of a schema.
func entriesOf(t *testing.T, schema string, more ...string) (all []journal.Entry) {
	t.Helper()
	var out bytes.Buffer
	if code := say(t, schema, "journal -json", &out, more...); code != 0 {
		t.Fatalf("journal: exit %d, %s", code, out.String())
	}
	if strings.Contains(out.String(), secret) {
		t.Errorf("the journal tells a secret: %s", out.String())
	}
	for d := json.NewDecoder(&out); d.More(); {
		var e journal.Entry
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// Each command that changes messages leaves one row, which says who has done what, and
// why; what changes nothing leaves none. A new command is in one of these lists.
func TestEachVerbLeavesItsRow(t *testing.T) {
	t.Parallel()
	known := slices.Clone(withoutRow)
	digest := regexp.MustCompile(`(SHA-256 [0-9a-f]{6})[0-9a-f]{58}`)
	for fixture, all := range deeds {
		for _, d := range all {
			cmd, _, _ := findCommand(strings.Fields(d.line))
			known = append(known, cmd.Words)
			t.Run(d.line, func(t *testing.T) {
				t.Parallel()
				schema, first := open(t, fixture)
				began := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
				if code := say(t, schema, d.line, io.Discard, "-by", "ann", "-why", "it is mended"); code != 0 {
					t.Fatalf("exit %d", code)
				}
				got := entriesOf(t, schema, "-since", began)
				if len(got) != 1 || got[0].DBUser == "" {
					t.Fatalf("the journal says %+v, want one row with a database user", got)
				}
				var is, want any
				if err := errors.Join(json.Unmarshal(digest.ReplaceAll(got[0].What, []byte("$1…")), &is), json.Unmarshal([]byte(d.what), &want)); err != nil {
					t.Fatal(err)
				}
				slices.Sort(got[0].IDs)
				for i := range got[0].IDs {
					got[0].IDs[i] -= first - 1
				}
				row := journal.Entry{By: "ann", Verb: cmd.Words, Count: len(d.ids), IDs: d.ids, Why: "it is mended"}
				if diff := cmp.Diff(row, got[0], cmpopts.IgnoreFields(journal.Entry{}, "Schema", "ID", "At", "DBUser", "What")) + cmp.Diff(want, is); diff != "" {
					t.Errorf("the journal (-want +got):\n%s", diff)
				}
			})
		}
	}
	for _, cmd := range listCommands() {
		if !slices.Contains(known, cmd.Words) {
			t.Errorf("sagamill %s: does it change messages? Then it is one of deeds, and else of withoutRow", cmd.Words)
		}
	}
	for fixture, lines := range idle {
		schema, _ := open(t, fixture)
		for _, line := range lines {
			say(t, schema, line, io.Discard)
			if got := entriesOf(t, schema); len(got) > 0 {
				t.Fatalf("%s has changed nothing, and the journal says %+v", line, got)
			}
		}
	}
}

// A full disk keeps what would be discarded, and what is not done is not in the journal.
func TestWhatIsRolledBackHasNoRow(t *testing.T) {
	t.Parallel()
	f := newDeadFixture(t)
	if code := say(t, f.schema, "dead discard -id 1 -json", fullDisk{}); code != 1 {
		t.Errorf("exit %d, want 1", code)
	}
	if got := entriesOf(t, f.schema); len(got) > 0 {
		t.Errorf("the journal says %+v of what was rolled back", got)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestJournal(t *testing.T) {
	t.Parallel()
	f := newDeadFixture(t)
	for _, line := range []string{"dead redrive -id 1,2,3", "dead retry -id 5", "dead bury -id 5"} {
		if code := say(t, f.schema, line, io.Discard, "-by", "o\u202ep", "-why", "ticket 7, \u009b"); code != 0 {
			t.Fatalf("%s: exit %d", line, code)
		}
	}
	for _, tt := range []struct {
		line string
		code int
		says []string
		rows int
	}{
		{"journal", 0, []string{"WHY", `"o\u202ep"`, "dead redrive", "1,2,3", `"ticket 7, \u009b"`}, 3},
		{"journal -limit 1", 0, []string{"dead bury"}, 1},
		{"journal -before 2", 0, []string{"dead redrive"}, 1},
		{"journal -since 2100-01-01T00:00:00Z", 0, nil, 0},
		{"journal -limit 0", 1, nil, -1},
		{"journal -before -1", 1, nil, -1},
		{"journal now", 1, nil, -1},
	} {
		var out bytes.Buffer
		if code := say(t, f.schema, tt.line, &out); code != tt.code {
			t.Errorf("%s: exit %d, want %d", tt.line, code, tt.code)
		}
		for _, want := range tt.says {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s says %s, want %s", tt.line, out.String(), want)
			}
		}
		if rows := strings.Count(out.String(), "\n") - 1; rows != tt.rows {
			t.Errorf("%s prints %d rows, want %d: %s", tt.line, rows, tt.rows, out.String())
		}
	}
	if entries, err := operator.ReadJournal(t.Context(), f.pool, &operator.Options{Schema: "a;b"}, time.Time{}, 0, 1); err == nil {
		t.Errorf("the journal of a schema that is no identifier: %v", entries)
	}
}

// What goes out once more goes at a rate, also if nobody says at which. Each batch, of no
// more than goes in a second, has a row.
func TestTheRateHasALimit(t *testing.T) {
	t.Parallel()
	for fixture, line := range map[string]string{
		"dead": "dead redrive -id 1,2,3", "outbox": "outbox dead redrive -id 1,2,3", "replay": "replay -since 2020-01-01T00:00:00Z -yes",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			cmd, _, _ := findCommand(strings.Fields(line))
			c := cli.NewCall(cmd, []string{"-h"}, io.Discard, io.Discard)
			_ = c.RunCommand(t.Context())
			if rate := c.Flags.Lookup("rate"); rate == nil || rate.DefValue != "500" {
				t.Errorf("the flag is %+v, want 500 by default", rate)
			}
			schema, _ := open(t, fixture)
			if code := say(t, schema, line, io.Discard, "-rate", "2"); code != 0 {
				t.Fatalf("exit %d", code)
			}
			counts := []int{}
			for _, e := range entriesOf(t, schema) {
				counts = append(counts, e.Count)
			}
			if want := []int{1, 2}; !slices.Equal(counts, want) {
				t.Errorf("batches of %v, the last one first; want %v", counts, want)
			}
		})
	}
}
