package rabbittest

import (
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testsignal"
)

// A Proxy forwards connections to a broker. A test can make it cut, refuse or stall them.
type Proxy struct {
	listener net.Listener
	target   string
	url      string
	work     sync.WaitGroup

	mu       sync.Mutex
	changed  *sync.Cond // of stalled
	stalled  bool       // towards the client
	refusing bool
	pairs    map[net.Conn]net.Conn // client to broker

	opened testsignal.Signal[int]
	ended  testsignal.Signal[int]
}

// NewProxy starts a proxy in front of the broker at target, an AMQP URL. It
// ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	uri, err := amqp.ParseURI(target)
	if err != nil {
		t.Fatalf("parse URL: %v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	u := url.URL{Scheme: "amqp", User: url.UserPassword(uri.Username, uri.Password), Host: listener.Addr().String(), Path: uri.Vhost}
	p := &Proxy{
		listener: listener,
		target:   net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)),
		url:      u.String(),
		pairs:    make(map[net.Conn]net.Conn),
	}
	p.changed = sync.NewCond(&p.mu)
	p.work.Go(p.acceptClients)
	t.Cleanup(func() {
		p.listener.Close()
		p.Refuse(true)
		p.Stall(false)
		p.work.Wait()
	})
	return p
}

// URL returns the proxy's URL for clients.
func (p *Proxy) URL() string { return p.url }

// Cut closes all connections and returns their number. The proxy accepts new ones.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	cut := len(p.pairs)
	for client, broker := range p.pairs {
		client.Close()
		broker.Close()
	}
	clear(p.pairs)
	for left := cut - 1; left >= 0; left-- {
		p.ended.Send(left)
	}
	return cut
}

// Refuse cuts all connections and, until it is called with false, every new one.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	p.refusing = refuse
	p.mu.Unlock()
	if refuse {
		p.Cut()
	}
}

// Opened signals each connection that the proxy has forwarded, and Ended each that has ended, with the number
// of open connections. Enable them first.
func (p *Proxy) Opened() *testsignal.Signal[int] { return &p.opened }

// Ended: see [Proxy.Opened].
func (p *Proxy) Ended() *testsignal.Signal[int] { return &p.ended }

// Stall holds back the broker's messages until it is called with false. The proxy accepts a client that
// connects meanwhile, but its handshake hangs.
func (p *Proxy) Stall(stall bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = stall
	p.changed.Broadcast()
}

// Inject sends frame to every client as if the broker had sent it. The broker must send nothing meanwhile.
func (p *Proxy) Inject(frame []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for client := range p.pairs {
		if _, err := client.Write(frame); err != nil {
			return err
		}
	}
	return nil
}

func (p *Proxy) acceptClients() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		broker, err := net.Dial("tcp", p.target)
		if err != nil || !p.register(client, broker) {
			client.Close()
			if broker != nil {
				broker.Close()
			}
			continue
		}
		p.work.Go(func() { p.forwardBytes(broker, client, false) })
		p.work.Go(func() { p.forwardBytes(client, broker, true) })
	}
}

func (p *Proxy) register(client, broker net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.refusing {
		p.pairs[client] = broker
		p.opened.Send(len(p.pairs))
	}
	return !p.refusing
}

// forgetClient notes that the connection of client has ended, once.
func (p *Proxy) forgetClient(client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.pairs[client]; known {
		delete(p.pairs, client)
		p.ended.Send(len(p.pairs))
	}
}

// forwardBytes copies from src to dst until either is closed, then closes both.
func (p *Proxy) forwardBytes(dst, src net.Conn, toClient bool) {
	defer dst.Close()
	defer src.Close()
	client := src
	if toClient {
		client = dst
	}
	defer p.forgetClient(client)
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if err != nil && err != io.EOF || n == 0 {
			return
		}
		if toClient {
			p.mu.Lock()
			for p.stalled {
				p.changed.Wait()
			}
			p.mu.Unlock()
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
	}
}
