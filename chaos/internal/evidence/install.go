package evidence

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sqlCreateChaos makes the tables of the witness. change has no key and no index: who writes to
// it waits for nobody. It is logged, since a crash of the server must not
// take it; vacuum has nothing to do in it but get in the way.
//
// The sequence has no cache, or one session could give a later change of a row a smaller
// number than another session's earlier one.
//
// delayed keeps messages that are written to be published later, as they were written: the
// relay moves them into the log when they are due, and one that it had lost nobody would miss.
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

// sqlLimitLocks is for a mistake: triggers are installed while nobody is at work.
const sqlLimitLocks = `SET LOCAL lock_timeout = '10s'`

// sqlWatch lets each statement on a table write what it has written: what it has inserted
// where it says ON CONFLICT, and what it has updated, apart. An UPDATE that leaves a row as it was is
// a change as well. A statement that writes nothing says nothing.
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

// sqlKeepDelayed copies the messages that are due later. Refused ones, which the relay
// copies from the log, stay there as well.
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

// InstallTriggers lets the database bear witness: from now on each statement on the services' tables
// leaves a Change in its own transaction, and messages that are to be published later are kept. The
// services must have migrated their schemas. It may be called once for a database; after an
// error nothing is installed.
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
