package devservices

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	usualRedis = "redis://127.0.0.1:6379/0"

	// NoRedis is the RedisURL of a machine without Redis.
	NoRedis = "none:"

	// The oldest version whose scripts may write after they have read the time.
	minRedis = 6

	maxRedisAnswer = 1 << 20 // bytes of the answer to INFO
)

func (r *run) redisWays() []way {
	private := r.privateOptional(&optionalRedis)
	return []way{
		{"env", optionalRedis.useVariable},
		{"found", optionalRedis.useFound},
		private,
		r.aptWay("Redis", "redis-server", private),
		{"none", optionalRedis.useNone},
	}
}

var optionalRedis = optionalServer{
	variable: "REDIS_URL", none: NoRedis, usual: usualRedis, probe: probeRedis, program: "redis-server", url: "redis://:%s@%s/0",
	config: "bind 127.0.0.1\nport %[1]d\nrequirepass %[2]s\ndir %[3]q\nsave \"\"\nappendonly yes\nmaxmemory-policy noeviction\ndaemonize no\n",
	args:   func(_, config string) []string { return []string{config} }, // it changes its command line to its name and its address
}

// A redisServer is what a URL of Redis says.
type redisServer struct {
	network, address string
	login            *url.Userinfo
	database         int
	tls              bool
}

// parseRedisURL reads the forms of URLs that clients of Redis know: redis://, rediss:// and unix://. Its error does not
// quote the URL, which may have a password.
func parseRedisURL(server string) (redisServer, error) {
	u, err := url.Parse(server)
	if err != nil {
		return redisServer{}, errors.New("not a Redis URL")
	}
	at := redisServer{network: "tcp", login: u.User, tls: u.Scheme == "rediss"}
	database := strings.Trim(u.Path, "/")
	switch u.Scheme {
	case "redis", "rediss":
		at.address = net.JoinHostPort(cmp.Or(u.Hostname(), "localhost"), cmp.Or(u.Port(), "6379"))
	case "unix":
		at.network, at.address, database = "unix", u.Path, ""
	default:
		return redisServer{}, errors.New("not a Redis URL: it begins with none of redis://, rediss:// and unix://")
	}
	if at.database, err = strconv.Atoi(cmp.Or(u.Query().Get("db"), database, "0")); err != nil {
		return redisServer{}, errors.New("not a Redis URL: its database is not a number")
	}
	return at, nil
}

// probeRedis logs in and returns the server's version and place. The result and the error do not hold the password. It
// speaks the protocol itself, because compiling the client library would take a quarter of a demo's build time.
func probeRedis(ctx context.Context, timeout time.Duration, server string) (string, error) {
	at, err := parseRedisURL(server)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := at.dial(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	session := redisSession{conn, bufio.NewReader(conn)}
	if err := session.logIn(at.login); err != nil {
		return "", err
	}
	if _, err := session.sendCommand("SELECT", strconv.Itoa(at.database)); err != nil {
		return "", err
	}
	info, err := session.sendCommand("INFO")
	if err != nil {
		return "", err
	}
	version, major := redisField(info, "redis_version"), 0
	if _, err := fmt.Sscanf(version, "%d.", &major); err != nil || major < minRedis {
		return "", fmt.Errorf("it is version %q; needed is %d or later", version, minRedis)
	}
	if role := redisField(info, "role"); role != "master" {
		return "", fmt.Errorf("it is a %s: it takes no writes", role)
	}
	return fmt.Sprintf("version %s at %s, database %d", version, at.address, at.database), nil
}

func (at redisServer) dial(ctx context.Context) (net.Conn, error) {
	if !at.tls {
		return (&net.Dialer{}).DialContext(ctx, at.network, at.address)
	}
	return (&tls.Dialer{}).DialContext(ctx, at.network, at.address)
}

// redisField returns the value of a line of INFO, such as "role:master".
func redisField(info, name string) string {
	_, rest, _ := strings.Cut("\n"+info, "\n"+name+":")
	value, _, _ := strings.Cut(rest, "\r")
	return value
}

// A redisSession sends one command after the other.
type redisSession struct {
	conn    net.Conn
	answers *bufio.Reader
}

// logIn sends the password, if the URL has one. Without a user in the URL, Redis takes the user "default".
func (s redisSession) logIn(login *url.Userinfo) error {
	password, ok := login.Password()
	if !ok {
		return nil
	}
	command := []string{"AUTH", password}
	if user := login.Username(); user != "" {
		command = []string{"AUTH", user, password}
	}
	_, err := s.sendCommand(command...)
	return err
}

// sendCommand returns the answer to a command. The answer is a line, or a text after its length.
func (s redisSession) sendCommand(command ...string) (string, error) {
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(command))
	for _, word := range command {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(s.conn, request.String()); err != nil {
		return "", err
	}
	line, err := s.answers.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	kind, rest := line[:min(1, len(line))], line[min(1, len(line)):]
	size := 0
	switch kind {
	case "+":
		return rest, nil
	case "-":
		return "", fmt.Errorf("it answers to %s: %s", command[0], rest)
	case "$":
		size, err = strconv.Atoi(rest)
	}
	if kind != "$" || err != nil || size < 0 || size > maxRedisAnswer {
		return "", errors.New("it is not a Redis server")
	}
	text := make([]byte, size+len("\r\n"))
	if _, err := io.ReadFull(s.answers, text); err != nil {
		return "", err
	}
	return string(text[:size]), nil
}
