package permissiontest

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/rabbitmq"
)

// An Intruder is a user of the broker that tries operations outside of its permissions.
type Intruder struct {
	t    *testing.T
	conn *amqp091.Connection
	user string
}

// Intrude connects as the user of a service.
func (b *Broker) Intrude(t *testing.T, service string) *Intruder {
	t.Helper()
	return b.intrude(t, b.topology.Prefix+service)
}

func (b *Broker) intrude(t *testing.T, user string) *Intruder {
	t.Helper()
	conn, err := amqp091.Dial(b.urlAs(user))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &Intruder{t, conn, user}
}

// Try calls act. If want is 0, act must succeed. Otherwise the broker must close the channel with an
// exception of code want.
func (i *Intruder) Try(want int, what string, act func(*amqp091.Channel) error) {
	i.t.Helper()
	ch, err := i.conn.Channel()
	if err != nil {
		i.t.Fatal(err)
	}
	defer ch.Close()
	got := 0
	var e *amqp091.Error
	switch err := act(ch); {
	case errors.As(err, &e):
		got = e.Code
	case err != nil:
		i.t.Fatalf("%s: %s: %v", i.user, what, err)
	}
	if got != want {
		i.t.Errorf("%s: %s = %d, want %d", i.user, what, got, want)
	}
}

// Publish returns a function that publishes a message, and returns nil if the broker confirms it. If the
// broker answers with an exception, that is the error.
func Publish(exchange, key string, msg amqp091.Publishing) func(*amqp091.Channel) error {
	return func(ch *amqp091.Channel) error {
		closes := ch.NotifyClose(make(chan *amqp091.Error, 1))
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirms := ch.NotifyPublish(make(chan amqp091.Confirmation, 1))
		if err := ch.PublishWithContext(context.Background(), exchange, key, true, false, msg); err != nil {
			return err
		}
		select {
		case e := <-closes:
			return e
		case c, open := <-confirms:
			if !open {
				return <-closes
			}
			if !c.Ack {
				return errors.New("nacked")
			}
			return nil
		case <-time.After(time.Minute):
			return errors.New("no answer")
		}
	}
}

func consume(queue string) func(*amqp091.Channel) error {
	return func(ch *amqp091.Channel) error {
		_, err := ch.Consume(queue, "", false, false, false, false, nil)
		return err
	}
}

func purge(queue string) func(*amqp091.Channel) error {
	return func(ch *amqp091.Channel) error { _, err := ch.QueuePurge(queue, false); return err }
}

func lookFor(queue string) func(*amqp091.Channel) error {
	return func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	}
}

// CheckForgery tries, as each service, every operation on the resources of every service. Operations on its
// resources must succeed, all others must be refused. Messages are left in the queues.
func (b *Broker) CheckForgery(t *testing.T) {
	t.Run("as a service", func(t *testing.T) {
		for _, s := range b.topology.Services {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				i := b.Intrude(t, s.Name)
				b.tryQueues(i, s)
				b.tryExchanges(i, s)
				b.tryElsewhere(i, s)
			})
		}
		t.Run("through the library", func(t *testing.T) { t.Parallel(); b.tryLibrary(t) })
	})
}

// codeOf returns the answer that the broker must give to an operation that only the owner may do.
func codeOf(mine bool) int {
	if mine {
		return 0
	}
	return amqp091.AccessRefused
}

