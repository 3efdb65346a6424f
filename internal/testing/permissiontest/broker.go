// Package permissiontest gives tests a broker on which each service of a topology has its user. It tries the
// operations that such users must not be able to do.
package permissiontest

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/internal/strictjson"
	"github.com/sagamill/sagamill/internal/testing/rabbitnode"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// Password is the password of every user.
const Password = "hunter2"

// MaxMessage is the max_message_size of a [Broker], in bytes.
const MaxMessage = 64 << 10

// A Broker is a private broker with the users of a topology.
type Broker struct {
	*rabbittest.Node
	topology rabbitmq.Topology
}

// New starts a broker with a user for each service of a topology. A further user, who may do nothing else,
// declares the exchanges and queues of the services.
func New(t *testing.T, of rabbitmq.Topology) *Broker {
	t.Helper()
	b := &Broker{rabbittest.StartNodeWith(t, &rabbitnode.Options{Config: fmt.Sprintf("max_message_size = %d", MaxMessage)}), of}
	all, err := of.Permissions()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		b.Ctl(t, "add_user", p.User, Password)
		b.Ctl(t, "set_permissions", "--vhost", "/", p.User, p.Configure, p.Write, p.Read)
		b.Ctl(t, "set_user_limits", p.User, fmt.Sprintf(`{"max-connections":%d,"max-channels":%d}`, p.MaxConnections, p.MaxChannels))
	}
	for _, s := range of.Services {
		cfg, err := rabbitmq.NewConfig(b.URLOf(rabbitmq.DeployUser), s.Name, &rabbitmq.ConfigOptions{Prefix: of.Prefix})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // a deployment is repeated
			if err := rabbitmq.DeclareTopology(t.Context(), cfg, s.Listens...); err != nil {
				t.Fatalf("the user of the deployment cannot declare for %s: %v", s.Name, err)
			}
		}
	}
	return b
}

// URLOf returns the URL of the broker for the user of a service.
func (b *Broker) URLOf(service string) string { return b.urlAs(b.topology.Prefix + service) }

func (b *Broker) urlAs(user string) string {
	u, err := url.Parse(b.URL())
	if err != nil {
		panic(err)
	}
	u.User = url.UserPassword(user, Password)
	return u.String()
}

// Purge empties every queue, as an operator.
func (b *Broker) Purge(t *testing.T) {
	t.Helper()
	ch := rabbittest.Channel(t, b.URL())
	for _, s := range b.topology.Services {
		for _, topic := range s.Listens {
			if _, err := ch.QueuePurge(b.topology.Prefix+topic+"."+s.Name, false); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Watch copies every message from now on. The function that it returns compares the sender of each, as the
// broker has recorded it, with the services that may publish the message.
func (b *Broker) Watch(t *testing.T) (checkSenders func()) {
	t.Helper()
	ch := rabbittest.Channel(t, b.URL())
	q, err := ch.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string][]string{}, map[string][]string{}
	for _, s := range b.topology.Services {
		for _, topic := range s.Publishes {
			exchange := b.topology.Prefix + topic
			want[exchange] = append(want[exchange], b.topology.Prefix+s.Name)
			if err := ch.QueueBind(q.Name, "", exchange, false, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	return func() {
		t.Helper()
		for {
			d, found, err := ch.Get(q.Name, true)
			if err != nil {
				t.Fatal(err)
			}
			if !found {
				break
			}
			if !slices.Contains(got[d.Exchange], d.UserId) {
				got[d.Exchange] = append(got[d.Exchange], d.UserId)
			}
		}
		for _, senders := range got {
			slices.Sort(senders)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("who has sent what is +, and should be -:\n%s", d)
		}
	}
}

// CheckFile compares a file that an operator gives to sagamill broker with what programs do.
func CheckFile(t *testing.T, name string, want rabbitmq.Topology) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var file rabbitmq.Topology
	if err := strictjson.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, file); d != "" {
		t.Errorf("%s (+) is not what the services do (-):\n%s", name, d)
	}
}
