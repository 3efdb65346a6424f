package rabbitmq_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/certtest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbitnode"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// trusted returns settings of a client that trusts ca alone, and that ca has signed.
func trusted(t *testing.T, ca *certtest.Authority) *tls.Config {
	t.Helper()
	return &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Pair(t, time.Hour)}}
}

// TestPrivateBrokerTLSAndAccounts tests TLS and accounts, which need settings of the broker.
func TestPrivateBrokerTLSAndAccounts(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	ca := certtest.NewAuthority(t)
	certificate, key := ca.Issue(t, time.Hour)
	node := rabbittest.StartNodeWith(t, &rabbitnode.Options{
		Certificate: certificate, Key: key, ClientAuthority: ca.PEM(),
		Plugins: []string{"rabbitmq_auth_mechanism_ssl"},
		Config:  "auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\nssl_cert_login_from = common_name",
	})
	node.Ctl(t, "add_user", "svc", password)
	node.Ctl(t, "set_permissions", "svc", ".*", ".*", ".*")
	t.Run("group", func(t *testing.T) {
		t.Run("TLS", func(t *testing.T) { t.Parallel(); testTLS(t, node, ca) })
		t.Run("TLS refused", func(t *testing.T) { t.Parallel(); testTLSRefused(t, node, ca) })
		t.Run("credentials", func(t *testing.T) { t.Parallel(); testCredentials(t, node) })
		t.Run("certificate for a password", func(t *testing.T) { t.Parallel(); testExternal(t, node, ca) })
		t.Run("connection name", func(t *testing.T) { t.Parallel(); testConnectionName(t, node) })
	})
	t.Run("connections closed", func(t *testing.T) { testConnectionsClosed(t, node) })
}

// password is one that is not part of anything else.
const password = "hunter2"

// nodeConfig returns settings for the broker at url and topics of the test alone.
func nodeConfig(t *testing.T, url string) wamqp.Config {
	t.Helper()
	cfg, err := rabbitmq.NewConfig(url, service, &rabbitmq.ConfigOptions{Prefix: rabbittest.Name()})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// roundTrip sends messages through cfg and back.
func roundTrip(t *testing.T, cfg wamqp.Config) {
	t.Helper()
	messages, sub := subscribe(t, cfg, "orders", fast())
	defer sub.Close()
	ackAll(t, messages, mustPublish(t, newPublisher(t, cfg, nil), "orders", 3))
}

// publishAnyhow publishes one message, also if a connection is found to be lost.
func publishAnyhow(t *testing.T, pub *rabbitmq.Publisher) map[string]bool {
	t.Helper()
	msg := newMessage("x")
	for deadline := time.Now().Add(patience); ; {
		err := pub.Publish("orders", msg)
		if err == nil {
			return map[string]bool{msg.UUID: true}
		}
		if !errors.Is(err, rabbitmq.ErrUnavailable) || errors.Is(err, amqp.ErrCredentials) || time.Now().After(deadline) {
			t.Fatalf("Publish: %v", err)
		}
	}
}

func testTLS(t *testing.T, node *rabbittest.Node, ca *certtest.Authority) {
	cfg := nodeConfig(t, node.TLSURL())
	cfg.Connection.TLSConfig = trusted(t, ca)
	roundTrip(t, cfg)
	cfg.Connection.TLSConfig = nil
	cfg.Connection.AmqpConfig = &amqp.Config{TLSClientConfig: trusted(t, ca)}
	roundTrip(t, cfg)
	if name := cfg.Connection.AmqpConfig.TLSClientConfig.ServerName; name != "" {
		t.Errorf("the caller's TLS settings have the server name %q now", name)
	}
	files := ca.Files(t, time.Hour)
	inURL := nodeConfig(t, node.TLSURL()+"?"+url.Values{"cacertfile": {files.Authority}, "certfile": {files.Certificate}, "keyfile": {files.Key}}.Encode())
	roundTrip(t, inURL)
	if err := rabbitmq.DeclareTopology(t.Context(), inURL, "orders"); err != nil {
		t.Errorf("DeclareTopology: %v", err)
	}
}

func testTLSRefused(t *testing.T, node *rabbittest.Node, ca *certtest.Authority) {
	secret := func(url string) string { return strings.Replace(url, "guest:guest", "svc:"+password, 1) }
	elsewhere, later, old := trusted(t, ca), trusted(t, ca), trusted(t, ca)
	old.MinVersion = tls.VersionTLS10 // the caller's settings are no way around the minimum
	unknown, anonymous, late := trusted(t, certtest.NewAuthority(t)), trusted(t, ca), trusted(t, ca)
	unknown.RootCAs, anonymous.Certificates = ca.Pool(), nil
	late.Certificates = []tls.Certificate{ca.Pair(t, -time.Minute)}
	elsewhere.ServerName = "broker.example"
	later.Time = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	secure, plain := secret(node.TLSURL()), secret(node.URL())
	tests := []struct {
		name, url string
		tls       *tls.Config
		config    bool   // whether it is the settings that are wrong
		says      string // in the error
	}{
		{"no client certificate", secure, anonymous, false, "certificate required"},
		{"unknown client certificate", secure, unknown, false, "unknown certificate authority"},
		{"expired client certificate", secure, late, false, "expired certificate"},
		{"TLS 1.1", secret("amqps://guest:guest@localhost:" + certtest.OldServer(t, ca, nil)), old, false, "version"},
		{"unknown authority", secure, trusted(t, certtest.NewAuthority(t)), true, "unknown authority"},
		{"system's authorities", secure, nil, true, "unknown authority"},
		{"another host", secure, elsewhere, true, "broker.example"},
		{"expired", secure, later, false, "expired"},
		{"TLS to the plain port", strings.Replace(plain, "amqp:", "amqps:", 1), trusted(t, ca), true, "TLS"},
		{"plain to the TLS port", strings.Replace(secure, "amqps:", "amqp:", 1), nil, true, "TLS"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := nodeConfig(t, tt.url)
			cfg.Connection.TLSConfig = tt.tls
			check := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, rabbitmq.ErrUnavailable) || errors.Is(err, rabbitmq.ErrConfig) != tt.config ||
					!strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), password) {
					t.Errorf("%s = %v, want ErrUnavailable, ErrConfig %t, with %q and without the password", what, err, tt.config, tt.says)
				}
			}
			check("Publish", newPublisher(t, cfg, nil).Publish("orders", newMessage("x")))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			opts := fast()
			opts.Logger = slog.New(slog.NewTextHandler(calls(cancel), nil)) // when it is to be tried again
			sub, err := rabbitmq.NewSubscriber(cfg, opts)
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Close()
			within(t, "Subscribe", func() { _, err = sub.Subscribe(ctx, "orders") })
			check("Subscribe", err)
			if again := errors.Is(err, context.Canceled); again == tt.config {
				t.Errorf("Subscribe tries again: %t, want %t", again, !tt.config)
			}
		})
	}
}

