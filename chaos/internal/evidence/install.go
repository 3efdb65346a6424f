package evidence

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sqlCreateChaos creates the tables of the evidence. change has no key and no index, so that its writers never
// wait for each other. It is logged, so that a crash of the server keeps it. Autovacuum is off because the
// table has no dead rows.
//
// The sequence has no cache. With one, a session could give a later change of a row a smaller number than
// another session's earlier change.
//
// delayed keeps copies of delayed messages as they were written. The relay moves a due message into the log,
// and without the copy a lost one would go unnoticed.
const sqlCreateChaos = `
CREATE SCHEMA chaos;
CREATE SEQUENCE chaos.seq CACHE 1;
CREATE TABLE chaos.change (
	seq   bigint      NOT NULL DEFAULT nextval('chaos.seq'),
	at    timestamptz NOT NULL DEFAULT clock_timestamp(),
	tx    xid8        NOT NULL DEFAULT pg_current_xact_id(),
	tbl   text        NOT NULL,
	op    text        NOT NULL,
	saga  text        NOT NULL,
	key   text        NOT NULL,
	state text        NOT NULL,
	what  text        NOT NULL
) WITH (autovacuum_enabled = off);
CREATE TABLE chaos.delayed (
	schema text NOT NULL,
	LIKE order_service.outbox_held INCLUDING DEFAULTS,
	xid    xid8 NOT NULL DEFAULT pg_current_xact_id(),
	PRIMARY KEY (schema, id)
);
GRANT USAGE ON SCHEMA chaos TO PUBLIC;
GRANT INSERT ON chaos.change, chaos.delayed TO PUBLIC;
GRANT USAGE ON SEQUENCE chaos.seq TO PUBLIC`

// sqlLimitLocks guards against a mistake: no service may be running while triggers are installed.
const sqlLimitLocks = `SET LOCAL lock_timeout = '10s'`

// sqlWatch makes each statement on a table record its rows. It records inserts and updates of an ON CONFLICT
// statement separately. An UPDATE that leaves a row unchanged is a change as well. A statement that writes no
// row records none.
const sqlWatch = `
CREATE FUNCTION chaos.{name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO chaos.change (tbl, op, saga, key, state, what)
	SELECT '{schema}.{table}', TG_OP, {saga}, {key}, {state}, {what} FROM moved;
	RETURN NULL;
END $$;
CREATE TRIGGER chaos_insert AFTER INSERT ON {schema}.{table} REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION chaos.{name}();
CREATE TRIGGER chaos_update AFTER UPDATE ON {schema}.{table} REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION chaos.{name}();
CREATE TRIGGER chaos_delete AFTER DELETE ON {schema}.{table} REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION chaos.{name}()`

// sqlKeepDelayed copies delayed messages. Refused messages, which the relay copies from the log, are not
// copied: they stay in the log as well.
const sqlKeepDelayed = `
CREATE FUNCTION chaos.delayed_{schema}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO chaos.delayed ({columns}, schema)
	SELECT {columns}, '{schema}' FROM moved WHERE state = 'delayed'
	ON CONFLICT DO NOTHING;
	RETURN NULL;
END $$;
CREATE TRIGGER chaos_delayed AFTER INSERT ON {schema}.outbox_held REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION chaos.delayed_{schema}()`

const heldColumns = messageColumns + ", state, due_at, attempts, reason, refused_at"

// InstallTriggers makes the database record evidence. From now on each statement on the services' tables
// records a Change in its own transaction, and copies of delayed messages are kept. The services must have
// migrated their schemas. It may be called once for a database; after an error nothing is installed.
func InstallTriggers(ctx context.Context, db *pgxpool.Pool) error {
	statements := []string{sqlLimitLocks, sqlCreateChaos}
	for _, t := range watchedTables() {
		statements = append(statements, strings.NewReplacer(
			"{name}", t.schema+"_"+t.name, "{schema}", t.schema, "{table}", t.name,
			"{saga}", t.saga, "{key}", t.key, "{state}", t.state, "{what}", t.what,
		).Replace(sqlWatch))
	}
	for _, name := range speaking() {
		statements = append(statements, strings.NewReplacer("{schema}", name, "{columns}", heldColumns).Replace(sqlKeepDelayed))
	}
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, strings.Join(statements, ";\n"))
		return err
	})
	if err != nil {
		return fmt.Errorf("evidence: install: %w", err)
	}
	return nil
}
