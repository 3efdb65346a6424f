package devservices

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	rabbitReadyTimeout = 90 * time.Second // it takes 3 to 20 s to boot
	rabbitReadyPause   = 200 * time.Millisecond
	rabbitUser         = "sagamill"
)

// privateRabbit starts RabbitMQ from installed binaries.
func (r *run) privateRabbit(ctx context.Context) (instance, error) {
	server := rabbitServerPath()
	if server == "" {
		return instance{}, serviceAbsent("no rabbitmq-server on this machine")
	}
	as, err := unprivileged(ctx, "rabbitmq")
	if err != nil {
		return instance{}, err
	}
	if _, err := r.runDirectory(); err != nil {
		return instance{}, err
	}
	return attempts(func() (instance, error) { return r.tryRabbit(ctx, server, as) })
}

// rabbitServerPath returns the start script. Debian's one on PATH insists on
// its own account; the real one is elsewhere.
func rabbitServerPath() string {
	paths := []string{
		"/usr/lib/rabbitmq/bin/rabbitmq-server",
		"/opt/homebrew/sbin/rabbitmq-server",
		"/usr/local/sbin/rabbitmq-server",
	}
	if path, err := exec.LookPath("rabbitmq-server"); err == nil {
		paths = append(paths, path)
	}
	i := slices.IndexFunc(paths, executable)
	if i < 0 {
		return ""
	}
	return paths[i]
}

// tryRabbit starts a broker in a directory of its own: one that failed may
// have left half a database in it.
func (r *run) tryRabbit(ctx context.Context, server string, as *account) (instance, error) {
	node, err := newRabbitNode(r.dir, as)
	if err != nil {
		return instance{}, err
	}
	if err := r.startEpmd(node); err != nil {
		return instance{}, err
	}
	p, err := program{path: server, env: node.environment(), dir: node.dir, as: as}.startProgram(filepath.Join(r.dir.path, "rabbitmq.log"), syscall.SIGTERM)
	if err != nil {
		return instance{}, err
	}
	stop := func() error { return p.stopProcess(syscall.SIGKILL) } // its data need not survive
	r.undoOnClose(stop)
	if err := r.dir.recordProcess(p, node.dir); err != nil {
		return instance{}, errors.Join(err, stop())
	}
	in := instance{url: node.brokerURL()}
	err = p.awaitReady(ctx, rabbitReadyTimeout, rabbitReadyPause, func(context.Context) error {
		in.what, err = probeRabbit(findTimeout, in.url)
		return err
	})
	if err != nil {
		return instance{}, errors.Join(fmt.Errorf("rabbitmq-server: %w", err), stop())
	}
	in.what = fmt.Sprintf("started %s from %s, pid %d", in.what, server, p.pid)
	return in, nil
}

// A rabbitNode is a broker that shares nothing with another on this machine:
// name, ports, cookie, files.
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

// writeFile writes a file that only the node's account may read: there is a
// password in it.
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

// environment is all that the node learns; ours may hold RABBITMQ_* meant for another.
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
		// One scheduler, no busy waiting: the tests want the processors.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
		// The script then replaces itself with the node instead of waiting
		// for it: the pid that we know is the node's.
		"RUNNING_UNDER_SYSTEMD=true",
	}
}

// startEpmd starts Erlang's port mapper, without which a node does not run, as
// a child of ours. The node would start one that outlives it.
func (r *run) startEpmd(n *rabbitNode) error {
	path := epmdPath()
	if path == "" {
		return nil // the node finds its own
	}
	port := strconv.Itoa(n.epmd)
	p, err := program{
		path: path, args: []string{"-address", "127.0.0.1", "-port", port}, env: n.environment(), dir: n.dir, as: n.as,
	}.startProgram(filepath.Join(r.dir.path, "epmd.log"), syscall.SIGKILL)
	if err != nil {
		return err
	}
	r.undoOnClose(func() error { return p.stopProcess(syscall.SIGKILL) })
	return r.dir.recordProcess(p, strings.Join([]string{"-port", port}, " "))
}

// epmdPath returns the port mapper's program. It is installed with Erlang, but
// not always on PATH.
func epmdPath() string {
	if path, err := exec.LookPath("epmd"); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/lib/erlang/erts-*/bin/epmd", "/usr/local/lib/erlang/erts-*/bin/epmd", "/opt/homebrew/lib/erlang/erts-*/bin/epmd"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}
