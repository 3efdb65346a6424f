package lazytx

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/txguard"
)

var errRefused = errors.New("refused")

// A fixture is one transaction on a private connection, and a second connection that sees committed rows.
type fixture struct {
	*Tx
	t       *testing.T
	conn    *pgx.Conn
	other   *pgx.Conn
	table   string
	opened  int   // how often the opening statement's result was read
	refuses error // what reading it returns
}

func newFixture(t *testing.T, mode pgx.QueryExecMode) *fixture {
	t.Helper()
	pool, schema := pgtest.Schema(t, "CREATE TABLE {schema}.entry (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
	f := &fixture{t: t, table: schema + ".entry"}
	connect := func() *pgx.Conn {
		config := pool.Config().ConnConfig.Copy()
		config.DefaultQueryExecMode = mode
		config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { t.Errorf("the server warns: %s", n.Message) }
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
		return conn
	}
	f.conn, f.other = connect(), connect()
	f.renew()
	return f
}

// renew puts a transaction that has not begun into the place of one that is over.
func (f *fixture) renew() {
	f.opened = 0
	f.Tx = New(f.conn, pgx.TxOptions{AccessMode: pgx.ReadWrite}, func(b *pgx.Batch) {
		b.Queue("SELECT set_config('lazytx.opened', $1, true), pg_current_xact_id()::text", "yes").QueryRow(func(row pgx.Row) error {
			f.opened++
			id := ""
			err := row.Scan(nil, &id)
			f.Identify(id)
			return errors.Join(err, f.refuses)
		})
	})
}

var errEnded = errors.New("the holder is said to have ended the transaction")

// rollBack is Rollback where the holder has not ended the transaction.
func (f *fixture) rollBack() error {
	ended, err := f.Rollback(f.t.Context())
	if ended {
		err = errors.Join(err, errEnded)
	}
	return err
}

func (f *fixture) rows() (n int) {
	f.t.Helper()
	if err := f.other.QueryRow(f.t.Context(), "SELECT count(*) FROM "+f.table).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

func (f *fixture) insert() string { return "INSERT INTO " + f.table + " (n) VALUES ($1)" }

// firsts are the ways in which a holder can begin. Each inserts one row.
func (f *fixture) firsts() map[string]func(context.Context, pgx.Tx) error {
	ways := map[string]func(context.Context, pgx.Tx) error{
		"Exec": func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, f.insert(), 1)
			if err == nil && tag.RowsAffected() != 1 {
				err = errors.New("wrong command tag " + tag.String())
			}
			return err
		},
		"Exec of two": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1; INSERT INTO "+f.table+" (n) VALUES (1)")
			return err
		},
		"Exec with mode": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, f.insert(), pgx.QueryExecModeExec, 1)
			return err
		},
		"named arguments": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO "+f.table+" (n) VALUES (@n)", pgx.NamedArgs{"n": 1})
			return err
		},
		"Query": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, f.insert()+" RETURNING n", 1)
			if err != nil {
				return err
			}
			got, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
			if err == nil && got != 1 {
				err = errors.New("wrong row")
			}
			return err
		},
		"Query to the end": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, f.insert()+" RETURNING n", 1)
			if err != nil {
				return err
			}
			for rows.Next() {
			}
			return rows.Err()
		},
		"Query without reading": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, f.insert()+" RETURNING n", 1)
			rows.Close()
			return errors.Join(err, rows.Err())
		},
		"QueryRow": func(ctx context.Context, tx pgx.Tx) error {
			var n int
			return tx.QueryRow(ctx, f.insert()+" RETURNING n", 1).Scan(&n)
		},
		"SendBatch": func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			got := 0
			b.Queue(f.insert()+" RETURNING n", 1).QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
			err := tx.SendBatch(ctx, b).Close()
			if (err == nil) != (got == 1) {
				f.t.Errorf("SendBatch = %v, and the callback was given %d", err, got)
			}
			return err
		},
	}
	maps.Copy(ways, f.apart())
	return ways
}

// apart are the ways whose statement goes after the opening and not with it.
func (f *fixture) apart() map[string]func(context.Context, pgx.Tx) error {
	return map[string]func(context.Context, pgx.Tx) error{
		"Begin": func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
				_, err := inner.Exec(ctx, f.insert(), 1)
				return err
			})
		},
		"CopyFrom": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, strings.Split(f.table, "."), []string{"n"}, pgx.CopyFromRows([][]any{{1}}))
			return err
		},
		"Prepare": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Prepare(ctx, "entry", f.insert())
			if err == nil {
				_, err = tx.Exec(ctx, "entry", 1)
			}
			return err
		},
		"Conn": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Conn().Exec(ctx, f.insert(), 1)
			return err
		},
		"LargeObjects": func(ctx context.Context, tx pgx.Tx) error {
			objects := tx.LargeObjects()
			if _, err := objects.Create(ctx, 0); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, f.insert(), 1)
			return err
		},
	}
}

