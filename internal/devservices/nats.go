package devservices

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
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
		r.privateOptional(&optionalNATS),
		{"none", optionalNATS.useNone},
	}
}

var optionalNATS = optionalServer{
	variable: "NATS_URL", none: NoNATS, usual: usualNATS, probe: probeNATS, program: "nats-server", url: "nats://sagamill:%s@%s",
	config: "listen: \"127.0.0.1:%[1]d\"\njetstream { store_dir: %[3]q }\nauthorization { user: sagamill, password: %[2]q }\n",
	args:   func(address, config string) []string { return []string{"--name", address, "--config", config} },
}

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
