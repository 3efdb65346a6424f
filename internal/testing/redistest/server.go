package redistest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

const (
	readyTimeout = 20 * time.Second
	readyPause   = 10 * time.Millisecond
)

// Server starts a private server, with config on its command line, and returns a client of it. The server
// ends with the test. It listens on a socket in a private directory, because a port could be taken in the
// meantime.
func Server(t testing.TB, config ...string) *redis.Client {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		needtest.Missing(t, "redis", "no redis-server on PATH for a server of the test's own")
	}
	dir, err := os.MkdirTemp("", "redis") // t.TempDir may be too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	args := append([]string{"--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--daemonize", "no"}, config...)
	server := exec.Command(path, args...)
	server.SysProcAttr = &syscall.SysProcAttr{}
	devservices.DieWithParent(server.SysProcAttr, syscall.SIGKILL) // a test that times out runs no cleanup
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the parent is the thread that forked
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := server.Start()
		if started <- err; err == nil {
			_ = server.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		<-ended
	})
	client := newClient(t, &redis.Options{Network: "unix", Addr: socket, ContextTimeoutEnabled: true})
	deadline := time.After(readyTimeout)
	for client.Ping(t.Context()).Err() != nil {
		select {
		case <-ended:
			t.Fatal("redis-server has ended while starting")
		case <-deadline:
			t.Fatalf("redis-server is not ready within %v", readyTimeout)
		case <-time.After(readyPause):
		}
	}
	return client
}

// Cluster starts a private cluster of one server and returns a client of it.
func Cluster(t testing.TB) *redis.ClusterClient {
	t.Helper()
	port, bus := freePort(t), freePort(t)
	node := Server(t, "--port", port, "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-port", bus)
	const slots = 16384
	if err := node.ClusterAddSlotsRange(t.Context(), 0, slots-1).Err(); err != nil {
		t.Fatalf("CLUSTER ADDSLOTSRANGE: %v", err)
	}
	deadline := time.After(readyTimeout)
	for {
		info, err := node.ClusterInfo(t.Context()).Result()
		if err == nil && strings.Contains(info, "cluster_state:ok") {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("the cluster is not ready within %v: %v", readyTimeout, err)
		case <-time.After(readyPause):
		}
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + port}, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// freePort returns a port that is free at this moment.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
