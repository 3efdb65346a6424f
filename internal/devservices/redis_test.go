package devservices

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/internal/testing/needtest"
)

func TestPrivateRedis(t *testing.T) {
	t.Parallel()
	r, _ := newTestRun(t)
	in, err := r.privateRedis(t.Context())
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
	if err := r.addRedis(t.Context(), s, []way{fails("private", serviceAbsent("no redis-server")), {"none", optionalRedis.useNone}}); err != nil || s.RedisURL != NoRedis {
		t.Errorf("addRedis = %q, %v; want %q", s.RedisURL, err, NoRedis)
	}
	if !strings.Contains(log.String(), "not tested") {
		t.Errorf("log = %s, want it to say that something is not tested", log)
	}
}
