package sagatest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/sagatest"
)

// A counter keeps its bookings in a table.
type counter struct{}

// table is the desks of three with their bookings in a table. One that is careless cancels by
// the booking's guest, not by its key.
func table(tx pgx.Tx, schema string, careless bool) sagatest.Model[counter, trip] {
	insert := func(name string) saga.Handler[request, booking] {
		return func(_ context.Context, tx pgx.Tx, in consumer.Message[request]) (booking, error) {
			if name == "car" {
				return booking{}, saga.Reject("there is none")
			}
			in.Queue("INSERT INTO "+schema+".booking (key, name, guest) VALUES ($1, $2, $3)", in.Key, name, in.Body.Guest)
			return booking{name}, nil
		}
	}
	remove := func(name string) saga.UndoHandler[request] {
		return func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) (err error) {
			if careless {
				_, err = tx.Exec(ctx, "DELETE FROM "+schema+".booking WHERE guest = $1", in.Body.Guest)
			} else {
				_, err = tx.Exec(ctx, "DELETE FROM "+schema+".booking WHERE key = $1 AND name = $2", in.Key, name)
			}
			return err
		}
	}
	return sagatest.Model[counter, trip]{
		State: trip{Guest: "Ada"},
		Saga:  func(*counter) *saga.Definition[trip] { return saga.Must(saga.Define("trip", 1, three(time.Minute)...)) },
		Steps: func(*counter) (all []consumer.Step) {
			for _, name := range []string{"flight", "hotel", "car"} {
				all = append(all, saga.Participant(consumer.Step{
					Name: name, Action: saga.On(name+".book", insert(name)), Compensation: saga.OnUndo(name+".cancel", remove(name)),
				}))
			}
			return all
		},
		Rest: func(_ *counter, o sagatest.Outcome[trip]) error { return bookings(o, schema) },
		Tx:   tx, Fingerprint: "SELECT coalesce(string_agg(key || name || guest, ',' ORDER BY key, name), '') FROM " + schema + ".booking",
	}
}

func bookings(o sagatest.Outcome[trip], schema string) error {
	var names string
	err := o.Tx.QueryRow(context.Background(), "SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM "+schema+".booking").Scan(&names)
	if err == nil && o.Status == saga.StatusCompensated && names != "another" {
		err = fmt.Errorf("there is %q", names)
	}
	return err
}

func TestExploreOnTables(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	db, schema := pgtest.Schema(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	for _, sql := range []string{
		"CREATE TABLE " + schema + ".booking (key text, name text, guest text, PRIMARY KEY (key, name))",
		"INSERT INTO " + schema + ".booking VALUES ('other', 'another', 'Ada')",
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	sagatest.Explore(t, table(tx, schema, false), &sagatest.ExploreOptions{Faults: 1})
	small := table(tx, schema, false)
	small.Fingerprint = ""
	sagatest.Explore(t, small, &sagatest.ExploreOptions{Faults: 1})

	found := sagatest.ExploreWith(t, table(tx, schema, true), nil, "")
	check(t, found, `there is ""`, 12)
	var n int
	if err := tx.QueryRow(t.Context(), "SELECT count(*) FROM "+schema+".booking").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d bookings are left, %v; want the one that was there", n, err)
	}
}

func TestExploreSaysWhatIsWrongWithAModel(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	lacking := modelOf(three(0), desk{name: "flight"}, desk{name: "hotel"})
	forgetful := modelOf(three(0), desks(0)...)
	entries := 0
	forgetful.Rest = func(*agency, sagatest.Outcome[trip]) error {
		if entries++; entries == 2 {
			return errors.New("the second one")
		}
		return nil
	}
	endless := modelOf(three(0), desks(0)...)
	tests := []struct {
		name string
		do   func(tb testing.TB)
		want string
	}{
		{"no saga", func(tb testing.TB) { sagatest.Explore(tb, model{}, nil) }, "needs a Saga and Steps"},
		{"no participant", func(tb testing.TB) { sagatest.Explore(tb, lacking, nil) }, `step car: none of Steps takes messages of type "car.book"`},
		{"no world", func(tb testing.TB) { sagatest.Explore(tb, forgetful, nil) }, "keep something that is not in the world"},
		{"too long", func(tb testing.TB) { sagatest.Explore(tb, endless, &sagatest.ExploreOptions{MaxSteps: 3}) }, "not come to an end after 3 events"},
		{"no schedule", func(tb testing.TB) { sagatest.Replay(tb, endless, "a") }, "schedule: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := failure(t, tt.do); !strings.Contains(got, tt.want) {
				t.Errorf("it says\n%s\nwant %q", got, tt.want)
			}
		})
	}
}

// The model of the example with tables is right, and says so if it is given no tx.
func TestExampleModel(t *testing.T) {
	t.Parallel()
	db, schema := pgtest.Schema(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SET LOCAL search_path = "+schema+"; CREATE TABLE taken (key text PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	sagatest.Explore(t, rowModel(tx), &sagatest.ExploreOptions{Faults: 1})
	without := rowModel(nil)
	without.Fingerprint = ""
	if got := failure(t, func(tb testing.TB) { sagatest.Explore(tb, without, nil) }); !strings.Contains(got, "Model.Tx is not set") {
		t.Errorf("it says %s", got)
	}
}
