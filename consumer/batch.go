package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/outbox"
)

const (
	// maxBatchSize is the largest Options.BatchSize: what is locked, and lost if
	// the transaction fails.
	maxBatchSize = 512

	// maxReruns is how often what is left of a batch is tried together again after
	// one message's failure has been taken out of it.
	maxReruns = 2
)

// A batch is deliveries that share a transaction.
type batch struct {
	c    *Consumer
	tx   pgx.Tx
	jobs []*job
	ran  int // how many of jobs, from the first, have been dealt with

	culprit *job       // whose handler, statement or message made it fail
	last    *pgx.Batch // what is sent with COMMIT
	owners  []*job     // of its statements
	reached int        // how many of its statements have succeeded
	emitted []outbox.Message
}

// joins reports whether a message of step may share a transaction. What may have
// killed a process is alone, and so is what has no attempt left for itself should
// others make the transaction fail.
func (c *Consumer) joins(step *Step, redelivered bool, spent int) bool {
	return c.opts.BatchSize > 1 && c.marked && !redelivered && !step.Single && spent+1 < step.MaxAttempts
}

// settleSome deals with one of jobs, or with some of them in one transaction, from
// the first, and acks or nacks those. It returns the others.
func (c *Consumer) settleSome(ctx, work context.Context, jobs []*job) (left []*job) {
	switch n := c.together(jobs); n {
	case 0:
		return nil
	case 1:
		c.settleDelivery(ctx, work, jobs[0])
		return jobs[1:]
	default:
		return append(c.settleBatch(ctx, work, jobs[:n]), jobs[n:]...)
	}
}

// together returns how many of jobs, from the first, may share a transaction: a
// step's row is claimed once in it.
func (c *Consumer) together(jobs []*job) int {
	seen := map[[4]string]bool{}
	for i, j := range jobs {
		id := [4]string{j.Scope, j.Key, j.Step, j.N}
		if !c.joins(j.step, j.redelivered, j.spent) || seen[id] {
			return max(i, 1)
		}
		seen[id] = true
	}
	return len(jobs)
}

// settleBatch deals with jobs, and returns those for which there was no time. If
// their transaction fails, they are tried without the one that made it fail, and,
// where none is known to have, one by one.
func (c *Consumer) settleBatch(ctx, work context.Context, jobs []*job) (later []*job) {
	left := slices.Clone(jobs)
	for range maxReruns + 1 {
		b := &batch{c: c, jobs: left, last: &pgx.Batch{}}
		err := b.attempt(ctx, work)
		if err == nil {
			c.ack(left[:b.ran]...)
			return left[b.ran:]
		}
		c.opts.Logger.WarnContext(ctx, "consumer: a batch is tried again without what made it fail, or one by one", "messages", len(left), "error", err)
		if errors.Is(err, errTxEnded) {
			b.mend(ctx, work)
		}
		left = b.dissolve(err)
		if b.culprit == nil {
			break
		}
		c.settleDelivery(ctx, work, b.culprit)
		if errors.Is(err, errTxEnded) || c.together(left) < len(left) || !c.countBatch(work, left) {
			break
		}
	}
	for _, j := range left {
		c.settleDelivery(ctx, work, j)
	}
	return nil
}

// dissolve makes jobs of b what they were before it, without the culprit, which
// keeps what it has done. What handlers were entered for has been spent.
func (b *batch) dissolve(cause error) (left []*job) {
	for _, j := range b.jobs {
		switch {
		case j == b.culprit:
			j.cause = cause
			continue
		case j.cause != nil: // nothing more is to be done than record it
		case j.entered:
			j.spent++
			fallthrough
		default:
			j.entered, j.counted, j.wakes = false, false, false
		}
		left = append(left, j)
	}
	return left
}

// attempt does what the rows of b's jobs say in one transaction, until time is up
// or intake ends. Handlers run one after the other, in the order of the
// deliveries.
func (b *batch) attempt(intake, work context.Context) error {
	b.c.company.RLock()
	defer b.c.company.RUnlock()
	ctx, cancel := context.WithTimeout(work, b.c.opts.BatchTime+2*idleLimit(b.jobs))
	defer cancel()
	return b.c.withConn(ctx, func(conn *pgx.Conn) (err error) {
		if b.tx, err = b.c.open(ctx, conn, b.jobs); err != nil {
			return err
		}
		begun := time.Now()
		for _, j := range b.jobs {
			if b.ran > 0 && (intake.Err() != nil || time.Since(begun) >= b.c.opts.BatchTime) {
				break
			}
			if err := b.take(ctx, j); err != nil {
				return err
			}
			b.ran++
		}
		return b.end(ctx)
	})
}

