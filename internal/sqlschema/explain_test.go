package sqlschema

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	for code, explained := range map[string]bool{"42P01": true, "3F000": true, "42703": true, "23505": false} {
		err := fmt.Errorf("read: %w", &pgconn.PgError{Code: code})
		got := Explain(err)
		if strings.Contains(got.Error(), "has it been migrated") != explained || !errors.Is(got, err) {
			t.Errorf("Explain(%v) = %v", err, got)
		}
		if twice := Explain(fmt.Errorf("list: %w", got)); strings.Count(twice.Error(), "migrated") > 1 || !errors.Is(twice, got) {
			t.Errorf("Explain of what is explained = %v", twice)
		}
	}
	if got := Explain(nil); got != nil {
		t.Errorf("Explain(nil) = %v", got)
	}
}
