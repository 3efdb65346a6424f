package handover

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	topic    = "work"
	service  = "handover"
	keys     = 20
	patience = time.Minute

	sqlCreateEffect = `CREATE TABLE {schema}.effect (id bigserial PRIMARY KEY, who text NOT NULL, key text NOT NULL, n int NOT NULL, deliveries int NOT NULL)`
)

// A work is the payload of a message.
type work struct {
	N int `json:"n"`
}

// A field is a queue with its consumers.
type field struct {
	*testing.T
	pool      *pgxpool.Pool // past the paths
	schema    string
	prefix    string
	publisher *rabbitmq.Publisher
	published int  // messages of each key
	ordered   bool // the step is: a handler may lose its connection, which parks its message
}

func newField(t *testing.T) *field {
	t.Helper()
	f := &field{T: t, prefix: rabbittest.Name()}
	f.pool, f.schema = pgtest.Schema(t, sqlCreateEffect)
	topology := f.topology()
	if err := rabbitmq.DeclareTopology(t.Context(), topology, topic); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.deleteTopology)
	var err error
	if f.publisher, err = rabbitmq.NewPublisher(topology, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.publisher.Close() })
	return f
}

func (f *field) topology() wamqp.Config {
	f.Helper()
	c, err := rabbitmq.NewConfig(rabbittest.URL(), service, &rabbitmq.ConfigOptions{Prefix: f.prefix, SingleActiveConsumer: true})
	if err != nil {
		f.Fatal(err)
	}
	return c
}

func (f *field) deleteTopology() {
	connection, err := amqp.Dial(rabbittest.URL())
	if err != nil {
		f.Errorf("clean up: %v", err)
		return
	}
	defer connection.Close()
	ch, err := connection.Channel()
	c := f.topology()
	for _, queue := range []string{c.Queue.GenerateName(topic), c.Queue.GenerateName(topic) + ".dead"} {
		if err == nil {
			_, err = ch.QueueDelete(queue, false, false, false)
		}
	}
	if err == nil {
		err = ch.ExchangeDelete(c.Exchange.GenerateName(topic), false, false)
	}
	if err != nil {
		f.Errorf("clean up: %v", err)
	}
}

// publish publishes the next message of each key, n times.
func (f *field) publish(n int) {
	f.Helper()
	var msgs []*message.Message
	for range n {
		for k := range keys {
			payload, _ := json.Marshal(work{f.published})
			msg := message.NewMessage(uuid.Must(uuid.NewV7()).String(), payload)
			key := stepkey.Key{Key: fmt.Sprint("k", k), Step: "step", N: strconv.Itoa(f.published)}
			msg.Metadata.Set(outbox.HeaderKey, key.String())
			msg.Metadata.Set(outbox.HeaderScope, "tenant")
			msg.Metadata.Set(outbox.PropertyType, topic)
			msg.Metadata.Set(outbox.PropertyCorrelation, key.Key)
			msgs = append(msgs, msg)
		}
		f.published++
	}
	if err := f.publisher.Publish(topic, msgs...); err != nil {
		f.Fatal(err)
	}
}

// count returns how many steps who has executed, or everybody.
func (f *field) count(who string) (n int) {
	f.Helper()
	if err := f.pool.QueryRow(f.Context(), "SELECT count(*) FROM "+f.schema+".effect WHERE $1 IN ('', who)", who).Scan(&n); err != nil {
		f.Fatal(err)
	}
	return n
}

// await waits until done reports true, and returns how long that took.
func (f *field) await(what string, done func() bool) time.Duration {
	f.Helper()
	began := time.Now()
	for !done() {
		if time.Since(began) > patience {
			f.Fatalf("%s: not within %s; %d of %d steps are executed", what, patience, f.count(""), f.published*keys)
		}
		_ = backoff.Sleep(f.Context(), 10*time.Millisecond)
	}
	return time.Since(began)
}

