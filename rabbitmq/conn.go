package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	// errTimeout reports that the broker did not answer a request in time.
	errTimeout = errors.New("no answer in time")
	// errTLSExpected reports that an amqp URL names a port for amqps.
	errTLSExpected = errors.New("the port answers in TLS")
)

// schemeTLS is that of URLs to a broker that speaks TLS.
const schemeTLS = "amqps"

// A conn is one connection to the broker, from its handshake to its end. It is
// never revived: who needs a connection after that dials another one, so a
// delivery tag can never be used on a connection it does not belong to.
type conn struct {
	amqp    *amqp.Connection
	socket  *deadlineConn
	limits  ConnectionOptions
	blocked gate
	dead    chan struct{}   // closed once the connection is gone
	work    *sync.WaitGroup // goroutines of this and of other connections of the link
}

// dial connects and shakes hands. It ends with ctx, or after the dial timeout. Its error
// is one for [link.redial] to wrap.
func dial(ctx context.Context, cfg wamqp.ConnectionConfig, opts ConnectionOptions, work *sync.WaitGroup) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, opts.DialTimeout)
	defer cancel()
	c := &conn{limits: opts, dead: make(chan struct{}), work: work}
	at, err := amqp.ParseURI(cfg.AmqpURI)
	if err != nil {
		return nil, fmt.Errorf("%w: not an AMQP URL", ErrConfig)
	}
	config := amqpConfig(cfg, opts)
	connect := config.Dial
	handshakeDone := func() bool { return true }
	var secure *secureConn
	config.Dial = func(network, _ string) (net.Conn, error) {
		addr := net.JoinHostPort(at.Host, strconv.Itoa(at.Port))
		socket, err := connectWith(ctx, connect, network, addr)
		if err != nil {
			return nil, err
		}
		c.socket = &deadlineConn{Conn: socket, timeout: opts.WriteTimeout, plain: at.Scheme != schemeTLS}
		// The handshake knows no context: it ends with its socket.
		handshakeDone = context.AfterFunc(ctx, func() { socket.Close() })
		if at.Scheme != schemeTLS {
			return c.socket, nil
		}
		if secure, err = shakeHands(ctx, c.socket, at, config.TLSClientConfig); err != nil {
			return nil, err
		}
		return secure, nil
	}
	// To the library TLS is a matter of Dial alone.
	connection, err := amqp.DialConfig("amqp"+cfg.AmqpURI[len(at.Scheme):], config)
	handshakeDone()
	if err != nil {
		c.drop()
		if c.socket != nil && c.socket.alerted.Load() {
			err = errTLSExpected // the library took the alert for a frame
		}
		return nil, dialError(secure.explain(err))
	}
	if secure != nil {
		secure.greeted.Store(true)
	}
	c.amqp = connection
	closes := connection.NotifyClose(make(chan *amqp.Error, 1))
	blocks := connection.NotifyBlocked(make(chan amqp.Blocking, 1))
	c.work.Go(func() { c.watch(closes, blocks) })
	return c, nil
}

// dialError returns err as an [ErrConfig] if broker and settings do not belong
// together. A certificate that is not valid now is none: the next one may be.
func dialError(err error) error {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		noTLS     tls.RecordHeaderError
	)
	if errors.As(err, &authority) || errors.As(err, &hostname) || errors.As(err, &noTLS) || errors.Is(err, errTLSExpected) {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return err
}

// login says as whom cfg connects, and where, without the password. The user in the
// URL is not named where something else than its password is shown.
func login(cfg wamqp.ConnectionConfig) string {
	at, err := amqp.ParseURI(cfg.AmqpURI)
	if err != nil {
		return "not an AMQP URL"
	}
	user, vhost, own := fmt.Sprintf("user %q at ", at.Username), at.Vhost, cfg.AmqpConfig
	if own != nil {
		vhost = cmp.Or(own.Vhost, vhost)
	}
	if own != nil && own.SASL != nil || at.AuthMechanism != nil {
		user = ""
	}
	return fmt.Sprintf("%s%s, virtual host %q", user, net.JoinHostPort(at.Host, strconv.Itoa(at.Port)), vhost)
}