// The first call of a holder, of any kind, opens the transaction once and before, and is part of it.
func TestFirstStatement(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, mode)
			for name, first := range f.firsts() {
				f.renew()
				if f.Began() {
					t.Errorf("%s: began before anything was asked for", name)
				}
				if err := first(t.Context(), f.Holder()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				var set string
				if err := f.Holder().QueryRow(t.Context(), "SELECT current_setting('lazytx.opened')").Scan(&set); err != nil || set != "yes" {
					t.Errorf("%s: opening statement: %q, %v", name, set, err)
				}
				if f.opened != 1 || !f.Began() || f.rows() != 0 {
					t.Errorf("%s: opened %d times, began %t, %d rows visible before the commit", name, f.opened, f.Began(), f.rows())
				}
				err := f.Commit(t.Context(), func(b *pgx.Batch, _ string) { b.Queue("DELETE FROM "+f.table+" WHERE n = $1", 1) })
				if err != nil {
					t.Errorf("%s: Commit: %v", name, err)
				}
				if n := f.rows(); n != 0 {
					t.Errorf("%s: %d rows after the commit, want the last statement to be part of it", name, n)
				}
			}
		})
	}
}

// A part without a savepoint knows whether its holder has used it, and lets the holder do nothing once it is over.
func TestPart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	for name, first := range f.firsts() {
		f.renew()
		if err := f.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		unused, used, over := Part(f.Holder()), Part(f.Holder()), Part(f.Holder())
		if !unused.End() || unused.Began() {
			t.Errorf("%s: a part that nobody used has begun: %t", name, unused.Began())
		}
		if err := first(t.Context(), used.Holder()); err != nil || !used.Began() {
			t.Errorf("%s: %v, begun: %t", name, err, used.Began())
		}
		over.End()
		if err := first(t.Context(), over.Holder()); name != "Conn" && !errors.Is(err, pgx.ErrTxClosed) || over.Began() {
			t.Errorf("%s of a part that is over: %v, begun: %t", name, err, over.Began())
		}
		if name == "Conn" {
			f.conn = f.another() // it was closed: nothing outside of the part must be handed out
			continue
		}
		if err := f.Commit(t.Context(), func(b *pgx.Batch, _ string) { b.Queue("DELETE FROM "+f.table+" WHERE n = $1", 1) }); err != nil {
			t.Errorf("%s: Commit: %v", name, err)
		}
	}
}

// A part whose first statement cannot be prepared has its savepoint, to which its owner rolls back. The statement shares
// the savepoint's round trip only on a connection that has executed it.
func TestNestedHasItsSavepointIfAStatementCannotBePrepared(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	if err := f.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	outer, select1 := f.Holder(), "SELECT $1::integer"
	broken := &pgx.Batch{}
	broken.Queue("SELECT nothing FROM nowhere")
	for name, first := range map[string]func(pgx.Tx) error{
		"Exec": func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "INSERT INTO nowhere VALUES ($1)", 1)
			return err
		},
		"QueryRow":  func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), "SELECT nothing FROM nowhere").Scan(nil) },
		"SendBatch": func(tx pgx.Tx) error { return tx.SendBatch(t.Context(), broken).Close() },
	} {
		part := Nested(outer, "part", nil)
		if err := first(part.Holder()); err == nil || !part.End() || !part.Began() {
			t.Errorf("%s: %v, begun: %t; want an error behind the savepoint", name, err, part.Began())
		}
		if _, err := f.conn.Exec(t.Context(), "ROLLBACK TO SAVEPOINT part"); err != nil {
			t.Fatalf("%s: the savepoint: %v", name, err)
		}
		if part.mayFollowOpening("SELECT nothing FROM nowhere") {
			t.Errorf("%s: a statement that failed counts as executed", name)
		}
	}
	if part := Nested(outer, "part", nil); part.mayFollowOpening(select1) {
		t.Error("a statement that was never executed shares the round trip of the savepoint")
	} else if _, err := part.Holder().Exec(t.Context(), select1, 1); err != nil || !part.End() {
		t.Error(err)
	}
	if !Nested(outer, "part", nil).mayFollowOpening(select1) {
		t.Error("a statement that was executed does not share the round trip of the savepoint")
	}
	if err := f.rollBack(); err != nil {
		t.Error(err)
	}
}