func (b *batch) take(ctx context.Context, j *job) error {
	v := decide(j.found, j.arrival())
	b.c.signals.decided.Send(v)
	if v != run {
		return b.c.settle(ctx, b.tx, j, j.found, v)
	}
	err := b.c.enter(ctx, b.tx, j, j.found)
	if err == nil {
		err = checkEmitted(j.out.msgs)
	}
	if err != nil {
		b.blame(ctx, j, err)
		return err
	}
	b.c.queueOutcome(b.last, j, j.found)
	for len(b.owners) < b.last.Len() {
		b.owners = append(b.owners, j)
	}
	b.emitted = append(b.emitted, j.out.msgs...)
	return nil
}

// blame makes j the culprit, unless it is the transaction that failed with it.
func (b *batch) blame(ctx context.Context, j *job, err error) {
	if j.entered && !b.tx.Conn().IsClosed() && !befalls(err) {
		b.c.logFailure(ctx, j, err)
		b.culprit = j
	}
}

// befalls reports whether err is one that can befall any statement, whatever it
// says: a deadlock or conflict with another transaction, a lock that was not to be
// had, a server that is short of something or is being stopped.
func befalls(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == "55P03" || slices.Contains([]string{"40", "53", "57", "58"}, e.Code[:min(2, len(e.Code))])
}

// end sends what the handlers have queued, and commits.
func (b *batch) end(ctx context.Context) error {
	for msgs := range slices.Chunk(b.emitted, outbox.MaxBatch) {
		if err := b.c.queueEmitted(b.last, msgs); err != nil {
			return err
		}
	}
	if claims := claimsOf(b.jobs[b.ran:]); len(claims) > 0 {
		b.last.Queue(b.c.sql.unclaim, identityColumns(claims)...)
	}
	for _, q := range b.last.QueuedQueries {
		q.Exec(func(pgconn.CommandTag) error { b.reached++; return nil })
	}
	err := b.c.end(ctx, b.tx, b.last)
	var refused *pgconn.PgError
	// Where nothing has been executed, the server may have refused to prepare any of them.
	if errors.As(err, &refused) && b.reached > 0 && b.reached < len(b.owners) {
		b.blame(ctx, b.owners[b.reached], err)
	}
	return err
}

// claimsOf returns those of jobs whose rows this transaction has inserted.
func claimsOf(jobs []*job) []*job {
	return slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return j.older })
}

// mend takes back, of a batch that a handler has ended by itself, the claims that
// this has committed: until then they count as done. What other handlers have done
// is committed without what they have emitted, so that it is for a person to look
// at. It tries until it succeeds, or the time for work in hand is over.
func (b *batch) mend(ctx, work context.Context) {
	for try := 1; ; try++ {
		err := b.reopen(work)
		if err == nil || work.Err() != nil {
			return
		}
		b.c.opts.Logger.ErrorContext(ctx, "consumer: take back claims", "try", try, "error", err)
		pause(work, failurePolicy.Wait(try), nil, false)
	}
}

func (b *batch) reopen(ctx context.Context) error {
	return b.c.inTx(ctx, func(tx pgx.Tx) error {
		for _, j := range claimsOf(b.jobs) {
			tag, err := tx.Exec(ctx, b.c.sql.reopen, append(j.identity(), j.digest)...)
			if err != nil {
				return fmt.Errorf("consumer: reopen step: %w", err)
			}
			if tag.RowsAffected() > 0 && j.entered && j != b.culprit {
				j.cause = Terminal(errors.New("consumer: the handler of another message ended the transaction that they shared"))
			}
		}
		return nil
	})
}

// countBatch commits the coming entries of those jobs that have been entered in a
// batch already, as countBeforehand does for one. It reports whether jobs may
// share a transaction now.
func (c *Consumer) countBatch(ctx context.Context, jobs []*job) bool {
	ctx, cancel := context.WithTimeout(ctx, idleLimit(jobs))
	defer cancel()
	var spent []*job
	var attempts []int
	for _, j := range slices.SortedFunc(slices.Values(jobs), compareIdentity) {
		switch {
		case j.spent == 0:
		case j.kind == compensation:
			return false
		default:
			spent, attempts = append(spent, j), append(attempts, j.spent+1)
		}
	}
	if len(spent) == 0 {
		return true
	}
	rows, _ := c.db.Query(ctx, c.sql.countActions, append(identityColumns(spent), attempts)...)
	together := true
	var id [4]string
	var n int
	_, err := pgx.ForEachRow(rows, []any{&id[0], &id[1], &id[2], &id[3], &n}, func() error {
		for _, j := range spent {
			if id == [4]string{j.Scope, j.Key, j.Step, j.N} && j.noteCounted(n) != nil {
				together = false
			}
		}
		return nil
	})
	if err != nil {
		c.opts.Logger.ErrorContext(ctx, "consumer: count attempts", "error", fmt.Errorf("consumer: count attempts: %w", err))
	}
	return together && err == nil
}
