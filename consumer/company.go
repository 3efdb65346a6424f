package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// everybody is what the company consists of; a handler is one of it.
const everybody = 1 << 20

// companyWait is how long what wants to be alone waits for others to end. A handler
// that does not must not hold up everything else; then it goes on in company.
const companyWait = 5 * time.Second

// joinCompany waits until j may be handled beside what else this process is at,
// and returns what ends that. What may have killed a process is handled in company
// as well, but not for the last time: its attempts are counted before it is entered, so that
// a message beside it that does kill the process costs it one. When it has only one
// left, nothing else runs.
func (c *Consumer) joinCompany(ctx context.Context, j *job) (leave func(), err error) {
	last, err := c.lastChance(ctx, j)
	if err != nil {
		return nil, err
	}
	if last {
		wait, cancel := context.WithTimeout(ctx, companyWait)
		defer cancel()
		if c.company.Acquire(wait, everybody) == nil {
			return func() { c.company.Release(everybody) }, nil
		}
	}
	if err := c.enterCompany(ctx); err != nil {
		return nil, err
	}
	return func() { c.company.Release(1) }, nil
}

// enterCompany waits while something is handled alone.
func (c *Consumer) enterCompany(ctx context.Context) error {
	if c.company.TryAcquire(1) {
		return nil
	}
	if err := c.company.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("consumer: wait for a message that is handled alone: %w", err)
	}
	return nil
}

// lastChance reports whether j may have killed a process, and has one attempt left.
func (c *Consumer) lastChance(ctx context.Context, j *job) (bool, error) {
	if j.cause != nil || j.parked != nil || j.input.effect != nil || j.counted || !j.redelivered && c.marked {
		return false, nil // an Effect's delivery has killed nothing: its calls are a parked copy's
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var entries, undoEntries int
	err := c.db.QueryRow(ctx, c.sql.readAttempts, j.identity()...).Scan(&entries, &undoEntries)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, fmt.Errorf("consumer: read attempts: %w", err)
	}
	if j.kind == compensation {
		entries = undoEntries
	}
	if j.redelivered && c.marked {
		entries = max(entries, 1) // the first left no row
	}
	return entries > 0 && entries+1 == j.step.MaxAttempts, nil
}
