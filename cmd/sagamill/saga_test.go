package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/sagas"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/saga"
)

func TestSagaListAndShow(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	f.start("k")
	f.start("o'dd")
	f.command(0, "saga", "pause", "k", "-why", "a \x1b[31mtest", "-by", "ann")
	out := f.command(0, "saga", "list", "-limit", "1")
	for _, want := range []string{"SCOPE  KEY  NESTED  SAGA  VERSION  STATUS", "acme   k    -       trip  1        paused", `there may be more: -after '"acme","k",""'`} {
		if !strings.Contains(out, want) {
			t.Errorf("list says\n%swant %s", out, want)
		}
	}
	if out := f.command(0, "saga", "list", "-after", `"acme","k",""`, "-limit", "1"); !strings.Contains(out, "o'dd") || !strings.Contains(out, `'"acme","o\x27dd",""'`) {
		t.Errorf("list behind k says\n%s", out)
	}
	var listed sagas.Instance
	if err := json.Unmarshal([]byte(f.command(0, "saga", "list", "-key", "k", "-json")), &listed); err != nil || listed.Status != "paused" || listed.Scope != "acme" || listed.StartedAt == "" || listed.DueAt != "" {
		t.Errorf("list -json: %v, %+v", err, listed)
	}
	out = f.command(0, "saga", "show", "-scope", "acme", "k", "-state")
	for _, want := range []string{
		"status    paused", "instance  acme/k", "state     {\"item\":\"x\"}", "STEP    STATE    ATTEMPT  BEGAN", "flight  running  1", "hotel   to-come  -",
		"would be undone if cancelled now: flight\n", `pause by ann: a \u001b[31mtest`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("show says\n%swant %s", out, want)
		}
	}
	var shown sagas.Timeline
	if err := json.Unmarshal([]byte(f.command(0, "saga", "show", "-key", "k", "-json")), &shown); err != nil || len(shown.Steps) != 2 || !shown.Paused || shown.State != nil ||
		len(shown.Journal) != 1 || shown.Journal[0].By != "ann" || shown.Undo[0][0] != "flight" || !strings.HasSuffix(shown.Steps[0].N, "-1.1") {
		t.Errorf("show -json: %v, %+v", err, shown)
	}
	for args, want := range map[string]string{
		"saga list -status stuck":    "no instances",
		"saga list -older 1h":        "no instances",
		"saga list -status all":      "paused",
		"saga list -saga trip":       "running",
		"saga list -version 2":       "no instances",
		"saga list -json -key other": "",
	} {
		if out := f.command(0, strings.Fields(args)...); !strings.Contains(out, want) {
			t.Errorf("%s: %s, want %s", args, out, want)
		}
	}
	f.exec("UPDATE {home}.saga SET status = 'completed', ended_at = now() WHERE key = 'k'")
	if out := f.command(0, "saga", "list", "-ended", "1h"); !strings.Contains(out, "completed") || strings.Contains(out, "o'dd") {
		t.Errorf("list -ended says\n%swant k alone", out)
	}
	for args, want := range map[string]string{
		"saga list -status done":  "it is none of running",
		"saga list -ended -1h":    "-ended must not be negative",
		"saga list -key=":         "-key is empty",
		"saga list -limit 0":      "-limit",
		"saga list -older -1h":    "negative",
		"saga list -after k":      `it must be "SCOPE","KEY","PATH"`,
		"saga list k":             `"k" is not a flag`,
		"saga show":               "say which saga: its KEY",
		"saga show none":          "no such instance",
		"saga show k -scope none": "no such instance",
		"saga show k -path 9.9":   "no such instance",
		"saga show k -scope=":     "-scope is empty",
		"saga show k more":        `"more" is not a flag`,
	} {
		if out := f.command(1, strings.Fields(args)...); !strings.Contains(out, want) {
			t.Errorf("%s: %s, want %s", args, out, want)
		}
	}
}

