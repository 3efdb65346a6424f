package saga

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// lockWait is how long a message waits for an instance that another transaction has locked. Messages for other
// instances share its transaction. Tests wait longer.
const lockWait = 500 * time.Millisecond

// lockNotAvailable is PostgreSQL's code for a lock that was not granted within lock_timeout.
const lockNotAvailable = "55P03"

// errLocked reports an instance that was locked for longer than lockWait.
var errLocked = errors.New("saga: the instance is locked")

// lockedRows are the rows that a batch has locked in one round trip. A row leaves the map when its first message is
// handled. A second message for it reads the row again, after the first handler has moved it.
type lockedRows map[sagarow.Address]*sagarow.Row

type lockedKey struct{}

// prepareBatch locks the instances of all messages of a batch, of any saga. It skips an instance whose row cannot be
// read: the handler locks it again and reports the error.
func (r *receiver) prepareBatch(ctx context.Context, tx pgx.Tx, messages []*consumer.Delivery) (context.Context, error) {
	var scopes, keys, paths []string
	for _, at := range addressesOf(messages) {
		scopes, keys, paths = append(scopes, at.Scope), append(keys, at.Key), append(paths, at.Path)
	}
	locked := make(lockedRows, len(scopes))
	b := &pgx.Batch{}
	b.Queue(r.sql.limitLock, strconv.FormatInt(r.lockWait.Milliseconds(), 10))
	b.Queue(r.sql.lockInstances, scopes, keys, paths).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if row, err := sagarow.ScanRow(rows); err == nil {
				locked[sagarow.Address{Scope: row.Scope, Key: row.Key, Path: row.Path}] = row
			}
		}
		return rows.Err()
	})
	b.Queue(r.sql.unlimitLock)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("saga: lock instances: %w", sqlschema.Explain(err))
	}
	return context.WithValue(ctx, lockedKey{}, locked), nil
}

// addressesOf returns the instances of messages, and the outermost instance around each, once.
func addressesOf(messages []*consumer.Delivery) (all []sagarow.Address) {
	seen := map[sagarow.Address]bool{}
	add := func(m *consumer.Delivery, path string) {
		at := sagarow.Address{Scope: m.Scope, Key: m.Key, Path: flow.Within(m.Incarnation, path)}
		if !seen[at] {
			seen[at] = true
			all = append(all, at)
		}
	}
	for _, m := range messages {
		_, path, err := flow.Unmark(m.N) // of a revocation
		if err == nil && m.Type == TypeReply {
			var to flow.Address
			to, _, err = flow.ParseReplyN(path)
			path = to.Path
		}
		if err == nil {
			add(m, "") // see sagarow.Statements.Lock
			add(m, path)
		}
	}
	return all
}

// lockInstanceRow returns the row that the batch has locked, or locks it. Its error is an [ErrNoInstance] or an
// errLocked.
func (r *receiver) lockInstanceRow(ctx context.Context, tx pgx.Tx, at sagarow.Address) (*sagarow.Row, error) {
	locked, _ := ctx.Value(lockedKey{}).(lockedRows)
	if row, ok := locked[at]; ok {
		delete(locked, at)
		return row, nil
	}
	return r.lockWithinWait(ctx, tx, at)
}

// lockWithinWait locks a row and waits at most lockWait for it.
func (r *receiver) lockWithinWait(ctx context.Context, tx pgx.Tx, at sagarow.Address) (*sagarow.Row, error) {
	row, err := r.sql.rows.TryLockRow(ctx, tx, at)
	if !errors.Is(err, ErrNoInstance) {
		return row, err
	}
	if _, err := tx.Exec(ctx, r.sql.limitLock, strconv.FormatInt(r.lockWait.Milliseconds(), 10)); err != nil {
		return nil, fmt.Errorf("saga: limit the wait for a lock: %w", err)
	}
	row, err = r.sql.rows.LockRow(ctx, tx, at)
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused) && refused.Code == lockNotAvailable:
		return nil, fmt.Errorf("%w: %w", errLocked, err)
	case err != nil:
		return nil, err
	}
	if _, err := tx.Exec(ctx, r.sql.unlimitLock); err != nil {
		return nil, fmt.Errorf("saga: limit the wait for a lock: %w", err)
	}
	return row, nil
}
