package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/failpoint"
)

// What this file does is wrong. It is in no binary but one that is built with the
// tag of a bug of package planted.

// ackUnsettled acks what has only been read.
func ackUnsettled(jobs []*job) {
	for _, j := range jobs {
		j.arrived.msg.Ack()
	}
}

// commitClaims ends the transaction that holds jobs' claims, and begins another one
// for their handlers.
func (c *Consumer) commitClaims(ctx context.Context, conn *pgx.Conn, jobs []*job) (pgx.Tx, error) {
	if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
		return nil, fmt.Errorf("consumer: commit claims: %w", err)
	}
	savepoint := "SAVEPOINT sagamill_queued"
	if len(jobs) == 1 {
		savepoint = "SAVEPOINT sagamill_step"
	}
	tx, err := conn.BeginTx(ctx, readCommitted)
	if err == nil {
		_, err = tx.Exec(ctx, savepoint)
	}
	return tx, err
}

// errRequeue gives a delivery back at once.
var errRequeue = errors.New("consumer: the handler failed, and the delivery goes back")

// commitAlone sends COMMIT behind last, as pgx's own Commit does.
func commitAlone(ctx context.Context, tx pgx.Tx, last *pgx.Batch) error {
	err := tx.Conn().SendBatch(ctx, last).Close()
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil {
		return fmt.Errorf("consumer: commit: %w", err)
	}
	return failpoint.Hit("consumer/after-commit")
}

// notSent reports whether cause is a COMMIT of which pgx says that nothing was sent.
func notSent(cause error) bool { return pgconn.SafeToRetry(cause) }

// believe has what b's handlers have done recorded as failed if COMMIT was not sent.
func (b *batch) believe(err error) {
	for _, j := range b.jobs[:b.ran] {
		if j.entered && notSent(err) {
			j.cause = err
		}
	}
}
