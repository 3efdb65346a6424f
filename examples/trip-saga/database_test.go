package main

import (
	"context"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// database is one for all services, which may be behind a pooler.
func database(t testing.TB) string {
	t.Helper()
	return pgtest.DatabaseFor(t, func(ctx context.Context, url string) error {
		for _, name := range program.Services {
			if err := program.MigrateService(ctx, name, url); err != nil {
				return err
			}
		}
		return nil
	})
}
