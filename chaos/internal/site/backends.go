package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/testing/rabbitnode"
)

// ownName is the application_name of the harness, which no fault is meant for.
const ownName = "chaos"

// terminatePatience bounds the end of sessions.
const terminatePatience = 10 * time.Second

// A database is the private PostgreSQL, and a pool on it.
type database struct {
	mu     sync.Mutex // one change at a time: what ends sessions must not be ended itself
	server *server
	pool   *pgxpool.Pool
}

// openPostgres returns what ends it, also after an error.
func (s *Site) openPostgres(ctx context.Context) (end func() error, err error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	server, err := newServer(ctx, s.spawner, s.opts.Work, s.pathInSite(record.OutputDir, "postgres.log"), ports[0])
	if err != nil {
		return nil, err
	}
	s.postgres = &database{server: server}
	end = func() error {
		if s.postgres.pool != nil {
			s.postgres.pool.Close()
		}
		server.crashServer()
		return os.RemoveAll(server.dir)
	}
	if err := server.startServer(ctx); err != nil {
		return end, err
	}
	s.postgres.pool, err = createDatabase(ctx, server)
	return end, err
}

// CrashPostgres ends the server without any good order, and starts it again.
func (s *Site) CrashPostgres(ctx context.Context) error {
	defer s.trouble.beginTrouble()()
	s.postgres.mu.Lock()
	defer s.postgres.mu.Unlock()
	s.postgres.server.crashServer()
	return s.postgres.server.startServer(context.WithoutCancel(ctx)) // a server that is not started again would stop everything
}

