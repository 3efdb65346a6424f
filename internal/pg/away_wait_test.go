package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// unreachable is what the driver returns if no server listens: it names the server and the cause.
func unreachable(t *testing.T) error {
	t.Helper()
	_, err := pgconn.Connect(t.Context(), "postgres://u:hunter2@127.0.0.1:1/d?sslmode=disable")
	if text := fmt.Sprint(err); !strings.Contains(text, "127.0.0.1:1") || !strings.Contains(text, "refused") || strings.Contains(text, "hunter2") {
		t.Fatalf("the driver says %q", text)
	}
	return err
}

// In 30 s without a server there are four reports, not a hundred: at once, and every ten seconds.
func TestRetryUntilReachableReportsSeldom(t *testing.T) {
	t.Parallel()
	away := unreachable(t)
	synctest.Test(t, func(t *testing.T) {
		began, attempts := time.Now(), 0
		var reports []time.Duration
		err := RetryUntilReachable(t.Context(), func(err error) {
			if !errors.Is(err, away) {
				t.Errorf("the report is about %v", err)
			}
			reports = append(reports, time.Since(began))
		}, func(context.Context) error {
			if attempts++; time.Since(began) >= 30*time.Second {
				return nil
			}
			return away
		})
		if err != nil || attempts < 100 {
			t.Errorf("%d attempts: %v", attempts, err)
		}
		if got, want := fmt.Sprint(reports), "[0s 10s 20s]"; got != want {
			t.Errorf("reports at %s, want %s", got, want)
		}
	})
}

// A limit of time leaves the cause in the error; a server that answers ends the wait.
func TestRetryUntilReachableGivesUp(t *testing.T) {
	t.Parallel()
	away, wrong := unreachable(t), error(&pgconn.PgError{Code: "3D000", Message: "no such database"})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := RetryUntilReachable(ctx, func(error) {}, func(context.Context) error { return away })
		if !errors.Is(err, away) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the limit: %v", err)
		}
		attempts := 0
		err = RetryUntilReachable(t.Context(), func(error) { t.Error("reported") }, func(context.Context) error { attempts++; return wrong })
		if !errors.Is(err, wrong) || attempts != 1 {
			t.Errorf("after a wrong database: %v, %d attempts", err, attempts)
		}
	})
}
