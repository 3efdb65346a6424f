package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// shortColumn returns record.DigestOf as an SQL expression.
func shortColumn(column string) string {
	return "encode(substring(sha256(" + column + ") FROM 1 FOR 16), 'hex')"
}

// sqlDumpChanges has the fields of record.Change, in their order.
const sqlDumpChanges = `
SELECT row_to_json(c)::text
FROM (SELECT seq, at, tx::text::numeric AS tx, tbl AS "table", op, saga, key, state, what FROM chaos.change ORDER BY seq) c`

// sqlDumpOutbox has the fields of record.Message, in their order. It returns the messages of the log and the
// delayed ones. It adds held messages that are in neither, because the relay has emptied their leaf. A delayed
// message that was moved into the log appears as it was first written.
const sqlDumpOutbox = `
WITH message AS (
	SELECT DISTINCT ON (message_id) * FROM (
		SELECT {logged}, xid, false AS delayed FROM {schema}.outbox m
		UNION ALL
		SELECT {columns}, xid, true FROM chaos.delayed WHERE schema = '{schema}') written
	ORDER BY message_id, id
), known AS (
	SELECT * FROM message
	UNION ALL
	SELECT {columns}, NULL::xid8, h.state = 'delayed' FROM {schema}.outbox_held h
	WHERE NOT EXISTS (SELECT FROM message WHERE message.message_id = h.message_id)
)
SELECT row_to_json(m)::text
FROM (
	SELECT '{schema}' AS schema, k.id, k.message_id, k.topic, k.scope, k.key, k.step, k.n, k.ordering_key, coalesce(k.xid::text::numeric, 0) AS tx, k.created_at AS at,
		k.type, {digest} AS payload, k.delayed, coalesce(h.state, '') AS held
	FROM known k LEFT JOIN {schema}.outbox_held h ON h.message_id = k.message_id
	ORDER BY k.id) m`

const sqlDumpTable = `SELECT row_to_json(t)::text FROM (SELECT {columns} FROM {schema}.{table}) t`

// sqlTableExists also returns false if the schema does not exist.
const sqlTableExists = `SELECT to_regclass($1) IS NOT NULL`

// dumped are the columns of tables that are not dumped unchanged: digests replace payloads and responses, and
// text replaces a message's bytes.
var dumped = map[string]string{
	"inbox": "scope, key, step, n, state, attempts, undo_attempts, encode(substring(digest FROM 1 FOR 16), 'hex') AS digest," +
		" encode(substring(undo_digest FROM 1 FOR 16), 'hex') AS undo_digest, created_at, updated_at",
	"parked": "id, state, kind, scope, key, step, n, topic, encode(message_id, 'escape') AS message_id," +
		" coalesce((SELECT json_object_agg(encode(name, 'escape'), encode(value, 'escape')) FROM unnest(header_names, header_values) h (name, value)), '{}') AS headers, " +
		shortColumn("payload") + " AS payload, octet_length(payload) AS size, reason, error, stack, attempts, due_at, first_at, last_at, in_doubt, round, earlier_failures",
	"outbox_held": "id, message_id, topic, type, scope, key, step, n, ordering_key, " + shortColumn("payload") + " AS payload, created_at, state, due_at, attempts, reason, refused_at",
	"idempotency_key": "namespace, scope, key, state, encode(substring(fp FROM 1 FOR 16), 'hex') AS fp, attempt, lease_until, resp_status, " +
		shortColumn("resp_header || resp_body") + " AS response, created_at, completed_at, expires_at",
}

// kept are the dumped tables of each schema, besides the business tables.
var kept = []string{"inbox", "parked", "outbox_held", "idempotency_key", "saga_journal", "stock"}

// dumpedTables returns all tables to dump, if they exist.
func dumpedTables() (all []table) {
	for _, t := range business {
		all = append(all, table{schema: t.schema, name: t.name})
	}
	for _, s := range schemas {
		for _, name := range kept {
			all = append(all, table{schema: s.name, name: name})
		}
	}
	return all
}

// DumpTables writes changes, messages and tables of one snapshot to the run's directory. It reads row by row,
// so its memory does not grow with them. After an error the files are incomplete.
func DumpTables(ctx context.Context, db *pgxpool.Pool, dir string) error {
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL work_mem = '64MB'"); err != nil {
			return err
		}
		if err := dumpTable(ctx, tx, dir, record.ChangesFile, sqlDumpChanges); err != nil {
			return err
		}
		var messages []string
		for _, name := range speaking() {
			messages = append(messages, strings.NewReplacer("{schema}", name, "{columns}", messageColumns, "{logged}", loggedColumns, "{digest}", shortColumn("k.payload")).Replace(sqlDumpOutbox))
		}
		if err := dumpTable(ctx, tx, dir, record.OutboxFile, messages...); err != nil {
			return err
		}
		return dumpTables(ctx, tx, dir)
	})
	if err != nil {
		return fmt.Errorf("evidence: dump: %w", err)
	}
	return nil
}

func dumpTables(ctx context.Context, tx pgx.Tx, dir string) error {
	for _, t := range dumpedTables() {
		name := t.schema + "." + t.name
		var exists bool
		if err := tx.QueryRow(ctx, sqlTableExists, name).Scan(&exists); err != nil {
			return err
		}
		if !exists {
			continue
		}
		columns := "*"
		if c, ok := dumped[t.name]; ok {
			columns = c
		}
		statement := strings.NewReplacer("{columns}", columns, "{schema}", t.schema, "{table}", t.name).Replace(sqlDumpTable)
		if err := dumpTable(ctx, tx, dir, record.TablesDir+"/"+name+".jsonl.gz", statement); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// dumpTable writes the rows of the statements, one JSON value each, to one file.
func dumpTable(ctx context.Context, tx pgx.Tx, dir, name string, statements ...string) error {
	file, err := record.CreateFile[json.RawMessage](dir, name)
	if err != nil {
		return err
	}
	for _, statement := range statements {
		rows, _ := tx.Query(ctx, statement)
		for rows.Next() {
			file.AddRecord(rows.RawValues()[0])
		}
		if err := rows.Err(); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return file.Close()
}
