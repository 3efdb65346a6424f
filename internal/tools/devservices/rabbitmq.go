package devservices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/brokerurls"
)

const (
	usualRabbit = "amqp://guest:guest@127.0.0.1:5672/"

	// amqpHeartbeat ends waits on a broker that has stopped answering: the
	// client library takes no context.
	amqpHeartbeat = 2 * time.Second
)

func (r *run) rabbitWays() []way {
	return []way{
		{"env", func(context.Context) (instance, error) { return namedRabbit(os.Getenv("AMQP_URL")) }},
		{"found", findRabbit},
		{"docker", r.dockerRabbit},
		{"private", r.privateRabbit},
		{"apt", r.aptRabbit},
		{"inproc", noRabbit},
	}
}

// namedRabbit uses the brokers that AMQP_URL names, of which one has to answer, or none.
func namedRabbit(broker string) (instance, error) {
	switch broker {
	case "":
		return instance{}, serviceAbsent("AMQP_URL is not set")
	case InProcess:
		return instance{url: broker, what: "none, the broker is part of the program"}, nil
	}
	var refused []error
	for _, one := range brokerurls.Split(broker) {
		what, err := probeRabbit(envTimeout, one)
		if err == nil {
			return instance{url: broker, what: what, shared: true}, nil
		}
		refused = append(refused, err)
	}
	return instance{}, fmt.Errorf("AMQP_URL is %w: %w", errRefused, errors.Join(refused...))
}

// findRabbit tries the login that every new broker has.
func findRabbit(context.Context) (instance, error) {
	what, err := probeRabbit(findTimeout, usualRabbit)
	if err != nil {
		return instance{}, serviceAbsent("none at the default port lets guest in: %v", err)
	}
	return instance{url: usualRabbit, what: what, shared: true}, nil
}

// noRabbit is the last resort: the program's own broker.
func noRabbit(context.Context) (instance, error) {
	return instance{url: InProcess, what: "none, the broker is part of the program: nothing of RabbitMQ is exercised"}, nil
}

// probeRabbit logs in, declares a queue and returns the broker's version and
// place. A broker that is still booting accepts connections before it can
// declare.
func probeRabbit(timeout time.Duration, broker string) (_ string, err error) {
	uri, err := amqp.ParseURI(broker)
	if err != nil {
		return "", errors.New("not an AMQP URL") // the library's error may quote it
	}
	conn, err := amqp.DialConfig(broker, amqp.Config{Heartbeat: amqpHeartbeat, Dial: amqp.DefaultDial(timeout)})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.CloseDeadline(time.Now().Add(timeout))) }()
	ch, err := conn.Channel()
	if err != nil {
		return "", err
	}
	// Exclusive: it goes with the connection.
	if _, err := ch.QueueDeclare("", false, true, true, false, nil); err != nil {
		return "", err
	}
	return fmt.Sprintf("version %v at %s:%d, user %s, vhost %s", conn.Properties["version"], uri.Host, uri.Port, uri.Username, uri.Vhost), nil
}
