package rabbitmq_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// An authority signs certificates for a day.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.certificate, a.key = a.sign(t, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "authority of a test"},
	})
	return a
}

// sign signs template: with the new key itself, if a has none yet.
func (a *authority) sign(t *testing.T, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

// localhost returns a certificate for that name, and its key, in PEM.
func (a *authority) localhost(t *testing.T) (certificate, key []byte) {
	t.Helper()
	signed, private := a.sign(t, &x509.Certificate{DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed.Raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// trusted returns settings that trust a alone.
func (a *authority) trusted() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return &tls.Config{RootCAs: pool}
}

// TestPrivateNode has what takes settings of the broker: TLS and accounts.
func TestPrivateNode(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	certificate, key := ca.localhost(t)
	node := rabbittest.StartTLSNode(t, certificate, key)
	node.Ctl(t, "add_user", "svc", password)
	node.Ctl(t, "set_permissions", "svc", ".*", ".*", ".*")
	t.Run("group", func(t *testing.T) {
		t.Run("TLS", func(t *testing.T) { t.Parallel(); testTLS(t, node, ca) })
		t.Run("TLS refused", func(t *testing.T) { t.Parallel(); testTLSRefused(t, node, ca) })
		t.Run("credentials", func(t *testing.T) { t.Parallel(); testCredentials(t, node) })
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

func testTLS(t *testing.T, node *rabbittest.Node, ca *authority) {
	cfg := nodeConfig(t, node.TLSURL())
	cfg.Connection.TLSConfig = ca.trusted()
	roundTrip(t, cfg)
	cfg.Connection.TLSConfig = nil
	cfg.Connection.AmqpConfig = &amqp.Config{TLSClientConfig: ca.trusted()}
	roundTrip(t, cfg)
	if name := cfg.Connection.AmqpConfig.TLSClientConfig.ServerName; name != "" {
		t.Errorf("the caller's TLS settings have the server name %q now", name)
	}
}

func testTLSRefused(t *testing.T, node *rabbittest.Node, ca *authority) {
	secret := func(url string) string { return strings.Replace(url, "guest:guest", "svc:"+password, 1) }
	elsewhere, later := ca.trusted(), ca.trusted()
	elsewhere.ServerName = "broker.example"
	later.Time = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	secure, plain := secret(node.TLSURL()), secret(node.URL())
	tests := []struct {
		name, url string
		tls       *tls.Config
		config    bool   // whether it is the settings that are wrong
		says      string // in the error
	}{
		{"unknown authority", secure, newAuthority(t).trusted(), true, "unknown authority"},
		{"system's authorities", secure, nil, true, "unknown authority"},
		{"another host", secure, elsewhere, true, "broker.example"},
		{"expired", secure, later, false, "expired"},
		{"TLS to the plain port", strings.Replace(plain, "amqp:", "amqps:", 1), ca.trusted(), true, "TLS"},
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
