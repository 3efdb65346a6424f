package rabbitnode

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/devservices"
)

// bootTimeout bounds the start of a node, which takes 3 to 20 s on a busy
// machine, and its end.
const bootTimeout = 2 * time.Minute

// bootPause is the pause between two looks whether a node accepts connections.
const bootPause = 100 * time.Millisecond

// ErrAbsent reports that this machine has no RabbitMQ, or none of the version that SAGAMILL_RABBITMQ asks for.
var ErrAbsent = devservices.ErrNoRabbitMQ

// Options are the settings of a [Node].
type Options struct {
	Parent string // where its directory is made; others must be able to pass through. Default: os.TempDir()
	Config string // lines of rabbitmq.conf. Default: none

	// Plugins, of those that come with the server, are enabled. Default: none.
	Plugins []string

	// Certificate and Key, in PEM, make the node also listen for TLS. Default: none.
	Certificate, Key []byte

	// ClientAuthority, in PEM, makes it refuse TLS clients without a certificate of this authority. Default:
	// clients need none.
	ClientAuthority []byte

	// Cluster lets the node join others. Default: the node stays alone.
	Cluster *ClusterOptions
}

// ClusterOptions are the settings that the nodes of one cluster agree on. The caller runs
// a port mapper for the node.
type ClusterOptions struct {
	Name   string // the Erlang name before "@localhost", another one for each node
	Cookie string // the secret that the nodes share
	Mapper int    // the port of the node's port mapper on 127.0.0.1
	Kernel string // parameters of Erlang's kernel, as "-kernel net_ticktime 4". Default: none
}

// A Node is a private RabbitMQ. Its methods are for one goroutine at a time.
type Node struct {
	rabbit       *devservices.RabbitMQ
	dir, name    string
	port, secure int // secure: with TLS; 0: none
	dist, mapper int
	cluster      *ClusterOptions     // nil: the node is alone and runs its own mapper
	reserved     []io.Closer         // holds on the ports
	owner        *syscall.Credential // nil: the caller's own user
	run, ports   *child              // the node and its port mapper; nil: not running
}

// New makes the directory of a node. It starts nothing. The error is [ErrAbsent] if this machine has no RabbitMQ.
func New(opts *Options) (*Node, error) {
	if opts == nil {
		opts = &Options{}
	}
	n := &Node{name: "t-" + strings.ToLower(rand.Text()[:14]) + "-node@localhost", cluster: opts.Cluster}
	var err error
	if n.rabbit, err = devservices.FindRabbitMQ(); err != nil {
		return nil, err
	}
	if n.dir, err = os.MkdirTemp(cmp.Or(opts.Parent, os.TempDir()), "rabbitnode-"); err != nil {
		return nil, fmt.Errorf("rabbitnode: %w", err)
	}
	if n.reserved, err = reservePorts(&n.port, &n.dist, &n.mapper, &n.secure); err != nil {
		return nil, errors.Join(fmt.Errorf("rabbitnode: %w", err), n.Close())
	}
	if opts.Certificate == nil {
		n.secure = 0
	}
	if n.cluster != nil {
		n.name, n.mapper = n.cluster.Name+"@localhost", n.cluster.Mapper
	}
	if err := n.prepareFiles(opts); err != nil {
		return nil, errors.Join(fmt.Errorf("rabbitnode: prepare: %w", err), n.Close())
	}
	return n, nil
}

// Name returns the node's Erlang name.
func (n *Node) Name() string { return n.name }

// URL returns the node's URL, which stays the same after a restart.
func (n *Node) URL() string { return fmt.Sprintf("amqp://guest:guest@%s/", n.Addr()) }

// Addr returns the host and port of URL.
func (n *Node) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) }

// TLSURL returns the node's TLS URL.
func (n *Node) TLSURL() string { return fmt.Sprintf("amqps://guest:guest@localhost:%d/", n.secure) }

// Output returns the file with the node's output. Its log is another file below the same directory.
func (n *Node) Output() string { return filepath.Join(n.dir, "output") }

// Log returns the file with the node's log.
func (n *Node) Log() string { return filepath.Join(n.dir, "log", n.name+".log") }

