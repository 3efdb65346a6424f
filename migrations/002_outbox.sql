{{if .outbox -}}
-- The outbox is an append-only log. New messages go to one of three partitions; the relay remembers how far it has
-- published, and empties a partition by TRUNCATE once all of it is published. No message is updated or deleted, so a
-- transaction that stays open somewhere neither bloats the outbox nor slows it down.

-- Its last value, modulo 3, is the leaf that messages are written to. The relay takes the next value to change leaves,
-- which needs no lock. A writer that still sees the old one is right as well.
CREATE SEQUENCE {{.schema}}.outbox_leaf MINVALUE 0 START 0;
SELECT nextval('{{.schema}}.outbox_leaf');

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

-- Who publishes. One row, always. epoch rises with every change of hands: what an overtaken relay still writes bears an older
-- one.
CREATE TABLE {{.schema}}.outbox_relay (
    one               boolean     PRIMARY KEY DEFAULT true CHECK (one),
    epoch             bigint      NOT NULL DEFAULT 0,
    holder            text        NOT NULL DEFAULT '',
    lease_until       timestamptz NOT NULL DEFAULT 'epoch',
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

-- Messages that the relay does not publish now.
--   delayed  waits until due_at
--   refused  backs off until due_at; later messages of its ordering key wait behind it
--   waiting  stands behind an earlier message of its ordering key that is refused; due_at is infinity until it is the first
--   dead     has used up its attempts and waits for a person
CREATE TABLE {{.schema}}.outbox_held (
    id             bigint      NOT NULL,
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
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    state          text        NOT NULL CHECK (state IN ('delayed', 'waiting', 'refused', 'dead')),
    due_at         timestamptz NOT NULL,
    attempts       integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    reason         text        NOT NULL DEFAULT '',
    refused_at     timestamptz,
    PRIMARY KEY (id),
    CONSTRAINT outbox_held_check CHECK (CASE state WHEN 'delayed' THEN attempts = 0 WHEN 'waiting' THEN true ELSE attempts > 0 END),
    CONSTRAINT outbox_held_check1 CHECK ((attempts > 0) = (refused_at IS NOT NULL))
);

CREATE INDEX outbox_held_ordering_key ON {{.schema}}.outbox_held (ordering_key, id) WHERE state IN ('refused', 'waiting');
CREATE INDEX outbox_held_dead ON {{.schema}}.outbox_held (refused_at) WHERE state = 'dead';

-- Messages that are tried again, topic by topic: the relay finds what is due without a walk past messages of topics whose
-- queues take none. A message that waits behind another one is due at infinity, and not in it.
CREATE INDEX outbox_held_topic ON {{.schema}}.outbox_held (topic, state, due_at, id)
    WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity';

-- Delayed messages have an index without the others: in a common one the planner walks past all messages of one topic to
-- find a message of another.
CREATE INDEX outbox_held_delayed ON {{.schema}}.outbox_held (due_at, id) WHERE state = 'delayed';
{{- else}}SELECT;{{end}}

---- create above / drop below ----

{{if .outbox -}}
DROP TABLE {{.schema}}.outbox_held;
DROP TABLE {{.schema}}.outbox_cursor_1;
DROP TABLE {{.schema}}.outbox_cursor_0;
DROP TABLE {{.schema}}.outbox_tenure;
DROP TABLE {{.schema}}.outbox_relay;
DROP TABLE {{.schema}}.outbox;
DROP SEQUENCE {{.schema}}.outbox_leaf;
{{- else}}SELECT;{{end}}
