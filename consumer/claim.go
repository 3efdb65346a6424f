package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/txguard"
)

// readCommitted makes each statement see what was committed before it: a claim
// that meets another's row must be able to read it. A database may have another
// default.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// errVanished reports that a row that kept a claim from being inserted was gone
// when it was to be locked: it has been swept in between.
var errVanished = errors.New("consumer: a row of the inbox was removed while it was claimed")

// open begins a transaction on conn and claims jobs' rows in it, whose
// identities differ, in one round trip, or two where rows of several jobs exist. The
// jobs then know what was found. A savepoint follows the claims: what fails falls
// back to it.
func (c *Consumer) open(ctx context.Context, conn *pgx.Conn, jobs []*job) (pgx.Tx, error) {
	for _, j := range jobs {
		j.older, j.found, j.behind = false, cell{}, false
		j.emits(nil)
	}
	b := &pgx.Batch{}
	b.BeginTx(readCommitted)
	inserted := c.queueClaims(b, jobs)
	alone := len(jobs) == 1
	if alone {
		b.Queue(c.sql.lockOlder, jobs[0].identity()...).Query(jobs[0].readFound)
	}
	c.queueHorizon(b, jobs)
	var xid uint32
	b.Queue(c.sql.openClaims, milliseconds(idleLimit(jobs))).QueryRow(func(row pgx.Row) error { return row.Scan(&xid, nil) })
	c.queueBehind(b, jobs)
	b.Queue("SAVEPOINT " + savepointFor(jobs))
	results := conn.SendBatch(ctx, b)
	err := results.Close()
	if err != nil {
		c.abandon(ctx, conn)
		return nil, fmt.Errorf("consumer: claim steps: %w", err)
	}
	for _, j := range jobs {
		j.xid = xid
	}
	tx := results.Tx()
	if err := c.checkClaims(ctx, tx, jobs, int(*inserted)); err != nil {
		c.abandon(ctx, conn)
		return nil, err
	}
	return tx, nil
}

// savepointFor returns the savepoint that open sets for jobs.
func savepointFor(jobs []*job) string {
	if len(jobs) == 1 {
		return stepSavepoint
	}
	return batchSavepoint
}

// queueClaims inserts the jobs' rows as if they had succeeded already, in the
// order of their identities, so that two batches never wait for each other. It
// returns where the number of those that were absent is going to be.
func (c *Consumer) queueClaims(b *pgx.Batch, jobs []*job) *int64 {
	inserted := new(int64)
	sorted := slices.SortedFunc(slices.Values(jobs), compareIdentity)
	count := func(rows pgx.Rows) error {
		rows.Close()
		*inserted = rows.CommandTag().RowsAffected()
		return rows.Err()
	}
	if len(sorted) == 1 {
		b.Queue(c.sql.claimOne, sorted[0].claim()...).Query(count)
		return inserted
	}
	b.Queue(c.sql.claimMany, claimColumns(sorted)...).Query(count)
	return inserted
}

// queueBehind reads which jobs of ordered steps have to wait behind a parked one.
func (c *Consumer) queueBehind(b *pgx.Batch, jobs []*job) {
	ordered := slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return !j.step.Ordered })
	if len(ordered) == 0 {
		return
	}
	b.Queue(c.sql.readBehind, identityColumns(ordered)...).Query(func(rows pgx.Rows) error {
		var ordinal int
		_, err := pgx.ForEachRow(rows, []any{&ordinal}, func() error {
			ordered[ordinal-1].behind = true
			return nil
		})
		return err
	})
}

// checkClaims makes sure that each job's row is either its own or locked.
func (c *Consumer) checkClaims(ctx context.Context, tx pgx.Tx, jobs []*job, inserted int) error {
	if len(jobs) > 1 && inserted < len(jobs) {
		if err := c.lockOlder(ctx, tx, jobs); err != nil {
			return err
		}
	}
	for _, j := range jobs {
		if j.older {
			inserted++
		}
	}
	if inserted != len(jobs) {
		return errVanished
	}
	return nil
}

// lockOlder locks those rows of jobs that had been there before, in the order of
// their identities.
func (c *Consumer) lockOlder(ctx context.Context, tx pgx.Tx, jobs []*job) error {
	sorted := slices.SortedFunc(slices.Values(jobs), compareIdentity)
	b := &pgx.Batch{}
	b.Queue(c.sql.lockMany, identityColumns(sorted)...).Query(func(rows pgx.Rows) error {
		var ordinal int
		var found cell
		_, err := pgx.ForEachRow(rows, append([]any{&ordinal}, found.columns()...), func() error {
			j := sorted[ordinal-1]
			j.older, j.found = true, found
			return nil
		})
		return err
	})
	c.queueHorizon(b, jobs) // behind what was read now
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("consumer: lock steps: %w", err)
	}
	return nil
}

func (j *job) readFound(rows pgx.Rows) error {
	_, err := pgx.ForEachRow(rows, j.found.columns(), func() error {
		j.older = true
		return nil
	})
	return err
}

// columns are where a row's state, counts and digests are scanned to.
func (c *cell) columns() []any {
	return []any{&c.state, &c.attempts, &c.undoAttempts, &c.digest, &c.undoDigest}
}

// abandon rolls back, and closes the connection if that cannot be done: the
// server then does.
func (c *Consumer) abandon(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || txguard.StatusOf(conn) == txguard.Ended {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), databaseTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		_ = conn.Close(ctx)
	}
}

func compareIdentity(a, b *job) int {
	return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Step, b.Step), cmp.Compare(a.joinedN(), b.joinedN()))
}

// identity are the columns that name the step's row.
func (j *job) identity() []any { return []any{j.Scope, j.Key, j.Step, j.joinedN()} }

// claim are the columns of a row that did not exist: the action is done, or the
// compensation has found nothing to undo.
func (j *job) claim() []any {
	if j.kind == compensation {
		return append(j.identity(), void, 0, nil, j.digest)
	}
	return append(j.identity(), done, 1, j.digest, nil)
}

// identityColumns are the identities of jobs turned on their side, for unnest.
func identityColumns(jobs []*job) []any {
	columns := make([][]string, 4)
	for _, j := range jobs {
		for i, value := range []string{j.Scope, j.Key, j.Step, j.joinedN()} {
			columns[i] = append(columns[i], value)
		}
	}
	return []any{columns[0], columns[1], columns[2], columns[3]}
}

func claimColumns(jobs []*job) []any {
	var states []string
	var attempts []int
	var digests, undoDigests [][]byte
	for _, j := range jobs {
		to, n, digest, undoDigest := done, 1, j.digest, []byte(nil)
		if j.kind == compensation {
			to, n, digest, undoDigest = void, 0, nil, j.digest
		}
		states, attempts = append(states, string(to)), append(attempts, n)
		digests, undoDigests = append(digests, digest), append(undoDigests, undoDigest)
	}
	return append(identityColumns(jobs), states, attempts, digests, undoDigests)
}

// idleLimit is how long the transaction of jobs may be idle: as long as the
// slowest handler computes.
func idleLimit(jobs []*job) time.Duration {
	longest := time.Duration(0)
	for _, j := range jobs {
		longest = max(longest, j.step.Timeout)
	}
	return longest + databaseTimeout
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
