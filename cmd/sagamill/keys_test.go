package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/keys"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// sqlUnknown has two requests whose outcome is unknown, one that runs and one that is completed.
const sqlUnknown = `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, resp_status, expires_at)
SELECT 'http', 'acme', key, state, '', '', gen_random_uuid(), 1, now() + lease * interval '1 hour', CASE state WHEN 3 THEN 200 END, CASE state WHEN 3 THEN now() + interval '1 hour' ELSE 'infinity' END
FROM (VALUES ('charge-1', 5, -1), ('charge-2', 1, -1), ('runs', 1, 1), ('done', 3, -1)) AS k (key, state, lease)`

// The digests of the first two.
const digest1, digest2 = "e7b3a12344e7", "19b0408ad7ef"

// A keysFixture is a schema with these requests.
type keysFixture struct {
	pool   *pgxpool.Pool
	schema string
}

func newKeysFixture(t *testing.T) *keysFixture {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	if _, err := pool.Exec(t.Context(), strings.ReplaceAll(sqlUnknown, "{schema}", schema)); err != nil {
		t.Fatal(err)
	}
	return &keysFixture{pool, schema}
}

func (f *keysFixture) run(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	return sagamill(t, code, append(append([]string{"keys"}, args...), "-schema", f.schema, "-database", pgtest.URL())...)
}

// stored returns the keys as they are, and the journal.
func (f *keysFixture) stored(t *testing.T) string {
	t.Helper()
	rows, _ := f.pool.Query(t.Context(), strings.ReplaceAll(`SELECT text FROM (
		SELECT 1 AS part, key AS at, concat_ws(' ', key, state, resp_status, convert_from(resp_body, 'UTF8'), CASE WHEN isfinite(expires_at) THEN round(extract(epoch FROM expires_at - now()) / 60)::text END) AS text
		FROM {schema}.idempotency_key WHERE key LIKE 'charge%'
		UNION ALL SELECT 2, id::text, concat_ws(' ', who, verb, why, what) FROM {schema}.operator_journal) all_rows ORDER BY part, at`, "{schema}", f.schema))
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "; ")
}

// A list has the requests whose outcome is unknown by their digests, and by their keys only with -plain.
func TestKeysList(t *testing.T) {
	t.Parallel()
	f := newKeysFixture(t)
	out, _ := f.run(t, 0, "list")
	contains(t, out, "DIGEST", digest1, digest2, "http")
	if strings.Count(out, "\n") != 3 || strings.Contains(out, "charge") || strings.Contains(out, "acme") {
		t.Errorf("the list is\n%s", out)
	}
	out, _ = f.run(t, 0, "list", "-plain", "-scope", "acme", "-namespace", "http")
	contains(t, out, "charge-1", "charge-2", "acme")
	first, more := f.run(t, 0, "list", "-limit", "1")
	contains(t, first, digest1)
	contains(t, more, "there may be more: -after "+digest1)
	second, _ := f.run(t, 0, "list", "-after", digest1)
	if !strings.Contains(second, digest2) || strings.Contains(second, digest1) {
		t.Errorf("the list goes on with\n%s", second)
	}
	if out, _ := f.run(t, 0, "list", "-scope", "none"); strings.Count(out, "\n") != 1 {
		t.Errorf("of another scope:\n%s", out)
	}
	out, _ = f.run(t, 0, "list", "-json")
	for line := range strings.Lines(out) {
		var k keys.Key
		if err := json.Unmarshal([]byte(line), &k); err != nil || k.Schema != f.schema || k.Digest == "" || k.Token == "" || k.Key != "" || k.Scope != "" || k.Refusal != "" || k.Attempt != 1 {
			t.Errorf("%v: %s", err, line)
		}
	}
}

// A key is shown by its digest or by itself, and the page says which decision it takes.
func TestKeysShow(t *testing.T) {
	t.Parallel()
	f := newKeysFixture(t)
	out, _ := f.run(t, 0, "show", digest1)
	contains(t, out, "state        unknown", "attempt      1", "keys complete stores an answer")
	if strings.Contains(out, "charge") || strings.Contains(out, "acme") {
		t.Errorf("it prints the key:\n%s", out)
	}
	out, _ = f.run(t, 0, "show", "-key", "charge-1", "-plain")
	contains(t, out, digest1, "charge-1", "acme")
	out, _ = f.run(t, 0, "show", "-key", "runs")
	contains(t, out, "still runs: its lease lasts until")
	out, _ = f.run(t, 0, "show", "-key", "done", "-json")
	contains(t, out, `"state":"completed"`, `"refusal":"operator: nothing was changed`)
	for _, wrong := range [][]string{{"show"}, {"show", digest1, "-key", "k"}, {"show", digest1, "-scope", "acme"}, {"show", digest1, "more"}, {"show", "-key", "none"}, {"show", "x"}, {"show", "-key="}} {
		f.run(t, 1, wrong...)
	}
}

