package pg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

func TestIs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{&pgconn.PgError{Code: "53300"}, true},
		{&pgconn.PgError{Code: "57P01"}, true},
		{&pgconn.PgError{Code: "25006"}, true},
		{&pgconn.PgError{Code: "08006"}, true},
		{&pgconn.PgError{Code: "08P01", Severity: "FATAL"}, true}, // pgbouncer's
		{&pgconn.PgError{Code: "08P01", Severity: "FEHLER", SeverityUnlocalized: "ERROR"}, false},
		{fmt.Errorf("read: %w", io.ErrUnexpectedEOF), true},
		{net.ErrClosed, true},
		{&pgconn.PgError{Code: "23505"}, false},
		{context.DeadlineExceeded, false},
		{errors.New("no"), false},
	} {
		if got := pg.IsAway(tt.err); got != tt.want {
			t.Errorf("Is(%v) = %t, want %t", tt.err, got, tt.want)
		}
	}
}

// A stranger's NUL in a value is refused by the server, in each way to send it.
func TestAZeroByteIsNoOutage(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			conn, err := pgx.Connect(t.Context(), pgtest.URL())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			var text string
			err = conn.QueryRow(t.Context(), "SELECT $1::text", mode, "a\x00b").Scan(&text)
			if err == nil || pg.IsAway(err) {
				t.Errorf("%q, %v; want an error that is no outage", text, err)
			}
		})
	}
}
