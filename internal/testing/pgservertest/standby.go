package pgservertest

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
)

// standbyName is the cluster_name of a standby, by which the primary names it.
const standbyName = "standby"

// poll is the pause between two looks at a condition without an event.
const poll = 10 * time.Millisecond

// sqlCommitWaits says whether a commit waits for a synchronous standby.
const sqlCommitWaits = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`

// sqlProbe is a transaction that writes, and changes nothing.
const sqlProbe = `SELECT pg_logical_emit_message(true, 'probe', '')`

// Standby starts a server that follows s, with config on its command line. It is read-only until
// [Server.Promote] makes it a primary.
func (s *Server) Standby(t testing.TB, config ...string) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	standby := &Server{bin: s.bin, dir: dir, config: append([]string{"hot_standby=on", "cluster_name=" + standbyName}, config...), attr: s.attr}
	standby.ownFile(t, dir)
	standby.runProgram(t, "pg_basebackup", "-D", standby.pathOf("data"), "-h", s.dir, "-U", "postgres", "--checkpoint=fast", "--no-sync", "--write-recovery-conf")
	t.Cleanup(standby.Crash)
	standby.Start(t)
	return standby
}

// SynchronousStandby starts a [Server.Standby] that every commit of s waits for. As a primary, the standby
// waits for no other server.
func (s *Server) SynchronousStandby(t testing.TB) *Server {
	t.Helper()
	conn := s.connectTo(t)
	defer conn.Close(t.Context())
	for _, statement := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + standbyName + "'", "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	released := s.probeStandby(t)
	standby := s.Standby(t, "synchronous_standby_names=")
	if err := <-released; err != nil {
		t.Fatalf("a commit that waits for the standby: %v", err)
	}
	return standby
}

// probeStandby returns when a commit waits for a standby: a changed setting does not reach all processes at
// once. The channel gets the result of that commit.
func (s *Server) probeStandby(t testing.TB) (released <-chan error) {
	t.Helper()
	conn := s.connectTo(t)
	var seen atomic.Bool
	outcome := make(chan error, 1)
	go func() { // ends when the standby answers, or the server ends
		defer conn.Close(t.Context())
		var err error
		for err == nil && !seen.Load() {
			_, err = conn.Exec(t.Context(), sqlProbe)
		}
		outcome <- err
	}()
	for end := time.Now().Add(serverTimeout); !s.CommitWaits(t); pauseBriefly(t) {
		if time.Now().After(end) {
			t.Fatalf("no commit waits for a standby within %v", serverTimeout)
		}
	}
	seen.Store(true)
	return outcome
}

// CommitWaits reports whether a commit waits for a synchronous standby.
func (s *Server) CommitWaits(t testing.TB) (waits bool) {
	t.Helper()
	conn := s.connectTo(t)
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), sqlCommitWaits).Scan(&waits); err != nil {
		t.Fatal(err)
	}
	return waits
}

func (s *Server) connectTo(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// Promote makes a standby a primary, and returns when it is one.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	conn := s.connectTo(t)
	defer conn.Close(t.Context())
	var promoted bool
	if err := conn.QueryRow(t.Context(), "SELECT pg_promote()").Scan(&promoted); err != nil || !promoted {
		t.Fatalf("promoted: %t, %v", promoted, err)
	}
}

// pauseBriefly waits until the next look at a condition.
func pauseBriefly(t testing.TB) {
	_ = backoff.Sleep(t.Context(), poll)
}

// URLOfAll returns a URL that leads to the one of servers that accepts writes. The client tries them in this
// order. Settings are settings of a URL of pgx.
func URLOfAll(servers []*Server, settings ...string) string {
	var hosts []string
	for _, s := range servers {
		hosts = append(hosts, s.dir)
	}
	query := append([]string{"host=" + strings.Join(hosts, ","), "target_session_attrs=read-write"}, settings...)
	return "postgres://postgres@/postgres?" + strings.Join(query, "&")
}
