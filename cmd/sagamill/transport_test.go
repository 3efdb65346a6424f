package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/testing/certtest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

// password is that of the test's users.
const password = "hunter2"

// A tlsServer is a PostgreSQL of the test's own that accepts TLS alone, from clients
// with a certificate.
type tlsServer struct {
	t    *testing.T
	conn *pgx.Conn // of the superuser, from before
	data string
	port string
}

// startTLSServer starts a server whose certificate, and those of its clients, are of ca.
func startTLSServer(t *testing.T, ca *certtest.Authority) *tlsServer {
	t.Helper()
	t.Setenv("AMQP_URL", devservices.InProcess)
	t.Setenv("DATABASE_URL", "")
	services, err := devservices.Start(t.Context(), &devservices.Options{Steps: "env,private", Log: io.Discard})
	if err != nil {
		needtest.Missing(t, "postgres", "no PostgreSQL of the test's own: %v", err)
	}
	t.Cleanup(func() { _ = services.Close() })
	at, err := url.Parse(services.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	s := &tlsServer{t: t, port: at.Port()}
	if s.conn, err = pgx.Connect(t.Context(), services.DatabaseURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.conn.Close(context.Background()) })
	if err := s.conn.QueryRow(t.Context(), "SHOW data_directory").Scan(&s.data); err != nil {
		t.Fatal(err)
	}
	s.write("authority.pem", ca.PEM())
	s.certify(ca.Issue(t, time.Hour))
	s.exec("CREATE ROLE svc LOGIN PASSWORD '" + password + "'")
	s.exec("CREATE DATABASE svc OWNER svc")
	for _, setting := range []string{"ssl = on", "ssl_cert_file = 'certificate.pem'", "ssl_key_file = 'key.pem'", "ssl_ca_file = 'authority.pem'"} {
		s.exec("ALTER SYSTEM SET " + setting)
	}
	s.write("pg_hba.conf", []byte("hostssl all all all md5 clientcert=verify-ca\n"))
	s.reload()
	return s
}

func (s *tlsServer) exec(statement string) {
	s.t.Helper()
	if _, err := s.conn.Exec(s.t.Context(), statement); err != nil {
		s.t.Fatalf("%s: %v", statement, err)
	}
}

