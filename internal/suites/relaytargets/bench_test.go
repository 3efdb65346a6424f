package relaytargets

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// BenchmarkRelay empties an outbox of 4,000 messages with 500 ordering keys, by
// how many calls of the publisher run at once. A server in another room is one
// behind a proxy that holds back each answer.
//
//	go test -run '^$' -bench . -benchtime 1x -count 5
func BenchmarkRelay(b *testing.B) {
	for name, broker := range map[string]func(testing.TB) remote{
		"redis": func(t testing.TB) remote { return newRedis(t) },
		"nats":  func(t testing.TB) remote { return newNATS(t) },
	} {
		for _, away := range []time.Duration{0, time.Millisecond} {
			for _, calls := range []int{1, 4, 8, 16, 32, 64} {
				b.Run(fmt.Sprintf("%s/away=%s/calls=%d", name, away, calls), func(b *testing.B) {
					target := broker(b)
					if away > 0 {
						target = target.at(distant(b, target.addr(), away))
					}
					benchmarkRelay(b, target, calls)
				})
			}
		}
	}
}

func benchmarkRelay(b *testing.B, target broker, calls int) {
	s, topic := newService(b), target.topic("t")
	batch := make([]outbox.Message, benchMessages)
	for i := range batch {
		batch[i] = outbox.Message{Topic: topic, Scope: "s", Key: fmt.Sprint(i % benchKeys), N: fmt.Sprint(i), Step: "step", Payload: make([]byte, 200)}
	}
	var elapsed time.Duration
	for b.Loop() {
		s.write(b, nil, batch...)
		pub := &counted{Publisher: target.publisher(b), all: make(chan struct{})}
		relay, err := outbox.NewRelay(s.pool, outbox.FromWatermill(pub, &outbox.WatermillOptions{Concurrency: calls}),
			&outbox.RelayOptions{Schema: s.schema, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		running := run(b, relay.Run)
		<-pub.all
		elapsed += time.Since(time.Unix(0, pub.began.Load()))
		running.stop()
	}
	b.ReportMetric(benchMessages*float64(b.N)/elapsed.Seconds(), "msg/s")
}

const benchMessages, benchKeys = 4000, 500

// counted says when all messages have been published.
type counted struct {
	message.Publisher
	all       chan struct{}
	began     atomic.Int64
	published atomic.Int64
}

func (c *counted) Publish(topic string, messages ...*message.Message) error {
	c.began.CompareAndSwap(0, time.Now().UnixNano())
	err := c.Publisher.Publish(topic, messages...)
	if err == nil && c.published.Add(1) == benchMessages {
		close(c.all)
	}
	return err
}

// distant returns the address of a proxy to addr whose answers take so much longer.
func distant(t testing.TB, addr string, more time.Duration) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		work.Wait()
	})
	work.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", addr)
			if err != nil {
				_ = client.Close()
				continue
			}
			work.Go(func() {
				defer server.Close()
				_, _ = io.Copy(server, client)
			})
			work.Go(func() { holdBack(client, server, more) })
		}
	})
	return listener.Addr().String()
}

// holdBack passes on what the server says, each piece so much later.
func holdBack(client, server net.Conn, more time.Duration) {
	type piece struct {
		due  time.Time
		data []byte
	}
	defer client.Close()
	pieces := make(chan piece, 4096)
	var work sync.WaitGroup
	defer work.Wait()
	defer close(pieces)
	work.Go(func() {
		for p := range pieces {
			<-time.After(time.Until(p.due))
			_, _ = client.Write(p.data)
		}
	})
	for {
		buf := make([]byte, 32<<10)
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		pieces <- piece{time.Now().Add(more), buf[:n]}
	}
}
