package rabbitmq_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/guardtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A mine holds the functions of a Config and of options. One of them fails, once.
type mine struct {
	at, way string
	blown   atomic.Bool
	socket  atomic.Pointer[net.Conn] // that was dialled last
}

func (m *mine) step(function string) {
	if m.at == function && m.blown.CompareAndSwap(false, true) {
		guardtest.Ways[m.way]()
	}
}

func (m *mine) name(function string, generate func(string) string) func(string) string {
	return func(topic string) string { m.step(function); return generate(topic) }
}

// config returns cfg with those functions.
func (m *mine) config(cfg wamqp.Config) wamqp.Config {
	none := func(string) string { return "" }
	cfg.Exchange.GenerateName = m.name("Config.Exchange.GenerateName", cfg.Exchange.GenerateName)
	cfg.Queue.GenerateName = m.name("Config.Queue.GenerateName", cfg.Queue.GenerateName)
	cfg.QueueBind.GenerateRoutingKey = m.name("Config.QueueBind.GenerateRoutingKey", none)
	cfg.Publish.GenerateRoutingKey = m.name("Config.Publish.GenerateRoutingKey", none)
	cfg.TopologyBuilder = minedTopology{m, cfg.TopologyBuilder}
	cfg.Marshaler = minedMarshaler{m, rabbitmq.Marshaler{}}
	own := amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		m.step("Dial")
		socket, err := net.Dial(network, addr)
		if err == nil {
			m.socket.Store(&socket)
		}
		return socket, err
	}}
	if m.at == "SASL" {
		uri, err := amqp.ParseURI(rabbittest.URL())
		if err != nil {
			panic(err)
		}
		own.SASL = []amqp.Authentication{minedLogin{m, uri.PlainAuth()}}
	}
	cfg.Connection.AmqpConfig = &own
	return cfg
}

type minedTopology struct {
	*mine
	wamqp.TopologyBuilder
}

func (m minedTopology) BuildTopology(ch *amqp.Channel, params wamqp.BuildTopologyParams, cfg wamqp.Config, log watermill.LoggerAdapter) error {
	m.step("Config.TopologyBuilder.BuildTopology")
	return m.TopologyBuilder.BuildTopology(ch, params, cfg, log)
}

func (m minedTopology) ExchangeDeclare(ch *amqp.Channel, exchange string, cfg wamqp.Config) error {
	m.step("Config.TopologyBuilder.ExchangeDeclare")
	return m.TopologyBuilder.ExchangeDeclare(ch, exchange, cfg)
}

type minedMarshaler struct {
	*mine
	wamqp.Marshaler
}

func (m minedMarshaler) Marshal(msg *message.Message) (amqp.Publishing, error) {
	m.step("Config.Marshaler.Marshal")
	return m.Marshaler.Marshal(msg)
}

func (m minedMarshaler) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	m.step("Config.Marshaler.Unmarshal")
	return m.Marshaler.Unmarshal(d)
}

type minedLogin struct {
	*mine
	amqp.Authentication
}

func (m minedLogin) Response() string { m.step("SASL"); return m.Authentication.Response() }

// minedFunctions are the functions of the user, and whether one may end its goroutine. The others are called
// for each message, on a goroutine that cannot be replaced.
var minedFunctions = map[string][]string{
	"Config.Exchange.GenerateName":           {"panic"},
	"Config.Queue.GenerateName":              {"panic", "goexit"},
	"Config.QueueBind.GenerateRoutingKey":    {"panic", "goexit"},
	"Config.Publish.GenerateRoutingKey":      {"panic"},
	"Config.TopologyBuilder.BuildTopology":   {"panic", "goexit"},
	"Config.TopologyBuilder.ExchangeDeclare": {"panic", "goexit"},
	"Config.Marshaler.Marshal":               {"panic"},
	"Config.Marshaler.Unmarshal":             {"panic"},
	"Dial":                                   {"panic", "goexit"},
	"SASL":                                   {"panic", "goexit"},
	"ConfigOptions.Dial":                     {"panic", "goexit"},
	"SubscriberOptions.Key":                  {"panic"},
	"SubscriberOptions.Logger":               {"panic"},
	"PublisherOptions.Logger":                {"panic"},
}

// Whichever function of the user's panics, or ends its goroutine: the process lives on, the
// next try goes through, and no goroutine is left (TestMain).
func TestAPanicOfTheUsersFunctionsCostsOneTry(t *testing.T) {
	t.Parallel()
	guardtest.Covered(t, minedFunctions, wamqp.Config{}, rabbitmq.ConfigOptions{}, rabbitmq.SubscriberOptions{},
		rabbitmq.PublisherOptions{}, rabbitmq.ConnectionOptions{}, rabbitmq.DeleteOptions{})
	for function, ways := range minedFunctions {
		for _, way := range ways {
			t.Run(function+"/"+way, func(t *testing.T) {
				t.Parallel()
				m := &mine{at: function, way: way}
				plain := declared(t, "t")
				cfg := m.config(plain)
				if function == "ConfigOptions.Dial" { // those of a Config that NewConfig has made
					cfg = plain
					dialling, err := rabbitmq.NewConfig(rabbittest.URL(), service, &rabbitmq.ConfigOptions{
						Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
							m.step("ConfigOptions.Dial")
							return (&net.Dialer{}).DialContext(ctx, network, addr)
						}})
					if err != nil {
						t.Fatal(err)
					}
					cfg.TopologyBuilder = dialling.TopologyBuilder
				}
				opts := fast()
				opts.Key = func(*message.Message) string { m.step("SubscriberOptions.Key"); return "k" }
				publishing := &rabbitmq.PublisherOptions{Logger: quiet}
				switch function {
				case "SubscriberOptions.Logger":
					opts.Logger = guardtest.Log(func() { m.step(function) })
					cfg.Queue.GenerateName = (&mine{at: "fails", way: "panic"}).name("fails", cfg.Queue.GenerateName) // which is logged
				case "PublisherOptions.Logger":
					publishing.Logger = guardtest.Log(func() { m.step(function) })
				}
				messages, _ := subscribe(t, cfg, "t", opts)
				pub, err := rabbitmq.NewPublisher(cfg, publishing)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { pub.Close() })
				publish := func() {
					var last error
					faulttest.Await(t, "a message is published", func() bool {
						last = pub.PublishBatch(t.Context(), batchOf("t", 1))[0]
						return last == nil
					}, func() string { return last.Error() })
					next(t, messages).Ack()
				}
				publish()
				if function == "PublisherOptions.Logger" {
					_ = (*m.socket.Load()).Close() // that it connects again is logged
					publish()
				}
				if !m.blown.Load() {
					t.Error("the function was not called")
				}
			})
		}
	}
}
