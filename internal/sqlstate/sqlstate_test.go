package sqlstate_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/sqlstate"
)

func TestConflict(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("40001"), false},
		{&pgconn.PgError{Code: "23505"}, false},
		{&pgconn.PgError{Code: "40001"}, true},
		{fmt.Errorf("pay: %w", &pgconn.PgError{Code: "40P01"}), true},
	} {
		if got := sqlstate.Conflict(tt.err); got != tt.want {
			t.Errorf("Conflict(%v) = %t, want %t", tt.err, got, tt.want)
		}
	}
}
