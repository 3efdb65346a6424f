package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/txguard"
)

// A Preparer is called before the handlers of a batch are entered, with the messages
// that they are going to be entered for: what those need of the database can be
// read, and locked, in one round trip for all.
type Preparer struct {
	prepare func(ctx context.Context, tx pgx.Tx, messages []*Delivery) (context.Context, error)
}

// NewPreparer returns a Preparer that calls prepare. The context that prepare returns
// is the one that the handlers' contexts come from. It must not change anything. A
// handler has to do without, since a message that is alone is not prepared. After an
// error, or a panic, the messages are handled one by one.
//
// Rows are to be locked in one order, so that two batches do not wait for each other.
func NewPreparer(prepare func(ctx context.Context, tx pgx.Tx, messages []*Delivery) (context.Context, error)) *Preparer {
	return &Preparer{prepare}
}

// A prepared is what a Preparer has made of a batch.
type prepared struct {
	by       *Preparer
	messages []*Delivery
	ctx      context.Context
}

// prepare prepares those of b's messages whose handlers are going to be entered.
func (b *batch) prepare(ctx context.Context) error {
	for _, j := range b.jobs {
		if j.step.Prepare == nil || decide(j.found, j.arrival()) != run {
			continue
		}
		i := slices.IndexFunc(b.prepared, func(p prepared) bool { return p.by == j.step.Prepare })
		if i < 0 {
			i = len(b.prepared)
			b.prepared = append(b.prepared, prepared{by: j.step.Prepare})
		}
		b.prepared[i].messages = append(b.prepared[i].messages, &j.Delivery)
	}
	for i := range b.prepared {
		b.worked = true // locks would be gone with the savepoint of what is queued
		if err := b.callPrepare(ctx, &b.prepared[i]); err != nil {
			return fmt.Errorf("consumer: prepare a batch: %w", err)
		}
	}
	return nil
}

func (b *batch) callPrepare(ctx context.Context, p *prepared) (err error) {
	err = guarded(func() (err error) {
		p.ctx, err = p.by.prepare(ctx, txguard.Wrap(b.tx), p.messages)
		return err
	})
	if err == nil {
		err = stateAfter(b.tx.Conn())
	}
	if err == nil && p.ctx == nil {
		err = errors.New("a Preparer returned no context")
	}
	return err
}

// contextFor returns the context for the handlers of step.
func (b *batch) contextFor(ctx context.Context, step *Step) context.Context {
	for _, p := range b.prepared {
		if p.by == step.Prepare {
			return p.ctx
		}
	}
	return ctx
}