// Every service has the tables of sagas; only the orchestrator's schema has any. A command about one instance finds the
// schema that has it.
func TestSagasAreLookedForWhereThereAreSome(t *testing.T) {
	t.Parallel()
	url, definition := pgtest.Database(t), saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "flight", Do: saga.Tell("flight.book", func(s *trip) trip { return *s })}))
	for _, schema := range []string{"orchestrator", "participant"} {
		if err := migrations.Up(t.Context(), url, schema); err != nil {
			t.Fatal(err)
		}
	}
	show := func(want int, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if code := run(t.Context(), append([]string{"saga", "show", "-database", url}, args...), &out, &out); code != want {
			t.Errorf("saga show %q: exit %d, %s; want %d", args, code, out.String(), want)
		}
		return out.String()
	}
	const hint = "say which schema with -schema"
	if out := show(1, "k"); !strings.HasSuffix(out, "no such instance (there are no sagas in any of orchestrator, participant)\n") {
		t.Errorf("without sagas anywhere it says %s; want where it has looked", out)
	}
	db, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	begin := func(schema, key string) {
		t.Helper()
		starter, err := saga.NewStarter(definition, &saga.StarterOptions{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			_, err := starter.Start(t.Context(), tx, saga.ID{Scope: "acme", Key: key}, trip{"x"})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	begin("orchestrator", "k")
	if out := show(1, "k", "-schema", "participant"); !strings.HasSuffix(out, hint+": there are sagas in orchestrator)\n") {
		t.Errorf("in the other schema it says %s; want it to end with the one schema that has sagas", out)
	}
	if out := show(1, "other", "-schema", "orchestrator"); strings.Contains(out, hint) {
		t.Errorf("in the schema that has sagas it says %s", out)
	}
	if out := show(1, "other"); !strings.HasSuffix(out, "no such instance in any of orchestrator\n") {
		t.Errorf("of a key that nobody has it says %s", out)
	}
	for _, args := range [][]string{{"k"}, {"k", "-schema", "participant,orchestrator"}} {
		if out := show(0, args...); !strings.Contains(out, "schema    orchestrator\n") || !strings.Contains(out, "instance  acme/k\n") {
			t.Errorf("saga show %q says %s; want the instance of orchestrator", args, out)
		}
	}
	begin("participant", "k")
	for _, args := range [][]string{{"k"}, {"k", "-schema", "participant,orchestrator"}, {"k", "-scope", "acme"}} {
		if out := show(1, args...); !strings.Contains(out, "is in several schemas: say which with -schema: ") || !strings.Contains(out, "orchestrator") || !strings.Contains(out, "participant") {
			t.Errorf("saga show %q says %s; want the schemas that have it", args, out)
		}
	}
	if out := show(0, "k", "-schema", "participant"); !strings.Contains(out, "schema    participant\n") {
		t.Errorf("named, it says %s", out)
	}
}

func TestSagaVerbs(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	f.start("k")
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"pause k", 1, "say why, with -why"},
		{"pause k -why x -by=", 1, "say who decides it, with -by"},
		{"pause k -why x -step flight", 1, "-step"},
		{"pause k -why x -n", 1, "-n"},
		{"pause none -why x", 1, "no such instance"},
		{"pause k -why x", 0, "trip, version 1, acme/k is paused; sagamill saga resume goes on"},
		{"pause k -why x", 1, "refused: it is paused already"},
		{"resume -why x k", 0, "is running; an orchestrator goes on"},
		{"compensate k -why x", 1, "say with -to which step"},
		{"compensate k -why x -to flight", 1, "refused: step flight is not done itself"},
		{"reject k -why x", 1, "say with -step which step"},
		{"skip k -why x -step bus", 1, "its steps are flight, hotel"},
		{"skip k -why x -step flight -result {", 1, "the result is not JSON"},
		{"retry k -why x -step=", 1, "-step is empty"},
		{"retry k -why x", 1, "refused: no step is stuck"},
		{"retry k -why x -step flight", 0, "is running"},
		{`skip k -why x -step flight -result {"item":"y"} -json`, 0, `"status":"running"`},
		{"skip k -why x -step flight", 1, "refused: step flight is done"},
	} {
		if out := f.command(tt.code, append([]string{"saga"}, strings.Fields(tt.args)...)...); !strings.Contains(out, tt.says) {
			t.Errorf("saga %s: %s, want %s", tt.args, out, tt.says)
		}
	}
	f.why("k", "step hotel: command hotel.reserve is not published yet")
	f.command(0, "saga", "compensate", "k", "-to", "flight", "-why", "x")
	f.why("k", "compensation of step hotel: command hotel.cancel is not published yet")
	f.command(0, "saga", "skip", "k", "-step", "hotel", "-why", "x")
	f.why("k", "paused when it had gone back; sagamill saga resume goes on")
	f.command(0, "saga", "resume", "k", "-why", "x")
	f.why("k", "step hotel: command hotel.reserve is not published yet")
	f.command(0, "saga", "reject", "k", "-step", "hotel", "-why", "x")
	if out := f.why("k", "compensation of step flight: command flight.cancel is not published yet"); !strings.Contains(out, "compensating, started at 20") {
		t.Errorf("why k says\n%s", out)
	}
	if out := f.command(0, "saga", "skip", "k", "-step", "flight", "-why", "x"); !strings.Contains(out, "acme/k is compensated\n") {
		t.Errorf("the last skip says %s", out)
	}
	if out := f.command(1, "saga", "cancel", "k", "-why", "x"); !strings.Contains(out, "refused: the instance is compensated") {
		t.Errorf("cancel says %s", out)
	}
}

