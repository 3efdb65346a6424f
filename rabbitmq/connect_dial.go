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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/guard"
)

var (
	// errTimeout reports that the broker did not answer a request in time.
	errTimeout = errors.New("no answer in time")
	// errTLSExpected reports that an amqp URL names a port for amqps.
	errTLSExpected = errors.New("the port answers in TLS")
)

// schemeTLS is that of URLs to a broker that speaks TLS.
const schemeTLS = "amqps"

// A conn is one connection to the broker, from its handshake to its end. It is never revived: a new conn
// takes its place, so that a delivery tag is never used on another connection.
type conn struct {
	amqp    *amqp.Connection
	link    *link
	url     string // of the broker
	socket  *deadlineConn
	limits  ConnectionOptions
	blocked gate
	places  chan struct{}   // of channels for messages: see newPlaces
	dead    chan struct{}   // closed once the connection is gone
	work    *sync.WaitGroup // goroutines of this and of other connections of the link
	stuck   atomic.Int32    // requests that wait longer than RequestTimeout

	left     atomic.Bool  // it is known that the link has left the broker
	began    time.Time    // the clock of heard and settled
	heard    atomic.Int64 // when a delivery, a confirm or a nack was received last, since began
	settled  atomic.Int64 // when a handler was done last, since began
	handling atomic.Int64 // deliveries that handlers have
	leaving  atomic.Bool  // its broker is to be left as a suspect
}

