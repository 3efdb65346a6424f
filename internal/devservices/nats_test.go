package devservices

import (
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/needtest"
)

func TestPrivateNATS(t *testing.T) {
	t.Parallel()
	r, _ := newTestRun(t)
	in, err := r.privateOptional(&optionalNATS).try(t.Context())
	if errors.Is(err, errAbsent) {
		needtest.Missing(t, "nats", "no nats-server on this machine")
	}
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(in.url)
	if err != nil || strings.Contains(in.what, password(u)) || in.shared {
		t.Errorf("%q shows the password, or is said to be shared (%v)", in.what, err)
	}
	if _, err := probeNATS(t.Context(), findTimeout, "nats://"+u.Host); err == nil {
		t.Error("the server lets anybody in")
	}
	if named, err := optionalNATS.useNamed(t.Context(), in.url); named.url != in.url || !named.shared {
		t.Errorf("NATS_URL of it: %+v, %v", named, err)
	}
	for _, pid := range r.pids(t) {
		if line := commandLine(pid); !strings.Contains(line, r.dir.path) {
			t.Errorf("command line %q lacks the mark by which a dead run's server is known", line)
		}
	}
	checkClosed(t, r, 1)
}

// NATS is asked for by name, and a machine may do without.
func TestNoNATS(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ server, want string }{{NoNATS, NoNATS}, {"", ""}} {
		in, err := optionalNATS.useNamed(t.Context(), tt.server)
		if in.url != tt.want || (tt.want == "") != errors.Is(err, errAbsent) {
			t.Errorf("NATS_URL=%q: %q, %v; want %q", tt.server, in.url, err, tt.want)
		}
	}
	r, log := newTestRun(t)
	s := &Services{}
	if err := r.addOptional(t.Context(), &s.NATSURL, "NATS", []way{fails("private", serviceAbsent("no nats-server")), {"none", optionalNATS.useNone}}); err != nil || s.NATSURL != NoNATS {
		t.Errorf("addNATS = %q, %v; want %q", s.NATSURL, err, NoNATS)
	}
	if !strings.Contains(log.String(), "not tested") {
		t.Errorf("log = %s, want it to say that something is not tested", log)
	}
}

// The server at the port may be another program, or unusable.
func TestProbeNATSRefusesOthers(t *testing.T) {
	t.Parallel()
	for greeting, want := range map[string]string{
		"INFO {\"version\":\"2.9.10\"}\r\n": "without JetStream",
		"220 mail.example ESMTP\r\n":        "no NATS server",
		"INFO {\r\n":                        "no NATS server",
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if conn, err := listener.Accept(); err == nil {
				_, _ = conn.Write([]byte(greeting))
				_ = conn.Close()
			}
		}()
		_, err = probeNATS(t.Context(), findTimeout, "nats://"+listener.Addr().String())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("greeted with %q: %v, want %q", greeting, err, want)
		}
		_ = listener.Close()
	}
}
