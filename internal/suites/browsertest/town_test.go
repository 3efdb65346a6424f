package browsertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/console"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// prefix is where the tests mount the console.
const prefix = "/ops"

// person is who uses the console, and why is the reason that they give.
const person, why = "ann", "the cause is mended"

// A town is a database of the test's own with services, a console that shows it, and a browser.
type town struct {
	*browser
	t           *testing.T
	databaseURL string
	db          *pgxpool.Pool
	broker      *inproc.Broker // nil: the services are on RabbitMQ
	prefix      string         // of its queues
}

// newTown makes the schemas of services, each with a table effect, in which handlers note what they do.
func newTown(t *testing.T, services ...string) *town {
	t.Helper()
	w := &town{t: t, databaseURL: pgtest.DirectDatabase(t), broker: inproc.New(nil)}
	var migrating sync.WaitGroup
	for _, name := range services {
		migrating.Go(func() {
			if err := migrations.Up(t.Context(), w.databaseURL, name); err != nil {
				t.Error(err)
			}
		})
	}
	migrating.Wait()
	w.db = pgtest.Pool(t, w.databaseURL)
	for _, name := range services {
		w.exec("CREATE TABLE " + name + ".effect (key text NOT NULL, what text NOT NULL)")
	}
	w.openConsole(console.RoleAdmin)
	return w
}

// openConsole starts a console and a browser for it.
func (w *town) openConsole(role console.Role) {
	w.t.Helper()
	pages, err := console.New([]console.Database{{Name: "town", Pool: w.db}}, &console.Options{
		Logger:    slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Authorize: func(*http.Request) (console.Actor, console.Role, error) { return person, role, nil }})
	if err != nil {
		w.t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix(prefix, pages))
	w.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		if err := pages.Shutdown(context.Background()); err != nil {
			w.t.Error(err)
		}
	})
	w.browser = newBrowser(w.t, server.URL+prefix)
}

// useRabbitMQ makes the services use queues of the test's own on RabbitMQ. topics are the topics of each service.
func (w *town) useRabbitMQ(topics map[string][]string) {
	w.t.Helper()
	w.broker, w.prefix = nil, rabbittest.Name()
	var queues, exchanges []string
	for service, list := range topics {
		for _, topic := range list {
			queues, exchanges = append(queues, w.queue(topic, service), w.queue(topic, service)+".dead"), append(exchanges, w.prefix+topic)
		}
	}
	rabbittest.Delete(w.t, queues, exchanges)
}

// queue returns the name of the queue of a service for a topic.
func (w *town) queue(topic, service string) string { return w.prefix + topic + "." + service }

// serve runs a service until stop is called, or the test ends.
func (w *town) serve(config sagamill.Config) (service *sagamill.Service, stop func()) {
	w.t.Helper()
	config.DatabaseURL, config.NoMigrations = w.databaseURL, true
	config.Logger = slog.New(slog.DiscardHandler)
	config.Requests, config.Consumer.Lanes, config.Consumer.ParkedWorkers = 1, 2, 1
	config.Orchestrator.Consumer.Lanes, config.Orchestrator.Consumer.ParkedWorkers, config.Orchestrator.TimerWorkers = 2, 1, 1
	if w.broker != nil {
		config.Publisher, config.Subscriber = w.broker, w.broker.Subscriber(config.Name)
	} else {
		config.BrokerURL, config.Prefix = rabbittest.URL(), w.prefix
	}
	service, err := sagamill.New(config)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- service.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("service %s: %v", config.Name, err)
		}
	})
	w.t.Cleanup(stop)
	w.awaitThat("ready service "+config.Name, func() bool { return service.CheckReady(w.t.Context()) == nil })
	return service, stop
}

func (w *town) exec(statement string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(w.t.Context(), statement, args...); err != nil {
		w.t.Fatalf("%s: %v", statement, err)
	}
}

// read returns the only value of a query, as text.
func (w *town) query(query string, args ...any) (text string) {
	w.t.Helper()
	if err := w.db.QueryRow(w.t.Context(), "SELECT coalesce(("+query+")::text, '')", args...).Scan(&text); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return text
}

