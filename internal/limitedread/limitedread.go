// Package limitedread begins transactions that read, with a limit that the server keeps.
package limitedread

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// grace is how much later than the client the server cancels a statement. So a caller gets the error of its context.
const grace = time.Second

// Begin returns the options of a read-only transaction. If ctx has a deadline, the server cancels a statement that is still
// running a second after it. Without that, a statement may run on when its client dies or cannot reach the server any more. An empty
// isolation means READ COMMITTED.
func Begin(ctx context.Context, isolation pgx.TxIsoLevel) pgx.TxOptions {
	isolation = cmp.Or(isolation, pgx.ReadCommitted)
	deadline, limited := ctx.Deadline()
	if !limited {
		return pgx.TxOptions{IsoLevel: isolation, AccessMode: pgx.ReadOnly}
	}
	return pgx.TxOptions{BeginQuery: fmt.Sprintf("BEGIN ISOLATION LEVEL %s READ ONLY; SET LOCAL statement_timeout = %d",
		isolation, (max(0, time.Until(deadline)) + grace).Milliseconds())}
}
