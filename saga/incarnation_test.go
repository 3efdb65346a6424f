package saga_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// An agency is an HTTP service whose requests begin two sagas: a tour, and a notice that
// its first listener passes on to another.
type agency struct {
	*place
	keys    *idemkey.Middleware
	server  *httptest.Server
	starter *saga.Starter[tour]
	writer  *outbox.Writer
}

func newAgency(t *testing.T, mode idempg.ClaimMode) *agency {
	t.Helper()
	a := &agency{place: newPlace(t)}
	d := nestedTour(t, "car")
	a.orchestrate(&saga.Options{HousekeepPoll: 10 * time.Millisecond}, d)
	a.participate(a.booking("flight"), a.booking("hotel"), a.booking("car"))
	a.listen()
	store, err := idempg.New(a.db, &idempg.Options{Schema: a.schema, ClaimMode: mode})
	if err != nil {
		t.Fatal(err)
	}
	if a.keys, err = idemkey.New(store, &idemkey.Options{SingleTenant: true, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	if a.starter, err = saga.NewStarter(d, &saga.StarterOptions{Schema: a.schema}); err != nil {
		t.Fatal(err)
	}
	if a.writer, err = outbox.NewWriter(&outbox.WriterOptions{Schema: a.schema}); err != nil {
		t.Fatal(err)
	}
	a.keepFor(t, idemkey.DefaultTTL)
	return a
}

// keepFor serves requests from now on whose records live for ttl.
func (a *agency) keepFor(t *testing.T, ttl time.Duration) {
	t.Helper()
	keys, err := a.keys.With(func(o *idemkey.Options) { o.Limits.TTL = ttl })
	if err != nil {
		t.Fatal(err)
	}
	a.server = httptest.NewServer(keys.Handler(idempg.HandleTx(a.order)))
	t.Cleanup(a.server.Close)
}

// order begins both sagas and names neither. Its first attempt fails.
func (a *agency) order(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	if _, err := a.starter.Start(r.Context(), tx, saga.ID{}, tour{Item: "x"}); err != nil {
		return err
	}
	if err := a.writer.Write(r.Context(), tx, outbox.Message{Topic: "noticed", Step: "archive", Payload: []byte(`{}`)}); err != nil {
		return err
	}
	if info, _ := idemkey.Info(r.Context()); info.Attempt == 1 && r.Header.Get("Fail") != "" {
		return errors.New("the first attempt fails")
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// listen runs a consumer that archives a notice and tells another step of it.
func (a *agency) listen() {
	note := func(ctx context.Context, tx pgx.Tx, what string) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+a.schema+".effect (key, what) VALUES ('notice', $1)", what)
		return err
	}
	step := func(name, topic string, h consumer.Handler[struct{}]) consumer.Step {
		return consumer.Step{Name: name, Action: consumer.On(topic, h)}
	}
	steps := []consumer.Step{
		step("archive", "noticed", func(ctx context.Context, tx pgx.Tx, _ consumer.Message[struct{}], emit consumer.Emit) error {
			emit(outbox.Message{Topic: "archived", Step: "index", N: "7", Payload: []byte(`{}`)})
			return note(ctx, tx, "archive")
		}),
		step("index", "archived", func(ctx context.Context, tx pgx.Tx, in consumer.Message[struct{}], _ consumer.Emit) error {
			return note(ctx, tx, "index "+in.N)
		}),
	}
	sub := a.broker.Subscriber("listener")
	c, err := consumer.New(a.db, sub, steps, &consumer.Options{Schema: a.schema, Logger: quiet, Wake: a.relay.Wake})
	if err != nil {
		a.t.Fatal(err)
	}
	a.serve(sub, c.Topics(), c.Run)
}

// send sends a request and returns its status.
func (a *agency) send(t *testing.T, body string, header ...string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.server.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	for _, name := range header {
		req.Header.Set(name, "true")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	a.relay.Wake()
	return resp.StatusCode
}

// sagas are the ids of the outermost instances that have completed.
func (a *agency) sagas(t *testing.T) []string {
	t.Helper()
	rows, _ := a.db.Query(t.Context(), "SELECT id::text FROM "+a.schema+".saga WHERE parent IS NULL AND status = 'completed' ORDER BY started_at")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// A key whose record has expired may be used again. What the request begins then is another
// saga, orchestrated or not, with steps of its own: none is lost, none is taken for one of the
// first. A retry of the request begins nothing.
func TestAKeyThatIsUsedAgainBeginsAnotherSaga(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]idempg.ClaimMode{"leased": idempg.ClaimLeased, "inline": idempg.ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgency(t, mode)
			for round := 1; round <= 2; round++ {
				body := fmt.Sprintf(`{"order": %d}`, round)
				if got := a.send(t, body, "Fail"); got != http.StatusInternalServerError {
					t.Fatalf("round %d: the attempt that fails is answered %d", round, got)
				}
				for range 2 {
					if got := a.send(t, body); got != http.StatusAccepted {
						t.Fatalf("round %d: status %d", round, got)
					}
				}
				a.await("the sagas of the round are completed", func() bool {
					return len(a.sagas(t)) == round && len(strings.Fields(a.effects("notice"))) == 3*round
				})
				a.exec("UPDATE {schema}.idempotency_key SET expires_at = clock_timestamp() - interval '1 s'")
				a.keepFor(t, idemkey.DefaultTTL+time.Hour) // the clock stays where it is, and within a TTL the key has one name
			}
			if got := a.effects("k"); got != "[flight hotel car flight hotel car]" {
				t.Errorf("effects %s, want the steps of both tours", got)
			}
			if got := a.effects("notice"); got != "[archive index 7 archive index 7]" {
				t.Errorf("effects %s, want the steps of both notices", got)
			}
			var letters int
			if err := a.db.QueryRow(t.Context(), "SELECT count(*) FROM "+a.schema+".parked").Scan(&letters); err != nil || letters > 0 {
				t.Errorf("%d messages are parked, %v", letters, err)
			}
			a.lookAtBoth(t)
			a.removeTheFirst(t)
		})
	}
}

// lookAtBoth looks at the instances of the key as an operator does.
func (a *agency) lookAtBoth(t *testing.T) {
	t.Helper()
	n, err := operator.NewInstances(a.db, &operator.Options{Schema: a.schema})
	if err != nil {
		t.Fatal(err)
	}
	var both *operator.AmbiguousError
	if _, err := n.Get(t.Context(), saga.Address{Scope: "default", Key: "k"}); !errors.As(err, &both) || len(both.Addresses) != 2 {
		t.Fatalf("the key of two instances: %v", err)
	}
	ids := a.sagas(t)
	for i, at := range both.Addresses { // the newest first
		one, err := n.Get(t.Context(), at)
		if err != nil || one.ID != ids[1-i] || len(one.Nested) != 1 || one.Nested[0].Root != one.ID || one.Steps[0].Nested == nil {
			t.Errorf("%s is %s with %d nested, %v; want %s with its own", at, one.ID, len(one.Nested), err, ids[1-i])
		}
	}
}

// removeTheFirst has the first saga removed after its retention. The other one stays.
func (a *agency) removeTheFirst(t *testing.T) {
	t.Helper()
	ids := a.sagas(t)
	a.exec("UPDATE {schema}.saga SET ended_at = ended_at - interval '31 days' WHERE id = '" + ids[0] + "'")
	var left []string
	a.await("the first saga is removed", func() bool {
		rows, _ := a.db.Query(t.Context(), "SELECT DISTINCT root::text FROM "+a.schema+".saga")
		var err error
		left, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err == nil && len(left) == 1
	})
	if want := []string{ids[1]}; !cmp.Equal(left, want) {
		t.Errorf("the sagas %v are left, want %v", left, want)
	}
}

// Within an idempotent request a saga that is named by its key alone is refused, in the outbox
// and by a Starter, with an error that says what to do. With an incarnation, or the word that
// there is none, it is taken.
func TestABareKeyIsRefusedInAnIdempotentRequest(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	store, err := idemkey.NewMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	starter, err := saga.NewStarter(saga.Must(saga.Define("trip", 1, book("flight"))), &saga.StarterOptions{Schema: p.schema})
	if err != nil {
		t.Fatal(err)
	}
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: p.schema})
	if err != nil {
		t.Fatal(err)
	}
	handler := keys.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, tt := range []struct {
			key, incarnation string
			refused          bool
		}{{"a", "", true}, {"b", "1x", false}, {"c", outbox.NoIncarnation, false}, {"d", "not-one", true}} {
			var errs [3]error
			err := pgx.BeginFunc(r.Context(), p.db, func(tx pgx.Tx) error {
				m := outbox.Message{Topic: "t", Scope: "s", Key: tt.key, Incarnation: tt.incarnation, Step: "p"}
				batch := &pgx.Batch{}
				errs[0] = writer.Write(r.Context(), tx, m)
				errs[1] = writer.Queue(r.Context(), batch, m)
				_, errs[2] = starter.Start(r.Context(), tx, saga.ID{Scope: "s", Key: tt.key, Incarnation: tt.incarnation}, trip{})
				return nil
			})
			for i, got := range errs {
				if (got != nil) != tt.refused || err != nil || tt.key == "a" && !strings.Contains(got.Error(), "NoIncarnation") {
					t.Errorf("key %s, incarnation %q, way %d: %v, %v", tt.key, tt.incarnation, i, got, err)
				}
			}
			for _, got := range errs[:2] {
				if tt.refused && !errors.Is(got, outbox.ErrInvalid) {
					t.Errorf("key %s: %v, want an ErrInvalid", tt.key, got)
				}
			}
		}
	}))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", "k")
	handler.ServeHTTP(httptest.NewRecorder(), r)
	var names []string
	rows, _ := p.db.Query(t.Context(), "SELECT DISTINCT key || ' ' || path FROM "+p.schema+".saga ORDER BY 1")
	if names, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || !cmp.Equal(names, []string{"b .1x", "c "}) {
		t.Errorf("instances %q, %v", names, err)
	}
}
