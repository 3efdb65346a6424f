package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// Invoke runs the handler of in on d alone, for tests of steps: no inbox is asked,
// no attempt counted and nothing committed. It returns what the handler has
// emitted, complete as it would be stored. What it has queued is executed in tx.
//
// tx may be nil, for a handler that does not use it; what is queued is not executed then.
// Of an [Effect] the call is made, or, if d.Attempt is not the first, verify
// asked before; what that comes to is recorded in tx.
//
// An error is the handler's own, a [PanicError], or says that the payload cannot be
// decoded, or that what was queued or emitted is refused. With a tx the caller has to roll back then.
func (in Input) Invoke(ctx context.Context, tx pgx.Tx, d Delivery) ([]outbox.Message, error) {
	if in.decode == nil || in.lacks() != "" {
		return nil, errors.New("consumer: Invoke of an Input that was not made with On or Effect")
	}
	body, err := decode(in, d.Payload)
	if err != nil {
		return nil, Terminal(fmt.Errorf("payload: %w", err))
	}
	j := &job{Delivery: d}
	out := &collector{job: j, log: cleanLog(slog.Default())}
	d.out = out
	err = guarded(func() error { return in.enter(ctx, tx, d, body, out.emit) })
	out.close()
	if err != nil {
		return nil, err
	}
	if err := out.execute(ctx, tx); err != nil {
		return nil, fmt.Errorf("consumer: queued statements: %w", err)
	}
	return out.msgs, checkEmitted(out.msgs)
}

// enter runs the handler, or the call and its record.
func (in *Input) enter(ctx context.Context, tx pgx.Tx, d Delivery, body any, emit Emit) (err error) {
	if tx != nil {
		tx = txguard.Wrap(tx)
	}
	if in.effect == nil {
		return in.run(ctx, tx, d, body, emit)
	}
	var result any
	found := false
	if d.Attempt > 1 && in.effect.verify != nil {
		if result, found, err = in.effect.verify(ctx, d, body); err != nil {
			return err
		}
	}
	if !found {
		if result, err = in.effect.call(ctx, d, body); err != nil {
			return err
		}
	}
	return in.effect.record(ctx, tx, d, body, result, emit)
}

// execute runs what was queued.
func (o *collector) execute(ctx context.Context, tx pgx.Tx) error {
	if tx == nil || len(o.statements) == 0 {
		return nil
	}
	batch := &pgx.Batch{}
	o.queueInto(batch)
	return tx.SendBatch(ctx, batch).Close()
}