// prepareFiles writes the node's files. Some installations refuse to run as root, so the directory belongs to
// the server's account.
func (n *Node) prepareFiles(opts *Options) error {
	config := fmt.Appendf(nil, "listeners.tcp.local = %s\n%s\n", n.Addr(), opts.Config)
	files := map[string][]byte{"plugins": fmt.Appendf(nil, "[%s].\n", strings.Join(opts.Plugins, ","))}
	if n.secure != 0 {
		files["certificate.pem"], files["key.pem"] = opts.Certificate, opts.Key
		config = fmt.Appendf(config, "listeners.ssl.local = 127.0.0.1:%d\nssl_options.certfile = %[2]s/certificate.pem\nssl_options.keyfile = %[2]s/key.pem\n", n.secure, n.dir)
	}
	if opts.ClientAuthority != nil {
		files["clients.pem"] = opts.ClientAuthority
		config = fmt.Appendf(config, "ssl_options.cacertfile = %s/clients.pem\nssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n", n.dir)
	}
	files["rabbitmq.conf"] = config
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(n.dir, name), content, 0o644); err != nil {
			return err
		}
	}
	if n.cluster != nil {
		if err := os.WriteFile(n.cookieFile(), []byte(n.cluster.Cookie), 0o400); err != nil {
			return err
		}
	}
	return n.handOver()
}

// handOver gives the directory and the cookie to the server's account.
func (n *Node) handOver() error {
	owner, err := user.Lookup("rabbitmq")
	if os.Geteuid() != 0 || err != nil {
		return nil
	}
	uid, uidErr := strconv.ParseUint(owner.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(owner.Gid, 10, 32)
	n.owner = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	err = errors.Join(uidErr, gidErr, os.Chown(n.dir, int(uid), int(gid)))
	if n.cluster != nil {
		err = errors.Join(err, os.Chown(n.cookieFile(), int(uid), int(gid)))
	}
	return err
}

// cookieFile returns the file with the secret of Erlang's distribution.
func (n *Node) cookieFile() string { return filepath.Join(n.dir, ".erlang.cookie") }

// Start starts the node, with the data it had, and returns once it accepts
// connections. After an error it may be running.
func (n *Node) Start() error {
	if err := n.startMapper(); err != nil {
		return fmt.Errorf("rabbitnode: start the port mapper: %w", err)
	}
	var err error
	if n.run, err = n.launchServer(n.Output(), n.rabbit.Server); err != nil {
		return fmt.Errorf("rabbitnode: start: %w", err)
	}
	for deadline := time.Now().Add(bootTimeout); ; {
		connection, err := amqp.Dial(n.URL())
		if err == nil {
			return errors.Join(devservices.CheckRabbitVersion(connection), connection.Close())
		}
		select {
		case <-n.run.exited:
			said, _ := os.ReadFile(n.Output())
			return fmt.Errorf("rabbitnode: the node ended while it started: %v; it said:\n%s", n.run.cmd.ProcessState, said[max(0, len(said)-2000):])
		case <-time.After(bootPause):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("rabbitnode: the node did not start within %s: %w", bootTimeout, err)
		}
	}
}

// startMapper starts Erlang's port mapper, which a node needs. The node would start one that outlives all
// processes of the test.
func (n *Node) startMapper() (err error) {
	if n.ports != nil || n.cluster != nil {
		return nil
	}
	path := n.rabbit.Program("epmd")
	if path == "" {
		return nil // the node finds its own
	}
	n.ports, err = n.launchServer(os.DevNull, path, "-address", "127.0.0.1", "-port", strconv.Itoa(n.mapper))
	for deadline := time.Now().Add(bootTimeout); err == nil && time.Now().Before(deadline); {
		conn, dialErr := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(n.mapper)))
		if dialErr == nil {
			return conn.Close()
		}
		select {
		case <-n.ports.exited:
			return fmt.Errorf("it ended: %v", n.ports.cmd.ProcessState)
		case <-time.After(bootPause / 10):
		}
	}
	return err
}