// dialAddress connects to the broker of url and shakes hands. It ends with ctx, or after the dial
// timeout. Its error is one for [link.dialRound] to wrap.
func (l *link) dialAddress(ctx context.Context, url string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.DialTimeout)
	defer cancel()
	c := &conn{link: l, url: url, limits: l.opts, dead: make(chan struct{}), work: &l.work, began: time.Now()}
	defer func() {
		if c.amqp == nil {
			c.dropConnection()
		}
	}()
	at, err := amqp.ParseURI(url)
	if err != nil {
		return nil, fmt.Errorf("%w: not an AMQP URL", ErrConfig)
	}
	config := amqpConfig(l.cfg, l.opts)
	connect := l.connectThrough(config.Dial)
	handshakeDone := func() bool { return true }
	var secure *secureConn
	config.Dial = func(network, _ string) (net.Conn, error) {
		addr := net.JoinHostPort(at.Host, strconv.Itoa(at.Port))
		socket, err := connect(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c.socket = &deadlineConn{Conn: socket, timeout: l.opts.WriteTimeout, plain: at.Scheme != schemeTLS}
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
	connection, err := amqp.DialConfig("amqp"+url[len(at.Scheme):], config)
	handshakeDone()
	if err != nil {
		if c.socket != nil && c.socket.alerted.Load() {
			err = errTLSExpected // the library took the alert for a frame
		}
		return nil, explainDial(secure.explainAlert(err))
	}
	if secure != nil {
		secure.greeted.Store(true)
	}
	c.amqp, c.places = connection, l.newPlaces(connection)
	closes := connection.NotifyClose(make(chan *amqp.Error, 1))
	blocks := connection.NotifyBlocked(make(chan amqp.Blocking, 1))
	c.work.Go(func() { c.watchConnection(closes, blocks) })
	return c, nil
}

// explainDial returns err as an [ErrConfig] if broker and settings do not belong
// together. A certificate that is not valid now is none: the next one may be.
func explainDial(err error) error {
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

// saslLogin says as whom cfg connects, and where, without the password. The user in the
// URL is not named where something else than its password is shown.
func saslLogin(cfg wamqp.ConnectionConfig) string {
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

// amqpConfig returns a new configuration for each dial, because the library modifies it.
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

// A dialer connects in place of TCP, as [net.Dialer.DialContext] does.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// connectThrough returns what connects: the own Dial of the amqp.Config, which knows no
// context, that of [ConfigOptions], or TCP.
func (l *link) connectThrough(own func(network, addr string) (net.Conn, error)) dialer {
	switch {
	case own != nil:
		return func(_ context.Context, network, addr string) (net.Conn, error) { return own(network, addr) }
	case l.dialer != nil:
		return l.dialer
	}
	return (&net.Dialer{}).DialContext
}

// watchConnection keeps the blocked state, leaves a broker that blocks the connection for too long,
// and learns of the end. It must keep reading: the library's reader waits for it.
func (c *conn) watchConnection(closes <-chan *amqp.Error, blocks <-chan amqp.Blocking) {
	var patience <-chan time.Time // runs while the connection is blocked
	for open := true; open; {
		select {
		case b, told := <-blocks:
			if open = told; told {
				c.blocked.setShut(b.Active)
				patience = c.link.tolerateAlarm(b.Active, patience)
			}
		case <-patience:
			patience = c.link.leaveBlocked(c)
		}
	}
	for range closes {
	}
	close(c.dead)
}

func (c *conn) isAlive() bool {
	select {
	case <-c.dead:
		return false
	default:
		return !c.amqp.IsClosed()
	}
}

// blockedError returns [ErrBlocked] while the broker is blocked.
func (c *conn) blockedError() error {
	select {
	case <-c.blocked.waitChannel():
		return ErrBlocked
	default:
		return nil
	}
}

// dropConnection ends the connection without a handshake. The broker redelivers messages without an ack, and
// the outcome of unconfirmed messages stays unknown.
func (c *conn) dropConnection() {
	if c.socket != nil {
		c.socket.Close()
	}
}

// closeWithin says goodbye, for at most timeout.
func (c *conn) closeWithin(timeout time.Duration) {
	defer time.AfterFunc(timeout, c.dropConnection).Stop()
	_ = c.amqp.CloseDeadline(time.Now().Add(timeout)) // closed is closed, whatever was answered
	c.dropConnection()
}

// A deadlineConn fails a write that takes too long: a broker under an alarm
// stops reading, and without a deadline the writer, and with it Close, would
// wait until the alarm is over. It can hold writes back, to send several together.
type deadlineConn struct {
	net.Conn
	timeout time.Duration
	plain   bool        // AMQP is expected, and nothing was read yet
	alerted atomic.Bool // a TLS alert came instead

	writing sync.Mutex
	holds   int    // how many goroutines hold writes back
	held    []byte // what is held back
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

// maxHeldBytes is how many bytes a deadlineConn holds back at most: some fifty small messages.
const maxHeldBytes = 32 << 10

// Write sends b. Between holdWrites and releaseWrites it keeps b instead while there is room, and reports it as
// written. A failure to send it then closes the connection.
func (d *deadlineConn) Write(b []byte) (int, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.holds > 0 && len(d.held)+len(b) <= maxHeldBytes {
		d.held = append(d.held, b...)
		return len(b), nil
	}
	if err := d.sendHeld(); err != nil {
		return 0, err
	}
	return d.writeAtOnce(b)
}

// holdWrites holds back what is written, by anybody, so that several messages cost one call of the system and the
// broker reads them together. The caller must call releaseWrites before it waits for an answer.
func (d *deadlineConn) holdWrites() {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.holds++
}

// releaseWrites ends one holdWrites. It sends what is held back, also while others hold.
func (d *deadlineConn) releaseWrites() {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.holds--
	_ = d.sendHeld() // the client learns of an error from the closed connection
}

// sendHeld sends what is held back. After an error it closes the connection, because the client counts those bytes as
// written. The caller holds writing.
func (d *deadlineConn) sendHeld() error {
	if len(d.held) == 0 {
		return nil
	}
	_, err := d.writeAtOnce(d.held)
	d.held = d.held[:0]
	if err != nil {
		d.Close()
	}
	return err
}

func (d *deadlineConn) writeAtOnce(b []byte) (int, error) {
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

func (g *gate) setShut(shut bool) {
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

// waitChannel returns a channel that is closed once the gate is shut.
func (g *gate) waitChannel() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
	return g.closed
}

// dialStagger is how long a dial may go on before the next address is dialled beside it:
// a broker that is frozen or cut off accepts connections and does not answer. RFC 8305
// recommends 250 ms for TCP alone; a handshake of AMQP takes some more round trips.
const dialStagger = 500 * time.Millisecond

// A dialled is how the dial of one address has ended.
type dialled struct {
	url  string
	conn *conn
	err  error
}

// dialRound dials the addresses of l, each once, until one has completed its handshake. A
// dial that fails is followed by the next at once, and one that takes long by the next
// beside it. It ends with ctx. The error names each address that was tried.
//
// The dials that are still going on when one has succeeded are cancelled. They belong to
// l.work, for which [link.closeLink] waits: a dial of the user's own may know no context.
func (l *link) dialRound(ctx context.Context) (*conn, error) {
	round, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		urls    = l.addresses.orderURLs(l.urls)
		failed  []error
		results = make(chan dialled)
		over    = make(chan struct{}) // closed once results is not read any more
		stagger = time.NewTimer(dialStagger)
	)
	defer stagger.Stop()
	defer close(over)
	for next, underWay := 0, 0; ; { // each turn is the start, a failure or the end of a stagger
		if next < len(urls) && (next == 0 || ctx.Err() == nil) {
			l.dialBeside(round, urls[next], results, over)
			next, underWay = next+1, underWay+1
			stagger.Reset(dialStagger)
		}
		if underWay == 0 {
			return nil, joinRound(failed)
		}
		select {
		case r := <-results:
			underWay--
			if r.err == nil {
				l.warnUnreachable(ctx, failed)
				return r.conn, nil
			}
			if ctx.Err() != nil {
				r.err = context.Cause(ctx)
			}
			failed = append(failed, fmt.Errorf("%s: %w", saslLogin(l.configAt(r.url)), r.err))
		case <-stagger.C:
		}
	}
}

// warnUnreachable logs the addresses that could not be dialled before another one could. Without
// the line an operator would not see that a service depends on fewer brokers than its settings
// name.
func (l *link) warnUnreachable(ctx context.Context, failed []error) {
	for _, err := range failed {
		l.log.WarnContext(ctx, "rabbitmq: a broker cannot be reached, another one is used", "name", l.opts.Name, "error", err)
	}
}

// dialBeside dials url in the background. It drops a connection that comes too late.
func (l *link) dialBeside(ctx context.Context, url string, results chan<- dialled, over <-chan struct{}) {
	l.work.Go(func() {
		var c *conn
		err := guard.Apart(func() (err error) { // of a Dial, or of what shakes hands
			c, err = l.dialAddress(ctx, url)
			return err
		})
		select {
		case results <- dialled{url, c, err}:
		case <-over:
			if err == nil {
				c.dropConnection()
			}
		}
	})
}

// A roundError is why each of several addresses could not be dialled.
type roundError struct{ failed []error }

// joinRound returns the one error as it is, because one address is no round.
func joinRound(failed []error) error {
	if len(failed) == 1 {
		return failed[0]
	}
	return &roundError{failed}
}

func (e *roundError) Error() string {
	texts := make([]string, len(e.failed))
	for i, err := range e.failed {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (e *roundError) Unwrap() []error { return e.failed }

// addressErrors returns the error of each address if err is that of a round, else err
// alone.
func addressErrors(err error) []error {
	var round *roundError
	if errors.As(err, &round) {
		return round.failed
	}
	return []error{err}
}
