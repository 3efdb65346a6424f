package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/telemetry"
)

type empty struct{}

// trips have one step, which a test answers itself.
var trips = saga.Must(saga.Define("trip", 1, saga.Step[empty]{
	Name: "hotel",
	Do:   saga.Remote("hotel.book", func(*empty) empty { return empty{} }, func(*empty, empty) {}),
	Undo: saga.Tell("hotel.cancel", func(*empty) empty { return empty{} }),
}))

// A desk is where trips are begun and answered. Its orchestrator does not run.
type desk struct {
	t            *testing.T
	pool         *pgxpool.Pool
	schema       string
	orchestrator *saga.Orchestrator
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	return &desk{t, pool, schema, newOrchestrator(t, pool, schema)}
}

func newOrchestrator(t *testing.T, pool *pgxpool.Pool, schema string) *saga.Orchestrator {
	t.Helper()
	o, err := saga.NewOrchestrator(pool, inproc.New(nil).Subscriber("orchestrator"), []saga.Plan{trips},
		&saga.Options{Schema: schema, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatalf("NewOrchestrator: %v", err)
	}
	return o
}

// A reply answers a step's command, or its compensation's.
type reply struct {
	undo    bool
	outcome flow.Outcome
}

// begin begins a trip and answers its step with replies, one after the other.
func (d *desk) begin(key string, replies ...reply) {
	d.t.Helper()
	starter, err := saga.NewStarter(trips, &saga.StarterOptions{Schema: d.schema})
	if err != nil {
		d.t.Fatal(err)
	}
	var started saga.Started
	err = pgx.BeginFunc(d.t.Context(), d.pool, func(tx pgx.Tx) (err error) {
		started, err = starter.Start(d.t.Context(), tx, saga.ID{Scope: "tenant", Key: key}, empty{})
		return err
	})
	if err != nil {
		d.t.Fatal(err)
	}
	for i, r := range replies {
		n := fmt.Sprintf("1.1.%s%d", map[bool]string{false: "d", true: "u"}[r.undo], i)
		msg := message.NewMessage(fmt.Sprint(key, i), fmt.Appendf(nil, `{"outcome":%q,"result":{}}`, r.outcome))
		msg.Metadata = message.Metadata{
			outbox.HeaderKey: key + ":hotel#" + flow.Mark(started.ID, n), outbox.HeaderScope: "tenant", outbox.PropertyType: saga.TypeReply,
		}
		if err := d.orchestrator.Consumer().Handle(d.t.Context(), saga.Topic("trip"), msg); err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *desk) exec(sql string) {
	d.t.Helper()
	if _, err := d.pool.Exec(d.t.Context(), strings.ReplaceAll(sql, "{schema}", d.schema)); err != nil {
		d.t.Fatal(err)
	}
}

// registerOrchestrator returns what reads o's metrics, and their registration.
func registerOrchestrator(t *testing.T, o *saga.Orchestrator, opts telemetry.Options) (*sdkmetric.ManualReader, metric.Registration) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	opts.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	registration, err := telemetry.RegisterOrchestrator(o, &opts)
	if err != nil {
		t.Fatalf("Register: %v", err)
	}
	return reader, registration
}

// Everything that operators were promised comes from an orchestrator, by its name.
func TestOrchestratorMetrics(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.begin("completed", reply{false, flow.OutcomeDone}, reply{false, flow.OutcomeDone}) // the second comes late
	d.begin("compensated", reply{false, flow.OutcomeRejected})
	d.begin("another", reply{false, flow.OutcomeRejected})
	d.begin("stuck", reply{false, flow.OutcomeBroken})
	d.begin("held", reply{false, flow.OutcomeFailed})
	for _, key := range []string{"running", "due", "paused", "compensating"} {
		d.begin(key)
	}
	d.exec("UPDATE {schema}.saga SET status = key WHERE key IN ('paused', 'compensating')")
	d.exec("UPDATE {schema}.saga SET due_at = clock_timestamp() - interval '1 h' WHERE key = 'due'")
	d.exec("UPDATE {schema}.saga SET updated_at = clock_timestamp() - interval '2 h' WHERE key = 'stuck'")
	d.exec("UPDATE {schema}.saga SET updated_at = clock_timestamp() - interval '2 h' WHERE key = 'held'")
	reader, _ := registerOrchestrator(t, d.orchestrator, telemetry.Options{})
	series := collectSeries(t, reader)
	for name, least := range map[string]float64{"gauge oldest_stuck_seconds[s]": 7200, "gauge oldest_held_seconds[s]": 7200, "gauge overdue_seconds[s]": 3600} {
		if got := series[name]; got < least || got > least+3600 {
			t.Errorf("%s is %g, want some more than %g", name, got, least)
		}
		delete(series, name)
	}
	want := map[string]float64{
		"gauge instances_live[{instance}] status=running": 3, "gauge instances_live[{instance}] status=compensating": 1,
		"gauge instances_live[{instance}] status=paused": 1, "gauge instances_live[{instance}] status=stuck": 1,
		"counter instances[{instance}] status=completed": 1, "counter instances[{instance}] status=compensated": 2,
		"counter instances[{instance}] status=stuck": 1, "counter late_replies[{reply}]": 1,
	}
	if diff := cmp.Diff(want, series); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// Orchestrators of a process are told apart, and one with nothing to tell of says so.
func TestOrchestratorAttributes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	reader, _ := registerOrchestrator(t, d.orchestrator, telemetry.Options{Attributes: []attribute.KeyValue{attribute.String("service", "trip")}})
	series := collectSeries(t, reader)
	for name, value := range series {
		if !strings.Contains(name, "service=trip") || value != 0 {
			t.Errorf("%s is %g; want 0, told apart from another orchestrator's", name, value)
		}
	}
	if len(series) != 11 {
		t.Errorf("%d series: %v", len(series), series)
	}
}

// A database that hangs, or cannot be reached, does not hang the collection, which
// has the rest. The error handler is told. (It is the process's only one: no other
// test makes a database fail.)
func TestAnOrchestratorWithoutItsDatabase(t *testing.T) {
	d := newDesk(t)
	told := make(chan error, 10)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		select {
		case told <- err:
		default:
		}
	}))
	pool, err := pgxpool.New(t.Context(), pgtest.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	reader, _ := registerOrchestrator(t, newOrchestrator(t, pool, d.schema), telemetry.Options{Timeout: 100 * time.Millisecond})
	const database = "gauge overdue_seconds[s]"
	for end := time.Now().Add(deadline); ; { // connecting may take longer than that
		if _, found := collectSeries(t, reader)[database]; found {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nothing from a database that answers")
		}
	}
	for len(told) > 0 {
		<-told
	}
	tx, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+d.schema+".saga IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	check := func(away string, want error) {
		t.Helper()
		series := collectSeries(t, reader)
		_, there := series[database]
		if _, process := series["counter late_replies[{reply}]"]; !process || there {
			t.Errorf("%s: the process's part %t, the database's %t; want it without the latter", away, process, there)
		}
		select {
		case err := <-told:
			if want != nil && !errors.Is(err, want) {
				t.Errorf("%s: the error handler is told %v", away, err)
			}
		default:
			t.Errorf("%s: the error handler is told nothing", away)
		}
	}
	check("a table that somebody has locked", context.DeadlineExceeded)
	pool.Close()
	check("no connection", nil)
}

