package lazytx

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// commitAlone sends COMMIT behind last, as pgx's own Commit does, which misjudges what
// becomes of it. That is wrong, and in no binary but one that is built with a bug of
// package planted.
func (t *Tx) commitAlone(ctx context.Context, last *pgx.Batch) error {
	if err := t.conn.SendBatch(ctx, last).Close(); err != nil {
		return err
	}
	return t.real.Commit(ctx)
}