// amqpConfig returns a fresh configuration for each dial: the library writes
// into what it is given.
func amqpConfig(cfg wamqp.ConnectionConfig, opts ConnectionOptions) amqp.Config {
	var config amqp.Config
	if cfg.AmqpConfig != nil {
		config = *cfg.AmqpConfig
	}
	if config.Heartbeat == 0 {
		config.Heartbeat = opts.Heartbeat
	}
	if cfg.TLSConfig != nil {
		config.TLSClientConfig = cfg.TLSConfig
	}
	config.Properties = maps.Clone(config.Properties)
	if config.Properties == nil {
		config.Properties = amqp.NewConnectionProperties()
	}
	if opts.Name != "" {
		config.Properties.SetClientConnectionName(opts.Name)
	}
	config.Recovery = nil // two owners of one reconnection would get in each other's way
	return config
}

func connectWith(ctx context.Context, connect func(network, addr string) (net.Conn, error), network, addr string) (net.Conn, error) {
	if connect != nil {
		return connect(network, addr)
	}
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

// watch keeps the blocked state and learns of the end. It must keep reading:
// the library's reader waits for it.
func (c *conn) watch(closes <-chan *amqp.Error, blocks <-chan amqp.Blocking) {
	for b := range blocks {
		c.blocked.set(b.Active)
	}
	for range closes {
	}
	close(c.dead)
}

func (c *conn) alive() bool {
	select {
	case <-c.dead:
		return false
	default:
		return !c.amqp.IsClosed()
	}
}

// unblocked returns [ErrBlocked] while the broker is blocked.
func (c *conn) unblocked() error {
	select {
	case <-c.blocked.wait():
		return ErrBlocked
	default:
		return nil
	}
}

// drop ends the connection without a word. The broker gives back what was not
// acked, and what was not confirmed stays unknown.
func (c *conn) drop() {
	if c.socket != nil {
		c.socket.Close()
	}
}

// close says goodbye, for at most timeout.
func (c *conn) close(timeout time.Duration) {
	defer time.AfterFunc(timeout, c.drop).Stop()
	_ = c.amqp.CloseDeadline(time.Now().Add(timeout)) // closed is closed, whatever was answered
	c.drop()
}

// call runs f, which asks the broker something over c, and returns its result.
// A broker that does not answer in time has its connection dropped, because the
// library would wait for ever. If ctx ends first, f goes on alone and discard
// gets what it returns without an error.
func call[T any](ctx context.Context, c *conn, f func() (T, error), discard func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var (
		done = make(chan result)
		left = make(chan struct{})
		zero T
	)
	c.work.Go(func() {
		timeout := time.AfterFunc(c.limits.RequestTimeout, c.drop)
		value, err := f()
		if !timeout.Stop() && err != nil {
			err = fmt.Errorf("%w: %w", errTimeout, err)
		}
		select {
		case done <- result{value, err}:
		case <-left:
			if err == nil && discard != nil {
				discard(value)
			}
		}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		close(left)
		return zero, ctx.Err()
	}
}

// ask is [call] with a channel of its own, which an exception closes.
func ask[T any](ctx context.Context, c *conn, f func(*amqp.Channel) (T, error)) (T, error) {
	return call(ctx, c, func() (answer T, err error) {
		ch, err := c.amqp.Channel()
		if err != nil {
			return answer, err
		}
		defer ch.Close()
		return f(ch)
	}, nil)
}

// closeChannel closes ch in the background, which ends at the latest with the
// connection.
func (c *conn) closeChannel(ch *amqp.Channel) {
	c.work.Go(func() {
		defer time.AfterFunc(c.limits.RequestTimeout, c.drop).Stop()
		_ = ch.Close()
	})
}

// A deadlineConn fails a write that takes too long: a broker under an alarm
// stops reading, and without a deadline the writer, and with it Close, would
// wait until the alarm is over.
type deadlineConn struct {
	net.Conn
	timeout time.Duration
	plain   bool        // AMQP is expected, and nothing was read yet
	alerted atomic.Bool // a TLS alert came instead
}

// tlsAlert begins a TLS record that says why the peer gives up. No frame of AMQP
// begins with it.
const tlsAlert = 21

func (d *deadlineConn) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if n > 0 && d.plain {
		d.plain = false
		d.alerted.Store(b[0] == tlsAlert)
	}
	return n, err
}

func (d *deadlineConn) Write(b []byte) (int, error) {
	if err := d.SetWriteDeadline(time.Now().Add(d.timeout)); err != nil {
		return 0, err
	}
	return d.Conn.Write(b)
}

// A gate is a flag that can be waited for.
type gate struct {
	mu     sync.Mutex
	shut   bool
	closed chan struct{} // closed while shut
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil || !shut && g.shut {
		g.closed = make(chan struct{})
	}
	if shut && !g.shut {
		close(g.closed)
	}
	g.shut = shut
}

// wait returns a channel that is closed once the gate is shut.
func (g *gate) wait() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
	return g.closed
}