// Terminate ends the sessions of a service, or of all if none is named, and says
// how many those were. A server that has crashed is up again before.
func (s *Site) Terminate(ctx context.Context, service string) (n int, err error) {
	defer s.trouble.beginTrouble()()
	s.postgres.mu.Lock()
	defer s.postgres.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, terminatePatience)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, s.DatabasePool().Config().ConnConfig) // one of the pool may have been cut off by a crash
	if err != nil {
		return 0, fmt.Errorf("site: terminate sessions: %w", err)
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND application_name <> $1 AND ($2 = '' OR application_name = $3)`,
		ownName, service, applicationName(service)).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("site: terminate sessions: %w", err)
	}
	return n, nil
}

// applicationName is that of a service's sessions. The order example chooses its
// own; the trip example takes what its URL says.
func applicationName(service string) string {
	for _, s := range services {
		if s.Name == service {
			return s.Saga + "-saga " + s.Name
		}
	}
	return ""
}

// A Broker is the private RabbitMQ.
type Broker struct {
	mu      sync.Mutex // one change at a time
	node    *rabbitnode.Node
	running bool
	alarmed bool
	before  int // messages that it was sent before its last start
}

// brokerConfig spares the processor what nobody looks at.
const brokerConfig = `log.connection.level = error
log.default.level = warning
`

// openBroker returns what ends it, also after an error.
func (s *Site) openBroker() (end func() error, err error) {
	node, err := rabbitnode.New(&rabbitnode.Options{Parent: s.opts.Work, Config: brokerConfig})
	if errors.Is(err, rabbitnode.ErrAbsent) {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	} else if err != nil {
		return nil, err
	}
	s.broker = &Broker{node: node}
	end = func() error {
		node.Kill()
		keepFiles(node.Output(), s.pathInSite(record.OutputDir, record.BrokerOutput))
		keepFiles(node.Log(), s.pathInSite(record.OutputDir, record.BrokerLog))
		return node.Close()
	}
	if err := s.broker.startNode(); err != nil {
		return end, err
	}
	_, err = node.Eval(fmt.Sprintf(addUser, brokerUser, record.BrokerPassword, brokerUser))
	return end, err
}

// brokerUser is whom the services are to the broker. The harness itself is guest.
const (
	brokerUser = "services"
	addUser    = `rabbit_auth_backend_internal:add_user(<<"%s">>, <<"%s">>, <<"chaos">>), ` +
		`rabbit_auth_backend_internal:set_permissions(<<"%s">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, <<"chaos">>)`
)

// keepFiles copies a file that helps to explain a run. There is no run that it decides.
func keepFiles(from, to string) {
	in, err := os.Open(from)
	if err != nil {
		return
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return
	}
	defer out.Close()
	_, _ = io.Copy(out, in)
}

func (b *Broker) brokerURL() string { return b.node.URL() }

func (b *Broker) startNode() error {
	b.alarmed = false // it is in memory only
	err := b.node.Start()
	b.running = err == nil
	return err
}

// MessageBroker is what faults of the broker act on.
func (s *Site) MessageBroker() *Broker { return s.broker }

// Kill kills the broker, as kill -9 does, and starts it again. What it knows of its
// queues is written down before: RabbitMQ 3.10 keeps that in memory for minutes, and a
// queue that it has forgotten does not come back.
func (s *Site) KillBroker() error {
	return s.restartBroker(func(n *rabbitnode.Node) error {
		err := n.Sync()
		n.Kill()
		return err
	})
}

// StopBroker stops the broker in good order and starts it again.
func (s *Site) StopBroker() error {
	return s.restartBroker(func(n *rabbitnode.Node) error {
		err := n.Stop()
		n.Kill() // if it has not stopped
		return err
	})
}

func (s *Site) restartBroker(end func(*rabbitnode.Node) error) error {
	defer s.trouble.beginTrouble()()
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	if n, err := s.broker.received(); err == nil { // one that does not answer has its reasons to be restarted
		s.broker.before += n
	}
	s.broker.running = false
	return errors.Join(end(s.broker.node), s.broker.startNode())
}

// received counts the messages that were sent to the broker since its start.
func (b *Broker) received() (int, error) {
	out, err := b.node.Eval("maps:fold(fun(_, C, N) -> N + maps:get(messages_received_total, C, 0) end, 0, rabbit_global_counters:overview())")
	if err != nil {
		return 0, fmt.Errorf("site: messages to the broker: %w", err)
	}
	return strconv.Atoi(out)
}

// Received counts the messages that the broker was sent, by whomever, in all of its lives.
func (s *Site) Received() (int, error) {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	n, err := s.broker.received()
	return s.broker.before + n, err
}

// SetDiskAlarm raises the broker's memory alarm, or ends it.
func (s *Site) SetDiskAlarm(on bool) error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	if on {
		s.broker.alarmed = true
		return s.broker.node.Block()
	}
	err := s.broker.node.Unblock()
	s.broker.alarmed = err != nil
	return err
}

// CloseConnections has the broker close all connections, those of the harness
// among them, and says how many those were.
func (s *Site) CloseConnections() (int, error) {
	defer s.trouble.beginTrouble()()
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	return s.broker.node.CloseConnections("by the operator")
}

// BrokerConnections counts the broker's connections, those of the harness among them.
func (s *Site) BrokerConnections() (int, error) {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	out, err := s.broker.node.Eval("length(rabbit_networking:connections())")
	if err != nil {
		return 0, fmt.Errorf("site: connections of the broker: %w", err)
	}
	return strconv.Atoi(out)
}

// Versions returns those of the servers, with their names.
func (s *Site) Versions(ctx context.Context) ([]string, error) {
	var postgres string
	if err := s.DatabasePool().QueryRow(ctx, "SHOW server_version").Scan(&postgres); err != nil {
		return nil, fmt.Errorf("site: version of PostgreSQL: %w", err)
	}
	connection, err := amqp.Dial(s.AMQPURL())
	if err != nil {
		return nil, fmt.Errorf("site: version of RabbitMQ: %w", err)
	}
	defer connection.Close()
	return []string{"PostgreSQL " + postgres, fmt.Sprint("RabbitMQ ", connection.Properties["version"])}, nil
}

// healBroker makes the broker run without an alarm.
func (s *Site) healBroker() error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	switch {
	case !s.broker.running:
		s.broker.node.Kill()
		return s.broker.startNode()
	case s.broker.alarmed:
		err := s.broker.node.Unblock()
		s.broker.alarmed = err != nil
		return err
	}
	return nil
}

// Broker's mutex holds for one operation of an operator; faults of queues need the
// broker to stay up over several.

// HoldStarts keeps the broker from being stopped, killed or alarmed until release.
func (b *Broker) HoldStarts() (release func()) {
	b.mu.Lock()
	return b.mu.Unlock
}