// awaitRead waits until a query returns want.
func (w *town) awaitQuery(query, want string) {
	w.t.Helper()
	w.awaitThat(want+" of "+query, func() bool { return w.query(query) == want })
}

// check fails the test if a query does not return want.
func (w *town) check(query, want string) {
	w.t.Helper()
	if got := w.query(query); got != want {
		w.t.Errorf("%s = %q, want %q", query, got, want)
	}
}

// checkOnce fails the test unless a service did each of n keys once.
func (w *town) checkOnce(service string, n int) {
	w.t.Helper()
	w.check("SELECT count(*) || ' of ' || count(DISTINCT (key, what)) FROM "+service+".effect", fmt.Sprintf("%d of %d", n, n))
}

// write stores messages of a service in one transaction.
func (w *town) write(s *sagamill.Service, messages ...outbox.Message) {
	w.t.Helper()
	if err := pgx.BeginFunc(w.t.Context(), w.db, func(tx pgx.Tx) error {
		return s.Writer().Write(w.t.Context(), tx, messages...)
	}); err != nil {
		w.t.Fatal(err)
	}
	s.Relay().Wake()
}

// note stores in a service's table that something was done for a saga.
func note(ctx context.Context, tx pgx.Tx, service, key, what string) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+service+".effect (key, what) VALUES ($1, $2)", key, what)
	return err
}

// A trip is the state of the sagas, and what services say to each other about one.
type trip struct {
	Traveller string `json:"traveller"`
	Room      string `json:"room,omitempty"`
}

// start begins trips with the keys trip-001 and so on.
func (w *town) start(s *sagamill.Service, d *saga.Definition[trip], n int) {
	w.t.Helper()
	starter, err := saga.NewStarter(d, &saga.StarterOptions{Schema: s.Schema()})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := pgx.BeginFunc(w.t.Context(), w.db, func(tx pgx.Tx) error {
		var errs []error
		for i := range n {
			_, err := starter.Start(w.t.Context(), tx, saga.ID{Scope: "acme", Key: fmt.Sprintf("trip-%03d", i+1)}, trip{Traveller: "Ada"})
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}); err != nil {
		w.t.Fatal(err)
	}
	s.Relay().Wake()
}

// bookings is the namespace of the requests' keys.
const bookings = "bookings"

// request passes a request of each key on to an upstream that answers with status, and returns what clients get.
func (w *town) request(schema string, status int, keys ...string) (codes []int) {
	w.t.Helper()
	store, err := idempg.New(w.db, &idempg.Options{Schema: schema})
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := idemkey.New(store, &idemkey.Options{Key: idemkey.KeyOptions{Namespace: bookings}, SingleTenant: true, ExternalEffects: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	upstream := m.Handler(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(status) }))
	for _, key := range keys {
		r, answer := httptest.NewRequest(http.MethodPost, "/bookings", http.NoBody), httptest.NewRecorder()
		r.Header.Set("Idempotency-Key", key)
		upstream.ServeHTTP(answer, r)
		codes = append(codes, answer.Code)
	}
	return codes
}

// digestOf returns how the console names a key of a request.
func digestOf(key string) string {
	return (&idemkey.Identity{Namespace: bookings, Scope: "default", Key: key}).Digest()
}

// encode returns v as JSON.
func encode(v any) []byte {
	data, _ := json.Marshal(v) // of the test's own
	return data
}

// confirm fills in the page of a change and confirms it. count is what it must say that would change.
func (w *town) confirm(count int) {
	w.t.Helper()
	w.confirmAt(count, "")
}

// confirmAt is confirm with a rate, "" for the one that the page proposes.
func (w *town) confirmAt(count int, rate string) {
	w.t.Helper()
	w.see("What it would do now")
	w.await(fmt.Sprintf("a preview of %d", count), fmt.Sprintf("document.querySelector('.figure').innerText === %q", fmt.Sprint(count)))
	w.fill("Why", why)
	if rate != "" {
		w.fill("Objects per second", rate)
	}
	if count > 100 {
		w.fill("Type the count", fmt.Sprint(count))
	}
	w.press(strings.TrimSpace(w.title()))
}

// title returns the heading of the page.
func (w *town) title() string {
	w.t.Helper()
	return read[string](w.browser, "document.querySelector('h1').innerText")
}