// Where the transaction is refused while it opens, nothing that the holder asks
// for has an effect, and all of it returns the reason.
func TestRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	f.refuses = errRefused
	for name, first := range f.firsts() {
		f.renew()
		switch err := first(t.Context(), f.Holder()); {
		case name == "Conn" || name == "LargeObjects": // these cannot say why
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		case !errors.Is(err, errRefused):
			t.Errorf("%s: %v, want the reason", name, err)
		}
		if _, err := f.Holder().Exec(t.Context(), f.insert(), 2); !errors.Is(err, errRefused) {
			t.Errorf("%s: second statement: %v, want the reason", name, err)
		}
		if err := f.Commit(t.Context(), func(*pgx.Batch, string) {}); !errors.Is(err, errRefused) {
			t.Errorf("%s: Commit: %v, want the reason", name, err)
		}
		if err := f.rollBack(); err != nil {
			t.Errorf("%s: Rollback: %v", name, err)
		}
		if n := f.rows(); n != 0 {
			t.Errorf("%s: %d rows, want none", name, n)
		}
		if name == "Conn" {
			if !f.conn.IsClosed() {
				t.Error("Conn handed out a connection outside of its transaction")
			}
			f.conn = f.another()
		}
		if s := txguard.StatusOf(f.conn); s != txguard.Ended {
			t.Errorf("%s: the connection is left in a transaction: %c", name, s)
		}
	}
}

func (f *fixture) another() *pgx.Conn {
	f.t.Helper()
	conn, err := pgx.ConnectConfig(f.t.Context(), f.other.Config())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(f.t.Context())) })
	return conn
}

// A first statement that the server refuses fails as it would in any
// transaction: with the server's error, and the transaction is aborted.
func TestFirstStatementFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	for name, sql := range map[string]string{
		"syntax": "SELEC $1::int", "execution": "SELECT 1 / $1::int", "constraint": "INSERT INTO " + f.table + " (n) VALUES (nullif($1::int, 0)) RETURNING n",
	} {
		for how, first := range map[string]func(pgx.Tx) error{
			"Exec": func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), sql, 0)
				return err
			},
			"Query": func(tx pgx.Tx) error {
				rows, err := tx.Query(t.Context(), sql, 0)
				if err == nil {
					_, err = pgx.CollectRows(rows, pgx.RowTo[int])
				}
				return err
			},
			"QueryRow": func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), sql, 0).Scan(nil) },
			"SendBatch": func(tx pgx.Tx) error {
				b := &pgx.Batch{}
				b.Queue(sql, 0)
				return tx.SendBatch(t.Context(), b).Close()
			},
		} {
			f.renew()
			err := first(f.Holder())
			if pgErr := (*pgconn.PgError)(nil); !errors.As(err, &pgErr) {
				t.Errorf("%s, %s: %v, want the server's error", name, how, err)
			}
			_, err = f.Holder().Exec(t.Context(), f.insert(), 1)
			if pgErr := (*pgconn.PgError)(nil); !errors.As(err, &pgErr) || pgErr.Code != "25P02" {
				t.Errorf("%s, %s: statement of an aborted transaction: %v", name, how, err)
			}
			if err := f.Commit(t.Context(), func(*pgx.Batch, string) {}); !errors.Is(err, pgx.ErrTxCommitRollback) {
				t.Errorf("%s, %s: Commit: %v, want ErrTxCommitRollback", name, how, err)
			}
		}
	}
}

// A first statement that was never sent leaves the transaction as it is.
func TestFirstStatementNotSent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, first := range map[string]func() error{
		"cancelled": func() error {
			_, err := f.Holder().Exec(cancelled, f.insert(), 1)
			return err
		},
		"into DriverBytes": func() error {
			return f.Holder().QueryRow(t.Context(), "SELECT $1::bytea", []byte("x")).Scan(new(pgtype.DriverBytes))
		},
		"no rows": func() error {
			var n int
			err := f.Holder().QueryRow(t.Context(), "SELECT n FROM "+f.table+" WHERE n = $1", 0).Scan(&n)
			if !errors.Is(err, pgx.ErrNoRows) {
				t.Errorf("QueryRow: %v, want ErrNoRows", err)
			}
			return err
		},
	} {
		f.renew()
		if err := first(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := f.Holder().Exec(t.Context(), f.insert(), 1); err != nil {
			t.Errorf("%s: second statement: %v", name, err)
		}
		if err := f.Commit(t.Context(), func(b *pgx.Batch, _ string) { b.Queue("DELETE FROM " + f.table) }); err != nil {
			t.Errorf("%s: Commit: %v", name, err)
		}
	}
}

