package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/telemetry"
)

// A broker refuses what is for the topic refused, and confirms all else.
type broker struct{}

func (broker) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	results := make([]error, len(batch))
	for i, p := range batch {
		if p.Topic == "refused" {
			results[i] = outbox.ErrRefused
		}
	}
	return results
}

func newRelay(t *testing.T, pool *pgxpool.Pool, schema string, attempts int) *outbox.Relay {
	t.Helper()
	r, err := outbox.NewRelay(pool, broker{}, &outbox.RelayOptions{
		Schema: schema, MaxAttempts: attempts, RetryBase: time.Hour, RetryCap: time.Hour, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatalf("NewRelay: %v", err)
	}
	return r
}

// startRelay runs r until the returned function is called.
func startRelay(t *testing.T, r *outbox.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

func writeMessages(t *testing.T, pool *pgxpool.Pool, schema string, msgs ...outbox.Message) {
	t.Helper()
	w, err := outbox.NewWriter(&outbox.WriterOptions{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return w.Write(t.Context(), tx, msgs...) }); err != nil {
		t.Fatalf("Write: %v", err)
	}
}

func newMessage(topic, key string) outbox.Message {
	return outbox.Message{Topic: topic, Scope: "tenant", Key: key, Step: "step"}
}

// registerRelay returns what reads r's metrics, and their registration.
func registerRelay(t *testing.T, r *outbox.Relay, opts telemetry.Options) (*sdkmetric.ManualReader, metric.Registration) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	opts.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	registration, err := telemetry.RegisterRelay(r, &opts)
	if err != nil {
		t.Fatalf("Register: %v", err)
	}
	return reader, registration
}

// awaitSeries collects until ok.
func awaitSeries(t *testing.T, reader *sdkmetric.ManualReader, ok func(map[string]float64) bool) map[string]float64 {
	t.Helper()
	for end := time.Now().Add(deadline); ; {
		series := collectSeries(t, reader)
		if ok(series) {
			return series
		}
		if time.Now().After(end) {
			t.Fatalf("it stays at %v", series)
		}
	}
}

// Everything that operators were promised comes from a relay at work, by its name.
func TestRelayMetrics(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	stop := startRelay(t, newRelay(t, pool, schema, 1))
	writeMessages(t, pool, schema, newMessage("refused", "dead"))
	dead, _ := registerRelay(t, newRelay(t, pool, schema, 1), telemetry.Options{})
	awaitSeries(t, dead, func(s map[string]float64) bool { return s["gauge messages[{message}] state=dead"] == 1 })
	stop()

	r := newRelay(t, pool, schema, 2)
	reader, _ := registerRelay(t, r, telemetry.Options{})
	delayed := newMessage("t", "delayed")
	delayed.Delay = time.Hour
	writeMessages(t, pool, schema, newMessage("t", "a"), newMessage("t", "b"), delayed, newMessage("refused", "c"), newMessage("t", "c"), newMessage("t", "c"))
	if _, err := pool.Exec(t.Context(), "UPDATE "+schema+".outbox SET created_at = created_at - interval '1 h'"); err != nil {
		t.Fatal(err)
	}
	series := collectSeries(t, reader)
	if series["gauge oldest_seconds[s]"] < 3600 || series["gauge messages[{message}] state=stored"] != 5 || series["gauge active[{relay}]"] != 0 {
		t.Errorf("before the relay runs: %v", series)
	}

	startRelay(t, r)
	series = awaitSeries(t, reader, func(s map[string]float64) bool {
		return s["counter published[{message}]"] == 2 && s["gauge messages[{message}] state=waiting"] == 2 && s["counter queued[{message}]"] == 2
	})
	delete(series, "gauge oldest_writer_seconds[s]") // in TestRelaySeconds
	delete(series, "counter confirm_seconds[s]")
	calls := series["counter confirms[{call}] le=+Inf"]
	for _, leaf := range []string{"outbox_0", "outbox_1", "outbox_2", "outbox_other"} {
		if series["gauge leaf_bytes[By] leaf="+leaf] <= 0 {
			t.Errorf("no size of %s", leaf)
		}
		delete(series, "gauge leaf_bytes[By] leaf="+leaf)
	}
	for _, le := range strings.Fields("0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 +Inf") {
		n, found := series["counter confirms[{call}] le="+le]
		if !found || n > calls || calls == 0 || le == "30" && n != calls {
			t.Errorf("le=%s: %g of %g calls, %t", le, n, calls, found)
		}
		delete(series, "counter confirms[{call}] le="+le)
	}
	want := map[string]float64{
		"gauge messages[{message}] state=stored": 0, "gauge messages[{message}] state=delayed": 1, "gauge messages[{message}] state=waiting": 2,
		"gauge messages[{message}] state=refused": 1, "gauge messages[{message}] state=dead": 1,
		"gauge oldest_seconds[s]": 0, "gauge epoch[{tenure}]": 2, "gauge active[{relay}]": 1,
		"counter published[{message}]": 2, "counter refusals[{refusal}]": 1, "counter dead_letters[{message}]": 0,
		"counter queued[{message}]": 2, "counter unavailable[{call}]": 0,
		"gauge stalled[{topic}]": 0, "counter deferred[{message}]": 0,
	}
	if diff := cmp.Diff(want, series); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// How long a writer is open and how long the publisher takes, as numbers above 0.
func TestRelaySeconds(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	r := newRelay(t, pool, schema, 1)
	reader, _ := registerRelay(t, r, telemetry.Options{Attributes: []attribute.KeyValue{attribute.String("service", "order")}})
	startRelay(t, r)
	writeMessages(t, pool, schema, newMessage("refused", "k"))
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	series := awaitSeries(t, reader, func(s map[string]float64) bool { return s["counter dead_letters[{message}] service=order"] == 1 })
	if series["gauge oldest_writer_seconds[s] service=order"] <= 0 || series["counter confirm_seconds[s] service=order"] <= 0 {
		t.Errorf("series: %v", series)
	}
	for name := range series {
		if !strings.Contains(name, "service=order") {
			t.Errorf("%s is not told apart from another relay's", name)
		}
	}
}

// A gate passes connections on to the database until it is shut. Then nothing
// gets through any more, and nothing is closed.
type gate struct {
	listener net.Listener
	server   string
	shut     chan struct{}
	wg       sync.WaitGroup
}

func newGate(t *testing.T) (*gate, *pgxpool.Pool) {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.URL())
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{server: net.JoinHostPort(config.ConnConfig.Host, fmt.Sprint(config.ConnConfig.Port)), shut: make(chan struct{})}
	if g.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.wg.Go(func() { g.accept(ctx) })
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", g.listener.Addr().String())
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = g.listener.Close()
		g.wg.Wait()
		pool.Close()
	})
	return g, pool
}

