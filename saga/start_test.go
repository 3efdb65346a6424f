package saga_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/saga"
)

func starter[S any](t *testing.T, d *saga.Definition[S], schema string) *saga.Starter[S] {
	t.Helper()
	s, err := saga.NewStarter(d, &saga.StarterOptions{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOneKeyIsOneInstance(t *testing.T) {
	t.Parallel()
	db, schema := pgtest.Schema(t)
	d := saga.Must(saga.Define("trip", 1, book("flight")))
	s := starter(t, d, schema)
	var (
		wg  sync.WaitGroup
		all [8]saga.Started
	)
	for i := range all {
		wg.Go(func() {
			err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
				all[i], err = s.Start(t.Context(), tx, saga.ID{Scope: "tenant", Key: "k"}, trip{Item: "x"})
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	begun := 0
	for _, one := range all {
		if one.ID != all[0].ID {
			t.Errorf("instances %s and %s for one key", one.ID, all[0].ID)
		}
		if !one.Existed {
			begun++
		}
	}
	var commands int
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM "+schema+".outbox").Scan(&commands); err != nil || begun != 1 || commands != 1 {
		t.Errorf("%d of 8 began the instance, %d commands were stored, %v; want 1 and 1", begun, commands, err)
	}
	other := starter(t, saga.Must(saga.Define("other", 1, book("flight"))), schema)
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, err := other.Start(t.Context(), tx, saga.ID{Scope: "tenant", Key: "k"}, trip{})
		return err
	})
	if !errors.Is(err, saga.ErrKeyTaken) || !strings.Contains(err.Error(), "trip") {
		t.Errorf("Start of another saga with the key: %v, want ErrKeyTaken, with the name of the first", err)
	}
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { // scopes are apart
		started, err := other.Start(t.Context(), tx, saga.ID{Scope: "another tenant", Key: "k"}, trip{})
		if started.Existed {
			t.Error("another scope's key was taken for this one's")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// An instance that was started is there if and only if its transaction commits;
// so are its commands, and what its first step did.
func TestStartIsTheCallersTransaction(t *testing.T) {
	t.Parallel()
	db, schema := pgtest.Schema(t)
	if _, err := db.Exec(t.Context(), "CREATE TABLE "+schema+".quote (key text)"); err != nil {
		t.Fatal(err)
	}
	quote := saga.Local(func(ctx context.Context, tx pgx.Tx, turn saga.Turn, s *trip) error {
		if s.Item == "broken" {
			_, err := tx.Exec(ctx, "INSERT INTO "+schema+".quote VALUES (1, 2)")
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO "+schema+".quote VALUES ($1)", turn.Key)
		if s.Item == "too dear" {
			return saga.Reject("it is too dear")
		}
		return err
	})
	s := starter(t, saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "quote", Do: quote}, book("flight"))), schema)
	stop := errors.New("the caller's")
	count := func() (n [3]int) {
		err := db.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM "+schema+".saga), (SELECT count(*) FROM "+schema+".outbox), (SELECT count(*) FROM "+schema+".quote)").Scan(&n[0], &n[1], &n[2])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, tt := range []struct {
		item   string
		end    error
		status saga.Status
		want   [3]int // rows of saga, outbox and quote, in all
	}{
		{"rolled back", stop, saga.StatusRunning, [3]int{0, 0, 0}},
		{"x", nil, saga.StatusRunning, [3]int{1, 1, 1}},
		{"too dear", nil, saga.StatusCompensated, [3]int{2, 1, 1}}, // of a step that says no, nothing is left
		{"broken", nil, saga.StatusRunning, [3]int{3, 1, 1}},       // it will be tried again
	} {
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			for _, again := range []bool{false, true} { // the second finds the first
				started, err := s.Start(t.Context(), tx, saga.ID{Scope: "tenant", Key: "key of " + tt.item}, trip{Item: tt.item})
				if err != nil {
					return err
				}
				if started.Status != tt.status || started.Existed != again {
					t.Errorf("%s: %+v, want %s, existed %t", tt.item, started, tt.status, again)
				}
			}
			return tt.end
		})
		if !errors.Is(err, tt.end) {
			t.Errorf("%s: %v, want %v", tt.item, err, tt.end)
		}
		if got := count(); got != tt.want {
			t.Errorf("%s: rows of saga, outbox and quote: %v, want %v", tt.item, got, tt.want)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	db, schema := pgtest.Schema(t)
	s := starter(t, saga.Must(saga.Define("trip", 1, book("flight"))), schema)
	for _, tt := range []struct{ scope, key, item, want string }{
		{"", "k", "", "scope must be"},
		{strings.Repeat("s", 256), "k", "", "scope must be"},
		{"tab\t", "k", "", "scope must be"},
		{"s", "", "", "key must be"},
		{"s", "nul\x00", "", "printable"},
		{"s", "k", strings.Repeat("x", flow.MaxState), "state: it has 1048587 bytes, more than 1048576"},
	} {
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			_, err := s.Start(t.Context(), tx, saga.ID{Scope: tt.scope, Key: tt.key}, trip{Item: tt.item})
			return err
		})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Start(%.10q, %q, %d bytes) = %v, want it to say %s", tt.scope, tt.key, len(tt.item), err, tt.want)
		}
	}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { // as long as they may be
		_, err := s.Start(t.Context(), tx, saga.ID{Scope: strings.Repeat("s", 255), Key: strings.Repeat("k", 255)}, trip{})
		return err
	})
	if err != nil {
		t.Errorf("the longest scope and key: %v", err)
	}
	if _, err := saga.NewStarter[trip](nil, nil); err == nil {
		t.Error("a Starter of nothing")
	}
	d := saga.Must(saga.Define("trip", 1, book("flight")))
	if _, err := saga.NewStarter(d, &saga.StarterOptions{Schema: "a b"}); err == nil {
		t.Error("a Starter in a schema that cannot be")
	}
	unmigrated := starter(t, d, pgtest.Name())
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, err := unmigrated.Start(t.Context(), tx, saga.ID{Scope: "s", Key: "k"}, trip{})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "migrat") {
		t.Errorf("Start without tables: %v, want it to say what to do", err)
	}
}

