package sagamill_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/cloudevents"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/protobuf"
	"github.com/sagamill/sagamill/saga"
)

// patience is how long a test waits for something that must happen.
const patience = time.Minute

var quiet = slog.New(slog.DiscardHandler)

type order struct {
	Amount int `json:"amount"`
}

// await returns the next value of c.
func await[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("no %s after %s", what, patience)
	}
	return v
}

// testConfig returns a Config with a schema for t, whose tables the service makes.
func testConfig(t *testing.T, steps ...consumer.Step) sagamill.Config {
	t.Helper()
	schema := pgtest.Name()
	pgtest.DropSchema(t, schema)
	return sagamill.Config{
		Name: "shop", Schema: schema, DatabaseURL: pgtest.Direct(), Steps: steps, Logger: quiet,
		Migrations: fstest.MapFS{"tables/001_book.sql": {Data: []byte("CREATE TABLE {{.schema}}.book (key text NOT NULL, amount bigint NOT NULL)")}},
	}
}

func newService(t *testing.T, config sagamill.Config) *sagamill.Service {
	t.Helper()
	s, err := sagamill.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// chargeStep writes into the book and tells charged.
func chargeStep(schema *string, charged chan<- string) consumer.Step {
	return consumer.Step{Name: "charge", Action: consumer.On("order.created", func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], _ consumer.Emit) error {
		if _, err := tx.Exec(ctx, "INSERT INTO "+*schema+".book VALUES ($1, $2)", in.Key, in.Body.Amount); err != nil {
			return err
		}
		charged <- in.Key
		return nil
	})}
}

// orderRoutes has the order handler and the health checks of s.
func orderRoutes(s *sagamill.Service) http.Handler {
	mux := http.NewServeMux()
	scope := func(*http.Request) (string, error) { return "tenant", nil }
	mux.Handle("POST /orders", s.Idempotent(scope, idempg.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		w.WriteHeader(http.StatusAccepted)
		return s.Writer().Write(r.Context(), tx, outbox.Message{Topic: "order.created", Step: "charge", Payload: outbox.JSON(order{4200})})
	})))
	mux.Handle("/", s.Handler())
	return mux
}

// A site is a service that listens.
type site struct {
	t    *testing.T
	url  string
	stop context.CancelFunc
	done chan error
}

func serve(t *testing.T, s *sagamill.Service) *site {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	ctx, stop := context.WithCancel(t.Context())
	at := &site{t: t, url: "http://" + address, stop: stop, done: make(chan error, 1)}
	go func() { at.done <- s.ListenAndServe(ctx, address, orderRoutes(s)) }()
	t.Cleanup(stop)
	return at
}

// do returns the status and the body of an answer, and 0 while nobody listens.
func (s *site) do(method, path, key string) (status int, body string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if key != "" {
		r.Header.Set(idemkey.DefaultHeader, key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// awaitReady asks until the service is ready, or has ended.
func (s *site) awaitReady() {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		status, body := s.do("GET", "/readyz", "")
		if status == http.StatusOK {
			return
		}
		select {
		case err := <-s.done:
			s.t.Fatalf("the service has ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not ready: %d %s", status, body)
		}
	}
}

// end stops the service, which must end without an error.
func (s *site) end() {
	s.t.Helper()
	s.stop()
	if err := await(s.t, s.done, "end of the service"); err != nil {
		s.t.Errorf("ListenAndServe: %v", err)
	}
}

func queryInt(t *testing.T, schema, query string) (n int) {
	t.Helper()
	if err := pgtest.Pool(t, pgtest.Direct()).QueryRow(t.Context(), strings.ReplaceAll(query, "{schema}", schema)).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// brokers are the brokers that a Config may name.
func brokers(t *testing.T) map[string]func(*sagamill.Config) {
	return map[string]func(*sagamill.Config){
		"in this process": func(*sagamill.Config) {},
		"of watermill": func(c *sagamill.Config) {
			broker := inproc.New(nil)
			t.Cleanup(func() { _ = broker.Close() })
			c.Publisher, c.Subscriber = broker, broker.Subscriber("shop")
		},
		"RabbitMQ": func(c *sagamill.Config) {
			c.BrokerURL, c.Prefix = rabbittest.URL(), rabbittest.Name()
			queue := c.Prefix + "order.created.shop"
			rabbittest.Delete(t, []string{queue, queue + ".dead"}, []string{c.Prefix + "order.created"})
		},
	}
}

// An order over HTTP is charged once, whatever the broker, although the client sends it twice.
func TestServiceRunsAStepOnceForEachKey(t *testing.T) {
	t.Parallel()
	for name, setBroker := range brokers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var schema string
			charged := make(chan string, 8)
			config := testConfig(t, chargeStep(&schema, charged))
			setBroker(&config)
			schema = config.Schema
			config.Relay.PollMin, config.Relay.PollMax = time.Hour, time.Hour // only a Wake makes it look
			at := serve(t, newService(t, config))
			at.awaitReady()
			for _, key := range []string{"key-1", "key-2"} { // the relay rests before the second
				for range 2 {
					if status, body := at.do("POST", "/orders", key); status != http.StatusAccepted {
						t.Fatalf("POST /orders: %d %s", status, body)
					}
				}
				if got := await(t, charged, "charge"); got != key {
					t.Errorf("charged for %s, want %s", got, key)
				}
			}
			if status, body := at.do("GET", "/metrics", ""); status != http.StatusOK || !strings.Contains(body, `sagamill_consumer_attempts_total{`) ||
				!strings.Contains(body, `sagamill_outbox_active{`) || !strings.Contains(body, `idemkey_requests_total{`) {
				t.Errorf("GET /metrics: %d, and a metric is missing in\n%s", status, body)
			}
			at.end()
			if n := queryInt(t, schema, "SELECT count(*) FROM {schema}.book"); n != 2 {
				t.Errorf("%d rows in the book, want one for each key", n)
			}
		})
	}
}

