package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

const hour = time.Hour

// putKey stores the record of a key, in attempt 2; with forever it does not expire.
func (f *fixture) putKey(t *testing.T, namespace, scope, key string, state RequestState, lease time.Duration, forever bool) {
	t.Helper()
	f.putRequest(t, namespace, scope, key, state, lease, hour)
	if forever {
		f.exec(t, "UPDATE {schema}.idempotency_key SET expires_at = 'infinity' WHERE namespace = $1 AND scope = $2 AND key = $3", namespace, scope, key)
	}
}

// putUnknown stores unknown outcomes of two namespaces and three scopes, and other records, which no list has.
func (f *fixture) putUnknown(t *testing.T) {
	t.Helper()
	f.putKey(t, "http", "acme", "k1", RequestUnknown, -hour, true)
	f.putKey(t, "http", "acme", "vanished", RequestInProgress, -hour, true)
	f.putKey(t, "http", "zoo", "k1", RequestUnknown, hour, true)
	f.putKey(t, "jobs", "acme", "k3", RequestUnknown, -hour, true)
	f.putKey(t, "http", "acme", "runs", RequestInProgress, hour, true)
	f.putKey(t, "http", "acme", "plain", RequestInProgress, -hour, false)
	f.putKey(t, "http", "acme", "failed", RequestFailed, -hour, false)
	f.putKey(t, "http", "acme", "done", RequestCompleted, -hour, false)
}

func (f *fixture) keys(t *testing.T) *Keys {
	t.Helper()
	return newKeysOf(t, f.pool, f.schema)
}

func newKeysOf(t *testing.T, pool *pgxpool.Pool, schema string) *Keys {
	t.Helper()
	k, err := NewKeys(pool, &Options{Schema: schema, By: "ann", Why: "the bank says so"})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (f *fixture) findKey(t *testing.T, key string) KeyRecord {
	t.Helper()
	found, err := f.keys(t).Find(t.Context(), KeyRef{Namespace: "http", Scope: "acme", Key: key})
	if err != nil {
		t.Fatalf("find %s: %v", key, err)
	}
	return found
}

// A list has unknown outcomes alone, in order, of all namespaces and scopes or of one, page by page.
func TestUnknownOutcomesAreListed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putUnknown(t)
	k := f.keys(t)
	for _, tt := range []struct {
		filter KeyFilter
		want   string
	}{
		{KeyFilter{}, "http/acme/k1 http/acme/vanished http/zoo/k1 jobs/acme/k3"}, {KeyFilter{Scope: "acme"}, "http/acme/k1 http/acme/vanished jobs/acme/k3"},
		{KeyFilter{Namespace: "http"}, "http/acme/k1 http/acme/vanished http/zoo/k1"}, {KeyFilter{"jobs", "acme"}, "jobs/acme/k3"}, {KeyFilter{Scope: "none"}, ""},
	} {
		for _, limit := range []int{1, 2, 100} {
			var got []string
			for after := (KeyRecord{}); ; {
				page, err := k.List(t.Context(), tt.filter, after, limit)
				if err != nil || len(page) > limit {
					t.Fatalf("%+v: %d records, %v", tt.filter, len(page), err)
				}
				if len(page) == 0 {
					break
				}
				for i := range page {
					got = append(got, page[i].Namespace+"/"+page[i].Scope+"/"+page[i].Key)
					if page[i].Attempt != 2 || page[i].Refusal() != nil || time.Since(page[i].Since) > hour {
						t.Errorf("%+v", page[i])
					}
				}
				after = page[len(page)-1]
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%+v, %d at a time: %s, want %s", tt.filter, limit, strings.Join(got, " "), tt.want)
			}
		}
	}
}

// A digest names an open record, and a key any record.
func TestKeysAreFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putUnknown(t)
	k := f.keys(t)
	digest := func(key string) string {
		return idemkey.Identity{Namespace: "http", Scope: "acme", Key: key}.Digest()
	}
	for _, tt := range []struct {
		ref  KeyRef
		want string // the state; "": want the error
		err  error
	}{
		{KeyRef{Digest: digest("k1")}, "unknown", nil}, {KeyRef{Digest: strings.ToUpper(digest("k1"))}, "unknown", nil},
		{KeyRef{Digest: digest("runs")}, "in progress", nil}, {KeyRef{Digest: digest("done")}, "", ErrNoKey}, {KeyRef{Digest: "x"}, "", ErrInvalid},
		{KeyRef{Digest: digest("k1")[:10]}, "", ErrInvalid}, {KeyRef{}, "", ErrInvalid},
		{KeyRef{Key: "done"}, "completed", nil}, {KeyRef{Key: "plain"}, "in progress", nil}, {KeyRef{Key: "none"}, "", ErrNoKey},
		{KeyRef{Key: "k1", Scope: "zoo"}, "unknown", nil}, {KeyRef{Key: "k1", Scope: "none"}, "", ErrNoKey}, {KeyRef{Key: "k1", Namespace: "jobs"}, "", ErrNoKey},
	} {
		got, err := k.Find(t.Context(), tt.ref)
		if !errors.Is(err, tt.err) || err == nil && got.State.String() != tt.want {
			t.Errorf("%+v: %s, %v; want %q, %v", tt.ref, got.State, err, tt.want, tt.err)
		}
	}
	var several *AmbiguousKeyError
	if _, err := k.Find(t.Context(), KeyRef{Key: "k1"}); !errors.As(err, &several) || len(several.Digests) != 2 || !strings.Contains(err.Error(), digest("k1")) {
		t.Errorf("a key of two scopes: %v", err)
	}
}

