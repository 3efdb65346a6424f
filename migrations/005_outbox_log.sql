{{if .outbox -}}
-- The outbox becomes an append-only log. New messages go to one of three leaves; the relay remembers how far it has
-- published, and empties a leaf by TRUNCATE once all of it is. Nobody updates or deletes a message, so a transaction that
-- stays open somewhere neither bloats the outbox nor slows it down.

-- Its last value, modulo 3, is the leaf that messages are written to. The relay takes the next value to change leaves,
-- which needs no lock. A writer that still sees the old one is right as well.
CREATE SEQUENCE {{.schema}}.outbox_leaf MINVALUE 0 START 0;
SELECT nextval('{{.schema}}.outbox_leaf');

ALTER TABLE {{.schema}}.outbox RENAME TO outbox_before;
ALTER SEQUENCE {{.schema}}.outbox_id_seq RENAME TO outbox_before_id_seq;

-- Per ordering key the order of id is that of commit, because the writers of a key serialise before they insert.
CREATE TABLE {{.schema}}.outbox (
    id             bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    message_id     uuid        NOT NULL,
    topic          text        NOT NULL,
    type           text        NOT NULL,
    scope          text        NOT NULL,
    key            text        NOT NULL,
    step           text        NOT NULL,
    n              text        NOT NULL,
    ordering_key   text        NOT NULL,
    correlation_id text        NOT NULL,
    causation_id   text        NOT NULL,
    content_type   text        NOT NULL,
    headers        json, -- json, not jsonb: it is only ever read whole
    payload        bytea       NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid            xid8        NOT NULL DEFAULT pg_current_xact_id(), -- of the transaction, also within a savepoint
    leaf           smallint    DEFAULT pg_sequence_last_value('{{.schema}}.outbox_leaf'::regclass) % 3
) PARTITION BY LIST (leaf);

-- Nothing in them dies but what rolls back, and TRUNCATE removes that too: a vacuum after inserts would only get in its way.
CREATE TABLE {{.schema}}.outbox_0 PARTITION OF {{.schema}}.outbox FOR VALUES IN (0) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE {{.schema}}.outbox_1 PARTITION OF {{.schema}}.outbox FOR VALUES IN (1) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE {{.schema}}.outbox_2 PARTITION OF {{.schema}}.outbox FOR VALUES IN (2) WITH (autovacuum_vacuum_insert_threshold = -1);
-- The catch-all: a message is stored whatever the leaf column says. A role without USAGE on the sequence
-- stores nothing on PostgreSQL 15, which refuses to read it; a server that reads null instead sends its messages here.
CREATE TABLE {{.schema}}.outbox_other PARTITION OF {{.schema}}.outbox DEFAULT WITH (autovacuum_vacuum_insert_threshold = -1);

CREATE INDEX outbox_xid_id ON {{.schema}}.outbox (xid, id); -- what became visible since a snapshot
CREATE INDEX outbox_id ON {{.schema}}.outbox (id);

INSERT INTO {{.schema}}.outbox (id, message_id, topic, type, scope, key, step, n, ordering_key,
    correlation_id, causation_id, content_type, headers, payload, created_at) OVERRIDING SYSTEM VALUE
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
    correlation_id, causation_id, content_type, headers, payload, created_at
FROM {{.schema}}.outbox_before ORDER BY id;
SELECT setval('{{.schema}}.outbox_id_seq', nextval('{{.schema}}.outbox_before_id_seq'));
DROP TABLE {{.schema}}.outbox_before;

-- Who publishes. One row, always. epoch rises with every change of hands: what an overtaken relay still writes bears an older
-- one. log says what the rows of outbox mean: 'table': not published yet; 'append': published up to the newest outbox_cursor.
CREATE TABLE {{.schema}}.outbox_relay (
    one               boolean     PRIMARY KEY DEFAULT true CHECK (one),
    epoch             bigint      NOT NULL DEFAULT 0,
    holder            text        NOT NULL DEFAULT '',
    lease_until       timestamptz NOT NULL DEFAULT 'epoch',
    log               text        NOT NULL DEFAULT 'table' CHECK (log IN ('append', 'table')),
    system_identifier text        NOT NULL DEFAULT '' -- of the cluster that the cursor's transaction ids are from
);
INSERT INTO {{.schema}}.outbox_relay (system_identifier) SELECT system_identifier::text FROM pg_control_system();

-- The epoch of the active relay once more, in a table that the server comes back from a crash without: it may then give ids of
-- transactions out again that a relay has seen end, and the relay must start anew from the cursor that reached the disk.
CREATE UNLOGGED TABLE {{.schema}}.outbox_tenure (epoch bigint NOT NULL);

