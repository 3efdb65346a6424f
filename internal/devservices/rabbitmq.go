package devservices

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	env := way{"env", func(ctx context.Context) (instance, error) { return namedRabbit(ctx, os.Getenv("AMQP_URL")) }}
	private := way{"private", r.privateRabbit}
	apt := r.aptWay("RabbitMQ", "rabbitmq-server", private)
	switch {
	case debianSuites[r.rabbit] != "":
		return []way{env, private, {"debian", r.debianRabbit}}
	case r.rabbit != "" && rabbitServerPath() != "":
		return []way{env, private} // a package would be of the version that is installed
	case r.rabbit != "":
		return []way{env, private, apt}
	}
	// guest is the login that every new broker has, and an image accepts it from outside its container.
	found := optionalServer{usual: usualRabbit, probe: probeRabbit}
	return []way{env, {"found", found.useFound}, private, apt, {"inproc", noRabbit}}
}

// namedRabbit uses the brokers that AMQP_URL names. One of them has to answer.
func namedRabbit(ctx context.Context, broker string) (instance, error) {
	switch broker {
	case "":
		return instance{}, serviceAbsent("AMQP_URL is not set")
	case InProcess:
		return instance{url: broker, what: "none, the broker is part of the program"}, nil
	}
	var refused []error
	for _, one := range brokerurls.Split(broker) {
		what, err := probeRabbit(ctx, envTimeout, one)
		if err == nil {
			return instance{url: broker, what: what, shared: true}, nil
		}
		refused = append(refused, err)
	}
	return instance{}, fmt.Errorf("AMQP_URL is %w: %w", errRefused, errors.Join(refused...))
}

// noRabbit is the last resort: the program's own broker.
func noRabbit(context.Context) (instance, error) {
	return instance{url: InProcess, what: "none, the broker is part of the program: nothing of RabbitMQ is exercised"}, nil
}

// probeRabbit logs in, declares a queue and returns the broker's version and place. The declaration shows
// that the broker has booted: it accepts connections before.
func probeRabbit(_ context.Context, timeout time.Duration, broker string) (_ string, err error) {
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
	as, err := r.prepareServer(ctx, "rabbitmq")
	if err != nil {
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
		name:    "rabbitmq-server", mark: node.dir, stop: syscall.SIGKILL, patience: rabbitReadyTimeout, url: node.brokerURL(), probe: probeRabbit,
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
	return n, errors.Join(as.writeFile(filepath.Join(dir, "rabbitmq.conf"), config), as.writeFile(filepath.Join(dir, "enabled_plugins"), "[].\n"))
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
	return r.dir.recordProcess(p, "-port "+port)
}

// rabbitVariable chooses the version of RabbitMQ, such as 4.3.
const rabbitVariable = "SAGAMILL_RABBITMQ"

// ErrNoRabbitMQ reports that this machine cannot have the version of RabbitMQ that SAGAMILL_RABBITMQ asks for.
var ErrNoRabbitMQ = errors.New("devservices: the RabbitMQ that is asked for cannot be had")

// RabbitVersion returns the version of RabbitMQ that SAGAMILL_RABBITMQ asks for, such as 4.3, and "" if any will do.
func RabbitVersion() (string, error) {
	version := os.Getenv(rabbitVariable)
	if version != "" && !regexp.MustCompile(`^[0-9]+\.[0-9]+$`).MatchString(version) {
		return "", fmt.Errorf("devservices: %s: %q is no version, as 4.3, 4.0 or 3.10", rabbitVariable, version)
	}
	return version, nil
}

// A RabbitMQ is where the programs of a server are.
type RabbitMQ struct {
	Server string // its start script

	usr string // what its programs see in the place of /usr; "": this machine's
}

// FindRabbitMQ returns the RabbitMQ that private servers are started from: of the version that SAGAMILL_RABBITMQ asks for,
// installed or unpacked by an earlier [Start]. It fetches nothing. The error is [ErrNoRabbitMQ] if there is none.
func FindRabbitMQ() (*RabbitMQ, error) {
	version, err := RabbitVersion()
	if err != nil {
		return nil, err
	}
	rabbit, err := findRabbitMQ(version)
	if errors.Is(err, errAbsent) {
		err = fmt.Errorf("%w: %w", ErrNoRabbitMQ, err)
	}
	return rabbit, err
}

func findRabbitMQ(version string) (*RabbitMQ, error) {
	server, has := rabbitServerPath(), rabbitVersion("/usr")
	if server != "" && (has == "" || isVersion(has, version)) {
		return &RabbitMQ{Server: server}, nil
	}
	if tree, err := treeOf(version); err == nil && checkTreeHost() == nil && isVersion(rabbitVersion(tree.usr()), version) {
		return &RabbitMQ{Server: rabbitServers[0], usr: tree.usr()}, nil
	}
	if version == "" {
		return nil, serviceAbsent("no rabbitmq-server on this machine")
	}
	return nil, serviceAbsent("no rabbitmq-server %s on this machine, which has %s", version, cmp.Or(has, "none"))
}

// Program returns the path of one of its programs, such as epmd, and "" if it has none of that name.
func (m *RabbitMQ) Program(name string) string {
	if m.usr != "" {
		if _, err := os.Lstat(filepath.Join(m.usr, "bin", name)); err != nil {
			return ""
		}
		return filepath.Join("/usr/bin", name)
	}
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	// Erlang's own programs are not always on PATH.
	for _, pattern := range []string{"/usr/lib/erlang/erts-*/bin", "/usr/local/lib/erlang/erts-*/bin", "/opt/homebrew/lib/erlang/erts-*/bin"} {
		if found, _ := filepath.Glob(filepath.Join(pattern, name)); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// Fork calls start, which starts one of its programs and waits for its end, on a thread whose children see the /usr
// that the program needs.
func (m *RabbitMQ) Fork(start func() error) error { return forkThread(m.usr, start) }

// rabbitServers are the usual start scripts. Debian's script on PATH insists on its account, so the script that it calls
// comes first.
var rabbitServers = []string{
	"/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/rabbitmq/sbin/rabbitmq-server", "/opt/homebrew/sbin/rabbitmq-server", "/usr/local/sbin/rabbitmq-server",
}

// rabbitServerPath returns this machine's start script, and "" if there is none.
func rabbitServerPath() string {
	if i := slices.IndexFunc(rabbitServers, executable); i >= 0 {
		return rabbitServers[i]
	}
	path, _ := exec.LookPath("rabbitmq-server") // "" after an error
	return path
}

// rabbitVersion returns the version of Debian's RabbitMQ below usr, "" if there is none.
func rabbitVersion(usr string) string {
	const prefix = "rabbitmq_server-"
	found, _ := filepath.Glob(filepath.Join(usr, "lib/rabbitmq/lib", prefix+"*"))
	if len(found) == 0 {
		return ""
	}
	return strings.TrimPrefix(filepath.Base(found[0]), prefix)
}

// isVersion reports whether version, such as 4.3.6, belongs to the release asked, such as 4.3. If asked is "", each
// version does.
func isVersion(version, asked string) bool {
	return asked == "" || strings.HasPrefix(version, asked+".")
}

// CheckRabbitVersion returns an error if the server of a connection is not of the version that SAGAMILL_RABBITMQ asks for.
func CheckRabbitVersion(connection *amqp.Connection) error {
	version, err := RabbitVersion()
	if has := fmt.Sprint(connection.Properties["version"]); err == nil && !isVersion(has, version) {
		err = fmt.Errorf("%s=%s is %w: the server is version %s", rabbitVariable, version, errRefused, has)
	}
	return err
}