// An instance can begin with a batch of the caller's, if its key is new.
func TestAnInstanceBeginsWithABatch(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := saga.Must(saga.Define("trip", 1, book("flight")))
	p.orchestrate(nil, d)
	p.participate(p.booking("flight"))
	s := starter(t, d, p.schema)
	begin := func(key string) error {
		batch := &pgx.Batch{}
		batch.Queue("INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, 'order')", key)
		if _, err := s.Queue(t.Context(), batch, saga.ID{Scope: "tenant", Key: key}, trip{Item: "x"}); err != nil {
			return err
		}
		return p.db.SendBatch(t.Context(), batch).Close()
	}
	if err := begin("k"); err != nil {
		t.Fatal(err)
	}
	p.relay.Wake()
	p.until("k", saga.StatusCompleted)
	if err := begin("k"); !saga.Exists(err) {
		t.Errorf("the second one: %v, want one that Exists knows", err)
	}
	if err := begin(""); err == nil || saga.Exists(err) {
		t.Errorf("without a key: %v", err)
	}
	if got := p.effects("k"); got != "[order flight]" {
		t.Errorf("effects %s", got)
	}
	local := starter(t, saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "note", Do: saga.Local(nop)})), p.schema)
	batch := &pgx.Batch{}
	if _, err := local.Queue(t.Context(), batch, saga.ID{Scope: "tenant", Key: "l"}, trip{}); err == nil || !strings.Contains(err.Error(), "needs the transaction") || batch.Len() > 0 {
		t.Errorf("a saga that begins with a local step: %v, %d statements", err, batch.Len())
	}
}

// What a local step queues is executed with its transaction, wherever that is.
func TestALocalStepQueuesStatements(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	note := func(what string) saga.Step[trip] {
		return saga.Step[trip]{Name: what, Do: saga.Local(func(_ context.Context, _ pgx.Tx, turn saga.Turn, s *trip) error {
			turn.Queue("INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, $2)", turn.Key, what)
			if s.Item == "broken" {
				turn.Queue("SELECT 1/(length($1)-4)", "four")
			}
			return nil
		})}
	}
	d := saga.Must(saga.Define("trip", 1, note("before"), book("flight"), note("after")))
	p.orchestrate(nil, d)
	p.participate(p.booking("flight"))
	start(p, d, "k", trip{Item: "x"})
	p.until("k", saga.StatusCompleted)
	if got := p.effects("k"); got != "[before flight after]" {
		t.Errorf("effects %s", got)
	}
	start(p, d, "b", trip{Item: "broken"}) // in Start's transaction it fails as a step
	p.untilSQL("b", "progress LIKE '%division by zero%'")
	if got := p.effects("b"); got != "[]" {
		t.Errorf("effects of a step that failed: %s", got)
	}
}
