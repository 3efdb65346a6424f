package rabbitmq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A secureConn is a connection in TLS. It keeps the broker's reason for refusing our certificate.
// In TLS 1.3 the reason comes after the handshake, and the AMQP client may then lose it, depending
// on its next step.
type secureConn struct {
	*tls.Conn
	refusal atomic.Pointer[net.OpError]
	greeted atomic.Bool   // the handshake of AMQP is done
	once    sync.Once     // closes ended
	ended   chan struct{} // closed once nothing more can be read
}

// lastWords is how long a failed greeting waits for the broker's reason.
const lastWords = time.Second

// shakeHands makes a TLS connection of socket, which it closes after an error. TLS is 1.2 or later, even if
// config allows less. Without a config it uses the files that the URL names, like the AMQP client.
func shakeHands(ctx context.Context, socket net.Conn, at amqp.URI, config *tls.Config) (*secureConn, error) {
	var err error
	if config = config.Clone(); config == nil {
		config, err = configOf(at)
	}
	if err == nil {
		if config.ServerName == "" {
			config.ServerName = at.Host
		}
		config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
		c := &secureConn{Conn: tls.Client(socket, config), ended: make(chan struct{})}
		if err = c.HandshakeContext(ctx); err == nil {
			return c, nil
		}
	}
	socket.Close()
	return nil, err
}

// configOf returns the settings in the parameters of a URL.
func configOf(at amqp.URI) (*tls.Config, error) {
	config := &tls.Config{ServerName: at.ServerName}
	if at.CACertFile != "" {
		text, err := os.ReadFile(at.CACertFile)
		if err != nil {
			return nil, fmt.Errorf("%w: cacertfile: %w", ErrConfig, err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%w: cacertfile: no certificate is in it", ErrConfig)
		}
	}
	if at.CertFile == "" && at.KeyFile == "" {
		return config, nil
	}
	own, err := tls.LoadX509KeyPair(at.CertFile, at.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("%w: certfile and keyfile: %w", ErrConfig, err)
	}
	config.Certificates = []tls.Certificate{own}
	return config, nil
}

func (c *secureConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	var alert *net.OpError
	if errors.As(err, &alert) && alert.Op == "remote error" { // as crypto/tls calls it
		c.refusal.Store(alert)
	}
	if err != nil {
		c.once.Do(func() { close(c.ended) })
	}
	return n, err
}

// Write lets the reader hear why, where the broker has refused us and hung up before it
// was greeted: the AMQP client closes the connection at once.
func (c *secureConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && !c.greeted.Load() {
		select {
		case <-c.ended:
		case <-time.After(lastWords):
		}
	}
	return n, err
}

// explainAlert returns err with the broker's alert to c, unless err has it already.
func (c *secureConn) explainAlert(err error) error {
	if c == nil || c.refusal.Load() == nil || strings.Contains(err.Error(), c.refusal.Load().Error()) {
		return err
	}
	return fmt.Errorf("%w: %w", c.refusal.Load(), err)
}
