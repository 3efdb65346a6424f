// Package linearpgtest has the common parts of the proofs of the stores with records in Postgres: the
// business table, the main function of an instance, and the verdict.
package linearpgtest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest/lineartest"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

const (
	// instanceConns is the size of an instance's pool: a test has several instances.
	instanceConns = 8

	// longFor makes each storm run for longer, as in 10m.
	longFor = "SAGAMILL_LINEAR_FOR"
)

// An Instance is a process of a storm.
type Instance struct {
	Schema  string // of a [Run]
	Open    func(*pgxpool.Pool) (idemkey.Store, error)
	Tx      func(context.Context) pgx.Tx // the handler's
	Options idemkey.Options
	Point   func() // a failpoint behind the business row
}

// Serve is the instance's main.
func (in *Instance) Serve() error {
	config, err := pgxpool.ParseConfig(pgtest.URL())
	if err != nil {
		return err
	}
	config.MaxConns = instanceConns
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	defer pool.Close()
	s, err := in.Open(pool)
	if err != nil {
		return err
	}
	opts := in.Options
	opts.SingleTenant, opts.Logger = true, slog.New(slog.DiscardHandler)
	m, err := idemkey.New(s, &opts)
	if err != nil {
		return err
	}
	effect := func(r *http.Request, e lineartest.Effect) error {
		_, err := in.Tx(r.Context()).Exec(r.Context(), "INSERT INTO "+in.Schema+".effect (key, run) VALUES ($1, $2)", e.Key, e.Run)
		return err
	}
	return lineartest.Serve(m.Handler(lineartest.Handler(effect, in.Point)))
}

// A Run is a storm's schema.
type Run struct {
	Pool   *pgxpool.Pool
	Schema string
}

// New makes a schema with a business table, dropped when the test ends.
func New(t testing.TB) *Run {
	t.Helper()
	r := &Run{}
	r.Pool, r.Schema = pgtest.Schema(t, "CREATE TABLE {schema}.effect (key text NOT NULL, run text NOT NULL)")
	return r
}

// Command returns the command of an instance: the test binary, with env.
func Command(env ...string) func(fault string) *exec.Cmd {
	return func(fault string) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(append(os.Environ(), env...), "SAGAMILL_FAILPOINTS="+fault)
		return cmd
	}
}

// Prove runs the storm c, with faults if they are compiled in. It fails t if it cannot explain a history or a
// row, or if an event that must occur did not.
func (r *Run) Prove(t *testing.T, c lineartest.Config, faults []string) {
	t.Helper()
	if failpoint.Enabled {
		c.Faults = faults
	} else {
		t.Log("NOT TESTED: death at named points needs -tags=failpoints")
	}
	if s := os.Getenv(longFor); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("%s: %v", longFor, err)
		}
		c.Least, c.Limit = d, d+time.Minute
	}
	report, err := lineartest.Storm(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
	if len(report.Missing) > 0 {
		t.Errorf("void: the run never saw %q", report.Missing)
	}
	if err := lineartest.Check(report.History); err != nil {
		t.Error(err)
	}
	if err := r.Audit(t, report.History); err != nil {
		t.Error(err)
	}
}

// Audit waits for the transactions of dead instances, and compares the tables with the history.
func (r *Run) Audit(t testing.TB, history []lineartest.Op) error {
	t.Helper()
	var (
		rows      []lineartest.Effect
		completed []string
	)
	err := pgx.BeginFunc(t.Context(), r.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "LOCK TABLE "+r.Schema+".effect IN EXCLUSIVE MODE")
		if err != nil {
			return err
		}
		if rows, err = collect(t.Context(), tx, pgx.RowToStructByPos[lineartest.Effect], "SELECT key, run FROM "+r.Schema+".effect"); err != nil {
			return err
		}
		completed, err = collect(t.Context(), tx, pgx.RowTo[string],
			"SELECT key FROM "+r.Schema+".idempotency_key WHERE state = $1", int(idemkey.StateCompleted))
		return err
	})
	if err != nil {
		t.Fatalf("read the outcome: %v", err)
	}
	return lineartest.Audit(history, rows, completed)
}

func collect[T any](ctx context.Context, tx pgx.Tx, to pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	return pgx.CollectRows(rows, to)
}
