package migrations_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
)

// sqlNext is a migration as the next one may be: columns for all tables, a wider check, a
// table and an index.
const sqlNext = `
ALTER TABLE {{.schema}}.inbox ADD COLUMN next int, DROP CONSTRAINT inbox_state_check,
	ADD CONSTRAINT inbox_state_check CHECK (state <> 'unheard of') NOT VALID;
ALTER TABLE {{.schema}}.parked ADD COLUMN next int NOT NULL DEFAULT 1;
ALTER TABLE {{.schema}}.outbox ADD COLUMN next text;
ALTER TABLE {{.schema}}.outbox_held ADD COLUMN next text;
ALTER TABLE {{.schema}}.outbox_relay ADD COLUMN next int DEFAULT 0;
ALTER TABLE {{.schema}}.outbox_cursor_0 ADD COLUMN next int;
ALTER TABLE {{.schema}}.outbox_cursor_1 ADD COLUMN next int;
CREATE INDEX next_updated_at ON {{.schema}}.inbox (updated_at);
CREATE TABLE {{.schema}}.next (id int PRIMARY KEY)`

// A service that runs during a migration of its tables loses nothing and does nothing twice: writers, relay
// and consumer keep their connections, and the statements prepared on them.
func TestAServiceRunsOnWhileItsTablesAreMigrated(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.await(t, 80) // and so all statements are prepared on the older tables
	if err := migrations.UpWith(t.Context(), pgtest.URL(), s.schema, withNext(t, sqlNext)); err != nil {
		t.Errorf("Up: %v", err)
	}
	s.await(t, s.count(t)+80)
	written := s.stop(t)

	var effects, distinct, held, parked int
	err := s.pool.QueryRow(t.Context(), strings.ReplaceAll(`
SELECT count(*), count(DISTINCT key), (SELECT count(*) FROM {schema}.outbox_held), (SELECT count(*) FROM {schema}.parked) FROM {schema}.effect`, "{schema}", s.schema)).
		Scan(&effects, &distinct, &held, &parked)
	if err != nil {
		t.Fatal(err)
	}
	if effects != written || distinct != written || held != 0 || parked != 0 {
		t.Errorf("%d effects of %d keys, %d held, %d parked; want %d effects and nothing else", effects, distinct, held, parked, written)
	}
}

// A service writes messages and consumes them, until it is stopped.
type service struct {
	pool    *pgxpool.Pool
	schema  string
	written atomic.Int64
	cease   chan struct{} // writing
	end     context.CancelFunc
	writing sync.WaitGroup
	running sync.WaitGroup
}

func newService(t *testing.T) *service {
	t.Helper()
	s := &service{pool: pgtest.Pool(t, pgtest.URL()), schema: at(t, pgtest.URL(), len(landed(t))), cease: make(chan struct{})}
	if _, err := s.pool.Exec(t.Context(), "CREATE TABLE "+s.schema+".effect (key text NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	broker := inproc.New(nil)
	relay, err := outbox.NewRelay(s.pool, broker, &outbox.RelayOptions{Schema: s.schema, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	type made struct{}
	action := func(ctx context.Context, tx pgx.Tx, in consumer.Message[made], _ consumer.Emit) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".effect (key) VALUES ($1)", in.Key)
		return err
	}
	steps, err := consumer.New(s.pool, broker.Subscriber("service"), []consumer.Step{{Name: "step", Action: consumer.On("made", action)}},
		&consumer.Options{Schema: s.schema, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: s.schema})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.end = cancel
	run := func(what string, run func(context.Context) error) {
		s.running.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	run("consumer", steps.Run)
	run("relay", relay.Run)
	for i := range 2 {
		s.writing.Go(func() { s.write(t, writer, relay, i) })
	}
	return s
}

// write stores messages one by one, each in a separate transaction that must succeed.
func (s *service) write(t *testing.T, w *outbox.Writer, relay *outbox.Relay, who int) {
	for n := 0; ; n++ {
		select {
		case <-s.cease:
			return
		default:
		}
		err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
			return w.Write(t.Context(), tx, outbox.Message{Topic: "made", Scope: "s", Key: fmt.Sprint(who, "-", n), Step: "step", Payload: []byte("{}")})
		})
		if err != nil {
			t.Errorf("write: %v", err)
			return
		}
		s.written.Add(1)
		relay.Wake()
	}
}

func (s *service) count(t *testing.T) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+s.schema+".effect").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *service) await(t *testing.T, n int) {
	t.Helper()
	faulttest.Await(t, "the service does its work", func() bool { return s.count(t) >= n }, nil)
}

// stop ends the writers, waits until all is done that they have written, and returns how
// much that is.
func (s *service) stop(t *testing.T) int {
	t.Helper()
	close(s.cease)
	s.writing.Wait()
	s.await(t, int(s.written.Load()))
	s.end()
	s.running.Wait()
	return int(s.written.Load())
}