func testCredentials(t *testing.T, node *rabbittest.Node) {
	inURL := strings.Replace(node.URL(), "guest:guest", "svc:"+password, 1)
	inOptions := strings.Replace(node.URL(), "guest:guest", "nobody:wrong", 1)
	for name, url := range map[string]string{"URL": inURL, "options": inOptions} {
		proxy := rabbittest.NewProxy(t, url)
		cfg := nodeConfig(t, proxy.URL())
		if name == "options" {
			cfg.Connection.AmqpConfig = &amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "svc", Password: password}}}
		}
		messages, _ := subscribe(t, cfg, "orders", fast())
		pub := newPublisher(t, cfg, nil)
		for range 3 { // the library wipes what it has used
			ackAll(t, messages, publishAnyhow(t, pub))
			if n := proxy.Cut(); n != 2 {
				t.Errorf("credentials in %s: %d connections, want 2", name, n)
			}
		}
	}
	cfg := nodeConfig(t, strings.Replace(node.URL(), "guest:guest", "svc:"+password+"3", 1))
	sub, err := rabbitmq.NewSubscriber(cfg, fast())
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	within(t, "Subscribe", func() { _, err = sub.Subscribe(t.Context(), "orders") })
	var refusal *amqp.Error
	if !errors.As(err, &refusal) || refusal.Code != amqp.AccessRefused || strings.Contains(err.Error(), password) {
		t.Errorf("Subscribe with a wrong password = %v, want ACCESS_REFUSED without the password", err)
	}
}

func testConnectionName(t *testing.T, node *rabbittest.Node) {
	cfg := nodeConfig(t, node.URL())
	named := rabbitmq.ConnectionOptions{Name: "orders of svc"}
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Connection: named})
	opts := fast()
	opts.Connection = named
	messages, _ := subscribe(t, cfg, "orders", opts)
	ackAll(t, messages, mustPublish(t, pub, "orders", 1))
	list := node.Ctl(t, "list_connections", "client_properties")
	if n := strings.Count(list, named.Name); n != 2 {
		t.Errorf("the broker lists %d connections named %q, want 2: %s", n, named.Name, list)
	}
}

func testConnectionsClosed(t *testing.T, node *rabbittest.Node) {
	cfg := nodeConfig(t, node.URL())
	messages, _ := subscribe(t, cfg, "orders", fast())
	pub := newPublisher(t, cfg, nil)
	ids := mustPublish(t, pub, "orders", 5)
	inHand := next(t, messages)
	node.CloseConnections(t, "for a test")
	inHand.Ack() // in vain
	ackAll(t, messages, ids)
	ackAll(t, messages, publishAnyhow(t, pub))
}

// A hastyConn fails to write AMQP's greeting, before it hands over the alert that the
// peer has sent instead of an answer.
type hastyConn struct {
	net.Conn
	failed chan struct{} // closed when the greeting was to be written
}

// The sizes of records of TLS 1.3 with AMQP's greeting and with an alert.
const (
	greetingRecord = 5 + 8 + 1 + 16
	alertRecord    = 5 + 2 + 1 + 16
)

func (c *hastyConn) Write(b []byte) (int, error) {
	if len(b) == greetingRecord {
		close(c.failed)
		return 0, syscall.ECONNRESET
	}
	return c.Conn.Write(b)
}

func (c *hastyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == alertRecord {
		<-c.failed
	}
	return n, err
}

// The broker's alert about our certificate is not lost when it hangs up at once.
func TestTheReasonOfARefusalIsHeard(t *testing.T) {
	t.Parallel()
	ca := certtest.NewAuthority(t)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{ca.Pair(t, time.Hour)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	hasty := func(network, addr string) (net.Conn, error) {
		conn, err := net.Dial(network, addr)
		return &hastyConn{conn, make(chan struct{})}, err
	}
	cfg := nodeConfig(t, "amqps://"+strings.Replace(listener.Addr().String(), "127.0.0.1", "localhost", 1))
	for name, dial := range map[string]func(string, string) (net.Conn, error){"at once": hasty, "in time": nil} {
		cfg.Connection.AmqpConfig = &amqp.Config{TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}, Dial: dial}
		err := newPublisher(t, cfg, nil).Publish("orders", newMessage("x"))
		if err == nil || !strings.Contains(err.Error(), "certificate required") {
			t.Errorf("%s: Publish without a certificate = %v, want the reason", name, err)
		}
	}
}
