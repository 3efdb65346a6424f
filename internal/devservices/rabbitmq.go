package devservices

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/brokerurls"
)

const (
	usualRabbit = "amqp://guest:guest@127.0.0.1:5672/"

	// amqpHeartbeat ends waits on a broker that no longer answers: the client library takes no context.
	amqpHeartbeat = 2 * time.Second
)

func (r *run) rabbitWays() []way {
	env := way{"env", func(context.Context) (instance, error) { return namedRabbit(os.Getenv("AMQP_URL")) }}
	if r.rabbit != "" {
		last := way{"apt", r.aptRabbit}
		if debianSuites[r.rabbit] != "" {
			last = way{"debian", r.debianRabbit}
		}
		return []way{env, {"private", r.privateRabbit}, last}
	}
	return []way{
		env,
		{"found", findRabbit},
		{"docker", r.dockerRabbit},
		{"private", r.privateRabbit},
		{"apt", r.aptRabbit},
		{"inproc", noRabbit},
	}
}

// namedRabbit uses the brokers that AMQP_URL names. One of them has to answer.
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

// probeRabbit logs in, declares a queue and returns the broker's version and place. The declaration shows
// that the broker has booted: it accepts connections before.
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
	if err := CheckRabbitVersion(conn); err != nil {
		return "", err
	}
	ch, err := conn.Channel()
	if err != nil {
		return "", err
	}
	// Exclusive: the broker deletes it with the connection.
	if _, err := ch.QueueDeclare("", false, true, true, false, nil); err != nil {
		return "", err
	}
	return fmt.Sprintf("version %v at %s:%d, user %s, vhost %s", conn.Properties["version"], uri.Host, uri.Port, uri.Username, uri.Vhost), nil
}

const (
	rabbitReadyTimeout = 90 * time.Second // it takes 3 to 20 s to boot
	rabbitUser         = "sagamill"
)

// privateRabbit starts RabbitMQ from installed binaries.
func (r *run) privateRabbit(ctx context.Context) (instance, error) {
	rabbit, err := findRabbitMQ(r.rabbit)
	if err != nil {
		return instance{}, err
	}
	as, err := unprivileged(ctx, "rabbitmq")
	if err != nil {
		return instance{}, err
	}
	if _, err := r.runDirectory(); err != nil {
		return instance{}, err
	}
	return attempts(func() (instance, error) { return r.tryRabbit(ctx, rabbit, as) })
}

// tryRabbit starts a broker in a new directory: a broker that failed may have left half a database in the old
// one.
func (r *run) tryRabbit(ctx context.Context, rabbit *RabbitMQ, as *account) (instance, error) {
	node, err := newRabbitNode(r.dir, as)
	if err != nil {
		return instance{}, err
	}
	if err := r.startEpmd(rabbit, node); err != nil {
		return instance{}, err
	}
	return r.startServer(ctx, server{
		program: program{path: rabbit.Server, usr: rabbit.usr, env: node.environment(), dir: node.dir, as: as},
		name:    "rabbitmq-server", mark: node.dir, stop: syscall.SIGKILL, patience: rabbitReadyTimeout, url: node.brokerURL(),
		probe: func(_ context.Context, timeout time.Duration, url string) (string, error) {
			return probeRabbit(timeout, url)
		},
	})
}

// A rabbitNode is a broker with a private name, ports, cookie and files.
type rabbitNode struct {
	name, dir, password string
	as                  *account
	amqp, dist, epmd    int // ports
}

// newRabbitNode chooses a name and ports and writes the configuration.
func newRabbitNode(files *rundir, as *account) (*rabbitNode, error) {
	dir, err := files.subdirectory("rabbitmq", as)
	if err != nil {
		return nil, err
	}
	n := &rabbitNode{name: "sagamill-" + randomName(), dir: dir, password: rand.Text(), as: as}
	for _, port := range []*int{&n.amqp, &n.dist, &n.epmd} {
		if *port, err = freePort(); err != nil {
			return nil, err
		}
	}
	config := fmt.Sprintf("listeners.tcp.1 = %s\ndefault_user = %s\ndefault_pass = %s\n", loopback(n.amqp), rabbitUser, n.password)
	return n, errors.Join(n.writeFile("rabbitmq.conf", config), n.writeFile("enabled_plugins", "[].\n"))
}

// writeFile writes a file that only the node's account may read, because it holds a password.
func (n *rabbitNode) writeFile(name, content string) error {
	path := filepath.Join(n.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	return n.as.ownFile(path)
}

func (n *rabbitNode) brokerURL() string {
	u := url.URL{Scheme: "amqp", User: url.UserPassword(rabbitUser, n.password), Host: loopback(n.amqp), Path: "/"}
	return u.String()
}

// preloadModules makes the node load the code that its boot needs all at once, on several processors. The boot would
// load module by module, and Erlang copies its table of exports for each load: a quarter of the time of a start.
const preloadModules = `catch(code:ensure_modules_loaded([list_to_atom(filename:basename(F,".beam"))||` +
	`A<-[rabbit,rabbit_common,ra,mnesia,rabbitmq_prelaunch,osiris,cuttlefish,ranch,ssl,public_key,os_mon],` +
	`F<-filelib:wildcard(code:lib_dir(A)++"/ebin/*.beam")])).`

// environment returns the whole environment of the node. It passes nothing on, because our RABBITMQ_*
// variables may be meant for another node.
func (n *rabbitNode) environment() []string {
	return []string{
		"PATH=" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin",
		"HOME=" + n.dir, // where the Erlang cookie is
		"LC_ALL=C.UTF-8",
		"ERL_EPMD_PORT=" + strconv.Itoa(n.epmd),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_NODENAME=" + n.name + "@localhost",
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(n.dist),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(n.dir, "rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(n.dir, "enabled_plugins"),
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(n.dir, "mnesia"),
		"RABBITMQ_LOG_BASE=" + filepath.Join(n.dir, "log"),
		"RABBITMQ_PID_FILE=" + filepath.Join(n.dir, "node-pid"),
		// No busy waiting: the tests need the processors.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 2:2 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
		"ERL_AFLAGS=-eval '" + preloadModules + "'",
		// Makes the script replace itself with the node, so that the recorded pid is the node's.
		"RUNNING_UNDER_SYSTEMD=true",
	}
}

// startEpmd starts Erlang's port mapper, which a node needs, as a child of this process. The node would start
// one that outlives it.
func (r *run) startEpmd(rabbit *RabbitMQ, n *rabbitNode) error {
	path := rabbit.Program("epmd")
	if path == "" {
		return nil // the node finds its own
	}
	port := strconv.Itoa(n.epmd)
	p, err := program{
		path: path, usr: rabbit.usr, args: []string{"-address", "127.0.0.1", "-port", port}, env: n.environment(), dir: n.dir, as: n.as,
	}.startProgram(filepath.Join(r.dir.path, "epmd.log"), syscall.SIGKILL)
	if err != nil {
		return err
	}
	r.undoOnClose(func() error { return p.stopProcess(syscall.SIGKILL) })
	return r.dir.recordProcess(p, strings.Join([]string{"-port", port}, " "))
}
