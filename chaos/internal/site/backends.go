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
	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/rabbitnode"
)

// ownName is the application_name of the harness, which no fault is meant for.
const ownName = "chaos"

// terminatePatience bounds the end of sessions.
const terminatePatience = 10 * time.Second

// A database is the private PostgreSQL, and a pool on it.
type database struct {
	mu     sync.Mutex // one change at a time: a crash must not hit a Terminate under way
	server *server
	pool   *pgxpool.Pool
}

// openPostgres starts PostgreSQL. The returned end stops it and is valid also after an error.
func (s *Site) openPostgres(ctx context.Context) (end func() error, err error) {
	ports, err := devservices.FreePorts(1)
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

// CrashPostgres stops the server at once, without flushing or ending sessions, and starts it again.
func (s *Site) CrashPostgres(ctx context.Context) error {
	defer s.trouble.beginTrouble()()
	s.postgres.mu.Lock()
	defer s.postgres.mu.Unlock()
	s.postgres.server.crashServer()
	return s.postgres.server.startServer(context.WithoutCancel(ctx)) // without it all would stop
}

// Terminate ends the sessions of a service, or all sessions if service is empty, and returns their number. It
// waits until a server that has crashed is up again.
func (s *Site) Terminate(ctx context.Context, service string) (n int, err error) {
	defer s.trouble.beginTrouble()()
	s.postgres.mu.Lock()
	defer s.postgres.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, terminatePatience)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, s.DatabasePool().Config().ConnConfig) // pooled ones may be cut
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

// applicationName is the application_name of a service's sessions. The order example chooses it; the trip
// example takes it from its URL.
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
	before  int // messages received before the last start
}

// brokerConfig turns off logs that no check reads, to save processor time.
const brokerConfig = `log.connection.level = error
log.default.level = warning
`

// openBroker starts RabbitMQ. The returned end stops it and is valid also after an error.
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

// brokerUser is the account of the services. The harness logs in as guest.
const (
	brokerUser = "services"
	addUser    = `rabbit_auth_backend_internal:add_user(<<"%s">>, <<"%s">>, <<"chaos">>), ` +
		`rabbit_auth_backend_internal:set_permissions(<<"%s">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, <<"chaos">>)`
)

// keepFiles copies a file that helps to explain a run. The verdict does not depend on it, so errors are
// ignored.
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
	b.alarmed = false // the alarm is lost with the restart
	err := b.node.Start()
	b.running = err == nil
	return err
}

// MessageBroker returns the broker, for faults that act on it.
func (s *Site) MessageBroker() *Broker { return s.broker }

// KillBroker kills the broker, as kill -9 does, and starts it again. First it flushes the broker's knowledge of
// its queues to disk: RabbitMQ 3.10 keeps that in memory for minutes, and a forgotten queue does not come back.
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
	if n, err := s.broker.received(); err == nil { // a broker that does not answer is restarted without its count
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

// Received counts the messages that the broker has received from any sender since the site was opened, over all
// restarts.
func (s *Site) Received() (int, error) {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	n, err := s.broker.received()
	return s.broker.before + n, err
}

// SetMemoryAlarm raises or clears the broker's memory alarm.
func (s *Site) SetMemoryAlarm(on bool) error {
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

// CloseConnections makes the broker close all connections, including the harness's, and returns their number.
func (s *Site) CloseConnections() (int, error) {
	defer s.trouble.beginTrouble()()
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	return s.broker.node.CloseConnections("by the operator")
}

// BrokerConnections counts the broker's connections, including the harness's.
func (s *Site) BrokerConnections() (int, error) {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	out, err := s.broker.node.Eval("length(rabbit_networking:connections())")
	if err != nil {
		return 0, fmt.Errorf("site: connections of the broker: %w", err)
	}
	return strconv.Atoi(out)
}

// Versions returns the servers' names with their versions.
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

// healBroker clears the alarm and makes sure that the broker runs.
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
