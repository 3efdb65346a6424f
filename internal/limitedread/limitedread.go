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
// isolation means READ COMMITTED. Nothing is compiled (JIT): that takes longer than these statements.
func Begin(ctx context.Context, isolation pgx.TxIsoLevel) pgx.TxOptions {
	isolation = cmp.Or(isolation, pgx.ReadCommitted)
	deadline, limited := ctx.Deadline()
	begin := fmt.Sprintf("BEGIN ISOLATION LEVEL %s READ ONLY; SET LOCAL jit = off", isolation)
	if limited {
		begin += fmt.Sprintf("; SET LOCAL statement_timeout = %d", (max(0, time.Until(deadline)) + grace).Milliseconds())
	}
	return pgx.TxOptions{BeginQuery: begin}
}