// write puts a file where the server's account can read it, and nobody else.
func (s *tlsServer) write(name string, content []byte) {
	s.t.Helper()
	file := filepath.Join(s.data, name)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		s.t.Fatal(err)
	}
	info, err := os.Stat(s.data)
	if err != nil {
		s.t.Fatal(err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := os.Chown(file, int(owner.Uid), int(owner.Gid)); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *tlsServer) certify(certificate, key []byte) {
	s.t.Helper()
	s.write("certificate.pem", certificate)
	s.write("key.pem", key)
}

// reload has the server read its files again, and waits until it has.
func (s *tlsServer) reload() {
	s.t.Helper()
	s.exec("SELECT pg_reload_conf()")
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	// Sessions hear of it when they are idle, new ones are accepted with it.
	for on := ""; on != "on"; {
		if err := s.conn.QueryRow(ctx, "SHOW ssl").Scan(&on); err != nil {
			s.t.Fatal(err)
		}
	}
}

// database returns the URL of svc's database at host, with the files of a client.
func (s *tlsServer) database(host, mode string, files certtest.Files) string {
	q := url.Values{"sslmode": {mode}}
	if files.Authority != "" {
		q.Set("sslrootcert", files.Authority)
	}
	if files.Certificate != "" {
		q.Set("sslcert", files.Certificate)
		q.Set("sslkey", files.Key)
	}
	return "postgres://svc:" + password + "@" + host + "/svc?" + q.Encode()
}

// TestTransport connects as our programs do: through a pool, and as the migrations do.
func TestTransport(t *testing.T) {
	ca, foreign := certtest.NewAuthority(t), certtest.NewAuthority(t)
	s := startTLSServer(t, ca)
	good := ca.Files(t, time.Hour)
	anonymous, unknown := good, foreign.Files(t, time.Hour)
	anonymous.Certificate, anonymous.Key = "", ""
	unknown.Authority = good.Authority
	distrustful := good
	distrustful.Authority = foreign.Files(t, time.Hour).Authority
	localhost, number := net.JoinHostPort("localhost", s.port), net.JoinHostPort("127.0.0.1", s.port)
	if code, out := s.run("migrate up", s.database(localhost, "verify-full", good)); code != 0 {
		t.Fatalf("with the right authority, name and certificate: exit %d, %s", code, out)
	}
	if code, out := s.run("outbox status", s.database(localhost, "verify-full", good)); code != 0 {
		t.Fatalf("a pool: exit %d, %s", code, out)
	}
	old := net.JoinHostPort("localhost", certtest.OldServer(t, ca, acceptTLS))
	for _, tt := range []struct{ name, url, says string }{
		{"unknown authority", s.database(localhost, "verify-full", distrustful), "unknown authority"},
		{"another host", s.database(number, "verify-full", good), "127.0.0.1"},
		{"no client certificate", s.database(localhost, "verify-full", anonymous), "client certificate"},
		{"unknown client certificate", s.database(localhost, "verify-full", unknown), "unknown certificate authority"},
		{"expired client certificate", s.database(localhost, "verify-full", ca.Files(t, -time.Minute)), "expired certificate"},
		{"plaintext", s.database(localhost, "disable", good), "no encryption"},
		{"TLS 1.1", s.database(old, "verify-full", good), "protocol version"},
		{"TLS 1.1 without verification", s.database(old, "require", certtest.Files{}), "protocol version"},
	} {
		t.Run(tt.name, func(t *testing.T) { s.refused(t, tt.url, tt.says) })
	}
	s.certify(ca.Issue(t, -time.Minute))
	s.reload()
	t.Run("expired", func(t *testing.T) { s.refused(t, s.database(localhost, "verify-full", good), "expired") })
}

// refused expects that neither a pool nor the migrations connect, and that the error says
// why, and no password.
func (s *tlsServer) refused(t *testing.T, at, says string) {
	t.Helper()
	for _, words := range []string{"outbox status", "migrate version"} {
		code, out := s.run(words, at)
		if code != 1 || !strings.Contains(out, says) && !(strings.Contains(says, "certificate") && cutOff(out)) || strings.Contains(out, password) {
			t.Errorf("%s: exit %d, %q; want 1, %q and no password", words, code, out, says)
		}
	}
}

// cutOff reports whether the server has closed the connection before the client has read
// why: in TLS 1.3 it refuses a client's certificate when the client is through already.
func cutOff(out string) bool {
	return strings.Contains(out, "connection reset by peer") || strings.Contains(out, "broken pipe")
}

func (s *tlsServer) run(words, at string) (code int, out string) {
	var said bytes.Buffer
	code = run(s.t.Context(), append(strings.Fields(words), "-database", at), &said, &said)
	return code, said.String()
}

// acceptTLS is how PostgreSQL answers a client that asks for TLS.
func acceptTLS(conn net.Conn) error {
	if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil {
		return err
	}
	_, err := conn.Write([]byte("S"))
	return err
}

func TestPlaintextOfTheCommand(t *testing.T) {
	const remote = "postgres://u:" + password + "@db.invalid/x"
	for _, tt := range []struct {
		args, variable string
		says           string
	}{
		{"outbox status -database " + remote, "", "sslmode=verify-full"},
		{"saga show k -database " + remote, "", "sslmode=verify-full"},
		{"why k -database " + remote, "", "sslmode=verify-full"},
		{"saga show k -database " + remote, "perhaps", plaintext.Variable},
		{"status -database postgres://localhost/x -database " + remote, "", "sslmode=verify-full"},
		{"migrate up -database " + remote + "?sslmode=prefer", "", "sslmode=verify-full"},
		{"outbox status -database " + remote, "perhaps", plaintext.Variable},
		{"outbox status -database " + remote + "?sslmode=require", "", "hostname resolving"},
		{"outbox status -allow-plaintext -database " + remote, "", "hostname resolving"},
		{"outbox status -database " + remote, "true", "hostname resolving"},
		{"broker declare -topology x -amqp amqp://u:" + password + "@mq.invalid/", "", "amqps://"},
		{"broker declare -topology absent -allow-plaintext -amqp amqp://u:" + password + "@mq.invalid/", "", "no such file"},
		{"broker declare -topology x -amqp=", "", "no broker"},
		{"broker permissions", "", "-topology"},
	} {
		t.Setenv(plaintext.Variable, tt.variable)
		var out bytes.Buffer
		code := run(t.Context(), strings.Fields(tt.args), &out, &out)
		if code != 1 || !strings.Contains(out.String(), tt.says) || strings.Contains(out.String(), password) {
			t.Errorf("%s with %q: exit %d, %q; want 1, %q and no password", tt.args, tt.variable, code, out.String(), tt.says)
		}
	}
}
