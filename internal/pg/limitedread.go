package pg

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// grace is how much later than the client the server cancels the first statement. So a caller gets the error of its context.
const grace = time.Second

// LimitedReadStatement returns a statement that begins a read-only transaction. Its statements take one processor: beside a service,
// starting parallel workers takes longer than they save. For the same reason nothing is compiled (JIT). They are
// planned anew, as with [PlanAnew]. If row-level security would hide rows, the statements fail.
func LimitedReadStatement(isolation pgx.TxIsoLevel) string {
	return fmt.Sprintf("BEGIN ISOLATION LEVEL %s READ ONLY; SET LOCAL jit = off; SET LOCAL max_parallel_workers_per_gather = 0; "+SetPlanAnew+"; "+ShowAll, isolation)
}

// ReadByIndex makes the statements of a transaction read rows by an index, in its order, whatever the planner believes about
// the table: only then does a limit bound the rows that are read. The settings end with the transaction.
const ReadByIndex = `
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)`

// BeginLimitedRead returns the options of such a transaction. If ctx has a deadline, the server cancels each statement that takes a
// second longer than what was left when the transaction began. Without that, a statement may run on when its client dies
// or cannot reach the server any more. An empty isolation means READ COMMITTED.
func BeginLimitedRead(ctx context.Context, isolation pgx.TxIsoLevel) pgx.TxOptions {
	begin := LimitedReadStatement(cmp.Or(isolation, pgx.ReadCommitted))
	if deadline, limited := ctx.Deadline(); limited {
		begin += fmt.Sprintf("; SET LOCAL statement_timeout = %d", (max(0, time.Until(deadline)) + grace).Milliseconds())
	}
	return pgx.TxOptions{BeginQuery: begin}
}
