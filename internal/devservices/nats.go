package devservices

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	usualNATS = "nats://127.0.0.1:4222"

	// NoNATS is the NATSURL of a machine without NATS.
	NoNATS = "none:"
)

func (r *run) natsWays() []way {
	return []way{
		{"env", optionalNATS.useVariable},
		{"found", optionalNATS.useFound},
		{"private", r.privateNATS},
		{"none", optionalNATS.useNone},
	}
}

var optionalNATS = optionalServer{variable: "NATS_URL", none: NoNATS, usual: usualNATS, probe: probeNATS}

// probeNATS logs in and returns the server's version and place. The result and the error do not hold the
// password. It speaks the protocol itself, because the client library is not a requirement of this module.
func probeNATS(ctx context.Context, timeout time.Duration, server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "nats" {
		return "", errors.New("not a NATS URL") // the library's error may quote it
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222")))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	lines := bufio.NewReader(conn)
	greeting, err := lines.ReadString('\n')
	if err != nil {
		return "", err
	}
	var info struct {
		Version   string `json:"version"`
		JetStream bool   `json:"jetstream"`
	}
	text, isInfo := strings.CutPrefix(greeting, "INFO ")
	if err := json.Unmarshal([]byte(text), &info); !isInfo || err != nil {
		return "", errors.New("it is no NATS server")
	}
	if !info.JetStream {
		return "", errors.New("it runs without JetStream")
	}
	if err := logInNATS(conn, lines, u.User); err != nil {
		return "", err
	}
	return fmt.Sprintf("version %s with JetStream at %s", info.Version, u.Host), nil
}

// logInNATS logs in as user and waits for an answer.
func logInNATS(conn net.Conn, lines *bufio.Reader, user *url.Userinfo) error {
	password, _ := user.Password()
	login, err := json.Marshal(map[string]any{"verbose": false, "user": user.Username(), "pass": password})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s\r\nPING\r\n", login); err != nil {
		return err
	}
	answer, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	if strings.TrimSpace(answer) != "PONG" {
		return errors.New("it does not let us in")
	}
	return nil
}

const (
	natsReadyTimeout = 30 * time.Second
	natsUser         = "sagamill"
)

// privateNATS starts NATS with JetStream from an installed binary.
func (r *run) privateNATS(ctx context.Context) (instance, error) {
	server, err := exec.LookPath("nats-server")
	if err != nil {
		return instance{}, serviceAbsent("no nats-server on PATH")
	}
	as, err := unprivileged(ctx, "nats")
	if err != nil {
		return instance{}, err
	}
	if _, err := r.runDirectory(); err != nil {
		return instance{}, err
	}
	return attempts(func() (instance, error) { return r.tryNATSServer(ctx, server, as) })
}

// tryNATSServer starts the server once, on a port that is free now.
func (r *run) tryNATSServer(ctx context.Context, path string, as *account) (instance, error) {
	dir, err := r.dir.subdirectory("nats", as)
	if err != nil {
		return instance{}, err
	}
	port, err := freePort()
	if err != nil {
		return instance{}, err
	}
	password := rand.Text() // keeps other local users out
	config, err := natsConfig(dir, port, password, as)
	if err != nil {
		return instance{}, err
	}
	u := url.URL{Scheme: "nats", User: url.UserPassword(natsUser, password), Host: loopback(port)}
	return r.startServer(ctx, server{
		program: program{path: path, args: []string{"-c", config}, env: serverEnvironment(dir), dir: dir, as: as},
		name:    "nats-server", mark: config, stop: syscall.SIGKILL, patience: natsReadyTimeout, url: u.String(), probe: probeNATS,
	})
}

// natsConfig writes the configuration. Only the server's account may read it, because it holds a password.
func natsConfig(dir string, port int, password string, as *account) (string, error) {
	path := filepath.Join(dir, "nats.conf")
	config := fmt.Sprintf("listen: \"127.0.0.1:%d\"\njetstream { store_dir: %s }\nauthorization { user: %s, password: %q }\n",
		port, strconv.Quote(dir), natsUser, password)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return "", err
	}
	return path, as.ownFile(path)
}