// A handler in hand finishes after the stop, and what it has emitted is stored.
func TestStopFinishesWhatIsInHand(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	config := testConfig(t, consumer.Step{Name: "charge", Action: consumer.On("order.created", func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], emit consumer.Emit) error {
		close(entered)
		<-release
		emit.JSON("order.charged", "ship", in.Body)
		return ctx.Err()
	})})
	s := newService(t, config)
	at := serve(t, s)
	at.awaitReady()
	at.do("POST", "/orders", "key-1")
	await(t, entered, "handler")
	at.stop()
	for s.CheckReady(t.Context()) == nil {
		select {
		case err := <-at.done:
			t.Fatalf("the service ended before its handler: %v", err)
		default:
		}
	}
	if status, _ := at.do("GET", "/readyz", ""); status != http.StatusServiceUnavailable {
		t.Errorf("while it stops, /readyz answers %d, want 503: the HTTP server stops after the handlers", status)
	}
	close(release)
	at.end()
	got := queryInt(t, config.Schema, "SELECT count(*) FROM {schema}.inbox WHERE state = 'done'")
	if sent := queryInt(t, config.Schema, `
		SELECT count(*) FROM (SELECT message_id, topic FROM {schema}.outbox UNION SELECT message_id, topic FROM {schema}.outbox_held) m WHERE topic = 'order.charged'`); got != 1 || sent != 1 {
		t.Errorf("%d steps done and %d messages stored, want 1 and 1", got, sent)
	}
}

// A saga of the service runs to its last step: commands, steps and replies go through one outbox.
func TestServiceOrchestratesASaga(t *testing.T) {
	t.Parallel()
	for name, events := range map[string]*cloudevents.Options{
		"messages": nil, "events in binary mode": {Source: "/shop"}, "events in structured mode": {Source: "/shop", Structured: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			orchestrateTrip(t, events)
		})
	}
}