func (b *Broker) tryQueues(i *Intruder, self rabbitmq.Service) {
	refused := codeOf(false)
	for _, s := range b.topology.Services {
		own := codeOf(s.Name == self.Name)
		for _, topic := range s.Listens {
			exchange := b.topology.Prefix + topic
			queue := exchange + "." + s.Name
			i.Try(own, "consume from "+queue, consume(queue))
			i.Try(own, "get from "+queue, func(ch *amqp091.Channel) error { _, _, err := ch.Get(queue, false); return err })
			i.Try(own, "purge "+queue, purge(queue))
			i.Try(refused, "delete "+queue, func(ch *amqp091.Channel) error { _, err := ch.QueueDelete(queue, false, false, false); return err })
			i.Try(refused, "declare "+queue, func(ch *amqp091.Channel) error {
				_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
				return err
			})
			if own == 0 { // before RabbitMQ 4.2.6 a user also found the queues of others
				i.Try(0, "look for "+queue, lookFor(queue))
				i.Try(0, "look for "+queue+".dead", lookFor(queue+".dead"))
			}
			i.Try(refused, "bind "+queue, func(ch *amqp091.Channel) error { return ch.QueueBind(queue, "", exchange, false, nil) })
			i.Try(refused, "unbind "+queue, func(ch *amqp091.Channel) error { return ch.QueueUnbind(queue, "", exchange, nil) })
			i.Try(own, "consume from "+queue+".dead", consume(queue+".dead"))
			i.Try(own, "purge "+queue+".dead", purge(queue+".dead"))
			i.Try(refused, "publish to "+queue+" by the default exchange", Publish("", queue, amqp091.Publishing{}))
		}
	}
}

