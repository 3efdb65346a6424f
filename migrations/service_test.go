package migrations_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// with returns the name of a schema with these parts.
func with(t *testing.T, parts ...migrations.Part) string {
	t.Helper()
	name := schema(t)
	if err := migrations.Up(t.Context(), pgtest.URL(), name, parts...); err != nil {
		t.Fatalf("Up: %v", err)
	}
	return name
}

// Package idempg runs a request, replays it and sweeps with the part Idempotency alone.
func TestIdempotencyAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL())
	store, err := idempg.New(pool, &idempg.Options{Schema: with(t, migrations.Idempotency)})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
	claim := idemkey.Claim{
		ID: idemkey.Identity{Namespace: "http", Scope: "s", Key: "k"}, FP: idemkey.Fingerprint{Alg: "v1", Sum: []byte("sum")},
		TTL: idemkey.DefaultTTL, Lease: idemkey.DefaultLease, ExecTimeout: idemkey.DefaultExecTimeout,
	}
	for _, want := range []idemkey.Kind{idemkey.KindProceed, idemkey.KindReplay} {
		d, err := store.Begin(t.Context(), claim)
		if err != nil || d.Kind != want {
			t.Fatalf("Begin = %v, %v; want %v", d.Kind, err, want)
		}
		if d.Exec == nil {
			continue
		}
		if err := d.Exec.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
			t.Errorf("Commit: %v", err)
		}
	}
	if n, err := store.Sweep(t.Context(), 10); n != 0 || err != nil {
		t.Errorf("Sweep = %d, %v", n, err)
	}

	other, err := idempg.New(pool, &idempg.Options{Schema: with(t, migrations.Outbox)})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "migrations.Up") {
		t.Errorf("Check of a schema without the part: %v, want an error that says what to do", err)
	}
}

// A service with the part Outbox alone publishes, and one with Inbox alone handles the message once.
func TestOutboxAloneAndInboxAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL())
	sender, receiver := with(t, migrations.Outbox), with(t, migrations.Inbox)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE "+receiver+".effect (key text PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	broker, logger := inproc.New(nil), slog.New(slog.DiscardHandler)
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: sender})
	if err != nil {
		t.Fatal(err)
	}
	relay, err := outbox.NewRelay(pool, broker, &outbox.RelayOptions{Schema: sender, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	action := func(ctx context.Context, tx pgx.Tx, in consumer.Message[struct{}], _ consumer.Emit) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+receiver+".effect (key) VALUES ($1)", in.Key)
		return err
	}
	steps, err := consumer.New(pool, broker.Subscriber("receiver"), []consumer.Step{{Name: "step", Action: consumer.On("made", action)}},
		&consumer.Options{Schema: receiver, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for what, run := range map[string]func(context.Context) error{"relay": relay.Run, "consumer": steps.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return writer.Write(t.Context(), tx, outbox.Message{Topic: "made", Scope: "s", Key: "k", Step: "step", Payload: []byte("{}")})
	})
	if err != nil {
		t.Fatal(err)
	}
	relay.Wake()
	faulttest.Await(t, "the message is handled", func() (done bool) {
		err := pool.QueryRow(t.Context(), "SELECT count(*) = 1 FROM "+receiver+".inbox WHERE key = 'k' AND state = 'done'").Scan(&done)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}, nil)
	cancel()
	running.Wait()
}

// A saga begins with the part Saga and what it brings along.
func TestSagaAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL())
	name := with(t, migrations.Saga)
	plan := saga.Must(saga.Define("part", 1, saga.Step[struct{}]{Name: "tell", Do: saga.Tell("told", func(*struct{}) struct{} { return struct{}{} })}))
	starter, err := saga.NewStarter(plan, &saga.StarterOptions{Schema: name})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := starter.Start(t.Context(), tx, saga.ID{Scope: "s", Key: "k"}, struct{}{})
		return err
	})
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	var instances, messages int
	err = pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM "+name+".saga), (SELECT count(*) FROM "+name+".outbox)").Scan(&instances, &messages)
	if err != nil || instances != 1 || messages != 1 {
		t.Errorf("%d instances and %d messages, %v; want one of each", instances, messages, err)
	}
}
