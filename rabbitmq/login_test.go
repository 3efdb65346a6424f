package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
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

// whoseLogin are parts of an error that tell whose login it was, and whose password.
func whoseLogin(t *testing.T, at string) (parts []string, password string) {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	password, _ = u.User.Password()
	return []string{`user "` + u.User.Username() + `" at ` + u.Host + ", virtual host "}, password
}

// checkLogin checks that err says each part and not the password.
func checkLogin(t *testing.T, err error, parts []string, password string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %v; want %q in it", err, part)
		}
	}
	if err != nil && strings.Contains(strings.ReplaceAll(err.Error(), `"`+password+`" at`, ""), password) {
		t.Errorf("the error has the password in it: %v", err)
	}
}

// A caller that gives up before the third refusal gets an error about the password, not about the time.
func TestALoginThatIsGivenUpSaysWhatTheBrokerSaid(t *testing.T) {
	t.Parallel()
	at, _ := jealous(t, math.MaxInt32)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg, dials := newConfig(t, at), 0
	cfg.Connection.AmqpConfig = &amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		if dials++; dials == 2 {
			cancel()
			return nil, ctx.Err()
		}
		return net.Dial(network, addr)
	}}
	sub, err := rabbitmq.NewSubscriber(cfg, fast())
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	_, err = sub.Subscribe(ctx, "orders")
	parts, password := whoseLogin(t, at)
	checkLogin(t, err, append(parts, "username or password not allowed"), password)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, rabbitmq.ErrUnavailable) {
		t.Errorf("Subscribe = %v, want one that is context.Canceled and ErrUnavailable", err)
	}
}

func TestARefusedVirtualHostIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(rabbittest.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + rabbittest.Name()
	err = rabbitmq.DeclareTopology(t.Context(), newConfig(t, u.String()), "orders")
	parts, password := whoseLogin(t, u.String())
	checkLogin(t, err, append(parts, `virtual host "`+u.Path[1:]+`"`, "NOT_ALLOWED"), password)
}
