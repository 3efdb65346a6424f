package consumer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/failpoint"
)

// unread is the kind of a message that no step could read. It has no identity.
const unread kind = "unknown"

// An identity names a row of the inbox.
type identity struct{ scope, key, step, n string }

// reusedText is the error of a message whose identity is another one's.
const reusedText = "consumer: scope, key and step were used before with another payload"

// unreadTries is how often a message without an identity is read again in one
// redrive: after more, reading it is what ended the process.
const unreadTries = 3

// topicsOf returns the topics of steps.
func (c *Consumer) topicsOf(steps []string) (topics []string) {
	for _, name := range steps {
		s := c.steps[name]
		for _, in := range []Input{s.Action, s.Compensation} {
			if in.decode != nil && !slices.Contains(topics, in.Topic) {
				topics = append(topics, in.Topic)
			}
		}
	}
	return topics
}

// identify makes a job of a parked message. One that could not be read when it
// came is given its identity first, in a statement of its own: from there on it is
// like any other. No job and no error means that it could not, or need not, and
// that this is recorded.
func (c *Consumer) identify(ctx context.Context, row *parkedRow) (*job, error) {
	if row.Kind != unread {
		return c.reread(row), nil
	}
	if row.Attempts > unreadTries {
		return nil, c.refuseDeadly(ctx, row)
	}
	j, rejected := c.readAgain(row, row.message())
	if rejected != nil {
		return nil, c.refuse(ctx, row, rejected.of, failure{reason: rejected.reason, dead: true, err: rejected.err})
	}
	named, err := c.name(ctx, row, j)
	if err != nil || !named {
		return nil, err
	}
	row.Kind, row.Scope, row.Key, row.Step, row.N = j.kind, j.Scope, j.Key, j.Step, j.joinedN()
	return c.reread(row), nil
}

// refuseDeadly refuses a row whose reading has ended the process. What is not
// believed keeps the reason that says so: another would let its next redrive pass.
func (c *Consumer) refuseDeadly(ctx context.Context, row *parkedRow) error {
	f := failure{reason: row.Reason, dead: true, attempts: row.Attempts - 1,
		err: fmt.Errorf("consumer: reading the message ended the process %d times", row.Attempts-1)}
	if row.Reason.unbelieved() {
		return c.refuse(ctx, row, nil, f)
	}
	f.reason = ReasonExhausted
	of, _ := c.address(row.Topic, row.message())
	return c.refuse(ctx, row, of, f)
}

// readAgain is read for a message that was kept: its digest is that of what it
// said when it came, whatever somebody has made of it since. It belongs to the
// step that it was parked by. One that has never been believed arrives anew.
func (c *Consumer) readAgain(row *parkedRow, msg *message.Message) (*job, *rejection) {
	read := c.read
	if row.Kind == unread && row.Reason.unbelieved() {
		read = c.acceptNow
	}
	j, rejected := read(row.Topic, msg)
	if rejected != nil {
		return nil, rejected
	}
	j.digest = row.digest()
	was := identity{row.Scope, row.Key, row.Step, row.N}
	if is := (identity{j.Scope, j.Key, j.Step, j.joinedN()}); row.Kind != unread && (is != was || j.kind != row.Kind) {
		return nil, &rejection{reason: ReasonTypeUnknown, err: fmt.Errorf("it was parked by %s of step %s, and its type is now that of %s of step %s", row.Kind, row.Step, j.kind, j.Step)}
	}
	return j, nil
}

func (r *parkedRow) digest() []byte {
	if r.Digest != nil {
		return r.Digest
	}
	sum := sha256.Sum256(r.Payload)
	return sum[:]
}

// name gives row the identity that j has read. If another copy of that message
// goes round already, that one wins: the same is then a duplicate, and another one
// under the same identity a dead letter.
func (c *Consumer) name(ctx context.Context, row *parkedRow, j *job) (named bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	args := append([]any{row.ID, row.Attempts, j.kind}, j.identity()...)
	tag, err := c.db.Exec(ctx, c.sql.nameParked, args...)
	var e *pgconn.PgError
	switch {
	case errors.As(err, &e) && e.ConstraintName == "parked_retrying":
		return false, c.yield(ctx, row, j)
	case err != nil:
		return false, fmt.Errorf("consumer: name parked message: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return false, nil
	}
	return true, failpoint.Hit("consumer/after-name")
}

// yield ends row for the sake of another copy. If that is gone meanwhile, nothing
// happens: the lease of row runs out, and it is read once more.
func (c *Consumer) yield(ctx context.Context, row *parkedRow, j *job) error {
	args := append([]any{row.ID, row.Attempts, j.kind, j.digest, ReasonKeyReused, reusedText}, j.identity()...)
	f := failure{reason: ReasonKeyReused, dead: true, err: errors.New(reusedText)}
	if _, err := c.rebury(ctx, j, f, c.sql.yieldParked, args); err != nil {
		return fmt.Errorf("consumer: drop parked copy: %w", err)
	}
	return nil
}

// refuse makes row a dead letter again. of is what could be read of it.
func (c *Consumer) refuse(ctx context.Context, row *parkedRow, of *job, f failure) error {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	text, stack := f.text()
	died, err := c.rebury(ctx, of, f, c.sql.refuseParked, []any{row.ID, row.Attempts, f.reason, text, stack, f.attempts})
	if err != nil {
		return fmt.Errorf("consumer: store dead letter: %w", err)
	}
	if died {
		c.logRejected(ctx, row.Topic, string(row.MessageID), f)
	}
	return nil
}

// rebury executes what makes of a dead letter again, and reports whether it has.
func (c *Consumer) rebury(ctx context.Context, of *job, f failure, statement string, args []any) (died bool, err error) {
	err = c.inTx(ctx, func(tx pgx.Tx, last *pgx.Batch) error {
		tag, err := tx.Exec(ctx, statement, args...)
		if died = tag.RowsAffected() == 1; err != nil || !died {
			return err
		}
		if err := failpoint.Hit("consumer/after-dead-letter"); err != nil {
			return err
		}
		return c.leaveRejected(ctx, last, of, f)
	})
	if err == nil {
		c.committed(of)
	}
	return died && err == nil, err
}
