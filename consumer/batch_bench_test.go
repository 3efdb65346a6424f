package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// BenchmarkStep is a step with one row of its own and one message that follows,
// by how its messages share transactions. There is no broker.
func BenchmarkStep(b *testing.B) {
	for name, size := range map[string]int{"single": 1, "batch": 64} {
		for _, queued := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/queued=%t", name, queued), func(b *testing.B) {
				pool, schema := pgtest.Schema(b)
				if _, err := pool.Exec(b.Context(), "CREATE TABLE "+schema+".payment (id uuid PRIMARY KEY, amount bigint)"); err != nil {
					b.Fatal(err)
				}
				pay := On("pay", func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
					insert := "INSERT INTO " + schema + ".payment VALUES ($1, $2)"
					emit(outbox.Message{Topic: "paid", Step: "ship", Payload: in.Payload})
					if queued {
						in.Queue(insert, in.Key, in.Body.Amount)
						return nil
					}
					_, err := tx.Exec(ctx, insert, in.Key, in.Body.Amount)
					return err
				})
				c, err := New(pool, &stream{n: b.N, wait: 512}, []Step{{Name: "process-payment", Action: pay}},
					&Options{Schema: schema, BatchSize: size, Lanes: 4, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					b.Fatal(err)
				}
				ctx, stop := context.WithCancel(b.Context())
				c.sub.(*stream).stop = stop
				b.ResetTimer()
				if err := c.Run(ctx); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "steps/s")
			})
		}
	}
}

// A stream hands over n messages, wait of them at a time, and ends Run when all are acked.
type stream struct {
	n, wait int
	stop    func()
}

func (*stream) MarksRedelivered() bool { return true }
func (*stream) Close() error           { return nil }

func (s *stream) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		var acks sync.WaitGroup
		room := make(chan struct{}, s.wait)
		for range s.n {
			msg := newMessage(topic, uuid.NewString(), payment{1})
			room <- struct{}{}
			out <- msg
			acks.Go(func() {
				<-msg.Acked()
				<-room
			})
		}
		acks.Wait()
		s.stop()
		<-ctx.Done()
	}()
	return out, nil
}
