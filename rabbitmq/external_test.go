package rabbitmq_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/certtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// withCertificate is the URL of who logs in with the files' certificate alone, under a name
// that the broker does not read.
func withCertificate(t *testing.T, node *rabbittest.Node, name string, files certtest.Files) string {
	t.Helper()
	u, err := url.Parse(node.TLSURL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(name)
	u.RawQuery = url.Values{
		"auth_mechanism": {"external"}, "cacertfile": {files.Authority}, "certfile": {files.Certificate}, "keyfile": {files.Key},
	}.Encode()
	return u.String()
}

// testExternal logs in a user without a password. The broker identifies the user by the certificate.
func testExternal(t *testing.T, node *rabbittest.Node, ca *certtest.Authority) {
	const user = "shop.order"
	node.Ctl(t, "add_user", user, password)
	node.Ctl(t, "clear_password", user)
	node.Ctl(t, "set_permissions", user, ".*", ".*", ".*")

	inURL := nodeConfig(t, withCertificate(t, node, user, ca.FilesTo(t, user, time.Hour)))
	roundTrip(t, inURL)
	if err := newPublisher(t, inURL, &rabbitmq.PublisherOptions{UserID: user}).Publish("orders", newMessage("x")); err != nil {
		t.Errorf("Publish under the certificate's name: %v", err)
	}
	err := newPublisher(t, inURL, &rabbitmq.PublisherOptions{UserID: "guest"}).Publish("orders", newMessage("x"))
	if !errors.Is(err, rabbitmq.ErrRejected) || !strings.Contains(err.Error(), "PRECONDITION_FAILED") {
		t.Errorf("Publish under another name = %v, want ErrRejected with PRECONDITION_FAILED", err)
	}

	inOptions := nodeConfig(t, node.TLSURL())
	inOptions.Connection.TLSConfig = trusted(t, ca)
	inOptions.Connection.TLSConfig.Certificates[0] = ca.PairTo(t, user, time.Hour)
	inOptions.Connection.AmqpConfig = &amqp.Config{SASL: []amqp.Authentication{&amqp.ExternalAuth{}}}
	roundTrip(t, inOptions)

	for name, url := range map[string]string{
		"nobody's certificate": withCertificate(t, node, user, ca.FilesTo(t, "shop.nobody", time.Hour)),
		"a broker without it":  strings.Replace(node.URL(), "guest:guest", user, 1) + "?auth_mechanism=external",
	} {
		sub, err := rabbitmq.NewSubscriber(nodeConfig(t, url), fast())
		if err != nil {
			t.Fatal(err)
		}
		within(t, "Subscribe", func() { _, err = sub.Subscribe(t.Context(), "orders") })
		sub.Close()
		var refusal *amqp.Error
		if !errors.As(err, &refusal) || refusal.Code != amqp.AccessRefused {
			t.Errorf("%s: Subscribe = %v, want ACCESS_REFUSED", name, err)
		}
	}
}
