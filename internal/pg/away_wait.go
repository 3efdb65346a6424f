package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/backoff"
)

const (
	retryPause  = 250 * time.Millisecond // between two attempts to reach the server
	reportPause = 10 * time.Second       // between two reports that it cannot be reached

	tooManyConnections = "53300"
)

// RetryUntilReachable calls work until the server can be reached, and returns work's error. It calls report with the
// first error, which names the server and the cause, and then at most every 10 s. If ctx ends before, it returns the
// last error together with that of ctx.
func RetryUntilReachable(ctx context.Context, report func(error), work func(context.Context) error) error {
	var reported time.Time
	for {
		err := work(ctx)
		if err == nil || !isUnreachable(err) {
			return err
		}
		if ctx.Err() == nil && (reported.IsZero() || time.Since(reported) >= reportPause) {
			report(err)
			reported = time.Now()
		}
		if backoff.Sleep(ctx, retryPause) != nil {
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// isUnreachable reports whether no server answers, or the server does not take connections yet. Any other answer is
// caused by a wrong setting, such as a database that does not exist.
func isUnreachable(err error) bool {
	var refused *pgconn.ConnectError
	var answered *pgconn.PgError
	if !errors.As(err, &refused) {
		return false
	}
	return !errors.As(err, &answered) || strings.HasPrefix(answered.Code, "57P") || answered.Code == tooManyConnections
}
