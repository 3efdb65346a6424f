package outbox

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// However pgx has been told to send statements, as behind a pooler, few messages, many and
// delayed ones are stored, under the ids that they have.
func TestMessagesAreStoredInEachExecMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			pool, err := pgxpool.NewWithConfig(t.Context(), pgtest.ModeConfig(t, mode))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			const id = "01890a5d-ac96-774b-bcce-b302099a8057"
			many := make([]Message, maxValues+1)
			for i := range many {
				many[i] = msg("many", "x")
			}
			many[0].ID, many[1].Headers = id, map[string]string{"x-own": "ü"}
			for name, msgs := range map[string][]Message{
				"few": {msg("few", "x")}, "many": many, "delayed": {{Topic: "t", Scope: "tenant", Key: "late", Step: "step", Delay: time.Hour}},
			} {
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return f.writer.Write(t.Context(), tx, msgs...) })
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			var stored, named, delayed int
			err = f.pool.QueryRow(t.Context(), "SELECT count(*), count(*) FILTER (WHERE message_id = $1::text::uuid), (SELECT count(*) FROM "+f.schema+".outbox_held) FROM "+f.schema+".outbox", id).
				Scan(&stored, &named, &delayed)
			if err != nil || stored != maxValues+2 || named != 1 || delayed != 1 {
				t.Errorf("%d messages are stored, %d with the id given, %d delayed, %v; want %d, 1, 1", stored, named, delayed, err, maxValues+2)
			}
		})
	}
}