// A process is a consumer with its own pool, path and subscriber.
type process struct {
	*consumer.Consumer
	name string
	path *path
	log  *lines

	mu  sync.Mutex
	cut fault // what happens to the path in the next handler
}

// start starts a consumer that ends with the test.
func (f *field) start(name string) *process {
	f.Helper()
	p := &process{name: name, log: &lines{}}
	var pool *pgxpool.Pool
	p.path, pool = newPath(f.T)
	logger := slog.New(slog.NewTextHandler(p.log, nil))
	sub, err := rabbitmq.NewSubscriber(f.topology(), &rabbitmq.SubscriberOptions{Key: outbox.SagaKey, NackDelay: 50 * time.Millisecond, Logger: logger, DrainTimeout: time.Second})
	if err != nil {
		f.Fatal(err)
	}
	step := consumer.Step{Name: "step", Action: consumer.On(topic, f.handler(p)), Timeout: 2 * time.Second, Ordered: f.ordered, RetryBase: 1, RetryCap: 1}
	p.Consumer, err = consumer.New(pool, sub, []consumer.Step{step}, &consumer.Options{Schema: f.schema, Lanes: 4, Logger: logger, DrainTimeout: time.Second})
	if err != nil {
		f.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.Run(ctx) // a cut path may hold handlers up
	}()
	f.Cleanup(func() {
		p.path.set(none)
		stop()
		<-ended
		sub.Close()
		if f.Failed() {
			f.Logf("log of %s:\n%s", name, p.log)
		}
	})
	f.await(name+" is ready", p.Ready)
	return p
}

// handler stores who has executed a message, and cuts the path if that is due.
func (f *field) handler(p *process) consumer.Handler[work] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[work], _ consumer.Emit) error {
		deliveries, _ := strconv.Atoi(cmp.Or(in.Metadata.Get("x-delivery-count"), in.Metadata.Get("x-acquired-count"), "0"))
		_, err := tx.Exec(ctx, "INSERT INTO "+f.schema+".effect (who, key, n, deliveries) VALUES ($1, $2, $3, $4)", p.name, in.Key, in.Body.N, deliveries)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.cut != none {
			p.path.set(p.cut)
			p.cut = none
		}
		return err
	}
}

// cutInHandler cuts the path of p in its next handler, which then commits, and waits for that.
func (f *field) cutInHandler(p *process, how fault) {
	f.Helper()
	p.mu.Lock()
	p.cut = how
	p.mu.Unlock()
	f.await("a handler of "+p.name+" runs", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.cut == none
	})
}

// judge checks that each step was executed once, and those of each key in their order, and that nothing is parked.
func (f *field) judge() {
	f.Helper()
	f.await("all is executed", func() bool { return f.count("") >= f.published*keys })
	rows, _ := f.pool.Query(f.Context(), "SELECT key, n FROM "+f.schema+".effect ORDER BY id")
	next := map[string]int{}
	var key string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&key, &n}, func() error {
		if n != next[key] {
			f.Errorf("%s: step %d is executed where %d is next", key, n, next[key])
		}
		next[key] = n + 1
		return nil
	}); err != nil {
		f.Fatal(err)
	}
	if got := f.count(""); got != f.published*keys {
		f.Errorf("%d steps are executed, want %d", got, f.published*keys)
	}
	var parked int
	if err := f.pool.QueryRow(f.Context(), "SELECT count(*) FROM "+f.schema+".parked").Scan(&parked); err != nil || parked > 0 {
		f.Errorf("%d messages are parked, %v", parked, err)
	}
}

// deliveries returns the largest delivery count that a handler has seen.
func (f *field) deliveries() (n int) {
	f.Helper()
	if err := f.pool.QueryRow(f.Context(), "SELECT coalesce(max(deliveries), 0) FROM "+f.schema+".effect").Scan(&n); err != nil {
		f.Fatal(err)
	}
	return n
}

// lines is a log in memory.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// handovers returns how often p has handed its queue over.
func (p *process) handovers() int { return strings.Count(p.log.String(), "handed over") }
