package rabbittest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// bootTimeout bounds the start of a node, which takes 3 to 20 s on a busy
// machine.
const bootTimeout = 2 * time.Minute

// serverPaths are where the server is installed. The wrapper in PATH insists on
// the system's own node, so it is not used.
var serverPaths = []string{"/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/rabbitmq/sbin/rabbitmq-server", "/usr/local/sbin/rabbitmq-server"}

// A Node is a RabbitMQ of the test's own, which it may kill. It shares the
// machine's epmd with other nodes, and nothing else.
type Node struct {
	server string
	dir    string
	name   string
	port   int
	secure int // port with TLS; 0: none
	dist   int
	owner  *syscall.Credential // nil: the test's own user
	run    *exec.Cmd
	exited chan struct{}
}

// StartNode starts a node and waits until it accepts connections. It skips the
// test on a machine without the server's binaries: a private node cannot be
// asked of everybody who has a broker somewhere.
func StartNode(t testing.TB) *Node {
	t.Helper()
	return startNode(t, nil, nil)
}

// StartTLSNode is [StartNode] for a node that accepts TLS besides, with the
// certificate and its key in PEM. It does not ask clients for theirs.
func StartTLSNode(t testing.TB, certificate, key []byte) *Node {
	t.Helper()
	return startNode(t, certificate, key)
}

func startNode(t testing.TB, certificate, key []byte) *Node {
	t.Helper()
	dir, err := os.MkdirTemp("", "rabbittest-") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &Node{dir: dir, name: Name() + "node@localhost", port: freePort(t), dist: freePort(t)}
	for _, path := range serverPaths {
		if _, err := os.Stat(path); err == nil && n.server == "" {
			n.server = path
		}
	}
	if n.server == "" {
		t.Skip("NOT TESTED: no RabbitMQ server is installed on this machine")
	}
	if certificate != nil {
		n.secure = freePort(t)
	}
	if err := n.prepare(certificate, key); err != nil {
		t.Fatalf("prepare node: %v", err)
	}
	t.Cleanup(n.Kill)
	n.Start(t)
	return n
}

// URL is where the node listens, also after a restart.
func (n *Node) URL() string { return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", n.port) }

// TLSURL is where a node of [StartTLSNode] listens for TLS.
func (n *Node) TLSURL() string { return fmt.Sprintf("amqps://guest:guest@localhost:%d/", n.secure) }

// prepare gives the directory to the user that the server runs as: some
// installations refuse to run as root.
func (n *Node) prepare(certificate, key []byte) error {
	files := map[string][]byte{"rabbitmq.conf": fmt.Appendf(nil, "listeners.tcp.local = 127.0.0.1:%d\n", n.port)}
	if n.secure != 0 {
		files["certificate.pem"], files["key.pem"] = certificate, key
		files["rabbitmq.conf"] = fmt.Appendf(files["rabbitmq.conf"],
			"listeners.ssl.local = 127.0.0.1:%d\nssl_options.certfile = %[2]s/certificate.pem\nssl_options.keyfile = %[2]s/key.pem\n", n.secure, n.dir)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(n.dir, name), content, 0o644); err != nil {
			return err
		}
	}
	owner, err := user.Lookup("rabbitmq")
	if os.Geteuid() != 0 || err != nil {
		return nil
	}
	uid, uidErr := strconv.ParseUint(owner.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(owner.Gid, 10, 32)
	n.owner = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return errors.Join(uidErr, gidErr, os.Chown(n.dir, int(uid), int(gid)))
}

// Start starts the node, with the data it had, and waits until it accepts
// connections.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	if err := n.start(); err != nil {
		t.Fatal(err)
	}
}

func (n *Node) start() error {
	n.run = exec.Command(n.server)
	n.run.Dir = n.dir
	n.run.Env = n.environment()
	// A group of its own, so that the shell script and Erlang die together.
	n.run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: n.owner}
	if err := n.run.Start(); err != nil {
		return fmt.Errorf("start node: %w", err)
	}
	n.exited = make(chan struct{})
	go func(run *exec.Cmd, exited chan struct{}) {
		_ = run.Wait()
		close(exited)
	}(n.run, n.exited)
	for deadline := time.Now().Add(bootTimeout); ; {
		connection, err := amqp.Dial(n.URL())
		if err == nil {
			return connection.Close()
		}
		select {
		case <-n.exited:
			return fmt.Errorf("node ended while it started: %v", n.run.ProcessState)
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("node did not start within %s: %w", bootTimeout, err)
		}
	}
}

// environment is all that the server and its tools take from the surroundings.
func (n *Node) environment() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + n.dir, "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_NODENAME=" + n.name, "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT=" + strconv.Itoa(n.port), "RABBITMQ_DIST_PORT=" + strconv.Itoa(n.dist),
		"RABBITMQ_MNESIA_BASE=" + n.dir + "/data", "RABBITMQ_LOG_BASE=" + n.dir + "/log",
		"RABBITMQ_PID_FILE=" + n.dir + "/pid", "RABBITMQ_ENABLED_PLUGINS_FILE=" + n.dir + "/plugins",
		"RABBITMQ_CONF_ENV_FILE=" + n.dir + "/none", "RABBITMQ_CONFIG_FILE=" + n.dir + "/rabbitmq.conf",
		"RABBITMQ_CONFIG_FILES=" + n.dir + "/conf.d", "RABBITMQ_ADVANCED_CONFIG_FILE=" + n.dir + "/none",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
	}
}

// Kill kills the node, as kill -9 does, and returns when it is gone.
func (n *Node) Kill() {
	if n.run == nil || n.run.Process == nil {
		return
	}
	_ = syscall.Kill(-n.run.Process.Pid, syscall.SIGKILL)
	<-n.exited
	n.run = nil
}

// Stop stops the node in good order. A queue declared shortly before a kill can
// come back without a leader, for ever (its entry in a registry that RabbitMQ
// 3.10 does not sync): stop and start a node before a test kills it.
func (n *Node) Stop(t testing.TB) {
	t.Helper()
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

func (n *Node) stop() error {
	_ = syscall.Kill(-n.run.Process.Pid, syscall.SIGTERM)
	select {
	case <-n.exited:
	case <-time.After(bootTimeout):
		return fmt.Errorf("node did not stop within %s", bootTimeout)
	}
	n.Kill() // what is left of its group
	return nil
}

// Restart stops the node in good order and starts it again. Unlike Stop and Start
// it may be called by a goroutine that is not the test's; one at a time.
func (n *Node) Restart() error {
	if err := n.stop(); err != nil {
		return err
	}
	return n.start()
}

func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a port: %v", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
