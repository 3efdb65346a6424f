package idempg

import (
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// A server that has crashed gives ids of transactions out again whose end had not reached the disk. The
// commit of another transaction is then not taken for one of the handler's own, which would keep the
// answer tx-misuse for ever.
func TestACrashOfTheServerIsNoMisuse(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	server := pgservertest.New(t, "wal_writer_delay=10s", "autovacuum=off", "wal_level=minimal", "max_wal_senders=0") // nothing writes ids into the WAL
	crashes := map[string]func(f *fixture){
		"of all processes": func(*fixture) {
			server.Crash()
			server.Start(t)
		},
		"of one process": func(f *fixture) { // the others go with it, except for the first
			var pid int
			if err := f.pool.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
				t.Error(err)
			} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		},
	}
	for mode, name := range map[ClaimMode]string{ClaimLeased: "leased", ClaimInline: "inline"} {
		for how, crash := range crashes {
			schema := pgtest.Name()
			if err := migrations.Up(t.Context(), server.URL(), schema); err != nil {
				t.Fatal(err)
			}
			f := newFixtureOn(t, pgtest.Pool(t, server.URL()), schema, Options{ClaimMode: mode})
			f.exec(t, strings.ReplaceAll(sqlCreateBusiness, "{schema}", schema))
			ran := 0
			first := handle(t, f, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				if ran++; ran > 1 {
					return f.buy(w, r, tx)
				}
				var id uint64
				if err := tx.QueryRow(r.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&id); err != nil {
					t.Error(err)
				}
				crash(f)
				for err := error(nil); err == nil; {
					_, err = tx.Exec(r.Context(), "SELECT 1") // until the session has ended
				}
				f.pool.Reset()
				f.commitUpTo(t, id)
				w.WriteHeader(http.StatusCreated)
				return nil
			})
			post(t, first, "k").expect(t, http.StatusInternalServerError, idemkey.CodeCommitFailed)
			post(t, first, "k").expect(t, http.StatusCreated, "")
			f.expectRows(t, "k", 1)
			if t.Failed() {
				t.Fatalf("that was mode %s, crash %s", name, how)
			}
		}
	}
}

// commitUpTo commits transactions until one of them is called id.
func (f *fixture) commitUpTo(t *testing.T, id uint64) {
	t.Helper()
	for last := uint64(0); last < id; {
		var before uint64
		err := f.pool.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&before)
		switch {
		case t.Context().Err() != nil:
			t.Error("no transaction can be committed")
			return
		case err == nil && last == 0 && before > id:
			t.Errorf("the server did not give the id %d out again: %d", id, before)
			return
		case err == nil:
			last = before
		}
	}
}