func orchestrateTrip(t *testing.T, events *cloudevents.Options) {
	t.Helper()
	type trip struct{ Total, Booked int }
	ended := make(chan int, 1)
	definition := saga.Must(saga.Define("trip", 1,
		saga.Step[trip]{Name: "book", Do: saga.Remote("trip.book",
			func(s *trip) order { return order{s.Total} }, func(s *trip, booked order) { s.Booked = booked.Amount })},
		saga.Step[trip]{Name: "note", Do: saga.Local(func(_ context.Context, _ pgx.Tx, _ saga.Turn, s *trip) error {
			ended <- s.Booked
			return nil
		})},
	))
	config := testConfig(t, consumer.Step{Name: "book", Action: saga.On("trip.book",
		func(_ context.Context, _ pgx.Tx, in consumer.Message[order]) (order, error) {
			return order{in.Body.Amount + 1}, nil
		})})
	config.Sagas, config.CloudEvents = []saga.Plan{definition}, events
	config.BrokerURL, config.Prefix = rabbittest.URL(), rabbittest.Name()
	var queues, exchanges []string
	for _, topic := range []string{"trip.book", saga.Topic("trip")} {
		queue := config.Prefix + topic + "." + config.Name
		queues, exchanges = append(queues, queue, queue+".dead"), append(exchanges, config.Prefix+topic)
	}
	rabbittest.Delete(t, queues, exchanges)
	s := newService(t, config)
	starter, err := sagamill.Starter(s, definition)
	if err != nil {
		t.Fatal(err)
	}
	at := serve(t, s)
	at.awaitReady()
	err = pgx.BeginFunc(t.Context(), s.Database(), func(tx pgx.Tx) error {
		_, err := starter.Start(t.Context(), tx, saga.ID{Scope: "tenant", Key: "key-1"}, trip{Total: 41})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Relay().Wake()
	if booked := await(t, ended, "last step"); booked != 42 {
		t.Errorf("the last step sees %d, want 42", booked)
	}
	at.end()
}

// The codecs of a Config are those of its steps.
func TestCodecsOfAConfig(t *testing.T) {
	t.Parallel()
	handled := make(chan string, 1)
	config := testConfig(t, consumer.Step{Name: "note", Action: consumer.On("noted", func(_ context.Context, _ pgx.Tx, in consumer.Message[*wrapperspb.StringValue], _ consumer.Emit) error {
		handled <- in.Body.GetValue()
		return nil
	})})
	config.Codecs = []outbox.Codec{protobuf.Codec}
	s := newService(t, config)
	at := serve(t, s)
	at.awaitReady()
	if err := pgx.BeginFunc(t.Context(), s.Database(), func(tx pgx.Tx) error {
		m := outbox.Message{Topic: "noted", Step: "note", Scope: "tenant", Key: "key-1"}
		return s.Writer().Write(t.Context(), tx, outbox.Encode(protobuf.Codec, m, wrapperspb.String("hello")))
	}); err != nil {
		t.Fatal(err)
	}
	s.Relay().Wake()
	if got := await(t, handled, "message"); got != "hello" {
		t.Errorf("the handler got %q", got)
	}
	at.end()
}

func TestNewNamesEachFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := sagamill.New(sagamill.Config{
		Name: "My.Shop", Schema: "drop table", BrokerURL: "amqp://localhost", Publisher: inproc.New(nil), Requests: -1,
		Migrations: fstest.MapFS{"readme.md": {}}, Consumer: consumer.Options{Schema: "other", Open: cloudevents.Open}, Codecs: []outbox.Codec{nil}, Emits: []outbox.Output{{Type: "paid"}},
		CloudEvents: &cloudevents.Options{Source: "/shop"},
	})
	var fields []string
	for line := range strings.Lines(err.Error()) {
		_, rest, _ := strings.Cut(line, "Config.")
		field, _, _ := strings.Cut(rest, ":")
		fields = append(fields, field)
	}
	want := []string{"BrokerURL", "CloudEvents", "Codecs", "Consumer", "DatabaseURL", "Emits", "Migrations", "Name", "Publisher", "Requests", "Schema"}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields in %v (-want +got):\n%s", err, diff)
	}
}

// A pool that is too small would answer requests with 503 under load, hours later.
func TestASmallPoolIsAnErrorThatNamesTheNumber(t *testing.T) {
	t.Parallel()
	step := consumer.Step{Name: "charge", Action: consumer.On("order.created", func(context.Context, pgx.Tx, consumer.Message[order], consumer.Emit) error { return nil })}
	pool, err := pgxpool.New(t.Context(), "postgres://somebody@127.0.0.1:1/db?pool_max_conns=4")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, config := range []sagamill.Config{
		{Name: "shop", Database: pool, Steps: []consumer.Step{step}},
		{Name: "shop", DatabaseURL: "postgres://somebody@127.0.0.1:1/db?pool_max_conns=4", Steps: []consumer.Step{step}},
	} {
		_, err = sagamill.New(config)
		const want = "the pool has 4 connections, and the service uses up to 32: 2 for relay, 16 for Requests, 2 for health checks and sweepers, 12 for Consumer"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
}

func TestAPortThatIsTakenIsFoundBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	taken := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(taken.Close)
	config := testConfig(t)
	s := newService(t, config)
	err := s.ListenAndServe(t.Context(), strings.TrimPrefix(taken.URL, "http://"), s.Handler())
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("ListenAndServe: %v, want that the address is in use", err)
	}
	if n := queryInt(t, config.Schema, "SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'"); n != 0 {
		t.Error("the schema was made")
	}
}

// With NoMigrations a schema that is missing or old stops the service, which says what to do.
func TestNoMigrationsChecksTheVersions(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	config.NoMigrations = true
	err := newService(t, config).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "is at version 0, and this program needs") {
		t.Errorf("without tables Run returns %v", err)
	}
	config.NoMigrations = false
	if err := newService(t, config).Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	config.NoMigrations = true
	config.Migrations.(fstest.MapFS)["tables/002_more.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE {{.schema}}.more ()")}
	err = newService(t, config).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "own tables in schema "+config.Schema+" are at version 1, and this program needs 2") {
		t.Errorf("with a migration more Run returns %v", err)
	}
}

