package sagamill_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/asyncapitest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/protobuf"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/topology"
)

// A service that has not started describes itself, over HTTP too, and shows no password.
func TestAServiceDescribesItself(t *testing.T) {
	t.Parallel()
	trips := saga.Must(saga.Define("trip", 1, saga.Step[order]{Name: "book", Do: saga.Tell("trip.book", func(o *order) order { return *o })}))
	s := newService(t, sagamill.Config{
		Name: "shop", Prefix: "my.", Logger: quiet, Codecs: []outbox.Codec{protobuf.Codec},
		DatabaseURL: "postgres://dbuser:dbsecret@127.0.0.1:1/db", BrokerURL: "amqp://mquser:mqsecret@127.0.0.1:1/vh",
		Steps: []consumer.Step{{Name: "charge", Action: consumer.OnBytes("order.created", func(context.Context, pgx.Tx, consumer.Message[[]byte], consumer.Emit) error { return nil })}},
		Sagas: []saga.Plan{trips}, Emits: []outbox.Output{outbox.OutputOf[order]("order.created")},
	})
	answer := httptest.NewRecorder()
	s.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/topology", nil))
	var description topology.Service
	if err := json.Unmarshal(answer.Body.Bytes(), &description); err != nil || answer.Code != 200 {
		t.Fatalf("%d %s: %v", answer.Code, answer.Body, err)
	}
	for _, secret := range []string{"dbuser", "dbsecret", "mquser", "mqsecret"} {
		if strings.Contains(answer.Body.String(), secret) {
			t.Errorf("it shows %s: %s", secret, answer.Body)
		}
	}
	document, err := topology.EncodeAsyncAPI([]*topology.Service{&description}, nil)
	if err != nil {
		t.Fatal(err)
	}
	asyncapitest.Check(t, document)
	for _, text := range []string{`"address": "my.order.created"`, `"address": "my.trip.book"`, `"host": "127.0.0.1:1"`, `"pathname": "/vh"`, `"shop.send.order.created"`} {
		if !strings.Contains(string(document), text) {
			t.Errorf("the document lacks %s:\n%s", text, document)
		}
	}
}
