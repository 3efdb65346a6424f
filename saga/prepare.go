package saga

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// address names an instance within a schema.
type address struct{ scope, key, path string }

// lockedRows are the instances that a batch has locked in one round trip. One
// that is being moved is not among them: what becomes of it is not known before its
// handler has returned.
type lockedRows map[address]*row

type lockedKey struct{}

// prepare locks the instances that a batch is for, of whichever saga. Those that cannot be read are left to
// their handlers, which say so.
func (o *Orchestrator) prepare(ctx context.Context, tx pgx.Tx, messages []*consumer.Delivery) (context.Context, error) {
	wanted := map[address]bool{}
	var scopes, keys, paths []string
	want := func(at address) {
		if !wanted[at] {
			wanted[at] = true
			scopes, keys, paths = append(scopes, at.scope), append(keys, at.key), append(paths, at.path)
		}
	}
	for _, m := range messages {
		_, path, err := flow.Unmark(m.N) // of a revocation
		if err == nil && m.Type == TypeReply {
			var to flow.Address
			to, _, err = flow.ParseReplyN(path)
			path = to.Path
		}
		if err != nil {
			continue
		}
		want(address{m.Scope, m.Key, flow.Within(m.Incarnation, "")}) // see sqlLockRoot
		want(address{m.Scope, m.Key, flow.Within(m.Incarnation, path)})
	}
	locked := make(lockedRows, len(scopes))
	b := &pgx.Batch{}
	b.Queue(o.sql.limitLock, strconv.FormatInt(o.lockWait.Milliseconds(), 10))
	b.Queue(o.sql.lockInstances, scopes, keys, paths).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if i, err := scanRow(rows); err == nil {
				locked[address{i.Scope, i.Key, i.Path}] = i
			}
		}
		return rows.Err()
	})
	b.Queue(o.sql.unlimitLock)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("saga: lock instances: %w", sqlschema.Explain(err))
	}
	return context.WithValue(ctx, lockedKey{}, locked), nil
}

// lock locks and reads an instance, unless its batch has.
func (o *Orchestrator) lock(ctx context.Context, tx pgx.Tx, at address) (*row, error) {
	locked, _ := ctx.Value(lockedKey{}).(lockedRows)
	if i, ok := locked[at]; ok {
		delete(locked, at)
		return i, nil
	}
	return o.sql.lockSoon(ctx, tx, at.scope, at.key, at.path, o.lockWait)
}
