package devservices

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/internal/testing/needtest"
)

func TestPrivateRedis(t *testing.T) {
	t.Parallel()
	r, _ := newTestRun(t)
	in, err := r.privateOptional(&optionalRedis).try(t.Context())
	if errors.Is(err, errAbsent) {
		needtest.Missing(t, "redis", "no redis-server on this machine")
	}
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(in.url)
	if err != nil || strings.Contains(in.what, password(u)) || in.shared {
		t.Errorf("%q shows the password, or is said to be shared (%v)", in.what, err)
	}
	if _, err := probeRedis(t.Context(), findTimeout, "redis://"+u.Host); err == nil {
		t.Error("the server lets anybody in")
	}
	opts, err := redis.ParseURL(in.url)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(opts)
	defer client.Close()
	for name, want := range map[string]string{"maxmemory-policy": "noeviction", "appendonly": "yes", "bind": "127.0.0.1"} {
		if got := client.ConfigGet(t.Context(), name).Val()[name]; got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	// A replica is refused, with the reason.
	if err := client.ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := probeRedis(t.Context(), findTimeout, in.url); err == nil || !strings.Contains(err.Error(), "slave") {
		t.Errorf("probe of a replica: %v, want an error", err)
	}
	for _, pid := range r.pids(t) {
		if line := commandLine(pid); !strings.Contains(line, u.Host) {
			t.Errorf("command line %q lacks the mark %q by which a dead run's server is known", line, u.Host)
		}
	}
	checkClosed(t, r, 1)
}

// Redis is asked for by name, and a machine may do without.
func TestNoRedis(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ server, want string }{{NoRedis, NoRedis}, {"", ""}} {
		in, err := optionalRedis.useNamed(t.Context(), tt.server)
		if in.url != tt.want || (tt.want == "") != errors.Is(err, errAbsent) {
			t.Errorf("REDIS_URL=%q: %q, %v; want %q", tt.server, in.url, err, tt.want)
		}
	}
	r, log := newTestRun(t)
	s := &Services{}
	if err := r.addOptional(t.Context(), &s.RedisURL, "Redis", []way{fails("private", serviceAbsent("no redis-server")), {"none", optionalRedis.useNone}}); err != nil || s.RedisURL != NoRedis {
		t.Errorf("addRedis = %q, %v; want %q", s.RedisURL, err, NoRedis)
	}
	if !strings.Contains(log.String(), "not tested") {
		t.Errorf("log = %s, want it to say that something is not tested", log)
	}
}

// The forms of URLs that the client library of the stores takes as well.
func TestParseRedisURL(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"redis://h":                           "tcp h:6379 0",
		"redis://:p@h:1/2":                    "tcp h:1 2",
		"redis://u:p@[::1]:1/?db=3":           "tcp [::1]:1 3",
		"rediss://h":                          "tcp h:6379 0 TLS",
		"unix:///run/redis.sock?db=4":         "unix /run/redis.sock 4",
		"redis://h/hunter2":                   "",
		"http://u:hunter2@h":                  "",
		"redis://u:hunter2@%zz":               "",
		"redis://u:hunter2@h/1/2?db=hunter2x": "",
	} {
		at, err := parseRedisURL(server)
		got := ""
		if err == nil {
			got = fmt.Sprintf("%s %s %d", at.network, at.address, at.database)
		}
		if at.tls {
			got += " TLS"
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("parseRedisURL(%q) = %q, %v; want %q", server, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the URL: %v", err)
		}
	}
}

// The server at the port may be another program, or unusable.
func TestProbeRedisRefusesOthers(t *testing.T) {
	t.Parallel()
	for answers, want := range map[string]string{
		"+OK\r\n$35\r\nredis_version:5.0.14\r\nrole:master\r\n\r\n": `version "5.0.14"`,
		"-NOAUTH Authentication required.\r\n":                      "NOAUTH",
		"220 mail.example ESMTP\r\n":                                "not a Redis server",
		"+OK\r\n$99999999999\r\n":                                   "not a Redis server",
		"+OK\r\n$-1\r\n":                                            "not a Redis server",
		"+OK\r\n$3\r\n":                                             "EOF",
		"\r\n":                                                      "not a Redis server",
		"+OK\r\n$45\r\n# Server\r\nredis_version:7.0.0\r\nrole:replica\r\n\r\n": "it is a replica",
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if conn, err := listener.Accept(); err == nil {
				_, _ = conn.Write([]byte(answers))
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn) // a reset would discard the answers
				_ = conn.Close()
			}
		}()
		_, err = probeRedis(t.Context(), findTimeout, "redis://"+listener.Addr().String())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("answered with %q: %v, want %q", answers, err, want)
		}
		_ = listener.Close()
	}
}
