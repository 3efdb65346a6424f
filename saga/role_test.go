package saga_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/saga"
)

// A local step may set a role that sees no sagas, and need not undo it: neither where Start runs it, nor where a reply or
// a timer does.
func TestARoleOfALocalStepEndsWithIt(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	tenant := pgtest.NewRole(t, p.db)
	service := pgtest.NewOutsider(t, p.db, p.schema, tenant)
	service.Exec(t, fmt.Sprintf("GRANT USAGE ON SCHEMA {schema} TO %s; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO %[1]s; GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO %[1]s", tenant))
	service.Exec(t, "ALTER TABLE {schema}.effect ADD COLUMN by text DEFAULT current_user; ALTER ROLE {role} BYPASSRLS")
	service.Hide(t, "saga", "inbox", "inbox_horizon", "parked", "outbox", "outbox_held")
	note := func(name string, queued bool) saga.Step[trip] {
		fails := map[string]bool{"timer": true}
		return saga.Step[trip]{Name: name, Undo: saga.Local(func(context.Context, pgx.Tx, saga.Turn, *trip) error { return nil }),
			Do: saga.Local(func(ctx context.Context, tx pgx.Tx, turn saga.Turn, _ *trip) error {
				if fails[name] {
					fails[name] = false
					return errors.New("not now") // a timer tries again
				}
				if _, err := tx.Exec(ctx, "SET LOCAL ROLE "+tenant); err != nil {
					return err
				}
				insert := "INSERT INTO " + p.schema + ".effect (key, what) VALUES ($1, $2)"
				if queued {
					turn.Queue(insert, turn.Key, name)
					return nil
				}
				_, err := tx.Exec(ctx, insert, turn.Key, name)
				return err
			})}
	}
	d := saga.Must(saga.Define("trip", 1, note("first", false), book("hotel"), note("second", true), note("third", false), note("timer", false), book("car")))
	p.db = service.Pool
	p.orchestrate(nil, d)
	p.participate(p.booking("hotel"), p.booking("car"))
	start(p, d, "k", trip{Item: "x"})
	p.until("k", saga.StatusCompleted)
	rows, _ := p.db.Query(t.Context(), "SELECT what || ' ' || (by = $1) FROM "+p.schema+".effect ORDER BY at", tenant)
	done, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if want := "first true, hotel false, second true, third true, timer true, car false"; err != nil || strings.Join(done, ", ") != want {
		t.Errorf("done as the tenant: %q, %v; want %s", done, err, want)
	}
}

// A local step that removes the row of its saga commits nothing, and no reply to a saga that is hidden becomes a dead
// letter.
func TestASagaThatIsNotSeenIsNotAbsent(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	service := pgtest.NewOutsider(t, p.db, p.schema)
	removed := false
	eraser := saga.Step[trip]{Name: "erase", Retry: saga.Retry{Attempts: 3, Base: 1},
		Do: saga.Local(func(ctx context.Context, tx pgx.Tx, turn saga.Turn, _ *trip) error {
			if removed {
				return nil
			}
			removed = true
			_, err := tx.Exec(ctx, "DELETE FROM "+p.schema+".saga WHERE key = $1", turn.Key)
			return err
		})}
	d := saga.Must(saga.Define("trip", 1, book("hotel"), eraser))
	owner := p.db
	p.db = service.Pool
	p.orchestrate(nil, d)
	entered, hidden := make(chan struct{}), make(chan struct{})
	hotel := p.booking("hotel")
	hotel.Action = saga.On("hotel.book", func(context.Context, pgx.Tx, consumer.Message[request]) (answer, error) {
		close(entered)
		<-hidden
		return answer{}, nil
	})
	p.participate(hotel)
	start(p, d, "k", trip{Item: "x"})
	<-entered
	service.Hide(t, "saga")
	close(hidden)
	p.await("the reply fails and is tried again", func() bool {
		var n int
		err := owner.QueryRow(t.Context(), "SELECT count(*) FROM "+p.schema+".parked WHERE state = 'retrying' AND error LIKE '%row-level security%'").Scan(&n)
		return err == nil && n == 1
	})
	service.Show(t, "saga")
	if _, err := owner.Exec(t.Context(), "UPDATE "+p.schema+".parked SET due_at = now()"); err != nil {
		t.Fatal(err)
	}
	p.until("k", saga.StatusCompleted)
	if !removed {
		t.Error("the local step did not run")
	}
}