// A digest is found beyond the first page of the open records.
func TestADigestIsFoundAmongMany(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
		SELECT 'http', 'acme', lpad(i::text, 5, '0'), 5, '', '', gen_random_uuid(), 1, now(), 'infinity' FROM generate_series(1, $1) i`, MaxList+10)
	last := fmt.Sprintf("%05d", MaxList+10)
	got, err := f.keys(t).Find(t.Context(), KeyRef{Digest: idemkey.Identity{Namespace: "http", Scope: "acme", Key: last}.Digest()})
	if err != nil || got.Key != last {
		t.Errorf("%+v, %v", got, err)
	}
}

// keyRow describes what a decision may change in the record of a key.
func (f *fixture) keyRow(t *testing.T, key string) string {
	t.Helper()
	return strings.Join(f.texts(t, `SELECT concat_ws(' ', state, attempt, coalesce(resp_status::text, '-'), coalesce(encode(resp_body, 'escape'), '-'), coalesce(enc_key_id, '-'),
		CASE WHEN isfinite(expires_at) THEN round(extract(epoch FROM expires_at - clock_timestamp()) / 60)::text ELSE 'forever' END)
		FROM {schema}.idempotency_key WHERE scope = 'acme' AND key = $1`, key), "; ")
}

// journaledKeys returns the entries of the journal.
func (f *fixture) journaledKeys(t *testing.T) string {
	t.Helper()
	return strings.Join(f.texts(t, `SELECT concat_ws(' ', who, verb, ids, why, what) FROM {schema}.operator_journal ORDER BY id`), "; ")
}

// A decision ends an unknown outcome of either kind, once, and the journal has it without the key.
func TestADecisionAboutAKeyIsMadeOnce(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"k1", "vanished"} {
		f := newFixture(t)
		f.putUnknown(t)
		k, shown := f.keys(t), f.findKey(t, key)
		if err := k.Complete(t.Context(), shown, KeyAnswer{Status: 201, ContentType: "application/json", Body: []byte(`{"paid":1}`)}, 0); err != nil {
			t.Fatalf("complete %s: %v", key, err)
		}
		if got := f.keyRow(t, key); got != `3 2 201 {"paid":1} - 1440` {
			t.Errorf("%s: %s", key, got)
		}
		for _, err := range []error{k.Complete(t.Context(), shown, KeyAnswer{Status: 500}, hour), k.Release(t.Context(), shown, hour)} {
			if !errors.Is(err, ErrKeyDecided) {
				t.Errorf("a second decision about %s: %v", key, err)
			}
		}
		released := f.findKey(t, map[string]string{"k1": "vanished", "vanished": "k1"}[key])
		if err := k.Release(t.Context(), released, 2*hour); err != nil {
			t.Fatalf("release: %v", err)
		}
		if got := f.keyRow(t, released.Key); got != "2 2 - - - 120" {
			t.Errorf("released: %s", got)
		}
		want := fmt.Sprintf(`ann keys complete {2} the bank says so {"ttl": "24h0m0s", "digest": "%s", "status": "201", "namespace": "http"}; `+
			`ann keys release {2} the bank says so {"ttl": "2h0m0s", "digest": "%s", "namespace": "http"}`, shown.Digest, released.Digest)
		if got := f.journaledKeys(t); got != want {
			t.Errorf("journal: %s\nwant %s", got, want)
		}
		if other := f.keyRow(t, "runs"); other != "1 2 - - - forever" {
			t.Errorf("another key: %s", other)
		}
	}
}

// Where the outcome is not unknown, or not any more, or the owner lives, a decision changes nothing and says why.
func TestADecisionAboutAKeyIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putUnknown(t)
	f.putKey(t, "http", "acme", "locked", RequestInProgress, -hour, true)
	f.putKey(t, "http", "acme", "gone", RequestUnknown, -hour, true)
	f.putKey(t, "http", "acme", "again", RequestUnknown, -hour, true)
	f.putKey(t, "http", "acme", "tombstone", RequestTombstone, -hour, false)
	shown := map[string]KeyRecord{}
	for _, key := range []string{"k1", "runs", "locked", "gone", "again", "done", "tombstone", "failed", "plain"} {
		shown[key] = f.findKey(t, key)
	}
	f.exec(t, "DELETE FROM {schema}.idempotency_key WHERE key = 'gone'")
	f.exec(t, "UPDATE {schema}.idempotency_key SET token = gen_random_uuid() WHERE key = 'again'")
	owner, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = owner.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := owner.Exec(t.Context(), "SELECT FROM "+f.schema+".idempotency_key WHERE key = 'locked' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	before := f.texts(t, "SELECT k::text FROM {schema}.idempotency_key k ORDER BY k::text")
	for key, want := range map[string]struct {
		err  error
		says string
	}{
		"runs": {ErrOwnerLives, "its lease lasts until"}, "locked": {ErrOwnerLives, "its owner has locked the record"}, "gone": {ErrKeyDecided, "its record is gone"},
		"again": {ErrKeyDecided, "another run has begun"}, "done": {ErrKeyDecided, "its state is completed"}, "tombstone": {ErrKeyDecided, "its state is tombstone"},
		"failed": {ErrKeyDecided, "the next retry runs it again"}, "plain": {ErrKeyDecided, "no external effects"},
	} {
		k := f.keys(t)
		for verb, err := range map[string]error{"complete": k.Complete(t.Context(), shown[key], KeyAnswer{Status: 200}, 0), "release": k.Release(t.Context(), shown[key], 0)} {
			if !errors.Is(err, want.err) || !strings.Contains(err.Error(), want.says) {
				t.Errorf("%s %s: %v; want %s", verb, key, err, want.says)
			}
		}
	}
	k := f.keys(t)
	unreasoned := *k
	unreasoned.why = " "
	for name, err := range map[string]error{
		"status 100": k.Complete(t.Context(), shown["k1"], KeyAnswer{Status: 100}, 0), "status 1000": k.Complete(t.Context(), shown["k1"], KeyAnswer{Status: 1000}, 0),
		"large": k.Complete(t.Context(), shown["k1"], KeyAnswer{Status: 200, Body: make([]byte, MaxKeyAnswer+1)}, 0),
		"type":  k.Complete(t.Context(), shown["k1"], KeyAnswer{Status: 200, ContentType: "a\nb"}, 0),
		"ttl":   k.Release(t.Context(), shown["k1"], -1), "long ttl": k.Release(t.Context(), shown["k1"], 10000*hour), "why": unreasoned.Release(t.Context(), shown["k1"], 0),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if diff := gocmp.Diff(before, f.texts(t, "SELECT k::text FROM {schema}.idempotency_key k ORDER BY k::text")); diff != "" {
		t.Errorf("records have changed:\n%s", diff)
	}
	if got := f.journaledKeys(t); got != "" {
		t.Errorf("the journal has %s", got)
	}
}

// A record and its entry in the journal change together or not at all.
func TestADecisionAboutAKeyAndItsJournal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putUnknown(t)
	k := f.keys(t)
	k.beforeCommit = func() error { return errors.New("down") }
	before := f.keyRow(t, "k1")
	if err := k.Release(t.Context(), f.findKey(t, "k1"), 0); err == nil || f.keyRow(t, "k1") != before || f.journaledKeys(t) != "" {
		t.Errorf("before COMMIT: %v, %s, %s", err, f.keyRow(t, "k1"), f.journaledKeys(t))
	}
	f.exec(t, "DROP TABLE {schema}.operator_journal")
	if err := f.keys(t).Release(t.Context(), f.findKey(t, "k1"), 0); !errors.Is(err, ErrNoJournal) || f.keyRow(t, "k1") != before {
		t.Errorf("without a journal: %v, %s", err, f.keyRow(t, "k1"))
	}
}

// A schema without keys says where those of Redis are decided.
func TestASchemaWithoutKeys(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	name := pgtest.Name()
	pgtest.DropSchema(t, name)
	if err := migrations.Up(t.Context(), pgtest.URL(), name, migrations.Outbox); err != nil {
		t.Fatal(err)
	}
	k := newKeysOf(t, pool, name)
	_, listed := k.List(t.Context(), KeyFilter{}, KeyRecord{}, 10)
	_, found := k.Find(t.Context(), KeyRef{Digest: "0123456789ab"})
	for _, err := range []error{listed, found, k.Release(t.Context(), KeyRecord{Key: "k", Token: "00000000-0000-0000-0000-000000000000"}, 0)} {
		if !errors.Is(err, ErrNoKeyTable) || !strings.Contains(err.Error(), "idemredis.Store.Settle") || !strings.Contains(err.Error(), "idemkey.Reconciler") {
			t.Errorf("%v", err)
		}
	}
	if all, err := newKeysOf(t, pool, schema).List(t.Context(), KeyFilter{}, KeyRecord{}, 10); len(all) != 0 || err != nil {
		t.Errorf("an empty table: %v, %v", all, err)
	}
	if _, err := NewKeys(nil, nil); err == nil {
		t.Error("NewKeys takes no pool")
	}
}

// charge sends a request with a key to a handler that charges somebody and does not know whether it has.
func charge(t *testing.T, m *idemkey.Middleware, body string, runs *int) (status int, contentType, answer string) {
	t.Helper()
	server := httptest.NewServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*runs++
		idemkey.SetVerdict(r.Context(), idemkey.Unknown)
		w.WriteHeader(http.StatusGatewayTimeout)
	})))
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/charge", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "charge-1")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header.Get("Content-Type"), string(text)
}

// A client that retries gets the stored answer, or its request runs once more. Another request with its key is refused.
func TestWhatARetryGetsAfterADecision(t *testing.T) {
	t.Parallel()
	for name, decide := range map[string]func(k *Keys, shown KeyRecord) error{
		"complete": func(k *Keys, shown KeyRecord) error {
			return k.Complete(context.Background(), shown, KeyAnswer{Status: 201, ContentType: "text/plain", Body: []byte("paid")}, 0)
		},
		"complete empty": func(k *Keys, shown KeyRecord) error {
			return k.Complete(context.Background(), shown, KeyAnswer{Status: 204}, 0)
		},
		"release": func(k *Keys, shown KeyRecord) error { return k.Release(context.Background(), shown, 0) },
	} {
		f := newFixture(t)
		store, err := idempg.New(f.pool, &idempg.Options{Schema: f.schema})
		if err != nil {
			t.Fatal(err)
		}
		m, err := idemkey.New(store, &idemkey.Options{ExternalEffects: true, Scope: func(*http.Request) (string, error) { return "acme", nil }, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		charge(t, m, "a", &runs)
		if status, _, text := charge(t, m, "a", &runs); status != 409 || !strings.Contains(text, idemkey.CodeOutcomeUnknown) || runs != 1 {
			t.Fatalf("a retry before the decision: %d %s, %d runs", status, text, runs)
		}
		k := f.keys(t)
		all, err := k.List(t.Context(), KeyFilter{}, KeyRecord{}, 10)
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		if err := decide(k, all[0]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if status, _, text := charge(t, m, "b", &runs); status != 422 {
			t.Errorf("%s: another request: %d %s", name, status, text)
		}
		status, contentType, text := charge(t, m, "a", &runs)
		got := fmt.Sprintf("%d %s %s, %d runs", status, contentType, text, runs)
		if want := map[string]string{"complete": "201 text/plain paid, 1 runs", "complete empty": "204  , 1 runs"}[name]; want != "" && got != want {
			t.Errorf("%s: a retry gets %s, want %s", name, got, want)
		}
		if name == "release" && runs != 2 {
			t.Errorf("release: %s", got)
		}
	}
}

// The record of an unknown outcome, which does not expire, is found like every other.
func TestAnUnknownRequestIsFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putUnknown(t)
	for key, want := range map[string]string{"k1": "409 outcome-unknown", "vanished": "409 outcome-unknown", "runs": "409 in-progress", "plain": "The request runs again"} {
		all, err := f.reader(t).FindRequests(t.Context(), RequestFilter{Namespace: "http", Scope: "acme", Key: key})
		if err != nil || len(all) != 1 || !strings.HasPrefix(all[0].DescribeRetry(), want) || all[0].Expired() || all[0].ExpiresAt.IsZero() != (key != "plain") {
			t.Errorf("%s: %+v, %v; want %s", key, all, err, want)
		}
	}
	found, err := f.reader(t).Search(t.Context(), "vanished")
	if err != nil || len(found.Skipped) != 0 || len(found.Matches) != 1 {
		t.Errorf("search: %+v, %v", found, err)
	}
}

// Of several callers, one decides.
func TestTwoDecisionsAboutAKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putUnknown(t)
	shown := f.findKey(t, "k1")
	errs := make(chan error, 8)
	k := f.keys(t)
	for range cap(errs) {
		go func() { errs <- k.Release(t.Context(), shown, 0) }()
	}
	decided := 0
	for range cap(errs) {
		err := <-errs
		if err == nil {
			decided++
		} else if !errors.Is(err, ErrKeyDecided) && !errors.Is(err, ErrOwnerLives) { // the other one has locked it
			t.Error(err)
		}
	}
	if decided != 1 || strings.Count(f.journaledKeys(t), "keys release") != 1 {
		t.Errorf("%d have decided: %s", decided, f.journaledKeys(t))
	}
}