// A verb on many instances previews without -yes, says how many it has changed and why it has left others, and asks for a
// filter, so that a forgotten flag does not decide about all.
func TestSagaVerbsOnMany(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	for _, key := range []string{"a", "b", "c"} {
		f.start(key)
	}
	f.command(0, "saga", "skip", "c", "-step", "flight", "-why", "x")
	f.eventually("the hotel of c is asked", func() bool {
		return strings.Contains(f.command(0, "saga", "list", "-key", "c"), "hotel  reply")
	})
	for _, tt := range []struct {
		args string
		code int
		says []string
	}{
		{"retry -all -why x", 1, []string{"-all needs a filter; -all -older 0s picks every live instance"}},
		{"pause -all -yes -why x", 1, []string{"-all needs a filter"}},
		{"skip -all -step hotel -yes -why x", 1, []string{"-all needs a filter"}},
		{"retry -all -saga= -why x", 1, []string{"-saga is empty"}},
		{"retry -all -key= -why x", 1, []string{"-key is empty"}},
		{"retry -all -older -1s -why x", 1, []string{"must not be negative"}},
		{"retry -all -older 0s -rate -1 -why x", 1, []string{"-rate must not be negative"}},
		{"retry -all -older 0s", 1, []string{"say why, with -why"}},
		{"retry -all -path 1.1 -older 0s -why x", 1, []string{"-path names one instance"}},
		{"retry -all -status completed -why x", 1, []string{"an instance that is completed takes no decision"}},
		{"retry a -yes -why x", 1, []string{"-yes is for many instances, with -all"}},
		{"retry a -silent 0s -why x", 1, []string{"-silent is for many instances, with -all"}},
		{"retry -yes -silent 0s -why x", 1, []string{"say which saga: its KEY"}},
		{"retry -all -step flight -n -yes -why x", 1, []string{"say -n or -yes, and not both"}},
		{"retry -all -step flight -why x", 1, []string{"acme   a ", "acme   b ", "flight  reply", "would retry 2 instances\nrefused by 1: step flight is done\n", "the same with -yes does it"}},
		{"retry -all -step flight -why x -n", 0, []string{"would retry 2 instances"}},
		{"retry -all -step flight -why x -json", 1, []string{`"key":"a"`, `{"did":"would retry","count":2,"refused":{"step flight is done":1},"changed":0,"busy":0}`}},
		{"retry -all -step bus -why x -yes", 1, []string{"retried 0 instances\nrefused by 3: there is no step \"bus\" in trip, version 1\n", "nothing was done"}},
		{"retry -all -step flight -silent 1h -why x -yes", 1, []string{"retried 0 instances\n"}},
		{"retry -all -step flight -why x -yes", 0, []string{"retried 2 instances\nrefused by 1: step flight is done\n"}},
		{"pause -all -saga trip -version 1 -why x -yes", 0, []string{"paused 3 instances\n"}},
		{"pause -all -status paused -why x -yes", 1, []string{"paused 0 instances\nrefused by 3: it is paused already\n"}},
		{"resume -all -key c -why x -yes -json", 0, []string{`{"did":"resumed","count":1,"changed":0,"busy":0}`}},
		{"resume -all -scope acme -why x -yes", 0, []string{"resumed 2 instances\nrefused by 1: it is not paused\n"}},
		{"cancel a -all -why x -yes", 0, []string{"cancelled 1 instance\n"}},
		{"reject -all -step flight -older 0s -why x -yes", 0, []string{"rejected the step of 1 instance\n"}},
		{"skip -all -step hotel -older 0s -why x -yes", 0, []string{"skipped the step of 1 instance\n"}},
	} {
		f.eventually("the orchestrator has done what was decided before", func() (idle bool) {
			err := f.db.QueryRow(t.Context(), "SELECT NOT EXISTS (SELECT FROM "+f.home+".saga WHERE ended_at IS NULL AND (tries > 0 OR due_at <= clock_timestamp()))").Scan(&idle)
			return err == nil && idle
		})
		out := f.command(tt.code, append([]string{"saga"}, strings.Fields(tt.args)...)...)
		for _, want := range tt.says {
			if !strings.Contains(out, want) {
				t.Errorf("saga %s: %s, want %s", tt.args, out, want)
			}
		}
	}
	if out := f.command(0, "saga", "show", "b", "-scope", "acme"); strings.Count(out, "retry flight by ") != 1 {
		t.Errorf("show says\n%s\nwant one entry for the retry of all", out)
	}
}