func (g *gate) accept(ctx context.Context) {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", g.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		context.AfterFunc(ctx, func() {
			_ = client.Close()
			_ = server.Close()
		})
		g.wg.Go(func() { g.pass(ctx, server, client) })
		g.wg.Go(func() { g.pass(ctx, client, server) })
	}
}

func (g *gate) pass(ctx context.Context, to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-g.shut:
			<-ctx.Done()
			return
		default:
		}
		if err != nil {
			_ = to.Close()
			return
		}
		if _, err := to.Write(buf[:n]); err != nil && !errors.Is(err, io.EOF) {
			return
		}
	}
}

// A database that hangs, or cannot be reached, does not hang the collection, which
// has the rest. The error handler is told. (It is the process's only one: no other
// test makes a database fail.)
func TestARelayWithoutItsDatabase(t *testing.T) {
	_, schema := pgtest.Schema(t)
	told := make(chan error, 10)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		select {
		case told <- err:
		default:
		}
	}))
	g, pool := newGate(t)
	r := newRelay(t, pool, schema, 1)
	reader, _ := registerRelay(t, r, telemetry.Options{Timeout: 100 * time.Millisecond})
	for end := time.Now().Add(deadline); ; { // connecting may take longer than that
		if _, found := collectSeries(t, reader)["gauge epoch[{tenure}]"]; found {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no epoch from a database that answers")
		}
	}
	for len(told) > 0 {
		<-told
	}
	close(g.shut)
	for _, away := range []string{"a connection that hangs", "one that cannot be made"} {
		var series map[string]float64
		var err error
		collected := make(chan struct{})
		go func() {
			series, err = tryCollectSeries(t, reader)
			close(collected)
		}()
		select {
		case <-collected:
			if err != nil {
				t.Errorf("%s: Collect = %v, so that a reader would drop it all", away, err)
			}
			_, database := series["gauge epoch[{tenure}]"]
			if _, process := series["gauge active[{relay}]"]; !process || database {
				t.Errorf("%s: the process's part %t, the database's %t; want it without the latter", away, process, database)
			}
		case <-time.After(deadline):
			t.Fatalf("%s: the collection hangs", away)
		}
		select {
		case err := <-told:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: the error handler is told %v", away, err)
			}
		default:
			t.Errorf("%s: the error handler is told nothing", away)
		}
	}
}

func TestUnregisterRelay(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	reader, registration := registerRelay(t, newRelay(t, pool, schema, 1), telemetry.Options{})
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

// RegisterRelay returns an error for each bad argument.
func TestRegisterRelayIsChecked(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	r := newRelay(t, pool, schema, 1)
	if _, err := telemetry.RegisterRelay(nil, nil); err == nil {
		t.Error("Register without a relay succeeded")
	}
	if _, err := telemetry.RegisterRelay(r, &telemetry.Options{Timeout: -1}); err == nil || !strings.Contains(err.Error(), "Timeout") {
		t.Errorf("Register with a bad Timeout = %v", err)
	}
	registration, err := telemetry.RegisterRelay(r, nil)
	if err != nil {
		t.Fatalf("Register with the global provider: %v", err)
	}
	if err := registration.Unregister(); err != nil {
		t.Errorf("Unregister: %v", err)
	}
	refused := errors.New("refused")
	for _, name := range []string{"sagamill.outbox.messages", "sagamill.outbox.oldest_seconds", "sagamill.outbox.published", "sagamill.outbox.confirm_seconds", "callback"} {
		if _, err := telemetry.RegisterRelay(r, &telemetry.Options{MeterProvider: refusing{name, refused}.provider()}); !errors.Is(err, refused) {
			t.Errorf("Register without %s: %v, want the provider's error", name, err)
		}
	}
}