// Arguments that cannot be encoded end a batch in its middle, and pgx closes the
// connection for it. The transaction is over, and says so.
func TestFirstStatementNotEncodable(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	for range 2 {
		if _, err := f.Holder().Exec(t.Context(), f.insert(), struct{}{}); err == nil {
			t.Error("Exec: no error")
		}
	}
	if err := f.Commit(t.Context(), func(*pgx.Batch, string) {}); err == nil {
		t.Error("Commit: no error")
	}
	if err := f.rollBack(); err != nil {
		t.Errorf("Rollback: %v", err)
	}
}

// A last statement that fails keeps COMMIT from being executed.
func TestLastStatementFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	if _, err := f.Holder().Exec(t.Context(), f.insert(), 1); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(t.Context(), func(b *pgx.Batch, _ string) { b.Queue("SELECT 1 / $1::int", 0) }); err == nil {
		t.Error("Commit succeeded")
	}
	if err := f.rollBack(); err != nil {
		t.Errorf("Rollback: %v", err)
	}
	if n := f.rows(); n != 0 || txguard.StatusOf(f.conn) != txguard.Ended {
		t.Errorf("%d rows, status %c; want none, and no transaction", n, txguard.StatusOf(f.conn))
	}
}

// An error that the server finds at COMMIT is an error of Commit.
func TestCommitFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	for range 2 {
		if _, err := f.Holder().Exec(t.Context(), f.insert(), 1); err != nil {
			t.Fatal(err)
		}
	}
	err := f.Commit(t.Context(), func(b *pgx.Batch, _ string) { b.Queue("SELECT $1::int", 1) })
	if pgErr := (*pgconn.PgError)(nil); !errors.As(err, &pgErr) || pgErr.Code != "23505" {
		t.Errorf("Commit: %v, want the deferred constraint", err)
	}
	if err := f.rollBack(); err != nil {
		t.Errorf("Rollback: %v", err)
	}
}

// A COMMIT that the server answers with ROLLBACK, because a statement has failed
// before, is an error of Commit.
func TestCommitOfWhatHasFailed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	if _, err := f.Holder().Exec(t.Context(), f.insert(), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Holder().Exec(t.Context(), "SELECT 1/0"); err == nil {
		t.Fatal("a division by zero succeeded")
	}
	if err := f.Commit(t.Context(), func(*pgx.Batch, string) {}); !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("Commit: %v, want ErrTxCommitRollback", err)
	}
	if n := f.rows(); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

// Without a word from the holder there is nothing to end, and the last
// statements are a transaction of their own.
func TestNeverBegan(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	if err := f.Commit(t.Context(), func(*pgx.Batch, string) {}); err != nil {
		t.Errorf("Commit of nothing: %v", err)
	}
	f.renew()
	if err := f.Commit(t.Context(), func(b *pgx.Batch, _ string) { b.Queue(f.insert(), 1) }); err != nil {
		t.Errorf("Commit: %v", err)
	}
	if n := f.rows(); n != 1 || f.opened != 0 {
		t.Errorf("%d rows, opened %d times; want 1 and never", n, f.opened)
	}
	f.renew()
	if err := f.rollBack(); err != nil {
		t.Errorf("Rollback: %v", err)
	}
	if _, err := f.Holder().Exec(t.Context(), f.insert(), 2); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("Exec after Rollback: %v, want ErrTxClosed", err)
	}
}

// After the end of the transaction nothing derived from it sends anything: another request may have the
// connection by then.
func TestOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	for name, end := range map[string]func() error{
		"commit":   func() error { return f.Commit(t.Context(), func(*pgx.Batch, string) {}) },
		"rollback": f.rollBack,
		"end":      func() error { f.End(); return nil },
	} {
		f.renew()
		tx := f.Holder()
		savepoint, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := end(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for what, first := range f.firsts() {
			if what == "Conn" {
				continue // closes the connection, which is what is left to do
			}
			for handle, tx := range map[string]pgx.Tx{"transaction": tx, "savepoint": savepoint} {
				if handle == "savepoint" && what == "LargeObjects" {
					continue
				}
				if err := first(t.Context(), tx); !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("%s, then %s of the %s: %v, want ErrTxClosed", name, what, handle, err)
				}
			}
		}
		_, prepared := savepoint.Prepare(t.Context(), "late", "SELECT 1")
		for _, err := range []error{savepoint.Commit(t.Context()), savepoint.Rollback(t.Context()), prepared} {
			if !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s, then the end of the savepoint: %v, want ErrTxClosed", name, err)
			}
		}
		f.conn = f.another()
	}
}