-- How far the log is published; the newest row counts, by (epoch, seq). Everything visible in from_snapshot is dealt with, and
-- of what is visible in to_snapshot the ids up to last_id. Two tables that take turns: rows are only added, and the full
-- table is truncated, for an updated row would grow a chain of versions as long as some old transaction might see them.
CREATE TABLE {{.schema}}.outbox_cursor_0 (
    epoch         bigint      NOT NULL,
    seq           bigint      NOT NULL,
    from_snapshot text        NOT NULL,
    to_snapshot   text,
    last_id       bigint      NOT NULL,
    written_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (epoch, seq)
);
CREATE TABLE {{.schema}}.outbox_cursor_1 (LIKE {{.schema}}.outbox_cursor_0 INCLUDING ALL);

-- waiting: behind an earlier message of its ordering key that is refused; due_at is infinity until it is the first.
ALTER TABLE {{.schema}}.outbox_held
    DROP CONSTRAINT outbox_held_state_check,
    DROP CONSTRAINT outbox_held_check,
    ADD CONSTRAINT outbox_held_state_check CHECK (state IN ('delayed', 'waiting', 'refused', 'dead')),
    ADD CONSTRAINT outbox_held_check CHECK (CASE state WHEN 'delayed' THEN attempts = 0 WHEN 'waiting' THEN true ELSE attempts > 0 END);

DROP INDEX {{.schema}}.outbox_held_ordering_key;
CREATE INDEX outbox_held_ordering_key ON {{.schema}}.outbox_held (ordering_key, id) WHERE state IN ('refused', 'waiting');
CREATE INDEX outbox_held_dead ON {{.schema}}.outbox_held (refused_at) WHERE state = 'dead';
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .outbox -}}
UPDATE {{.schema}}.outbox_held SET state = CASE WHEN attempts > 0 THEN 'refused' ELSE 'delayed' END, due_at = clock_timestamp() WHERE state = 'waiting';
DROP INDEX {{.schema}}.outbox_held_dead;
DROP INDEX {{.schema}}.outbox_held_ordering_key;
CREATE INDEX outbox_held_ordering_key ON {{.schema}}.outbox_held (ordering_key) WHERE state = 'refused';
ALTER TABLE {{.schema}}.outbox_held
    DROP CONSTRAINT outbox_held_state_check,
    DROP CONSTRAINT outbox_held_check,
    ADD CONSTRAINT outbox_held_state_check CHECK (state IN ('delayed', 'refused', 'dead')),
    ADD CONSTRAINT outbox_held_check CHECK ((state = 'delayed') = (attempts = 0));

-- What is published must not be published again.
DELETE FROM {{.schema}}.outbox o
USING (SELECT c.from_snapshot::pg_snapshot, c.to_snapshot::pg_snapshot, c.last_id
    FROM (TABLE {{.schema}}.outbox_cursor_0 UNION ALL TABLE {{.schema}}.outbox_cursor_1) c, {{.schema}}.outbox_relay r
    WHERE r.log = 'append' ORDER BY c.epoch DESC, c.seq DESC LIMIT 1) c
WHERE pg_visible_in_snapshot(o.xid, c.from_snapshot) OR pg_visible_in_snapshot(o.xid, c.to_snapshot) AND o.id <= c.last_id;

ALTER TABLE {{.schema}}.outbox RENAME TO outbox_log;
ALTER SEQUENCE {{.schema}}.outbox_id_seq RENAME TO outbox_log_id_seq;
CREATE TABLE {{.schema}}.outbox (
    id             bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    message_id     uuid        NOT NULL,
    topic          text        NOT NULL,
    type           text        NOT NULL,
    scope          text        NOT NULL,
    key            text        NOT NULL,
    step           text        NOT NULL,
    n              text        NOT NULL,
    ordering_key   text        NOT NULL,
    correlation_id text        NOT NULL,
    causation_id   text        NOT NULL,
    content_type   text        NOT NULL,
    headers        json,
    payload        bytea       NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO {{.schema}}.outbox OVERRIDING SYSTEM VALUE
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
    correlation_id, causation_id, content_type, headers, payload, created_at
FROM {{.schema}}.outbox_log ORDER BY id;
SELECT setval('{{.schema}}.outbox_id_seq', nextval('{{.schema}}.outbox_log_id_seq'));
DROP TABLE {{.schema}}.outbox_log;
DROP TABLE {{.schema}}.outbox_cursor_1;
DROP TABLE {{.schema}}.outbox_cursor_0;
DROP TABLE {{.schema}}.outbox_tenure;
DROP TABLE {{.schema}}.outbox_relay;
DROP SEQUENCE {{.schema}}.outbox_leaf;
{{- else}}SELECT;{{end}}
