package rabbitmq_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sagamill/sagamill/internal/rabbittest"
)

// A jealousWire leads to the broker, and cuts the first connections where their password has
// just been said.
type jealousWire struct {
	listener net.Listener
	broker   string
	cuts     atomic.Int32 // that are left
	conns    sync.WaitGroup
}

// jealous returns the URL of a wire that cuts so many connections.
func jealous(t *testing.T, cuts int32) (at string, w *jealousWire) {
	t.Helper()
	u, err := url.Parse(rabbittest.URL())
	if err != nil {
		t.Fatal(err)
	}
	w = &jealousWire{broker: u.Host}
	w.cuts.Store(cuts)
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.conns.Go(w.accept)
	t.Cleanup(func() {
		_ = w.listener.Close()
		w.conns.Wait()
	})
	u.Host = w.listener.Addr().String()
	return u.String(), w
}

func (w *jealousWire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		broker, err := net.Dial("tcp", w.broker)
		if err != nil {
			_ = client.Close()
			continue
		}
		w.conns.Go(func() {
			defer client.Close()
			_, _ = io.Copy(client, broker)
		})
		w.conns.Go(func() {
			defer broker.Close()
			w.forward(broker, client)
		})
	}
}

func (w *jealousWire) forward(broker, client net.Conn) {
	for buf := make([]byte, 4096); ; {
		n, err := client.Read(buf)
		if err != nil || bytes.Contains(buf[:n], []byte("PLAIN")) && w.cuts.Add(-1) >= 0 {
			return
		}
		if _, err := broker.Write(buf[:n]); err != nil {
			return
		}
	}
}

// The client takes a connection that is cut during its login for a refused password. A
// subscriber does not give up for that.
func TestACutDuringTheLoginIsNoRefusal(t *testing.T) {
	t.Parallel()
	at, w := jealous(t, 2)
	cfg := declared(t, "orders")
	messages, _ := subscribe(t, through(cfg, at), "orders", fast())
	ackAll(t, messages, mustPublish(t, newPublisher(t, cfg, nil), "orders", 1))
	if left := w.cuts.Load(); left > 0 {
		t.Errorf("%d connections were not cut", left)
	}
}
