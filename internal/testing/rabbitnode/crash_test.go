package rabbitnode_test

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbitnode"
)

// crash has a queue's process fail, with a message in its state, and returns when the
// broker has said so.
const crash = `{ok,Q}=rabbit_amqqueue:lookup({resource,<<"/">>,queue,<<"q">>}),P=amqqueue:get_pid(Q),M=monitor(process,P),
gen_server2:cast(P,nonsense),receive {'DOWN',M,_,_,_}->ok end,logger:critical("it has failed")`

// A process of the broker that fails prints its messages in the log, unless its reports are turned off.
// docs/security.md says so.
func TestPrivateBrokerPrintsMessagesWhenItFails(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const secret = "tok_51f0c7"
	for _, tt := range []struct {
		config string
		prints bool
	}{{"", true}, {"log.default.level = critical", false}} {
		node, err := rabbitnode.New(&rabbitnode.Options{Config: tt.config})
		if errors.Is(err, rabbitnode.ErrAbsent) {
			needtest.Missing(t, "rabbitmq", "%v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := node.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := node.Start(); err != nil {
			t.Fatal(err)
		}
		connection, err := amqp.Dial(node.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = connection.Close() })
		channel, err := connection.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := channel.QueueDeclare("q", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if err := channel.Confirm(false); err != nil {
			t.Fatal(err)
		}
		sent, err := channel.PublishWithDeferredConfirmWithContext(t.Context(), "", "q", false, false, amqp.Publishing{Body: []byte(secret)})
		if err != nil {
			t.Fatal(err)
		}
		if confirmed, err := sent.WaitContext(t.Context()); !confirmed || err != nil {
			t.Fatalf("not confirmed: %v", err)
		}
		if _, err := node.Eval(crash); err != nil {
			t.Fatal(err)
		}
		var log []byte
		for until := time.Now().Add(time.Minute); !bytes.Contains(log, []byte("it has failed")); {
			if log, err = os.ReadFile(node.Log()); err != nil || time.Now().After(until) {
				t.Fatalf("%q: %v; the log does not have what was said last:\n%s", tt.config, err, log)
			}
		}
		if got := bytes.Contains(log, []byte(secret)); got != tt.prints {
			t.Errorf("%q: the log has the message: %t, want %t:\n%s", tt.config, got, tt.prints, log)
		}
	}
}