// Run waits for a database that cannot be reached, says so once with the cause, and ends with its context.
func TestRunWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	var lines atomic.Int32
	ctx, stop := context.WithCancel(t.Context())
	config := sagamill.Config{Name: "shop", DatabaseURL: "postgres://somebody:secret@127.0.0.1:1/db"}
	config.Logger = slog.New(slog.NewTextHandler(writerFunc(func(line []byte) (int, error) {
		if lines.Add(1); !strings.Contains(string(line), "127.0.0.1:1") || strings.Contains(string(line), "secret") {
			t.Errorf("the log line does not name the host, or names the password: %s", line)
		}
		time.AfterFunc(3*250*time.Millisecond, stop) // further attempts are not logged
		return len(line), nil
	}), nil))
	if err := newService(t, config).Run(ctx); err != nil {
		t.Errorf("Run: %v, want nil after its context has ended", err)
	}
	if n := lines.Load(); n != 1 {
		t.Errorf("%d log lines, want 1", n)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestASecondRunIsAnError(t *testing.T) {
	t.Parallel()
	s := newService(t, testConfig(t))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := errors.Join(s.Run(ctx)); err != nil {
		t.Errorf("Run with an ended context: %v", err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("a second Run returns nil")
	}
	closed := newService(t, testConfig(t))
	if err := errors.Join(closed.Close()); err != nil {
		t.Fatal(err)
	}
	if err := closed.Run(t.Context()); err == nil {
		t.Error("Run after Close returns nil")
	}
}

// Requests that come while tables are made are answered with 503, and may be sent again with their key.
// A stop while the tables are made is no error, wherever it is noticed: also where the broken connection is what a
// migration reports.
func TestAStopWhileItPreparesIsNoError(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	config := testConfig(t)
	config.BrokerURL, config.Publisher, config.Subscriber = "", inproc.New(nil), stopping{inproc.New(nil).Subscriber("shop"), stop}
	config.Steps = []consumer.Step{{Name: "charge", Action: consumer.On("order.created", func(context.Context, pgx.Tx, consumer.Message[order], consumer.Emit) error { return nil })}}
	if err := newService(t, config).Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// A stopping subscriber stops the service when it is to make a queue, and reports another error.
type stopping struct {
	message.Subscriber
	stop context.CancelFunc
}

func (s stopping) SubscribeInitialize(string) error {
	s.stop()
	return errors.New("conn closed")
}

// A second call on the same address neither takes the port from the first one nor closes what that uses.
func TestASecondListenAndServeDisturbsNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, testConfig(t))
	at := serve(t, s)
	for status := 0; status != http.StatusOK; {
		status, _ = at.do(http.MethodGet, "/readyz", "")
	}
	if err := s.ListenAndServe(t.Context(), strings.TrimPrefix(at.url, "http://"), orderRoutes(s)); err == nil || !strings.Contains(err.Error(), "once") {
		t.Errorf("second ListenAndServe = %v", err)
	}
	if err := s.Database().Ping(t.Context()); err != nil {
		t.Errorf("the pool after a second ListenAndServe: %v", err)
	}
	at.stop()
	if err := await(t, at.done, "end"); err != nil {
		t.Error(err)
	}
}

// A handler that ignores the end of its context does not keep Run from returning.
func TestAStopEndsAlthoughAHandlerDoesNot(t *testing.T) {
	t.Parallel()
	entered, release := make(chan bool, 1), make(chan bool)
	config := testConfig(t, consumer.Step{Name: "charge", Action: consumer.On("order.created", func(ctx context.Context, tx pgx.Tx, _ consumer.Message[order], _ consumer.Emit) error {
		_, err := tx.Exec(ctx, "SELECT 1")
		entered <- true
		<-release
		return err
	})})
	config.Consumer.DrainTimeout = time.Millisecond
	s := newService(t, config)
	at := serve(t, s)
	defer close(release)
	for status := 0; status != http.StatusAccepted; {
		status, _ = at.do(http.MethodPost, "/orders", "key-1")
	}
	await(t, entered, "entry into the handler")
	at.stop()
	if err := await(t, at.done, "end"); err == nil || !strings.Contains(err.Error(), "still runs") || !strings.Contains(err.Error(), "connections are still in use") {
		t.Errorf("ListenAndServe = %v", err)
	}
}

func TestRequestsBeforePrepareAreRefused(t *testing.T) {
	t.Parallel()
	s := newService(t, testConfig(t))
	r := httptest.NewRequest("POST", "/orders", nil)
	r.Header.Set(idemkey.DefaultHeader, "key-1")
	w := httptest.NewRecorder()
	orderRoutes(s).ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
		t.Errorf("answered %d with Retry-After %q, want 503 and 1", w.Code, w.Header().Get("Retry-After"))
	}
}