// topics are the topics with an exchange.
func (b *Broker) topics() (all []string) {
	for _, s := range b.topology.Services {
		all = append(all, s.Listens...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (b *Broker) tryExchanges(i *Intruder, self rabbitmq.Service) {
	refused := codeOf(false)
	for _, topic := range b.topics() {
		exchange := b.topology.Prefix + topic
		mine := slices.Contains(self.Publishes, topic)
		i.Try(codeOf(mine), "publish to "+exchange, Publish(exchange, "", amqp091.Publishing{}))
		i.Try(codeOf(mine), "publish to "+exchange+" under its name", Publish(exchange, "", amqp091.Publishing{UserId: i.user}))
		for _, other := range b.topology.Services {
			want := amqp091.PreconditionFailed
			if !mine {
				want = refused
			}
			if other.Name != self.Name {
				i.Try(want, "publish to "+exchange+" as "+other.Name, Publish(exchange, "", amqp091.Publishing{UserId: b.topology.Prefix + other.Name}))
			}
		}
		i.Try(refused, "declare "+exchange, func(ch *amqp091.Channel) error {
			return ch.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil)
		})
		i.Try(refused, "delete "+exchange, func(ch *amqp091.Channel) error { return ch.ExchangeDelete(exchange, false, false) })
		for _, other := range b.topics() {
			i.Try(refused, "bind "+exchange+" to "+other, func(ch *amqp091.Channel) error {
				return ch.ExchangeBind(exchange, "", b.topology.Prefix+other, false, nil)
			})
		}
	}
}

func (b *Broker) tryElsewhere(i *Intruder, self rabbitmq.Service) {
	refused := codeOf(false)
	i.Try(refused, "make an exchange", func(ch *amqp091.Channel) error {
		return ch.ExchangeDeclare(b.topology.Prefix+self.Name, "fanout", true, false, false, false, nil)
	})
	i.Try(refused, "make a queue", func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare("", false, true, true, false, nil)
		return err
	})
	i.Try(refused, "read what all others log", func(ch *amqp091.Channel) error { return ch.QueueBind("amq.gen-x", "#", "amq.rabbitmq.log", false, nil) })
	if _, err := amqp091.DialConfig(b.urlAs(i.user), amqp091.Config{Vhost: "elsewhere"}); err == nil {
		i.t.Errorf("%s is let into another virtual host", i.user)
	}
}

// says reports whether err has one of the words.
func says(err error, words string) bool {
	return slices.ContainsFunc(strings.Fields(words), func(word string) bool { return strings.Contains(err.Error(), word) })
}

// tryLibrary checks that a Publisher and a Subscriber report refused operations. The first service tries
// operations on the resources of the last one.
func (b *Broker) tryLibrary(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	prefix := b.topology.Prefix
	self, victim := b.topology.Services[0], b.topology.Services[len(b.topology.Services)-1]
	cfg, err := rabbitmq.NewConfig(b.URLOf(self.Name), victim.Name, &rabbitmq.ConfigOptions{Prefix: prefix, Passive: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ topic, user, says string }{
		{self.Publishes[0], "", ""},
		{self.Publishes[0], prefix + self.Name, ""},
		{self.Publishes[0], prefix + victim.Name, "PRECONDITION_FAILED"},
		{victim.Publishes[0], "", "ACCESS_REFUSED"},
		{victim.Publishes[0], prefix + victim.Name, "ACCESS_REFUSED"},
		{"absent", "", "NOT_FOUND ACCESS_REFUSED"}, // the latter since RabbitMQ 4.2.6
	} {
		pub, err := rabbitmq.NewPublisher(cfg, &rabbitmq.PublisherOptions{UserID: tt.user, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		err = pub.Publish(tt.topic, message.NewMessage("forged", nil))
		pub.Close()
		if tt.says == "" && err != nil || tt.says != "" && (!errors.Is(err, rabbitmq.ErrRejected) || !says(err, tt.says)) {
			t.Errorf("Publish to %s as %q = %v, want ErrRejected with %q", tt.topic, tt.user, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), Password) {
			t.Errorf("the password is in %v", err)
		}
	}
	sub, err := rabbitmq.NewSubscriber(cfg, &rabbitmq.SubscriberOptions{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	var refusal *amqp091.Error
	if _, err := sub.Subscribe(t.Context(), victim.Listens[0]); !errors.As(err, &refusal) || refusal.Code != amqp091.AccessRefused {
		t.Errorf("Subscribe to another service's queue = %v, want ACCESS_REFUSED", err)
	}
}

// CheckLimits tries what an operator sets besides permissions, as the service that is given
// and as nobody in particular. guest is gone afterwards.
func (b *Broker) CheckLimits(t *testing.T, service rabbitmq.Service) {
	const user = "limited"
	b.Ctl(t, "add_user", user, Password)
	b.Ctl(t, "set_permissions", user, "", "", "")
	b.Ctl(t, "set_user_limits", user, `{"max-connections":1,"max-channels":1}`)
	limited := b.intrude(t, user)
	var e *amqp091.Error
	if _, err := amqp091.Dial(b.urlAs(user)); !errors.As(err, &e) || e.Code != amqp091.NotAllowed {
		t.Errorf("one connection over the limit: %v, want NOT_ALLOWED", err)
	}
	if _, err := limited.conn.Channel(); err != nil {
		t.Fatal(err)
	}
	if _, err := limited.conn.Channel(); !errors.As(err, &e) || e.Code != amqp091.NotAllowed {
		t.Errorf("one channel over the limit: %v, want NOT_ALLOWED", err)
	}
	i := b.Intrude(t, service.Name)
	to := b.topology.Prefix + service.Publishes[0]
	i.Try(0, "publish as much as is allowed", Publish(to, "", amqp091.Publishing{Body: make([]byte, MaxMessage)}))
	i.Try(amqp091.PreconditionFailed, "publish more", Publish(to, "", amqp091.Publishing{Body: make([]byte, MaxMessage+1)}))
	b.Ctl(t, "delete_user", "guest")
	if _, err := amqp091.Dial(b.URL()); !errors.As(err, &e) || e.Code != amqp091.AccessRefused {
		t.Errorf("guest: %v, want ACCESS_REFUSED", err)
	}
}

// CheckDeletion deletes the topology. The user of the deployment may do that, and no service.
func (b *Broker) CheckDeletion(t *testing.T) {
	t.Helper()
	force := &rabbitmq.DeleteOptions{Force: true}
	var refusal *amqp091.Error
	if _, err := b.topology.Delete(t.Context(), b.URLOf(b.topology.Services[0].Name), force); !errors.As(err, &refusal) || refusal.Code != amqp091.AccessRefused {
		t.Errorf("as a service: %v, want ACCESS_REFUSED", err)
	}
	parts, err := b.topology.Delete(t.Context(), b.URLOf(rabbitmq.DeployUser), force)
	if err != nil {
		t.Fatalf("as the user of the deployment: %v", err)
	}
	for _, p := range parts {
		if p.Found && !p.Deleted {
			t.Errorf("%s is still there", p.Name)
		}
	}
}
