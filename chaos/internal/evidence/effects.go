package evidence

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sqlHashTable hashes a table, independent of the order of its rows and without memory for them.
const sqlHashTable = `SELECT count(*) || ':' || coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text FROM {schema}.{table} t`

// sqlHashOutbox stands for the messages of an outbox: each insert takes an id. The log itself is not read,
// since the relay empties it.
const sqlHashOutbox = `SELECT last_value::text FROM {schema}.outbox_id_seq`

// effective are the tables, besides the business tables, in which a message leaves an effect.
var effective = []string{"inbox", "parked", "idempotency_key", "saga_journal", "stock", "reference"}

// DigestEffects returns a fingerprint of all effects of messages, one line for each table, from one snapshot.
// It covers all rows of the business tables, the ledger and the stocks. It covers inboxes with attempts,
// digests and times, parked messages and dead letters, and the records of idempotency keys. It counts the
// messages written to the outboxes. It counts the rows that statements have written to these tables, even if a
// write changed no value.
//
// The fingerprint leaves out state that changes without messages: the relays' progress, leadership and leases,
// and the rest of the log.
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
