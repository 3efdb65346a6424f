package pgservertest

import (
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
)

// The commands run in the data directory. An archived file is never overwritten.
const (
	archiveCommand = "test ! -f ../archive/%f && cp %p ../archive/%f"
	restoreCommand = "cp ../archive/%f %p"
)

// NewArchiving is [New] for a server that archives its WAL, from which
// [Server.Restore] sets it back.
func NewArchiving(t testing.TB, config ...string) *Server {
	t.Helper()
	s := New(t, append([]string{"archive_mode=on", "archive_command=" + archiveCommand, "hot_standby=off"}, config...)...)
	if err := os.Mkdir(s.pathOf("archive"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.ownFile(t, s.pathOf("archive"))
	return s
}

// Backup takes a base backup, which replaces the previous one.
func (s *Server) Backup(t testing.TB) {
	t.Helper()
	if err := os.RemoveAll(s.pathOf("base")); err != nil {
		t.Fatal(err)
	}
	s.runProgram(t, "pg_basebackup", "-D", s.pathOf("base"), "-h", s.dir, "-U", "postgres", "--checkpoint=fast", "--no-sync")
}

// Mark makes a restore point and waits until the WAL up to it is in the archive.
func (s *Server) Mark(t testing.TB, name string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var segment string
	if err := conn.QueryRow(t.Context(), "SELECT pg_walfile_name(pg_create_restore_point($1))", name).Scan(&segment); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_switch_wal()"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(serverTimeout); ; {
		if _, err := os.Stat(s.pathOf("archive/" + segment)); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not archived within %v", segment, serverTimeout)
		}
		_ = backoff.Sleep(t.Context(), 10*time.Millisecond)
	}
}

// Restore destroys the server's data and recovers it to the restore point called name, from the base backup
// and the archive. It returns when the server takes connections, on a new timeline.
func (s *Server) Restore(t testing.TB, name string) {
	t.Helper()
	s.Crash()
	if err := os.RemoveAll(s.pathOf("data")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.pathOf("base"), s.pathOf("data")); err != nil {
		t.Fatal(err)
	}
	signal := s.pathOf("data/recovery.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.ownFile(t, signal)
	before := s.config
	s.config = append(append([]string{}, before...), "restore_command="+restoreCommand, "recovery_target_name="+name, "recovery_target_action=promote")
	s.Start(t)
	s.config = before
}