func TestUnregisterOrchestrator(t *testing.T) {
	t.Parallel()
	reader, registration := registerOrchestrator(t, newDesk(t).orchestrator, telemetry.Options{})
	if series := collectSeries(t, reader); len(series) == 0 {
		t.Error("nothing was collected")
	}
	if err := registration.Unregister(); err != nil {
		t.Errorf("Unregister: %v", err)
	}
	if series := collectSeries(t, reader); len(series) != 0 {
		t.Errorf("collected after Unregister: %v", series)
	}
}

// RegisterOrchestrator returns an error for each bad argument.
func TestRegisterOrchestratorIsChecked(t *testing.T) {
	t.Parallel()
	o := newDesk(t).orchestrator
	if _, err := telemetry.RegisterOrchestrator(nil, nil); err == nil {
		t.Error("Register without an orchestrator succeeded")
	}
	if _, err := telemetry.RegisterOrchestrator(o, &telemetry.Options{Timeout: -1}); err == nil || !strings.Contains(err.Error(), "Timeout") {
		t.Errorf("Register with a bad Timeout = %v", err)
	}
	registration, err := telemetry.RegisterOrchestrator(o, nil)
	if err != nil {
		t.Fatalf("Register with the global provider: %v", err)
	}
	if err := registration.Unregister(); err != nil {
		t.Errorf("Unregister: %v", err)
	}
	refused := errors.New("refused")
	for _, name := range []string{"sagamill.saga.instances_live", "sagamill.saga.overdue_seconds", "sagamill.saga.instances", "callback"} {
		if _, err := telemetry.RegisterOrchestrator(o, &telemetry.Options{MeterProvider: refusing{name, refused}.provider()}); !errors.Is(err, refused) {
			t.Errorf("Register without %s: %v, want the provider's error", name, err)
		}
	}
}