// Without -yes a decision is only printed. With it the record and the journal have it, which do not name the key.
func TestKeysAreDecided(t *testing.T) {
	t.Parallel()
	f := newKeysFixture(t)
	before := f.stored(t)
	body := filepath.Join(t.TempDir(), "answer.json")
	if err := os.WriteFile(body, []byte(`{"paid":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	complete := []string{"complete", digest1, "-status", "201", "-body", body, "-ttl", "2h", "-by", "ann", "-why", "the bank has it"}
	out, errs := f.run(t, 1, complete...)
	contains(t, out, "state        unknown", "would complete the key "+digest1+": a retry gets 201, application/json, 13 bytes", "for 2h0m")
	contains(t, errs, "nothing is done yet: the same with -yes does it")
	f.run(t, 0, append(complete, "-n")...)
	f.run(t, 1, "release", digest1, "-why", "so", "-n", "-yes")
	if is := f.stored(t); is != before {
		t.Errorf("a preview has changed %s to %s", before, is)
	}
	for _, wrong := range []struct{ says, line string }{
		{"-why", "release " + digest1 + " -yes"}, {"-status", "complete " + digest1 + " -why so -yes"}, {"200 to 999", "complete " + digest1 + " -status 99 -why so -yes"},
		{"-ttl", "release " + digest1 + " -why so -ttl 0s -yes"}, {"still runs", "release -key runs -why so -yes"}, {"its state is completed", "release -key done -why so -yes"},
		{"another run has begun", "release " + digest1 + " -token 00000000-0000-0000-0000-000000000000 -why so -yes"}, {"no such file", "complete " + digest1 + " -status 200 -body /none -why so -yes"},
		{"there is no such key", "release 0123456789ab -why so -yes"}, {"the TTL must be", "release " + digest1 + " -why so -ttl 9000h -yes"},
	} {
		_, errs := f.run(t, 1, strings.Fields(wrong.line)...)
		contains(t, errs, wrong.says)
	}
	if is := f.stored(t); is != before {
		t.Errorf("a refusal has changed %s to %s", before, is)
	}
	out, _ = f.run(t, 0, append(complete, "-yes")...)
	contains(t, out, "completed the key "+digest1)
	shown, _ := f.run(t, 0, "show", digest2, "-json")
	var k keys.Key
	if err := json.Unmarshal([]byte(shown), &k); err != nil {
		t.Fatal(err)
	}
	out, _ = f.run(t, 0, "release", digest2, "-token", k.Token, "-by", "bob", "-why", "the bank has none", "-yes", "-json")
	contains(t, out, `"did":"released"`)
	want := `charge-1 3 201 {"paid":true} 120; charge-2 2 1440; ` +
		`ann keys complete the bank has it {"ttl": "2h0m0s", "digest": "` + digest1 + `", "status": "201", "namespace": "http"}; ` +
		`bob keys release the bank has none {"ttl": "24h0m0s", "digest": "` + digest2 + `", "namespace": "http"}`
	if got := f.stored(t); got != want {
		t.Errorf("stored:\n%s\nwant\n%s", got, want)
	}
	_, errs = f.run(t, 1, "release", "-key", "charge-1", "-why", "so", "-yes")
	contains(t, errs, "the outcome of this key is not unknown")
	out, _ = sagamill(t, 0, "journal", "-schema", f.schema, "-database", pgtest.URL())
	contains(t, out, "keys complete", digest1, "the bank has it")
}

// Of several schemas the command finds the one that has the key. A schema without keys says where those of Redis are decided.
func TestKeysOfSeveralSchemas(t *testing.T) {
	t.Parallel()
	w := newTown(t, "orders", "payments")
	w.plant(sqlUnknown, "payments")
	if err := migrations.Up(t.Context(), w.url, "plain", migrations.Outbox); err != nil {
		t.Fatal(err)
	}
	out, _ := sagamill(t, 0, "keys", "release", digest1, "-why", "so", "-yes", "-schema", "orders,payments,plain", "-database", w.url)
	contains(t, out, "released the key "+digest1)
	_, errs := sagamill(t, 1, "keys", "list", "-schema", "plain", "-database", w.url)
	contains(t, errs, "the schema has no idempotency keys", "idemkey.Reconciler", "idemredis.Store.Settle")
	w.plant(sqlUnknown, "orders")
	_, errs = sagamill(t, 1, "keys", "show", digest2, "-schema", "orders,payments", "-database", w.url)
	contains(t, errs, "the key is in several schemas", "orders, payments")
	out, _ = sagamill(t, 0, "status", "-database", w.url)
	contains(t, out, "1 in progress; 2 of unknown outcome, the oldest for 1h", "2 requests of unknown outcome", "no retry runs them before a decision", "sagamill keys list -schema orders\n")
	out, _ = sagamill(t, 0, "status", "-json", "-schema", "orders", "-database", w.url)
	contains(t, out, `"unknown":2,"oldest_unknown_seconds":36`, `"kind":"unknown"`)
}

// The body of an answer may come from standard input.
func TestKeysCompleteReadsStandardInput(t *testing.T) {
	f := newKeysFixture(t)
	in := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(in, []byte("paid"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	usual := os.Stdin
	os.Stdin = file
	defer func() { os.Stdin = usual }()
	var out bytes.Buffer
	line := "keys complete " + digest1 + " -status 200 -content-type text/plain -body - -why so -yes -schema " + f.schema + " -database " + pgtest.URL()
	if code := run(t.Context(), strings.Fields(line), &out, &out); code != 0 || !strings.Contains(f.stored(t), "charge-1 3 200 paid 1440") {
		t.Errorf("exit %d, %s: %s", code, out.String(), f.stored(t))
	}
}