// The holder cannot end it.
func TestHolderCannotEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	tx := f.Holder()
	if err := tx.Commit(t.Context()); !errors.Is(err, txguard.ErrManaged) {
		t.Errorf("Commit: %v", err)
	}
	if err := tx.Rollback(t.Context()); !errors.Is(err, txguard.ErrManaged) {
		t.Errorf("Rollback: %v", err)
	}
	b := &pgx.Batch{}
	b.Queue("SELECT 1")
	br := tx.SendBatch(t.Context(), b)
	if br.Tx() != nil {
		t.Error("a batch gave the transaction itself away")
	}
	if err := br.Close(); err != nil {
		t.Error(err)
	}
	if err := f.rollBack(); err != nil {
		t.Error(err)
	}
	b = &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})
	f.renew()
	if err := f.Holder().SendBatch(t.Context(), b).Close(); err == nil {
		t.Error("a batch began a transaction within the transaction")
	}
}

// Open and a holder's first statement may come at the same time.
func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	for range 50 {
		f.renew()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := f.Open(t.Context()); err != nil {
				t.Errorf("Open: %v", err)
			}
		})
		if _, err := f.Holder().Exec(t.Context(), f.insert(), 1); err != nil {
			t.Errorf("Exec: %v", err)
		}
		wg.Wait()
		if f.opened != 1 {
			t.Errorf("opened %d times, want once", f.opened)
		}
		if err := f.rollBack(); err != nil {
			t.Errorf("Rollback: %v", err)
		}
	}
}

// A connection that is lost while it opens makes the transaction unusable.
func TestConnectionLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgx.QueryExecModeCacheStatement)
	if err := f.conn.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := f.Holder().Exec(t.Context(), f.insert(), 1)
		if err == nil {
			t.Errorf("Exec on a lost connection: %v", err)
		}
	}
	if f.Err() == nil {
		t.Error("the transaction is still usable")
	}
	if err := f.rollBack(); err != nil {
		t.Errorf("Rollback: %v", err)
	}
}

// Rollback reports whether all of the holder's work is undone, also after the holder has sent SQL that ends
// the transaction.
func TestRollbackTellsWhoEnded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		sql   string
		ended bool
	}{
		"nothing":                  {"SELECT 1", false},
		"failed":                   {"SELECT 1/0", false},
		"savepoints":               {"SAVEPOINT a; SELECT 1; ROLLBACK TO a; RELEASE a", false},
		"commit":                   {"COMMIT", true},
		"rollback":                 {"ROLLBACK", true},
		"commit, begin":            {"COMMIT; BEGIN", true},
		"rollback, begin":          {"ROLLBACK; BEGIN", true},
		"chained":                  {"COMMIT AND CHAIN", true},
		"commit, begin, failed":    {"COMMIT; BEGIN; SELECT 1/0", true},
		"three":                    {"ROLLBACK; BEGIN; COMMIT; BEGIN; SELECT pg_current_xact_id()", true},
		"commit, begin, savepoint": {"COMMIT; BEGIN; SAVEPOINT a; SELECT pg_current_xact_id()", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, pgx.QueryExecModeCacheStatement)
			for _, conn := range []bool{false, true} {
				f.renew()
				_, err := f.Holder().Exec(t.Context(), "SELECT 1")
				if err == nil && conn {
					_, _ = f.Holder().Conn().Exec(t.Context(), tt.sql)
				} else if err == nil {
					_, _ = f.Holder().Exec(t.Context(), tt.sql)
				}
				ended, rollErr := f.Rollback(t.Context())
				if ended != tt.ended || err != nil || rollErr != nil {
					t.Errorf("by Conn %t: ended = %t, %v, %v; want %t", conn, ended, err, rollErr, tt.ended)
				}
				if s := txguard.StatusOf(f.conn); s != txguard.Ended {
					t.Errorf("by Conn %t: the connection is left in a transaction: %c", conn, s)
				}
			}
		})
	}
}
