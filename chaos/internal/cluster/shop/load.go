package shop

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// The limits of the load.
const (
	tick      = 100 * time.Millisecond // between two transactions
	maxOrders = 500                    // in one transaction, after an outage
	maxAmount = 100_000                // of an order, in cents
)

// A pen writes the sagas of one load. It is for one goroutine.
type pen struct {
	shop   *Shop
	writer *outbox.Writer
	insert string
	rand   *rand.Rand

	sequences []int // of ordering keys: the last one that was written
	red, blue int   // the same of these topics
}

func (s *Shop) openWriter() (*pen, error) {
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: s.opts.Schema})
	if err != nil {
		return nil, err
	}
	return &pen{
		shop: s, writer: writer, insert: sqlschema.Bind(s.opts.Schema, sqlInsertCauses),
		rand: rand.New(rand.NewPCG(s.opts.Seed, uint64(len(s.opts.Schema)))), sequences: make([]int, s.opts.Keys),
	}, nil
}

// WriteOrders writes orders, and messages for red and blue, at the rates of the options until ctx ends. It does
// not make up for pauses. An error reports that a transaction did not commit, or may not have.
func (s *Shop) WriteOrders(ctx context.Context) error {
	p, err := s.openWriter()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	orders, colours := pace{rate: s.opts.Rate}, pace{rate: s.opts.Colours}
	var elapsed time.Duration // without pauses
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := time.Now()
		if !s.paused.Load() {
			elapsed += now.Sub(last)
		}
		last = now
		// A transaction that is cut off might have committed, so ctx does not end it.
		if err := p.writeOrders(context.WithoutCancel(ctx), orders.ordersDue(elapsed), colours.ordersDue(elapsed)); err != nil {
			return fmt.Errorf("shop: write orders: %w", err)
		}
	}
}

// PauseWriting stops and continues the load of [Shop.WriteOrders], from its next transaction on.
func (s *Shop) PauseWriting(paused bool) { s.paused.Store(paused) }

// A pace is a number of things a second.
type pace struct{ rate, done int }

// ordersDue returns how many things are due after so much time.
func (p *pace) ordersDue(elapsed time.Duration) int {
	n := min(maxOrders, int(elapsed.Seconds()*float64(p.rate))-p.done)
	p.done += n
	return n
}

// writeOrders commits so many orders, and so many messages of each colour.
func (p *pen) writeOrders(ctx context.Context, orders, colours int) error {
	if orders+colours == 0 {
		return nil
	}
	b := &batch{at: time.Now().UnixNano()}
	for range orders {
		key := p.rand.IntN(len(p.sequences))
		p.sequences[key]++
		b.addOrder(note{ScopeOrder, key, p.sequences[key], 1 + p.rand.Int64N(maxAmount), b.at}, stages[0])
	}
	for range colours {
		p.red, p.blue = p.red+1, p.blue+1
		b.addOrder(note{ScopeRed, 0, p.red, 1, b.at}, stages[3])
		b.addOrder(note{ScopeBlue, 0, p.blue, 1, b.at}, stages[4])
	}
	err := pgx.BeginFunc(ctx, p.shop.opts.DB, func(tx pgx.Tx) error {
		queued := &pgx.Batch{}
		queued.Queue(p.insert, b.scopes, b.keys, b.seqs, b.amounts)
		if err := p.writer.Queue(ctx, queued, b.messages...); err != nil {
			return err
		}
		return tx.SendBatch(ctx, queued).Close()
	})
	if err == nil {
		p.shop.opts.Meter.NoteWritten(orders, 2*colours)
		p.shop.relay.Wake()
	}
	return err
}

// A batch is what one transaction writes.
type batch struct {
	at       int64
	scopes   []string
	keys     []int
	seqs     []int
	amounts  []int64
	messages []outbox.Message
}

// addOrder adds a saga that begins with a stage.
func (b *batch) addOrder(n note, first stage) {
	payload, err := json.Marshal(n)
	if err != nil {
		panic(err) // unreachable: every field of a note has a JSON form
	}
	b.scopes, b.keys, b.seqs, b.amounts = append(b.scopes, n.Scope), append(b.keys, n.Key), append(b.seqs, n.Seq), append(b.amounts, n.Amount)
	b.messages = append(b.messages, n.outboxMessage(first.topic, first.step, payload))
}