func TestSagaCheck(t *testing.T) {
	t.Parallel()
	f := newTrips(t)
	f.start("k")
	manifest := func(plans ...saga.Plan) string {
		text, err := json.Marshal(saga.NewManifest(plans...))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "manifest.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ask := func(s *trip) trip { return *s }
	other := saga.Must(saga.Define("trip", 2, saga.Step[trip]{Name: "x", Do: saga.Remote("x", ask, func(*trip, trip) {})}))
	changed := saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "x", Do: saga.Remote("x", ask, func(*trip, trip) {})}))
	if out := f.command(0, "saga", "check", "-manifest", manifest(f.definition, other)); !strings.Contains(out, "trip  1        1     can be finished") {
		t.Errorf("check says\n%s", out)
	}
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-manifest", manifest(other)}, 1, "the version is not registered\nsagamill: 1 version cannot be finished by that binary"},
		{[]string{"-manifest", manifest(changed)}, 1, "its steps have been changed without raising the version"},
		{[]string{"-manifest", manifest(changed), "-json"}, 1, `"saga":"trip","version":1,"live":1,"problem":"its steps`},
		{[]string{"-manifest", manifest(changed), "-saga", "other,more"}, 0, ""},
		{[]string{"-manifest", manifest(changed), "-saga="}, 1, "-saga is empty"},
		{[]string{"-manifest", "/no/such"}, 1, "no such file"},
		{nil, 1, "say with -manifest"},
	} {
		if out := f.command(tt.code, append([]string{"saga", "check"}, tt.args...)...); !strings.Contains(out, tt.says) {
			t.Errorf("check %s: %s, want %s", tt.args, out, tt.says)
		}
	}
}

// Without -schema, an error for missing tables says which schemas have some.
func TestTheErrorNamesSchemas(t *testing.T) {
	t.Parallel()
	pgtest.Schema(t)
	pgtest.Schema(t) // one alone would be the default
	for _, words := range []string{"saga list", "dead list", "journal", "saga pause -all -older 0s -why x"} {
		for _, given := range []bool{false, true} {
			cmd, rest, _ := findCommand(strings.Fields(words))
			c := cli.NewCall(cmd, append(rest, "-database", pgtest.URL()), io.Discard, io.Discard)
			if given {
				c.Args = append(c.Args, "-schema", "no_such_schema")
			} else if err := c.Flags.Lookup("schema").Value.Set("no_such_schema"); err != nil { // as if it were the default
				t.Fatal(err)
			}
			err := c.RunCommand(t.Context())
			if err == nil || strings.Contains(err.Error(), "with -schema: there are ") == given || strings.Count(err.Error(), "has it been migrated") != 1 {
				t.Errorf("%s, with -schema %t: %v", words, given, err)
			}
		}
	}
}
