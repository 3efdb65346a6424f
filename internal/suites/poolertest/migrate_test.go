package poolertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// A migration through the pooler would leave a lock behind that later ones wait for. It is
// refused, and leaves none; a schema that lacks nothing is looked at through it.
func TestAMigrationThroughAPoolerIsRefused(t *testing.T) {
	t.Parallel()
	b := newBouncer(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	schema := pgtest.Name()
	t.Cleanup(func() { pgtest.DropSchema(t, schema) })
	for range 3 {
		if err := migrations.Up(ctx, b.url("exec"), schema); !errors.Is(err, migrations.ErrPooled) {
			t.Errorf("Up through pgbouncer: %v, want ErrPooled", err)
		}
	}
	if err := migrations.Up(ctx, pgtest.URL(), schema); err != nil {
		t.Fatalf("Up past pgbouncer: %v", err)
	}
	if err := migrations.Up(ctx, b.url("exec"), schema); err != nil {
		t.Errorf("Up of what is there: %v", err)
	}
	if err := migrations.Down(ctx, b.url("exec"), schema, 0); !errors.Is(err, migrations.ErrPooled) {
		t.Errorf("Down through pgbouncer: %v, want ErrPooled", err)
	}
}