// environment returns the whole environment of the server and its tools.
func (n *Node) environment() []string {
	kernel := "+S 1:1 +stbt u +sbwt none -kernel inet_dist_use_interface {127,0,0,1}"
	if n.cluster != nil {
		kernel += " " + n.cluster.Kernel
	}
	environment := []string{
		"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + n.dir,
		"ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT=" + strconv.Itoa(n.mapper),
		"RABBITMQ_NODENAME=" + n.name, "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT=" + strconv.Itoa(n.port), "RABBITMQ_DIST_PORT=" + strconv.Itoa(n.dist),
		"RABBITMQ_MNESIA_BASE=" + n.dir + "/data", "RABBITMQ_LOG_BASE=" + n.dir + "/log",
		"RABBITMQ_PID_FILE=" + n.dir + "/pid", "RABBITMQ_ENABLED_PLUGINS_FILE=" + n.dir + "/plugins",
		"RABBITMQ_CONF_ENV_FILE=" + n.dir + "/none", "RABBITMQ_CONFIG_FILE=" + n.dir + "/rabbitmq.conf",
		"RABBITMQ_CONFIG_FILES=" + n.dir + "/conf.d", "RABBITMQ_ADVANCED_CONFIG_FILE=" + n.dir + "/none",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + kernel,
		// Makes the script replace itself with the node, so that the process that dies with this one is the
		// node.
		"RUNNING_UNDER_SYSTEMD=true",
	}
	if n.cluster != nil {
		// Without the caller's mapper, a program of Erlang would start one and leave it.
		environment = append(environment, "ERL_AFLAGS=-start_epmd false")
	}
	return environment
}

// Kill kills the node, as kill -9 does, and returns when it has ended. A queue that was declared shortly
// before can come back without a leader, for ever: RabbitMQ 3.10 does not sync its entry in a registry. To
// avoid that, stop and start the node, or call Sync, before.
func (n *Node) Kill() {
	if n.run != nil {
		n.run.killChild()
		n.run = nil
	}
}

// Freeze stops the node's processes, as SIGSTOP does: its connections stay open and do
// not answer. [Node.Thaw] continues them.
func (n *Node) Freeze() error { return n.signalServer(syscall.SIGSTOP) }

// Thaw ends [Node.Freeze].
func (n *Node) Thaw() error { return n.signalServer(syscall.SIGCONT) }

// signalServer sends s to the node's group of processes.
func (n *Node) signalServer(s syscall.Signal) error {
	if n.run == nil {
		return fmt.Errorf("rabbitnode: send %s: the node does not run", s)
	}
	return syscall.Kill(-n.run.cmd.Process.Pid, s)
}

// Stop stops the node in good order.
func (n *Node) Stop() error {
	if n.run == nil {
		return nil
	}
	_ = n.run.cmd.Process.Signal(syscall.SIGTERM) // an error if it has ended
	select {
	case <-n.run.exited:
	case <-time.After(bootTimeout):
		return fmt.Errorf("rabbitnode: the node did not stop within %s", bootTimeout)
	}
	n.Kill() // the rest of its group
	return nil
}

// Close kills the node and its port mapper and removes their files.
func (n *Node) Close() error {
	n.Kill()
	if n.ports != nil {
		n.ports.killChild()
		n.ports = nil
	}
	for _, hold := range n.reserved {
		_ = hold.Close()
	}
	n.reserved = nil
	return os.RemoveAll(n.dir)
}

// A child is a child process that leads a process group.
type child struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed after it has ended
}

// launchServer starts a program as the node's user, in the node's directory.
func (n *Node) launchServer(output, path string, args ...string) (*child, error) {
	out, err := os.OpenFile(output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c := &child{cmd: exec.Command(path, args...), exited: make(chan struct{})}
	c.cmd.Dir, c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = n.dir, n.environment(), out, out
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: n.owner}
	devservices.DieWithParent(c.cmd.SysProcAttr, syscall.SIGKILL)
	started := make(chan error, 1)
	go func() { // ends with the process
		defer close(c.exited)
		err := n.rabbit.Fork(func() error {
			if err := c.cmd.Start(); err != nil {
				return err
			}
			started <- nil
			_ = c.cmd.Wait()
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	return c, <-started
}

func (c *child) killChild() {
	if c.cmd.Process == nil {
		return // it has never started
	}
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	<-c.exited
}
