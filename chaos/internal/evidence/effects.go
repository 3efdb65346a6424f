package evidence

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sqlHashTable does not depend on the order of the rows, and needs no memory for them.
const sqlHashTable = `SELECT count(*) || ':' || coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text FROM {schema}.{table} t`

// sqlHashOutbox stands for the messages of an outbox: whoever writes one takes an id. What
// the log holds of them is not asked, since the relay empties it.
const sqlHashOutbox = `SELECT last_value::text FROM {schema}.outbox_id_seq`

// effective are the tables, beside the business tables, in which a message leaves something.
var effective = []string{"inbox", "parked", "idempotency_key", "saga_journal", "stock", "reference"}

// DigestEffects returns one fingerprint of all that messages have done, as a line for each table: all rows of the
// business tables, the ledger, the stocks, inboxes with attempts, digests and times, parked messages and dead letters, the
// records of idempotency keys, how many messages the outboxes have been given, and how many rows any
// statement has written to one of those, even if it wrote what was there. They are of one
// snapshot.
//
// Left out is what changes by itself: how far relays have published, who leads, leases
// of theirs, and what the log still holds.
func DigestEffects(ctx context.Context, db *pgxpool.Pool) (string, error) {
	var lines strings.Builder
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		note := func(name, statement string) error {
			var line string
			if err := tx.QueryRow(ctx, statement).Scan(&line); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			lines.WriteString(name + " " + line + "\n")
			return nil
		}
		for _, t := range effectTables() {
			var exists bool
			if err := tx.QueryRow(ctx, sqlTableExists, t.schema+"."+t.name).Scan(&exists); err != nil {
				return err
			}
			if !exists {
				continue
			}
			statement := strings.NewReplacer("{schema}", t.schema, "{table}", t.name).Replace(sqlHashTable)
			if err := note(t.schema+"."+t.name, statement); err != nil {
				return err
			}
		}
		for _, name := range speaking() {
			if err := note(name+".outbox", bindSchema(name, sqlHashOutbox)); err != nil {
				return err
			}
		}
		return note("changes", "SELECT count(*)::text FROM chaos.change")
	})
	if err != nil {
		return "", fmt.Errorf("evidence: effects: %w", err)
	}
	return lines.String(), nil
}

func effectTables() (all []table) {
	for _, t := range business {
		all = append(all, table{schema: t.schema, name: t.name})
	}
	for _, s := range schemas {
		for _, name := range effective {
			all = append(all, table{schema: s.name, name: name})
		}
	}
	return all
}
